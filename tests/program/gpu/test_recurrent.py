"""Recurrent layers on a GPU: a region for each step, equal to ONNX Runtime's layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.program.gpu.running import compared

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TOLERANCE = 2e-6


def layer(
    cell: str, dims: tuple[int, int, int, int], direction: str, results: tuple[str, ...], *, states: bool = False,
    peepholes: bool = False, lengths: bool = False, **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one layer of [steps, batch, inputs, hidden]."""
    (steps, batch, inputs, hidden), draw = dims, np.random.default_rng(3)
    many, gates = 2 if direction == "bidirectional" else 1, GATES[cell] * hidden
    shapes = {"w": (many, gates, inputs), "r": (many, gates, hidden), "b": (many, 2 * gates)}
    names = ["x", "w", "r", "b", "lengths" if lengths else "", "", "", ""]
    if states:
        shapes |= {"h": (many, batch, hidden), "c": (many, batch, hidden)}
        names[5], names[6] = "h", "c" if cell == "LSTM" else ""
    if peepholes:
        shapes["p"], names[7] = (many, 3 * hidden), "p"
    while not names[-1]:
        names.pop()
    kept = {
        name: (draw.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items() if name in names
    }
    if lengths:
        kept["lengths"] = np.arange(1, batch + 1).astype(np.int32)
    sizes = {"y": (steps, many, batch, hidden), "y_h": (many, batch, hidden), "y_c": (many, batch, hidden)}
    given = [one if one in results else "" for one in sizes][: 3 if cell == "LSTM" else 2]
    node = helper.make_node(cell, names, given, hidden_size=hidden, direction=direction, **attributes)
    graph = helper.make_graph(
        [node], "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, batch, inputs))],
        [helper.make_tensor_value_info(one, TensorProto.FLOAT, sizes[one]) for one in results],
        [numpy_helper.from_array(array, name) for name, array in kept.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def feeds(dims: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal(dims[:3]).astype(np.float32)}


CASES: dict[str, tuple[Any, ...]] = {
    "lstm both ways": ("LSTM", (3, 2, 7, 12), "bidirectional", ("y", "y_h", "y_c"), {}),
    "lstm with peepholes": ("LSTM", (3, 1, 5, 33), "reverse", ("y_c",), {"peepholes": True, "states": True}),
    "gru that resets the product": ("GRU", (3, 3, 5, 10), "bidirectional", ("y", "y_h"), {"linear_before_reset": 1}),
    "gru that resets the state": ("GRU", (3, 10, 5, 9), "forward", ("y_h",), {"states": True}),
    "plain": ("RNN", (2, 2, 5, 40), "reverse", ("y",), {"activations": ["Relu"]}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_a_region_for_each_step(name: str) -> None:
    cell, dims, direction, results, more = CASES[name]
    lowered = compared(layer(cell, dims, direction, results, **more), feeds(dims), TOLERANCE)
    many = 2 if direction == "bidirectional" else 1
    phases = 2 if name == "gru that resets the state" else 1
    regions = [one for one in lowered.regions if "recurrent_step" in one.kernel.name]
    assert len(regions) == dims[0] * many * phases
    assert len({one.kernel.name for one in regions}) == phases, "all steps share kernels"


def test_steps_of_both_directions_wait_only_for_their_own() -> None:
    """The regions of one direction touch no bytes that those of the other one write."""
    cell, dims, direction, results, more = CASES["lstm both ways"]
    lowered = compared(layer(cell, dims, direction, results, **more), feeds(dims), TOLERANCE, ways=(), orders=())
    regions = [one for one in lowered.regions if "recurrent_step" in one.kernel.name]
    writes: list[set[tuple[int, int]]] = []
    reads: list[set[tuple[int, int]]] = []
    for one in regions:
        pairs = list(zip(one.kernel.operands, one.places, strict=True))
        writes.append({(place.buffer.id, place.offset) for operand, place in pairs if operand.role == "output"})
        reads.append({(place.buffer.id, place.offset) for operand, place in pairs if operand.role == "input"})
    half = len(regions) // 2
    for number in range(1, half):
        assert writes[number - 1] & reads[number]
    assert not set.union(*writes[:half]) & set.union(*reads[half:])


def test_rows_of_a_batch_may_have_lengths_of_their_own() -> None:
    """Such a layer stays one region."""
    dims = (3, 2, 4, 6)
    lowered = compared(layer("GRU", dims, "reverse", ("y", "y_h"), lengths=True), feeds(dims), TOLERANCE)
    assert len(lowered.regions) == 2
