"""Programs of random runs between inputs, weights, arena and outputs, against NumPy step by step."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.listing import Argument, Place, Run
from kernels.target import host
from tests.kernels.interface import Library, call
from tests.kernels.listings import difference

SHAPE, ELEMENTS, BYTES = (3, 5), 15, 60
ONCE = difference(host(), SHAPE)
NAMES = [operand.name for operand in ONCE.kernels[0].operands]
WEIGHTS = np.random.default_rng(0).standard_normal((2, ELEMENTS)).astype(np.float32)
# Pieces of the spaces, at multiples of an element's size only; pieces of one argument follow one another.
READ = [Place("input", 60 * part, number) for number in range(2) for part in range(2)]
READ += [Place("weights", 60 * number) for number in range(2)]
WRITTEN = [Place("arena", 4 + 60 * number) for number in range(4)]
WRITTEN += [Place("output", 60 * part, number) for number in range(2) for part in range(2)]
step = st.tuples(
    st.sampled_from(READ + WRITTEN), st.sampled_from(READ + WRITTEN), st.sampled_from(WRITTEN)
).filter(lambda three: three[2] not in three[:2])  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(steps=st.lists(step, max_size=70), seed=st.integers(0, 2**32 - 1))
def test_random_programs(steps: list[tuple[Place, Place, Place]], seed: int) -> None:
    """Twice on one model, with other tensors the second time: nothing of the first call is left in the tables."""
    steps = [(READ[0], READ[1], place) for place in WRITTEN] + steps  # everything is written before it is read
    runs = []
    for left, right, goal in steps:
        places = {"left": left, "right": right, "delta": goal}
        runs.append(Run("subtract", tuple(places[name] for name in NAMES)))
    inputs, outputs = (
        tuple(Argument(f"{letter}{number}", DType.F32, (2, ELEMENTS)) for number in range(2)) for letter in "xy"
    )
    listing = replace(ONCE, inputs=inputs, outputs=outputs, runs=tuple(runs), arena_bytes=244, weights_bytes=120)
    library = Library(listing, WEIGHTS.tobytes())
    model = library.made()
    generator = np.random.default_rng(seed)
    for _ in range(2):
        given_arrays = generator.standard_normal((2, 2, ELEMENTS)).astype(np.float32)
        made = np.full((2, 2, ELEMENTS), np.nan, np.float32)
        call(library, model, {"x1": given_arrays[1], "x0": given_arrays[0]}, y0=made[0], y1=made[1])
        assert np.array_equal(made, _expected(steps, given_arrays))
    library.destroy(ctypes.c_void_p(model.value))


def _expected(steps: list[tuple[Place, Place, Place]], given_arrays: np.ndarray) -> np.ndarray:
    made = np.full((2, 2, ELEMENTS), np.nan, np.float32)
    arena = np.zeros((4, ELEMENTS), np.float32)

    def piece(place: Place) -> np.ndarray:
        part = place.offset // BYTES
        if place.space == "arena":
            return np.asarray(arena[part])
        if place.space == "weights":
            return np.asarray(WEIGHTS[part])
        return np.asarray((given_arrays if place.space == "input" else made)[place.argument, part])

    for left, right, goal in steps:
        piece(goal)[:] = piece(left) - piece(right)
    return made
