"""Steps of recurrent layers one by one: as the kernel of the whole layer has them, between guard pages."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.target import Target
from kernels.templates.recurrent import build as whole
from kernels.templates.recurrent.problem import Cell, Recurrent, candidates
from kernels.templates.recurrent.step import STEP, RecurrentStep, build
from tests.kernels.guard import run_guarded
from tests.kernels.targets import HERE

TOLERANCE = 1e-6  # the same products in the same order, and the same cell; tiles of other sizes may round apart


@st.composite
def layers(draw: st.DrawFn) -> Recurrent:
    """Layers whose steps take one product."""
    cells: tuple[Cell, ...] = ("lstm", "gru", "rnn")
    ways: tuple[tuple[Literal["forward", "reverse"], ...], ...] = (("forward",), ("reverse",), ("forward", "reverse"))
    cell, hidden = draw(st.sampled_from(cells)), draw(st.sampled_from([1, 7, 16, 33, 64, 70]))
    return Recurrent(
        cell, draw(st.integers(1, 4)), draw(st.integers(1, 9)), hidden, draw(st.sampled_from(ways)), cell == "gru",
        False, cell == "lstm" and draw(st.booleans()), draw(st.sampled_from([DType.F32, DType.F16])),
    )  # fmt: skip


@settings(deadline=None, max_examples=15)
@given(layers(), st.integers(0, 3), st.integers(0, 999), st.sampled_from(HERE))
def test_steps_one_by_one_are_the_layer(layer: Recurrent, choice: int, seed: int, target: Target) -> None:
    draw, many = np.random.default_rng(seed), len(layer.directions)
    shape = {
        "gates": (layer.steps, layer.batch, many, layer.gates, layer.hidden), "hidden_bias": (many, layer.hidden),
        "initial_h": (many, layer.batch, layer.hidden), "initial_c": (many, layer.batch, layer.hidden),
        "peepholes": (many, 3, layer.hidden), "r": (many, layer.gates * layer.hidden, layer.hidden),
    }  # fmt: skip
    arrays = {name: (0.5 * draw.standard_normal(dims)).astype(np.float32) for name, dims in shape.items()}
    r = arrays.pop("r").astype(layer.r_dtype.numpy)
    kernel = whole.build(layer, candidates(layer, target)[0], target)
    operands = {one.name: arrays[one.name] for one in kernel.operands if one.role != "output" and one.name != "r"}
    expected = run_guarded(kernel, operands | {"r": _packed(kernel, r)})
    y = expected["y"].reshape(layer.steps, many, layer.batch, layer.hidden)

    step = RecurrentStep.of(layer)
    found = STEP.candidates(step, target)
    one_step = build(step, found[choice % len(found)], target)
    assert one_step.blocks >= layer.hidden // (target.lanes() * 4)
    flat = arrays["gates"].reshape(-1)
    for number, direction in enumerate(layer.directions):
        h: Any = arrays["initial_h"][number]
        c: Any = arrays["initial_c"][number]
        for passed in range(layer.steps):
            at = layer.steps - 1 - passed if direction == "reverse" else passed
            begin = (at * layer.batch * many + number) * layer.gates * layer.hidden
            given_now = {
                "gates": flat[begin : begin + one_step.operand("gates").elements], "h": h, "c": c,
                "r": _packed(one_step, r[number]), "hidden_bias": arrays["hidden_bias"][number],
                "peepholes": arrays["peepholes"][number],
            }  # fmt: skip
            names = [one.name for one in one_step.operands if one.role != "output"]
            got = run_guarded(one_step, {name: given_now[name] for name in names})
            h, c = got["y"], got.get("y_c", c)
            np.testing.assert_allclose(h.reshape(layer.batch, layer.hidden), y[at, number], rtol=0, atol=TOLERANCE)
        if layer.cell == "lstm":
            last = expected["y_c"].reshape(many, -1)[number]
            np.testing.assert_allclose(c.reshape(-1), last, rtol=TOLERANCE, atol=TOLERANCE)


def _packed(kernel: Kernel, r: np.ndarray) -> np.ndarray:
    packing = kernel.operand("r").packing
    assert packing is not None
    packed: np.ndarray = packing.pack(r)
    return packed
