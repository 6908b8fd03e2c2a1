"""Gradients through recurrent layers: what their rules read of a node, and what they refuse."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.errors import ModelError
from tests.gradient.differences import STEPS, analytic, numeric

LAST_STATE = """
<ir_version: 8, opset_import: ["": 17]>
net (float[T, N, 2] x, float[1, LIMIT, 2] w, float[1, LIMIT, 2] r) => (float loss)
<int32[2] lengths = {3, 2}, float[1, 2, 2] weights = {1, -2, 0.5, 1.5}>
{
    , h = CELL <hidden_size = 2DIRECTION> (x, w, r, , lengths)
    s = Mul(h, weights)
    loss = ReduceSum <keepdims = 0> (s)
}
"""


def _model(cell: str, gates: int, direction: str = "") -> onnx.ModelProto:
    text = LAST_STATE.replace("CELL", cell).replace("LIMIT", str(2 * gates)).replace("DIRECTION", direction)
    return onnx.parser.parse_model(text.replace("    , h", "    unread, h"))


@pytest.mark.parametrize(("cell", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("direction", ["", ', direction = "reverse"'])
def test_the_last_state_alone_has_a_gradient_when_steps_and_batch_are_symbols(
    cell: str, gates: int, direction: str
) -> None:
    """The states of all steps are left out of the node, which gets them."""
    model, rng = _model(cell, gates, direction), np.random.default_rng(2)
    model.graph.node[0].output[0] = ""
    shapes = {"x": (3, 2, 2), "w": (1, 2 * gates, 2), "r": (1, 2 * gates, 2)}
    inputs = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    found = analytic(model, inputs, list(shapes))
    for name in shapes:
        tolerance = STEPS[np.dtype(np.float32)][1]
        np.testing.assert_allclose(found[name], numeric(model, inputs, name), rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (", clip = 3.0", "there is no rule for its clip"),
        (", layout = 1", "there is no rule for its layout"),
        (', activations = ["Softsign"]', "no rule for its activation Softsign, but for Sigmoid, Tanh, Relu"),
    ],
)
def test_attributes_without_a_rule_are_named(written: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        graphopt.gradient(_model("RNN", 1, written), loss="loss", with_respect_to=["w"])


def test_peepholes_are_refused() -> None:
    model = _model("LSTM", 4)
    model.graph.node[0].input.extend(["", "", "p"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 6), np.float32), "p"))
    with pytest.raises(ModelError, match="there is no rule for its peepholes"):
        graphopt.gradient(model, loss="loss", with_respect_to=["w"])
