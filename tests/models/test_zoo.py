"""The zoo gives the same models every time, knows their names, and its table is the one in its README."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import onnxruntime
import pytest

import models
from models import table
from models.light_files import STATISTICS_KEY, fill, strip

SMALL = ("dscnn_kws", "gru_op", "loop_if_script", "lstm_bi_op", "mlp_tiny")


def running(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_the_zoo_holds_thirty_four_models_and_onnx_nine_more() -> None:
    assert len(models.names()) == 34
    assert len(models.onnx_light_names()) == 9
    assert models.names() == tuple(sorted(models.names()))
    assert not set(models.names()) & set(models.onnx_light_names())


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, second = (models.load("mlp_tiny", seed=3).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
    assert first != models.load("mlp_tiny", seed=4).SerializeToString(deterministic=True)


def test_the_weights_are_those_of_every_earlier_figure() -> None:
    # Figures in the documents hold for these weights; a numpy that draws others must not pass unnoticed.
    weights = models.load("mlp_tiny").graph.initializer[0]
    assert hashlib.sha256(weights.raw_data).hexdigest()[:16] == "036344c4baba72df"


def test_a_filled_model_is_complete_and_carries_no_statistics() -> None:
    model = models.load("dscnn_kws")
    assert STATISTICS_KEY not in [prop.key for prop in model.metadata_props]
    for tensor in model.graph.initializer:
        assert onnx.numpy_helper.to_array(tensor).shape == tuple(tensor.dims)


def test_strip_then_fill_keeps_structure_and_statistics() -> None:
    before = models.load("mlp_tiny")
    after = fill(strip(models.load("mlp_tiny")), seed=9)
    assert [node.op_type for node in after.graph.node] == [node.op_type for node in before.graph.node]
    for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
        a, b = onnx.numpy_helper.to_array(old), onnx.numpy_helper.to_array(new)
        assert a.shape == b.shape and a.dtype == b.dtype
        # 257 or more draws: the mean of the new ones is within half a deviation beyond any doubt.
        assert abs(float(a.mean()) - float(b.mean())) <= 0.5 * float(a.std()) + 1e-6


def test_fill_refuses_a_model_that_is_not_light() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> plain (float[2] x) => (float[2] y) {y = Relu (x)}'
    )
    with pytest.raises(ValueError, match=r"The model 'plain' is not light: its metadata has no 'light\.tensors'\."):
        fill(model)


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(KeyError) as caught:
        models.load("restnet18")
    assert str(caught.value) == "The zoo has no model 'restnet18'. The nearest name is 'resnet18'."


@pytest.mark.parametrize("name", SMALL)
def test_a_small_model_is_valid_and_runs(name: str) -> None:
    model = models.load(name)
    onnx.checker.check_model(model)
    rng = np.random.default_rng(0)
    feed = {}
    for value in model.graph.input:
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        integer = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        feed[value.name] = np.asarray(rng.integers(0, 4, shape) if integer else rng.standard_normal(shape, np.float32))
    results = running(model).run(None, feed)
    assert len(results) == len(model.graph.output)
    assert all(np.isfinite(result).all() for result in results)


def test_a_light_network_of_onnx_gives_its_recorded_outputs() -> None:
    recorded = models.recorded_io("light_squeezenet")
    (result,) = running(models.load("light_squeezenet")).run(None, recorded.inputs)
    (expected,) = recorded.outputs.values()
    # The tolerances of onnx's own test runner.
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-7)


def test_recorded_outputs_exist_only_for_onnx_networks() -> None:
    with pytest.raises(KeyError, match=r"no model 'resnet50'\. The nearest name is 'light_resnet50'"):
        models.recorded_io("resnet50")


def test_the_readme_holds_exactly_the_table() -> None:
    readme = (models.path("resnet50").parent.parent / "README.md").read_text(encoding="utf-8")
    assert readme.split("prints this table:\n\n")[1] == "\n".join(table.lines()) + "\n"
