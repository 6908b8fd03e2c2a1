"""What waits long for a Concat: room for all of it is not held until then where memory is tight."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.program.regions.images.joining import FAR
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered

WEIGHTS = {"w": np.random.default_rng(3).standard_normal((16, 16, 3, 3)).astype(np.float32) / 8}


def _skip(between: int, *, tight: bool) -> Lowered:
    """A value that the next one reads, and a Concat so many convolutions later."""
    names = ["a", *(f"b{number}" for number in range(between))]
    body = [f"{after} = Conv<pads = [1, 1, 1, 1]>({one}, w)" for one, after in zip(["x", *names], names, strict=False)]
    text = f"g (float[1,16,6,6] x) => (float[] y) {{ {' '.join(body)} c = Concat<axis = 1>(a, {names[-1]})"
    model = support.model(f"{text} y = MaxPool<kernel_shape = [2, 2]>(c) }}", 18, **WEIGHTS)
    return lower(ir.from_proto(model), host(), tight=tight)


def test_what_is_concatenated_again_lies_in_the_largest_result() -> None:
    """The first map of a DenseNet waits for all of them."""
    names = ["a", *(f"b{number}" for number in range(FAR))]
    layers = [
        f"c{number} = Concat<axis = 1>({', '.join(names[: number + 1])})"
        f" {after} = Conv<pads = [1, 1, 1, 1]>(c{number}, w{number})"
        for number, after in enumerate(names[1:])
    ]
    weights = {f"w{number}": np.ones((16, 16 * number + 16, 3, 3), np.float32) / 999 for number in range(FAR)}
    body = f"a = Conv<pads = [1, 1, 1, 1]>(x, w) {' '.join(layers)} c = Concat<axis = 1>({', '.join(names)})"
    text = f"g (float[1,16,6,6] x) => (float[] y) {{ {body} y = MaxPool<kernel_shape = [2, 2]>(c) }}"
    model = ir.from_proto(support.model(text, 18, **WEIGHTS, **weights))
    plain, tight = (lower(model, host(), tight=tight) for tight in (False, True))
    assert [region.places for region in tight.regions] == [region.places for region in plain.regions]


def _first_use(lowered: Lowered) -> int:
    """The region that first touches what is joined."""
    return next(
        step for step, region in enumerate(lowered.regions)
        if any(place.buffer.purpose == "joined" for place in region.places)
    )  # fmt: skip


@pytest.mark.parametrize(("between", "tight", "at_once"), [(FAR, True, False), (FAR, False, True), (2, True, True)])
def test_a_value_that_waits_long_is_copied(between: int, tight: bool, at_once: bool) -> None:
    lowered = _skip(between, tight=tight)
    assert (_first_use(lowered) == 0) is at_once
    feed = {"x": np.random.default_rng(0).standard_normal((1, 16, 6, 6)).astype(np.float32)}
    np.testing.assert_array_equal(run_lowered(lowered, feed)[0], run_lowered(_skip(between, tight=False), feed)[0])
