"""Gradients through recurrent layers: what their rules read of a node, and what they refuse."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.errors import ModelError
from tests.gradient.differences import STEPS, agree, analytic, numeric, runner, weighted

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


Arrays = dict[str, np.ndarray]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SEED = 4


def _layer(cell: str, seed: int, *, directions: int = 1, peepholes: bool = False) -> Arrays:
    """Operands of a layer of 2 hidden units over 3 steps of 2 sequences of 2 numbers, by their places."""
    rng, rows = np.random.default_rng(seed), 2 * GATES[cell]
    shapes = {0: (3, 2, 2), 1: (directions, rows, 2), 2: (directions, rows, 2), 3: (directions, 2 * rows),
              5: (directions, 2, 2)}  # fmt: skip
    shapes |= {6: (directions, 2, 2)} if cell == "LSTM" else {}
    shapes |= {7: (directions, 6)} if peepholes else {}
    return {f"x{place}": rng.uniform(-2, 2, shape).astype(np.float32) for place, shape in shapes.items()}


def _node(cell: str, inputs: Arrays, **attributes: object) -> onnx.NodeProto:
    operands = [
        f"x{place}" if f"x{place}" in inputs else "" for place in range(1 + max(int(name[1:]) for name in inputs))
    ]
    outputs = ["y0", "y1", "y2"][: 3 if cell == "LSTM" else 2]
    return onnx.helper.make_node(cell, operands, outputs, name="n", hidden_size=2, **attributes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell", "attributes", "peepholes"),
    [
        ("LSTM", {}, False), ("LSTM", {"input_forget": 1}, False), ("LSTM", {}, True),
        ("LSTM", {"input_forget": 1}, True), ("GRU", {}, False), ("GRU", {"linear_before_reset": 1}, False),
        ("RNN", {}, False),
    ],
)  # fmt: skip
def test_what_is_clipped_passes_no_gradient_on(cell: str, attributes: dict[str, object], peepholes: bool) -> None:
    """The seed keeps every gate farther from the clip, where its slope jumps, than a difference steps."""
    inputs = _layer(cell, SEED, peepholes=peepholes)
    node = _node(cell, inputs, clip=1.0, **attributes)
    agree([node], inputs, list(node.output), list(inputs), 18)


def _without_layout(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same with Transposes around the layer, as ONNX Runtime has no layout 1."""
    nodes = list(proto.graph.node)
    (layer,) = [node for node in nodes if any(one.name == "layout" and one.i for one in node.attribute)]
    layer.attribute.remove(next(one for one in layer.attribute if one.name == "layout"))
    before, behind = [], []
    for place in (0, 5, 6):
        if place < len(layer.input) and layer.input[place]:
            before.append(onnx.helper.make_node("Transpose", [layer.input[place]], [f"in{place}"], perm=[1, 0, 2]))
            layer.input[place] = f"in{place}"
    for place, name in enumerate(list(layer.output)):
        order = [1, 0, 2] if place else [2, 0, 1, 3]
        behind.append(onnx.helper.make_node("Transpose", [f"out{place}"], [name], perm=order))
        layer.output[place] = f"out{place}"
    at = nodes.index(layer)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes[:at], *before, layer, *behind, *nodes[at + 1 :]])
    return proto


@pytest.mark.parametrize("cell", list(GATES))
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_sequences_may_lie_first(cell: str, direction: str) -> None:
    """The gradients that are written, and the differences, run with Transposes in the place of the layout."""
    inputs = _layer(cell, 0, directions=2 if direction == "bidirectional" else 1)
    inputs = {name: array.swapaxes(0, 1) if name in ("x0", "x5", "x6") else array for name, array in inputs.items()}
    node = _node(cell, inputs, layout=1, direction=direction)
    model = weighted([node], inputs, list(node.output), list(inputs), 18, _without_layout)
    done = graphopt.gradient(model, loss="loss", with_respect_to=list(inputs))
    found = runner(_without_layout(done.to_proto()))([done.gradients[name] for name in inputs], inputs)
    for name, gradient in zip(inputs, found, strict=True):
        expected = numeric(_without_layout(onnx.ModelProto.FromString(model.SerializeToString())), inputs, name)
        tolerance = STEPS[np.dtype(np.float32)][1] * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance, err_msg=name)


def test_an_activation_without_a_rule_is_named() -> None:
    model = _model("RNN", 1, ', activations = ["Softsign"]')
    with pytest.raises(ModelError, match="no rule for its activation Softsign, but for Sigmoid, Tanh, Relu"):
        graphopt.gradient(model, loss="loss", with_respect_to=["w"])
