"""Recurrent layers against ONNX Runtime with optimizations off, between guard pages."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from kernels.dtype import DType
from kernels.target import Target, x86_64_v4
from kernels.templates.epilogue import ACCUMULATED
from kernels.templates.recurrent.build import build
from kernels.templates.recurrent.problem import GATES, Cell, InvalidRecurrent, Recurrent, candidates
from kernels.tensor.expression import relu
from tests.kernels.guard import run_guarded
from tests.kernels.targets import HERE

TOLERANCE = 2e-5  # results of size 1 after up to 6 steps; the peer's own activations are good to 1e-6


def _arrays(layer: Recurrent, inputs: int, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    directions, gates, hidden = len(layer.directions), layer.gates, layer.hidden
    shapes = {
        "x": (layer.steps, layer.batch, inputs), "w": (directions, gates * hidden, inputs),
        "r": (directions, gates * hidden, hidden), "b": (directions, 2 * gates * hidden),
        "initial_h": (directions, layer.batch, hidden), "initial_c": (directions, layer.batch, hidden),
        "peepholes": (directions, 3 * hidden),
    }  # fmt: skip
    arrays = {name: (0.5 * generator.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    arrays["lengths"] = generator.integers(1, layer.steps + 1, layer.batch).astype(np.int32)
    return arrays


def _expected(layer: Recurrent, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the operator of ONNX gives."""
    names = ["x", "w", "r", "b", "lengths" if layer.with_lengths else "", "initial_h"]
    attributes = {"hidden_size": layer.hidden}
    outputs = ["y", "y_h"]
    if layer.cell == "lstm":
        names.append("initial_c")
        outputs.append("y_c")
        if layer.with_peepholes:
            names.append("peepholes")
    if layer.cell == "gru":
        attributes["linear_before_reset"] = int(layer.linear_before_reset)
    direction = "bidirectional" if len(layer.directions) == 2 else layer.directions[0]
    node = helper.make_node(layer.cell.upper(), names, outputs, direction=direction, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(arrays[name].dtype), arrays[name].shape)
        for name in names
        if name
    ]
    made = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    proto = helper.make_model(
        helper.make_graph([node], "g", inputs, made), opset_imports=[helper.make_opsetid("", 14)], ir_version=8
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {name: arrays[name] for name in names if name})
    return found


def _check(layer: Recurrent, inputs: int, choice: int, seed: int, target: Target) -> None:
    arrays = _arrays(layer, inputs, seed)
    directions, gates, hidden = len(layer.directions), layer.gates, layer.hidden
    bias = arrays["b"].reshape(directions, 2, gates, hidden).astype(np.float64)
    given_bias = bias[:, 0] + bias[:, 1]
    if layer.cell == "gru" and layer.linear_before_reset:
        given_bias[:, 2] = bias[:, 0, 2]
    w = arrays["w"].reshape(directions, gates, hidden, inputs)
    projected = np.einsum("sbi,dghi->sbdgh", arrays["x"].astype(np.float64), w) + given_bias
    found = candidates(layer, target)
    kernel = build(layer, found[choice % len(found)], target)
    packing = kernel.operand("r").packing
    assert packing is not None
    operands = {
        "gates": projected.astype(np.float32), "r": packing.pack(arrays["r"]),
        "hidden_bias": bias[:, 1, -1].astype(np.float32),
        **{name: arrays[name] for name in ("initial_h", "initial_c", "peepholes", "lengths")},
    }  # fmt: skip
    given = {one.name: operands[one.name] for one in kernel.operands if one.role != "output"}
    got = run_guarded(kernel, given)
    for name, expected in zip(("y", "y_h", "y_c"), _expected(layer, arrays), strict=False):
        np.testing.assert_allclose(got[name].reshape(expected.shape), expected, rtol=TOLERANCE, atol=TOLERANCE)


sizes = {
    "steps": st.integers(1, 6), "batch": st.integers(1, 9), "hidden": st.integers(1, 40), "inputs": st.integers(1, 5),
    "directions": st.sampled_from([("forward",), ("reverse",), ("forward", "reverse")]), "choice": st.integers(0, 3),
    "seed": st.integers(0, 1000), "lengths": st.booleans(), "target": st.sampled_from(HERE),
}  # fmt: skip


@settings(deadline=None, max_examples=15)
@given(peepholes=st.booleans(), **sizes)
def test_lstm(
    peepholes: bool, steps: int, batch: int, hidden: int, inputs: int, directions: tuple, choice: int, seed: int,
    lengths: bool, target: Target,
) -> None:  # fmt: skip
    layer = Recurrent("lstm", steps, batch, hidden, directions, with_lengths=lengths, with_peepholes=peepholes)
    _check(layer, inputs, choice, seed, target)


@settings(deadline=None, max_examples=15)
@given(before=st.booleans(), **sizes)
def test_gru(
    before: bool, steps: int, batch: int, hidden: int, inputs: int, directions: tuple, choice: int, seed: int,
    lengths: bool, target: Target,
) -> None:  # fmt: skip
    layer = Recurrent("gru", steps, batch, hidden, directions, linear_before_reset=before, with_lengths=lengths)
    _check(layer, inputs, choice, seed, target)


@settings(deadline=None, max_examples=10)
@given(**sizes)
def test_plain_recurrent_layer(
    steps: int, batch: int, hidden: int, inputs: int, directions: tuple, choice: int, seed: int, lengths: bool,
    target: Target,
) -> None:  # fmt: skip
    _check(Recurrent("rnn", steps, batch, hidden, directions, with_lengths=lengths), inputs, choice, seed, target)


def test_refusals_say_why() -> None:
    with pytest.raises(InvalidRecurrent, match="only an LSTM has peepholes, not gru"):
        Recurrent("gru", 1, 1, 4, with_peepholes=True)
    with pytest.raises(InvalidRecurrent, match="gru has 2 activations"):
        Recurrent("gru", 1, 1, 4, activations=(relu(ACCUMULATED[()]),))


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("batch", [2, 3, 4])
def test_few_sequences_are_one_tile(cell: Cell, batch: int) -> None:
    """Which reads R once; with as many units as there are registers for."""
    for dtype in (DType.F32, DType.BF16):
        first = candidates(Recurrent(cell, 4, batch, 256, r_dtype=dtype), x86_64_v4())[0]
        assert first.rows == batch and first.vectors >= 1
        assert (batch + 1) * GATES[cell] * first.vectors < x86_64_v4().vector_registers
