"""Steps of recurrent layers on the PTX machine, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.ptx.tasks.recurrent import recurrent_step
from kernels.templates.epilogue import ACCUMULATED
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.recurrent.step import RecurrentStep
from kernels.tensor.expression import Unary
from tests.kernels.ptx.tasks.running import SM_80, SM_90, Array, Case, check

TOLERANCE = 2e-6  # sums of some dozen float32 products, and activations within 3 ULP


def sigmoid(x: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-x))
    return found


@st.composite
def steps(draw: Any) -> tuple[Recurrent, int]:
    cell = draw(st.sampled_from(["lstm", "gru", "rnn"]))
    batch, hidden = draw(st.integers(1, 20)), draw(st.one_of(st.integers(1, 9), st.integers(10, 90)))
    layer = Recurrent(
        cell, 1, batch, hidden, draw(st.sampled_from([("forward",), ("forward", "reverse")])),
        cell == "gru" and draw(st.booleans()), with_peepholes=cell == "lstm" and draw(st.booleans()),
        r_dtype=draw(st.sampled_from([DType.F32, DType.F16])),
    )  # fmt: skip
    return layer, draw(st.integers(0, 1000))


def cases(layer: Recurrent, seed: int, name: str, target: Any) -> list[Case]:
    """The step of a layer, or its two phases, each with drawn operands."""
    draw = np.random.default_rng(seed)
    found = []
    for number, step in enumerate(RecurrentStep.phases(layer)):
        kernel = recurrent_step(step, target, f"{name}_{number}")
        given: dict[str, Array] = {
            one.name: draw.standard_normal(one.elements).astype(np.float32)
            for one in kernel.operands
            if one.role != "output"
        }
        shape = (layer.gates * layer.hidden, layer.hidden)
        given["r"] = (draw.standard_normal(shape) / layer.hidden**0.5).astype(layer.r_dtype.numpy)
        expected = {key: one.astype(np.float32) for key, one in exact(step, given).items()}
        found.append(Case(kernel, given, expected, TOLERANCE))
    return found


def exact(step: RecurrentStep, given: dict[str, Array]) -> dict[str, Array]:
    """By the formulas of ONNX."""
    layer = step.layer
    shape = (layer.batch, layer.hidden)
    rows = np.arange(layer.batch)[:, None] * step.apart + np.arange(layer.gates * layer.hidden)
    x = given["gates"].astype(np.float64)[rows].reshape(layer.batch, layer.gates, layer.hidden)
    r = given["r"].astype(np.float64).reshape(layer.gates, layer.hidden, layer.hidden)
    h = given["h"].astype(np.float64).reshape(shape)
    product = np.einsum("bk,guk->bgu", h, r)
    if layer.cell == "rnn":
        return {"y": np.tanh(x[:, 0] + product[:, 0])}
    if layer.cell == "lstm":
        c = given["c"].reshape(shape)
        p = given["peepholes"].reshape(3, layer.hidden) if layer.with_peepholes else np.zeros((3, layer.hidden))
        sums = x + product
        take, keep = sigmoid(sums[:, 0] + p[0] * c), sigmoid(sums[:, 2] + p[2] * c)
        cell = keep * c + take * np.tanh(sums[:, 3])
        return {"y": sigmoid(sums[:, 1] + p[1] * cell) * np.tanh(cell), "y_c": cell}
    if step.phase == "first":
        return {"update": sigmoid(x[:, 0] + product[:, 0]), "seen": sigmoid(x[:, 1] + product[:, 1]) * h}
    if step.phase == "second":
        update, hidden, h = given["update"].reshape(shape), x[:, 2] + product[:, 2], given["before"].reshape(shape)
    else:
        update, reset = sigmoid(x[:, 0] + product[:, 0]), sigmoid(x[:, 1] + product[:, 1])
        hidden = x[:, 2] + reset * (product[:, 2] + given["hidden_bias"])
    return {"y": (1 - update) * np.tanh(hidden) + update * h}


@settings(deadline=None, max_examples=6)
@given(st.lists(steps(), min_size=4, max_size=4), st.sampled_from([SM_80, SM_90]))
def test_any_cell_batch_and_size(some: list[tuple[Recurrent, int]], target: Any) -> None:
    check(
        [one for number, (layer, seed) in enumerate(some) for one in cases(layer, seed, f"step{number}", target)],
        target,
    )


def test_other_activations() -> None:
    both = Unary("tanh", Unary("sigmoid", ACCUMULATED[()]))
    layer = Recurrent("rnn", 1, 3, 20, activations=(both,))
    (case,) = cases(layer, 0, "step", SM_90)
    want = np.tanh(sigmoid(np.arctanh(case.expected["y"].astype(np.float64)))).astype(np.float32)
    check([Case(case.kernel, case.given, {"y": want}, TOLERANCE)])


def test_rows_of_a_batch_with_lengths_are_at_steps_of_their_own() -> None:
    assert RecurrentStep.phases(Recurrent("gru", 5, 2, 8, with_lengths=True)) == ()


def test_each_element_of_r_is_packed_once() -> None:
    layer = Recurrent("lstm", 1, 1, 64)
    (case,) = cases(layer, 0, "step", SM_90)
    r = case.kernel.operand("r")
    assert r.packing is not None and r.packing.elements == 4 * 64 * 64
    packed = r.packing.pack(np.arange(4 * 64 * 64, dtype=np.float32))
    assert sorted(packed) == list(range(4 * 64 * 64))
