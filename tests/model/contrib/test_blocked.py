"""Models that ONNX Runtime saved with all its optimizations: images in blocks of channels become plain images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphopt
from graphopt.model.contrib.blocked import DOMAIN, block_size
from tests import support

GENERATOR = np.random.default_rng(2)
MODELS = {
    "layers": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 3, 16, 16] x) => (float[1, 24, 8, 8] y)
            <float[24, 3, 3, 3] w0, float[24, 1, 3, 3] w1, float[24, 24, 1, 1] w2>
        {
          a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w0)
          b = Relu (a)
          c = Conv <group = 24, pads = [1, 1, 1, 1]> (b, w1)
          d = HardSwish (c)
          e = Conv (d, w2)
          f = Add (e, b)
          y = Relu (f)
        }""",
    "pools": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 3, 16, 16] x) => (float[1, 20, 1, 1] y, float[1, 20, 1, 1] z)
            <float[20, 3, 3, 3] w0, float[20, 20, 3, 3] w1>
        {
          a = Conv (x, w0)
          b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
          c = Conv <pads = [1, 1, 1, 1]> (b, w1)
          d = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c)
          e = Conv <pads = [1, 1, 1, 1]> (d, w1)
          y = GlobalAveragePool (e)
          z = GlobalMaxPool (e)
        }""",
    "larger": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 16, 6, 6] x) => (float[1, 64, 12, 12] y)
            <float[32, 16, 3, 3] w0, float[32, 32, 1, 1] w1, float[4] s = {1, 1, 2, 2}>
        {
          a = Conv <pads = [1, 1, 1, 1]> (x, w0)
          b = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (a, , s)
          c = Conv (b, w1)
          d = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (a, , s)
          e = Conv (d, w1)
          y = Concat <axis = 1> (c, e)
        }""",
}  # fmt: skip


def _model(name: str) -> onnx.ModelProto:
    """The model with drawn weights."""
    model = onnx.parser.parse_model(MODELS[name])
    drawn = {"w0", "w1", "w2"}
    for value in [one for one in model.graph.value_info if one.name in drawn]:
        dims = [one.dim_value for one in value.type.tensor_type.shape.dim]
        array = (GENERATOR.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        model.graph.value_info.remove(value)
    return model


def _saved(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_compiles_whole_and_gives_what_it_was_made_of(name: str, tmp_path: Path) -> None:
    model = _model(name)
    saved = _saved(model, tmp_path / "saved.onnx")
    assert not block_size() or any(node.domain == DOMAIN for node in saved.graph.node)
    program = graphopt.compile(saved, threads=1)
    assert program.fallback == () and program.verification.passed
    given = model.graph.input[0].type.tensor_type.shape.dim
    feed = {"x": GENERATOR.standard_normal([one.dim_value for one in given]).astype(np.float32)}
    wanted = support.session(model, optimized=True).run(None, feed)
    for one, other in zip(program.run(None, feed), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)  # sums of at most 180 products
