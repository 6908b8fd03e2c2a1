"""Training mode: statistics of the batch, elements dropped by a seed; each against what ONNX or NumPy say."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.errors import ModelError, OptionError
from tests import support
from tests.gradient.differences import agree, numeric, runner
from tests.gradient.masks import kept

NORMALIZED = """
<ir_version: 8, opset_import: ["": 17]>
net (double[4, 3, 2] x) => (double y)
<double[3] scale = {1.0, 0.5, -2.0}, double[3] bias = {0.1, 0.2, 0.3},
 double[3] mean = {0.5, 0.0, 1.0}, double[3] var = {1.0, 2.0, 0.5}, double[1, 3, 2] weights = {1, -2, 3, 1, 0.5, 2}>
{
    n = BatchNormalization <epsilon = 0.01, momentum = 0.8> (x, scale, bias, mean, var)
    s = Tanh(n)
    w = Mul(s, weights)
    y = ReduceSum <keepdims = 0> (w)
}
"""
DROPPED = """
<ir_version: 8, opset_import: ["": 17]>
net (float[50, 40] x) => (float y)
<float ratio = {0.25}>
{
    h = MatMul(x, w)
    d = Dropout(h, ratio)
    m = Mul(d, d)
    y = ReduceMean <keepdims = 0> (m)
}
"""


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [value.name for value in model.graph.output]
    return dict(zip(names, runner(model)(names, feeds), strict=True))


def _x() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(4, 3, 2)) + 0.3


def test_statistics_are_those_of_the_batch_and_the_running_ones_follow() -> None:
    step = graphopt.train_step(NORMALIZED_MODEL, loss="y", optimizer="sgd").to_proto()
    found = _run(step, {"x": _x()})
    mean, variance = _x().mean((0, 2)), _x().var((0, 2))
    # The momentum is a float32 attribute.
    np.testing.assert_allclose(found["mean_new"], 0.8 * np.array([0.5, 0, 1]) + 0.2 * mean, rtol=1e-7)
    np.testing.assert_allclose(found["var_new"], 0.8 * np.array([1, 2, 0.5]) + 0.2 * variance, rtol=1e-7)
    normal = (_x() - mean[:, None]) / np.sqrt(variance + 0.01)[:, None]
    scaled = normal * np.array([1, 0.5, -2])[:, None] + np.array([0.1, 0.2, 0.3])[:, None]
    weights = np.array([1, -2, 3, 1, 0.5, 2]).reshape(1, 3, 2)
    np.testing.assert_allclose(found["y"], (np.tanh(scaled) * weights).sum(), rtol=1e-7)


def _shared(*, handed_on: bool) -> onnx.ModelProto:
    """One layer that reads two batches, as a discriminator does; with `handed_on` in training mode, where the second
    node reads what the first one gives."""
    mode, more = (", training_mode = 1", ", m, v") if handed_on else ("", "")
    read, last = ("m, v", ", m2, v2") if handed_on else ("mean, var", "")
    return onnx.parser.parse_model(f"""
<ir_version: 8, opset_import: ["": 17]>
net (double[4, 3, 2] x, double[4, 3, 2] x2) => (double y)
<double[3] scale = {{1.0, 0.5, -2.0}}, double[3] bias = {{0.1, 0.2, 0.3}},
 double[3] mean = {{0.5, 0.0, 1.0}}, double[3] var = {{1.0, 2.0, 0.5}}>
{{
    n{more} = BatchNormalization <momentum = 0.8{mode}> (x, scale, bias, mean, var)
    k{last} = BatchNormalization <momentum = 0.8{mode}> (x2, scale, bias, {read})
    s = Tanh(n)
    d = Mul(s, k)
    y = ReduceSum <keepdims = 0> (d)
}}
""")


@pytest.mark.parametrize("handed_on", [False, True])
def test_statistics_that_two_nodes_share_follow_both_batches(handed_on: bool) -> None:
    step = graphopt.train_step(_shared(handed_on=handed_on), loss="y", optimizer="sgd")
    assert [one.input for one in step.step.carried if one.kind == "statistic"] == ["mean", "var"]
    batches = {"x": _x(), "x2": 2 * _x() - 1}
    found = _run(step.to_proto(), batches)
    mean, variance = np.array([0.5, 0, 1]), np.array([1, 2, 0.5])
    for batch in batches.values():
        mean, variance = 0.8 * mean + 0.2 * batch.mean((0, 2)), 0.8 * variance + 0.2 * batch.var((0, 2))
    np.testing.assert_allclose(found["mean_new"], mean, rtol=1e-6)  # the momentum is a float32 attribute
    np.testing.assert_allclose(found["var_new"], variance, rtol=1e-6)


def test_gradients_go_through_the_statistics_of_the_batch() -> None:
    """The step without learning is the model in training mode; its gradients are compared with its own differences."""
    optimizer = graphopt.Optimizer(learning_rate=1.0)
    step = graphopt.train_step(NORMALIZED_MODEL, loss="y", optimizer=optimizer).to_proto()
    for name in ("scale", "bias"):
        first = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in step.graph.initializer}[name]
        loss = onnx.ModelProto.FromString(step.SerializeToString())
        expected = numeric(_with_loss(loss), {"x": _x(), name: first}, name)
        np.testing.assert_allclose(first - _run(step, {"x": _x()})[f"{name}_new"], expected, rtol=0, atol=1e-8)


def _with_loss(model: onnx.ModelProto) -> onnx.ModelProto:
    """The step, whose loss is called "loss"."""
    model.graph.node.append(onnx.helper.make_node("Identity", ["y"], ["loss"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.DOUBLE, []))
    return model


def test_statistics_stay_where_that_is_asked_for() -> None:
    step = graphopt.train_step(NORMALIZED_MODEL, loss="y", batch_statistics=False)
    assert {one.kind for one in step.step.carried} == {"parameter"}
    plain = runner(NORMALIZED_MODEL)(["y"], {"x": _x()})
    np.testing.assert_array_equal(_run(step.to_proto(), {"x": _x()})["y"], plain[0])


def test_a_batch_with_one_number_for_each_channel_does_not_train() -> None:
    text = """g (float[n,3] x) => (float y) {
      h = BatchNormalization (x, scale, bias, mean, var) y = ReduceSum <keepdims = 0> (h)
    }"""
    arrays = {name: np.ones(3, np.float32) for name in ("scale", "bias", "mean", "var")}
    model = support.model(text, **arrays)
    with pytest.raises(ModelError, match=r"one number for each channel.*keep-statistics"):
        graphopt.train_step(model, loss="y", dims={"n": 1})
    for step in (graphopt.train_step(model, loss="y", dims={"n": 1}, batch_statistics=False),
                 graphopt.train_step(model, loss="y", dims={"n": 2})):  # fmt: skip
        assert "y" in [output.name for output in step.to_proto().graph.output]


def _dropped() -> onnx.ModelProto:
    model = onnx.parser.parse_model(DROPPED)
    rng = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array(rng.normal(size=(40, 30)).astype(np.float32), "w")
    model.graph.initializer.append(weights)
    return model


def test_a_seed_decides_what_is_dropped() -> None:
    step = graphopt.train_step(_dropped(), loss="y", optimizer=graphopt.Optimizer(learning_rate=1.0)).to_proto()
    mask = next(node.input[0] for node in step.graph.node if node.op_type == "Where" and "d/" in node.name)
    step.graph.output.append(onnx.helper.make_tensor_value_info(mask, onnx.TensorProto.BOOL, [50, 30]))
    x = np.random.default_rng(2).normal(size=(50, 40)).astype(np.float32)
    one, again, other = (_run(step, {"x": x, "seed": np.array(seed, np.int64)}) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one[mask], again[mask])
    assert 0.7 < one[mask].mean() < 0.8  # of 1,500: 0.75 and four deviations of 0.011
    # Masks of two seeds, and neighbours in one, are as independent as 0.75 * 0.75 says.
    assert 0.5 < (one[mask] & other[mask]).mean() < 0.625
    assert 0.5 < (one[mask][:, 1:] & one[mask][:, :-1]).mean() < 0.625
    # The loss and its gradient are those of the kept elements, by what is kept.
    weights = onnx.numpy_helper.to_array(_dropped().graph.initializer[-1]).astype(np.float64)
    kept = x.astype(np.float64) @ weights * one[mask] / 0.75
    np.testing.assert_allclose(one["y"], (kept**2).mean(), rtol=1e-5)
    expected = x.T.astype(np.float64) @ (2 * kept / kept.size * one[mask] / 0.75)
    np.testing.assert_allclose(weights - one["w_new"], expected, rtol=0, atol=1e-5)


TWICE = """
<ir_version: 8, opset_import: ["": 17]>
net (float[20, 6] x) => (float y)
<float ratio = {0.25}, float other = {0.5}>
{
    h = MatMul(x, w)
    d = Dropout(h, ratio)
    e = Dropout(d, other)
    m = Mul(e, e)
    y = ReduceMean <keepdims = 0> (m)
}
"""


def test_what_a_seed_drops_follows_from_the_formula_alone() -> None:
    """Two Dropouts, each with a stream of its own, in the order of the model."""
    model = onnx.parser.parse_model(TWICE)
    weights = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    step = graphopt.train_step(model, loss="y").to_proto()
    x = np.random.default_rng(2).normal(size=(20, 6)).astype(np.float32)
    for seed in (0, 7, 2**31 - 1, 2**40 + 3):
        masks = kept(seed, 1, (20, 5), 0.25) / 0.75 * kept(seed, 2, (20, 5), 0.5) / 0.5
        expected = ((x.astype(np.float64) @ weights * masks) ** 2).mean()
        np.testing.assert_allclose(_run(step, {"x": x, "seed": np.array(seed, np.int64)})["y"], expected, rtol=1e-5)


def test_a_loss_reads_what_a_dropout_at_the_end_gives() -> None:
    """The output is named; it and the mask are the model's own, which a step has no more."""
    model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
net (float[50, 40] x) => (float[50, 30] y, bool[50, 30] m)
<float ratio = {0.25}>
{
    h = MatMul(x, w)
    y, m = Dropout(h, ratio)
}
""")
    model.graph.initializer.append(_dropped().graph.initializer[-1])
    step = graphopt.train_step(model, loss="mse", output="y").to_proto()
    x = np.random.default_rng(2).normal(size=(50, 40)).astype(np.float32)
    feeds = {"x": x, "target": np.zeros((50, 30), np.float32), "seed": np.array(5, np.int64)}
    given = x @ onnx.numpy_helper.to_array(model.graph.initializer[-1]) * kept(5, 1, (50, 30), 0.25) / 0.75
    np.testing.assert_allclose(_run(step, feeds)["loss"], (given**2).mean(), rtol=1e-5)


def test_running_statistics_may_be_outputs() -> None:
    text = NORMALIZED.replace("(double y)", "(double y, double[3] m, double[3] v)").replace("n = B", "n, m, v = B")
    model = onnx.parser.parse_model(text.replace("<epsilon", "<training_mode = 1, epsilon"))
    step = graphopt.train_step(model, loss="y", optimizer="sgd").to_proto()
    plain = graphopt.train_step(NORMALIZED_MODEL, loss="y", optimizer="sgd").to_proto()
    for name, found in _run(step, {"x": _x()}).items():
        np.testing.assert_array_equal(found, _run(plain, {"x": _x()})[name])


def test_what_is_dropped_leaves_the_mean_as_it_is() -> None:
    """Over 400 seeds: each element's deviation of its mean is (0.25 / 0.75 / 400) ** 0.5; five of them are allowed."""
    masks = np.mean([kept(seed, 1, (40, 30), 0.25) / 0.75 for seed in range(400)], axis=0)
    deviation = (0.25 / 0.75 / 400) ** 0.5
    assert np.abs(masks - 1).max() < 5 * deviation and abs(masks.mean() - 1) < 5 * deviation / 1200**0.5


def test_running_statistics_follow_over_steps_as_numpy_has_them() -> None:
    """The weights stand still; the statistics of three batches go into the running ones, one after the other."""
    step = graphopt.train_step(NORMALIZED_MODEL, loss="y", optimizer=graphopt.Optimizer(learning_rate=0.0))
    batches = [{"x": np.random.default_rng(number).normal(size=(4, 3, 2)) + number} for number in range(3)]
    mean, variance = np.array([0.5, 0, 1]), np.array([1, 2, 0.5])
    for batch in batches:
        mean = 0.8 * mean + 0.2 * batch["x"].mean((0, 2))
        variance = 0.8 * variance + 0.2 * batch["x"].var((0, 2))
    found = graphopt.fit(step, batches).parameters
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-6)  # the momentum is a float32 attribute
    np.testing.assert_allclose(found["var"], variance, rtol=1e-6)


def test_numbers_of_places_and_seeds_are_uniform() -> None:
    """The share of numbers below each of twenty bounds, over seeds, by a chi-square test of NumPy's."""
    model = onnx.parser.parse_model(DROPPED.replace("[50, 40]", "[500, 40]"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((40, 30), np.float32), "w"))
    step = graphopt.train_step(model, loss="y").to_proto()
    numbers = next(node.input[0] for node in step.graph.node if node.op_type == "Less")
    step.graph.output.append(onnx.helper.make_tensor_value_info(numbers, onnx.TensorProto.FLOAT, [500, 30]))
    for seed in (0, 1, 123_456_789, 1 << 40):
        feeds = {"x": np.zeros((500, 40), np.float32), "seed": np.array(seed, np.int64)}
        drawn = _run(step, feeds)[numbers]
        counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
        expected = drawn.size / 20
        assert ((counts - expected) ** 2 / expected).sum() < 60  # 19 degrees of freedom: beyond 60 once in 4 million


def test_an_input_is_no_weight() -> None:
    with pytest.raises(OptionError, match="'x' is an input, which a step cannot change; name weights"):
        graphopt.train_step(NORMALIZED_MODEL, loss="y", with_respect_to=["x", "scale"])


NORMALIZED_MODEL = onnx.parser.parse_model(NORMALIZED)


def test_a_normalization_that_trains_already_has_gradients_through_its_batch() -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(4, 3, 2)), **{name: rng.normal(size=3) for name in ("scale", "bias", "mean")}}
    inputs["var"] = rng.uniform(0.5, 1.5, 3)
    node = onnx.helper.make_node("BatchNormalization", list(inputs), ["y", "m", "v"], name="n", training_mode=1)
    agree([node], inputs, ["y"], ["x", "scale", "bias"], 17)
