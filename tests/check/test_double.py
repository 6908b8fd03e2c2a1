"""Models in float64, beside which rounding is measured: in ONNX Runtime, or in the reference evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from graphopt.check.double import Double, in_double
from graphopt.check.narrowed import narrowed
from graphopt.check.noise import WAYS, Case, Noise
from graphopt.check.runner import CannotRun, Workplace
from graphopt.model.load import load
from tests import support

LARGE = 10**12  # of work: too large for the reference evaluator


def test_a_model_in_double_has_doubles_everywhere_but_where_the_operator_says_float() -> None:
    text = """g (float[1,1,4,4] x) => (float[1,1,8,8] y) {
        c = Constant<value_floats = [2.0]>() a = Mul(x, c) h = Cast<to = 10>(a) f = Cast<to = 1>(h)
        y = Resize(f, , scales)
    }"""
    wide = in_double(load(support.model(text, scales=np.array([1, 1, 2, 2], np.float32))))
    assert wide is not None
    assert {value.dtype for node in wide.graph for value in node.outputs if value.dtype} <= {ir.DataType.DOUBLE}
    assert [node.attributes["to"].as_int() for node in wide.graph if node.op_type == "Cast"] == [11, 11]
    scales = wide.graph.initializers["scales"].const_value
    assert scales is not None and scales.dtype == ir.DataType.FLOAT
    x = np.random.default_rng(0).standard_normal((1, 1, 4, 4))
    (found,) = ReferenceEvaluator(ir.to_proto(wide)).run(None, {"x": x})
    assert isinstance(found, np.ndarray) and found.dtype == np.float64
    assert np.array_equal(found, np.repeat(np.repeat(2 * x, 2, 2), 2, 3))


SQUARES = """g (float[1,2,9,9] x) => (float[1,3,1,1] y) {
    c = Conv(x, w) big = Add(c, shift) s = Mul(big, big)
    a = ReduceMean<axes = [2, 3]>(s) m = ReduceMean<axes = [2, 3]>(big) q = Mul(m, m) y = Sub(a, q) }"""


def test_what_the_engine_has_in_float32_only_stays_so_in_a_large_model() -> None:
    """The variance of numbers near 1,000 is lost in float32; the Conv, which ONNX Runtime lacks in float64, is not."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((3, 2, 3, 3)).astype(np.float32)
    model = load(support.model(SQUARES, w=weight, shift=np.array([1000.0], np.float32)))
    x = random.standard_normal((1, 2, 9, 9)).astype(np.float32)
    with Workplace() as workplace:
        plain = workplace.runner(model, True).run({"x": x})
        (found,) = Double(workplace, model, work=LARGE).run({"x": x}, plain)
        (exact,) = Double(workplace, model, work=0).run({"x": x}, plain)  # in the reference evaluator
    error = np.abs(np.asarray(found) - np.asarray(exact))
    assert isinstance(found, np.ndarray) and found.dtype == np.float32
    assert error.max() < 1e-5 * np.abs(exact).max()
    assert np.abs(np.asarray(plain[0]) - np.asarray(exact)).max() > 1e-2


def test_results_of_what_stays_float32_are_given_in_float64() -> None:
    text = "g (float[1,1,4,4] x) => (float[1,1,2,2] y, float[1,1,2,2] z) { y = Conv(x, w) z = Exp(y) }"
    model = load(support.model(text, w=np.full((1, 1, 3, 3), 0.1, np.float32)))
    with Workplace() as workplace:
        wide = in_double(model)
        assert wide is not None
        outputs = narrowed(workplace, wide).run({"x": np.ones((1, 1, 4, 4))})
    assert [np.asarray(output).dtype for output in outputs] == [np.float64, np.float64]
    assert [node.op_type for node in wide.graph] == ["Cast", "Cast", "Conv", "Cast", "Exp"]


def test_a_model_whose_branches_lack_float64_is_refused() -> None:
    text = """g (float[1,1,4,4] x, bool c) => (float[1,1,4,4] y) {
        y = If(c) <then_branch = t () => (float[1,1,4,4] p) { p = Conv<pads = [1, 1, 1, 1]>(x, w) },
                   else_branch = e () => (float[1,1,4,4] q) { q = Neg(x) }> }"""
    model = load(support.model(text, w=np.full((1, 1, 3, 3), 0.1, np.float32)))
    with Workplace() as workplace, pytest.raises(CannotRun, match="no operator of the main graph"):
        Double(workplace, model, work=LARGE)


def test_a_model_that_is_sound_once_it_is_taken_apart_runs_in_float64() -> None:
    """ONNX Runtime writes SimplifiedLayerNormalization into ONNX's domain, which does not have it."""
    node = onnx.helper.make_node("SimplifiedLayerNormalization", ["x", "w"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2, 8]) for name in "xy"]
    weight = onnx.numpy_helper.from_array(np.linspace(0.3, 1.1, 8, dtype=np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8))
    feed = {"x": np.random.default_rng(3).standard_normal((2, 8)).astype(np.float32)}
    with Workplace() as workplace:
        assert not workplace.examined(model)
        runner = workplace.runner(model, False)
        case = Case(feed, runner.run(feed), "normal")
        assert list(Noise(workplace, model, runner, False, lambda: 1, [case]).samples(case))
    assert case.samples[WAYS.index("double")] is not case.outputs


def test_a_model_that_onnx_objects_to_runs_in_float64_in_another_process() -> None:
    """onnx infers wrong dims for STFT without a frame length, so that it finds a product behind it wrong."""
    random = np.random.default_rng(5)
    text = """g (float[1,160] x) => (float[1,f,4] y) {
        s = STFT(x, step, window) p = ReduceSumSquare<axes = [-1], keepdims = 0>(s) y = MatMul(p, bank) }"""
    proto = support.model(
        text, step=np.array(20), window=np.hanning(50).astype(np.float32),
        bank=np.abs(random.standard_normal((26, 4))).astype(np.float32),
    )  # fmt: skip
    model, feed = ir.from_proto(proto), {"x": random.standard_normal((1, 160)).astype(np.float32)}
    with Workplace() as workplace:
        assert not workplace.examined(model)
        runner = workplace.runner(model, False)
        case = Case(feed, runner.run(feed), "normal")
        assert list(Noise(workplace, model, runner, False, lambda: 1, [case]).samples(case))
    frames = np.lib.stride_tricks.sliding_window_view(feed["x"][0].astype(float), 50)[::20] * np.hanning(50).astype(
        "f4"
    )
    exact = np.square(np.abs(np.fft.rfft(frames))) @ onnx.numpy_helper.to_array(proto.graph.initializer[-1])
    double = case.samples[WAYS.index("double")]
    assert double is not case.outputs
    np.testing.assert_allclose(np.asarray(double[0])[0], exact, rtol=1e-6)


def test_what_the_evaluator_cannot_run_stays_of_float32() -> None:
    """ONNX Runtime has no GridSample of float64, and the evaluator does not know the old names of its modes."""
    text = """g (float[1,1,4,4] x, float[1,2,2,2] at) => (float[1,1,2,2] y) {
        y = GridSample <mode = "bilinear"> (x, at)
    }"""
    model = load(support.model(text, 16))
    feed = {"x": np.ones((1, 1, 4, 4), np.float32), "at": np.zeros((1, 2, 2, 2), np.float32)}
    with Workplace() as workplace:
        found = Double(workplace, model, 1)
        (one,) = found.run(feed, [np.ones((1, 1, 2, 2), np.float32)])
    assert np.array_equal(one, np.ones((1, 1, 2, 2)))


def test_a_model_that_neither_engine_runs_in_float64_is_refused_at_every_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("not implemented")

    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.run", fail)
    text = """g (float[1,1,4,4] x, bool c) => (float[1,1,4,4] y) {
        y = If(c) <then_branch = t () => (float[1,1,4,4] p) { p = Conv<pads = [1, 1, 1, 1]>(x, w) },
                   else_branch = e () => (float[1,1,4,4] q) { q = Neg(x) }> }"""
    model = load(support.model(text, w=np.full((1, 1, 3, 3), 0.1, np.float32)))
    feed = {"x": np.ones((1, 1, 4, 4), np.float32), "c": np.array(True)}
    with Workplace() as workplace:
        found = Double(workplace, model, work=0)
        for reason in ("no operator of the main graph", "nothing runs it in float64"):
            with pytest.raises(CannotRun, match=reason):
                found.run(feed, [np.ones((1, 1, 4, 4), np.float32)])
