"""A model with gradients: what trains, what a loss reads, what is inlined, folded, expanded and refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.errors import ModelError, OptionError
from tests.gradient.differences import runner


def _model(text: str, opset: int = 17, functions: str = "") -> onnx.ModelProto:
    imports = f'"": {opset}' + (', "own": 1' if functions else "")
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {text} {functions}")


def _run(result: graphopt.GradientResult, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    proto = result.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    names = [value.name for value in proto.graph.output]
    return dict(zip(names, runner(proto)(names, feeds), strict=True))


def test_weights_train_and_masks_numbers_and_statistics_do_not() -> None:
    model = _model("""g (float[2, 3] x) => (float[2, 3] y)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] mask = {0, 0, -10000}, float half = {0.5},
         float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1},
         float[1] slope = {0.1}, float[3] idle = {1, 2, 3}>
        { a = MatMul(x, w) b = Mul(a, half) c = Add(b, mask) d = PRelu(c, slope)
          y = BatchNormalization(d, scale, bias, mean, var) }""")
    assert set(graphopt.gradient(model, loss="mse").gradients) == {"w", "slope", "scale", "bias"}
    chosen = graphopt.gradient(model, loss="mse", with_respect_to=["x", "sc*"])
    assert dict(chosen.gradients) == {"x": "gradient/x", "scale": "gradient/scale"}
    with pytest.raises(OptionError, match="the loss does not depend on 'idle', or is flat in it"):
        graphopt.gradient(model, loss="mse", with_respect_to=["w", "idle"])


def test_what_says_how_to_compute_does_not_train() -> None:
    """Scales of a Resize, numbers of a OneHot and weights of classes are floats; the model still has gradients."""
    model = _model("""g (float[2, 3, 2] x, int64[2, 4] t, int64[4] at) => (float y)
        <float[3, 1] w = {1, 2, 3}, float[3] scales = {1, 1, 2}, float[2] pair = {0, 1}, int64 depth = {2},
         float[3] classes = {1, 2, 0.5}>
        { a = Mul(x, w) b = Resize(a, , scales) c = OneHot(at, depth, pair) d = ReduceSum <keepdims = 0> (c)
          e = Mul(b, d) y = SoftmaxCrossEntropyLoss(e, t, classes) }""")
    result = graphopt.gradient(model, loss="y")
    assert set(result.gradients) == {"w"}
    x, t = np.array([[[1, 2], [0, 1], [1, 0]], [[1, 1], [2, 0], [0, 3]]]), np.array([[0, 1, 2, 1], [2, 2, 1, 0]])
    found = _run(result, x=x.astype(np.float32), t=t, at=np.array([0, 1, 1, 5]))
    scores = 3 * np.repeat(x * [[1], [2], [3]], 2, axis=2)  # three of the numbers are in range
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    weights = np.array([1, 2, 0.5])[t]
    slope = (shares - np.eye(3)[t].transpose(0, 2, 1)) * weights[:, None] / weights.sum() * 3
    expected = (slope * np.repeat(x, 2, axis=2)).sum((0, 2))
    np.testing.assert_allclose(found["gradient/w"][:, 0], expected, rtol=0, atol=1e-6)


LOGITS = (
    "g (float[2, 3] x) => (float[2, 3] y) <float[3, 3] w = {1, -2, 3, 0.5, 1, -1, 2, 0, 1}> { a = MatMul(x, w) %s }"
)


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("end", ["y = Softmax <axis = 1> (a)", "y = Identity(a)"])
def test_a_cross_entropy_passes_over_a_softmax(end: str, opset: int) -> None:
    """Softmax and logits have one loss, also where an opset has no operator for it: against NumPy."""
    result = graphopt.gradient(
        _model(LOGITS % end, opset), loss="cross-entropy", ignore_index=7 if opset > 12 else None
    )
    x, target = np.array([[0.1, -0.2, 0.3], [1, 0.5, -0.4]], np.float32), np.array([2, 0])
    found = _run(result, x=x, target=target)
    w = np.array([[1, -2, 3], [0.5, 1, -1], [2, 0, 1]])
    shares = np.exp(x @ w) / np.exp(x @ w).sum(1, keepdims=True)
    np.testing.assert_allclose(found["loss"], -np.log(shares[[0, 1], target]).mean(), rtol=1e-5)
    expected = x.T @ ((shares - np.eye(3)[target]) / 2)
    np.testing.assert_allclose(found["gradient/w"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 17])
def test_targets_that_do_not_count_have_no_gradient(opset: int) -> None:
    result = graphopt.gradient(
        _model(LOGITS % "y = Identity(a)", opset), loss="cross-entropy", with_respect_to="x", ignore_index=-100
    )
    found = _run(result, x=np.ones((2, 3), np.float32), target=np.array([1, -100]))
    assert np.abs(found["gradient/x"][0]).max() > 0.1
    assert not found["gradient/x"][1].any()


def test_classes_of_a_sequence_lie_last_and_elsewhere_where_that_is_said() -> None:
    text = "g (float[2, 4, 3] x) => (float[2, 4, 3] y) <float[3] b = {1, 2, 3}> { y = Add(x, b) }"
    last = graphopt.gradient(_model(text), loss="cross-entropy")
    assert next(value.shape for value in last.model.graph.inputs if value.name == "target") == (2, 4)
    second = graphopt.gradient(_model(text), loss="cross-entropy", class_axis=1)
    assert next(value.shape for value in second.model.graph.inputs if value.name == "target") == (2, 3)
    with pytest.raises(OptionError, match="output 'y' has no axis 5 for classes; its rank is 3"):
        graphopt.gradient(_model(text), loss="cross-entropy", class_axis=5)


def test_functions_are_inlined_and_bodies_stand_for_operators_without_a_rule() -> None:
    functions = '<domain: "own", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }'
    model = _model(
        "g (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y) <float[3, 1, 1] w = {1, 2, 3}>"
        "{ a = Mul(x, w) b = own.twice(a) y = MeanVarianceNormalization(b) }", functions=functions
    )  # fmt: skip
    result = graphopt.gradient(model, loss="mse")
    types = {node.op_type for node in result.model.graph}
    assert not types & {"twice", "MeanVarianceNormalization"}
    assert result.model.opset_imports[""] == 17


def test_pads_that_constants_decide_are_known_to_rules() -> None:
    model = _model("""g (float[1, 2, 5] x) => (float[1, 2, 8] y)
        <float[2, 1] w = {2, 3}, int32[6] pads = {0, 0, 1, 0, 0, 2}>
        { p = Cast <to = 7> (pads) a = Mul(x, w) y = Pad(a, p) }""")
    x, target = np.ones((1, 2, 5), np.float32), np.zeros((1, 2, 8), np.float32)
    found = _run(graphopt.gradient(model, loss="mse"), x=x, target=target)
    np.testing.assert_allclose(found["gradient/w"], [[2 * 2 * 5 / 16], [2 * 3 * 5 / 16]], rtol=1e-6)


def test_sizes_that_are_halved_and_rounded_as_floats_are_known_to_rules() -> None:
    """Both ways to a Pad: from a dim of an input, and from a constant."""
    model = _model("""g (float[1, 2, 5] x) => (float[1, 2, 8] y)
        <float[2, 1] w = {2, 3}, float part = {0.25}, float[1] one = {0.6}, int64[4] none = {0, 0, 0, 0}>
        { s = Shape <start = 2, end = 3> (x) f = Cast <to = 1> (s) h = Mul(f, part) before = Cast <to = 7> (h)
          c = Ceil(one) d = Add(c, c) after = Cast <to = 7> (d)
          n = Constant <value_ints = [0]> () p = Concat <axis = 0> (n, n, before, n, n, after)
          a = Mul(x, w) y = Pad(a, p) }""")
    x, target = np.ones((1, 2, 5), np.float32), np.zeros((1, 2, 8), np.float32)
    found = _run(graphopt.gradient(model, loss="mse"), x=x, target=target)
    np.testing.assert_allclose(found["gradient/w"], [[2 * 2 * 5 / 16], [2 * 3 * 5 / 16]], rtol=1e-6)


def test_a_branch_that_a_constant_takes_is_the_only_one() -> None:
    """The branches' results have other ranks, so that the If has no dims; dims that it declares are the other's."""
    model = _model("""g (float[2, 3] x) => (float y)
        <float[3] w = {1, 2, 3}, int64 rank = {2}> {
          z = Constant <value_int = 0> () flag = Equal(rank, z) a = Mul(x, w)
          b = If(flag) <
            then_branch = t () => (float[6] c) { c = Flatten <axis = 0> (a) },
            else_branch = e () => (float[6] d) { d = Exp(a) }
          >
          r = ReduceLogSumExp <axes = [1], keepdims = 0> (b) y = ReduceSum <keepdims = 0> (r) }""")
    x = np.array([[0.1, 0.2, -0.3], [0.5, 0, 0.1]])
    found = _run(graphopt.gradient(model, loss="y"), x=x.astype(np.float32))
    grown = np.exp(x * [1, 2, 3])
    shares = np.exp(grown) / np.exp(grown).sum(1, keepdims=True)
    np.testing.assert_allclose(found["gradient/w"], (shares * grown * x).sum(0), rtol=1e-5)


def test_an_integer_that_follows_from_a_weight_follows_it_in_a_step() -> None:
    model = _model("""g (float[3, 2] x) => (float y) <float[3] w = {1, 3, 2}>
        { i = ArgMax <keepdims = 0> (w) row = Gather(x, i) m = ReduceMax <keepdims = 0> (w) a = Mul(row, m)
          y = ReduceSum <keepdims = 0> (a) }""")
    step = graphopt.train_step(model, loss="y")
    names = [value.name for value in step.to_proto().graph.output]
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    for w, loss in ((np.array([1, 3, 2], np.float32), 21), (np.array([4, 3, 2], np.float32), 12)):
        found = dict(zip(names, runner(step.to_proto())(names, {"x": x, "w": w}), strict=True))
        assert found["y"] == loss


def test_free_dims_are_summed_as_a_run_has_them() -> None:
    """Only a run tells whether `b` is broadcast along its first axis."""
    model = _model("""g (float[n, 3] x, float[m, 3] b) => (float[k, 3] y)
        <float[3] w = {1, 2, 3}> { a = Mul(x, w) y = Add(a, b) }""")
    result = graphopt.gradient(model, loss="mse", with_respect_to=["b", "w"])
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for rows in (1, 4):
        b = np.ones((rows, 3), np.float32)
        found = _run(result, x=x, b=b, target=np.zeros((4, 3), np.float32))
        slope = 2 * (x * [1, 2, 3] + b) / 12
        np.testing.assert_allclose(found["gradient/b"], slope.sum(0, keepdims=True) if rows == 1 else slope, rtol=1e-5)
        np.testing.assert_allclose(found["gradient/w"], (slope * x).sum(0), rtol=1e-5)


def test_copies_and_ranges_are_as_many_as_a_run_has() -> None:
    """y = the first of n - 1 or all rows of w, or the last of them, in as many copies as x has rows."""
    model = _model("""g (float[n, 3] x) => (float[k, m] y) <float[1, 3] w = {1, 2, 3}, int64[1] o = {1},
        int64[1] f = {0}, int64[1] t = {-2}, int64[1] z = {0}> { s = Shape(x) n = Slice(s, z, o)
          r = Concat<axis = 0>(n, o) e = Tile(w, r) p = Mul(e, x) l = Sub(n, o)
          a = Slice(p, f, l, z) b = Slice(p, t, n, z) c = Slice(p, o, n, z)
          y = Concat<axis = 0>(a, b, c) }""")
    result = graphopt.gradient(model, loss="mse", with_respect_to=["x", "w"])
    for rows in (1, 2, 5):
        x, w = np.arange(1, 1 + 3 * rows, dtype=np.float32).reshape(rows, 3), np.array([[1, 2, 3]], np.float32)
        counts = np.array([(at < rows - 1) + (at >= rows - 2) + (at >= 1) for at in range(rows)])
        found = _run(result, x=x, target=np.zeros((counts.sum(), 3), np.float32))
        slope = 2 * counts[:, None] * x * w / (3 * counts.sum())
        np.testing.assert_allclose(found["gradient/x"], slope * w, rtol=1e-5)
        np.testing.assert_allclose(found["gradient/w"], (slope * x).sum(0, keepdims=True), rtol=1e-5)


def test_what_has_no_rule_is_named() -> None:
    model = _model("""g (float[4] x) => (float y) <float[4] w = {1, 2, 3, 4}, int64[2] s = {2, 2}>
        { a = Mul(x, w) b = Reshape(a, s) y = Det(b) }""")
    model.graph.node[2].name = "det"
    with pytest.raises(ModelError, match=r"there is no gradient rule for Det \('det'\)"):
        graphopt.gradient(model, loss="y")
    with pytest.raises(OptionError, match="gradients need opset 9 or newer, and the model has 8"):
        graphopt.gradient(_model("g (float[2] x) => (float[2] y) { y = Relu(x) }", 8), loss="mse", with_respect_to="x")
    taken = _model("g (float[2] target) => (float[2] y) { y = Relu(target) }")
    with pytest.raises(ModelError, match="the model has a value named 'target' already"):
        graphopt.gradient(taken, loss="mse", with_respect_to="target")


def test_constants_train_in_a_model_that_keeps_its_weights_in_them() -> None:
    text = """g (float[2, 3] x) => (float[2, 2] y) WEIGHTS
        { w = Constant <value = float[3, 2] {1, 2, 3, 4, 5, 6}> () half = Constant <value_float = 0.5> ()
          a = MatMul(x, w) b = Mul(a, half) y = MORE }"""
    result = graphopt.gradient(_model(text.replace("WEIGHTS", "").replace("MORE", "Identity(b)")), loss="mse")
    assert set(result.gradients) == {"w"}
    x, target = np.array([[1, 0, 2], [0, 1, -1]], np.float32), np.zeros((2, 2), np.float32)
    found = _run(result, x=x, target=target)
    assert np.allclose(found["gradient/w"], x.T @ found["y"] * 0.5 * 2 / 4)
    step = graphopt.train_step(_model(text.replace("WEIGHTS", "").replace("MORE", "Identity(b)")), loss="mse")
    assert "w_new" in {value.name for value in step.to_proto().graph.output}
    both = text.replace("WEIGHTS", "<float[2] bias = {0, 1}>").replace("MORE", "Add(b, bias)")
    assert set(graphopt.gradient(_model(both), loss="mse").gradients) == {"bias"}


def test_a_loss_reads_a_result_whose_dims_only_the_file_tells() -> None:
    model = _model("""g (float[2, 3] x, int64[N] sizes) => (float[A, B] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}>
        { a = Mul(x, w) y = Reshape(a, sizes) }""")
    found = _run(
        graphopt.gradient(model, loss="mse"), x=np.ones((2, 3), np.float32), sizes=np.array([3, 2]),
        target=np.zeros((3, 2), np.float32),
    )  # fmt: skip
    assert np.allclose(found["gradient/w"], 2 / 6 * np.array([[1, 2, 3], [4, 5, 6]]))
