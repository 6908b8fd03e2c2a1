"""Gradients of Scan: through its states, its rows, and values of the graph around."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.errors import ModelError
from tests.gradient.differences import STEPS, analytic, numeric

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
net (double[3] start, double[4, 3] rows, double[3, 3] w) => (double loss)
<double[3] weights = {1, -2, 0.5}, double[4, 3] others = {1, 2, 3, -1, 0.5, 2, 1, 1, -2, 0.3, 0.1, 2}>
{
    last, every = Scan <num_scan_inputs = 1, ATTRIBUTES body = step (double[3] state, double[3] row)
        => (double[3] next, double[3] kept) <double[1] half = {0.5}> {
        product = MatMul(state, w)
        sum = Add(product, row)
        next = Tanh(sum)
        scaled = Mul(next, half)
        kept = Mul(scaled, state)
    }> (start, rows)
    a = Mul(last, weights)
    b = Mul(every, others)
    c = ReduceSum <keepdims = 0> (a)
    d = ReduceSum <keepdims = 0> (b)
    loss = Add(c, d)
}
"""
REVERSE = "scan_input_directions = [1], scan_output_directions = [1],"


def _inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = {"start": (3,), "rows": (4, 3), "w": (3, 3)}
    return {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("attributes", ["", REVERSE])
@pytest.mark.parametrize("end", ["Add(c, d)", "Identity(c)", "Identity(d)"])
def test_states_rows_and_captured_values_have_gradients(attributes: str, end: str) -> None:
    text = MODEL.replace("ATTRIBUTES", attributes).replace("Add(c, d)", end)
    model, inputs = onnx.parser.parse_model(text), _inputs()
    found = analytic(model, inputs, ["start", "rows", "w"])
    for name, gradient in found.items():
        tolerance = STEPS[np.dtype(np.float64)][1]
        np.testing.assert_allclose(gradient, numeric(model, inputs, name), rtol=0, atol=tolerance, err_msg=name)


def test_rows_in_both_directions_are_refused() -> None:
    model = onnx.parser.parse_model(MODEL.replace("ATTRIBUTES", "scan_output_directions = [1],"))
    with pytest.raises(ModelError, match="rows that are read or written in both directions"):
        graphopt.gradient(model, loss="loss", with_respect_to=["w"])


def test_bodies_may_hold_graphs() -> None:
    model = onnx.parser.parse_model(MODEL.replace("ATTRIBUTES", ""))
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    body = next(one.g for one in scan.attribute if one.name == "body")
    first, second = (
        onnx.helper.make_graph(
            [onnx.helper.make_node(op_type, ["sum"], [f"chosen{op_type}"])], op_type, [],
            [onnx.helper.make_tensor_value_info(f"chosen{op_type}", onnx.TensorProto.DOUBLE, [3])],
        )
        for op_type in ("Tanh", "Sin")
    )  # fmt: skip
    decided = onnx.helper.make_node("ReduceSum", ["product"], ["total"], keepdims=0)
    asked = onnx.helper.make_node("Less", ["total", "zero"], ["less"])
    body.node[2].CopyFrom(
        onnx.helper.make_node("If", ["less"], ["next"], name="c", then_branch=first, else_branch=second)
    )
    body.node.insert(2, asked)
    body.node.insert(2, decided)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.0), "zero"))
    inputs = _inputs()
    found = analytic(model, inputs, ["start", "rows", "w"])
    for name, gradient in found.items():
        tolerance = STEPS[np.dtype(np.float64)][1]
        np.testing.assert_allclose(gradient, numeric(model, inputs, name), rtol=0, atol=tolerance, err_msg=name)
