"""Gradients through rounding: those of training for quantization, by formulas of the papers in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.errors import ModelError
from tests.gradient.differences import runner

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
net (float[2, 4] x) => (float loss)
<float[4] scale = {0.5, 0.25, 1.0, 0.1}, TYPE[4] zero = {ZERO}, float[2, 4] weights = {1, -2, 3, 0.5, 2, 1, -1, 4}>
{
    q = QuantizeLinear <axis = 1> (x, scale, zero)
    y = DequantizeLinear <axis = 1> (q, scale, zero)
    w = Mul(y, weights)
    loss = ReduceSum <keepdims = 0> (w)
}
"""
WEIGHTS = np.array([[1, -2, 3, 0.5], [2, 1, -1, 4]], np.float32)
SCALE = np.array([0.5, 0.25, 1.0, 0.1], np.float32)


@pytest.mark.parametrize(
    ("kind", "zeros", "low", "high"), [("int8", (0, 3, -5, 0), -128, 127), ("uint8", (128, 0, 5, 200), 0, 255)]
)
def test_rounding_is_passed_over_and_what_is_cut_off_has_no_gradient(
    kind: str, zeros: tuple[int, ...], low: int, high: int
) -> None:
    """Learned step sizes: dy (q - x / s) within the range of the integers, dy q beyond it."""
    model = onnx.parser.parse_model(MODEL.replace("TYPE", kind).replace("ZERO", ", ".join(map(str, zeros))))
    x = np.array([[1.3, 0.7, 200.0, -0.33], [-0.9, 1.1, 2.6, 40.0]], np.float32)
    found = graphopt.gradient(model, loss="loss", with_respect_to=["x", "scale"]).to_proto()
    names = ["gradient/x", "gradient/scale"]
    to_x, to_scale = runner(found)(names, {"x": x})
    steps = x / SCALE + np.array(zeros)
    inside = (steps >= low) & (steps <= high)
    assert inside.any() and not inside.all()
    np.testing.assert_allclose(to_x, WEIGHTS * inside, rtol=1e-6)
    number = np.clip(np.rint(steps), low, high) - np.array(zeros)
    expected = (WEIGHTS * (number - np.where(inside, x / SCALE, 0))).sum(0)
    np.testing.assert_allclose(to_scale, expected, rtol=0, atol=600 * 2**-23)  # terms of up to 600 cancel in float32


def test_integers_that_something_else_reads_have_no_gradient() -> None:
    model = onnx.parser.parse_model(MODEL.replace("TYPE", "int8").replace("ZERO", "0, 0, 0, 0"))
    model.graph.node[1].CopyFrom(onnx.helper.make_node("Cast", ["q"], ["y"], to=onnx.TensorProto.FLOAT))
    with pytest.raises(graphopt.errors.OptionError, match="the loss does not depend on 'x'"):
        graphopt.gradient(model, loss="loss", with_respect_to=["x"])


def test_scales_of_blocks_are_refused() -> None:
    model = onnx.parser.parse_model(
        MODEL.replace("17", "21").replace("TYPE", "int8").replace("[4]", "[2, 2]").replace("ZERO", "0, 0, 0, 0")
    )
    for node in model.graph.node[:2]:
        node.attribute.append(onnx.helper.make_attribute("block_size", 2))
    with pytest.raises(ModelError, match="there is no rule for scales of blocks"):
        graphopt.gradient(model, loss="loss", with_respect_to=["x"])
