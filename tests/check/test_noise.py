"""The model's own rounding: what its samples move, and what they leave as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import graphopt
from graphopt.check import noise
from graphopt.check.moved import moved_steps, moved_sums, moved_weights
from graphopt.check.noise import EXACT_WAYS, LATER_WAYS, WAYS, Case, Noise
from graphopt.check.runner import CannotRun, Workplace
from graphopt.model.load import load
from tests import support

ILL = """g (float[4,16] x) => (float[4,16] y) <float big = {10000.0}, float three = {3.0}> {
    t = Div(x, three) a = Add(t, big) b = Sub(a, big) y = Sigmoid(b)
}"""
RIGHT = """g (float[4,16] x) => (float[4,16] y) <float big = {10000.0}, float more = {30000.0}, float three = {3.0}> {
    a = Add(x, more) t = Div(a, three) b = Sub(t, big) y = Sigmoid(b)
}"""
LARGE = 10**12  # of work: too large for the reference evaluator
PLAIN = "g (float[4,16] x) => (float[4,16] y) <float three = {3.0}> { t = Div(x, three) y = Sigmoid(t) }"


def test_a_difference_is_held_to_the_rounding_of_the_original() -> None:
    """Ten bits of x are lost beside 10,000, and others in the other order."""
    found = graphopt.verify(support.model(ILL), support.model(RIGHT))
    assert found.passed
    assert found.max_rel > 1e-5
    assert 0 < found.rounding <= 10


def test_the_same_difference_is_a_fault_where_the_original_does_not_round() -> None:
    found = graphopt.verify(support.model(PLAIN), support.model(ILL))
    assert found.status == "different"
    assert found.reason is not None and "the model's own rounding" in found.reason


def test_a_tolerance_takes_the_place_of_the_rounding() -> None:
    found = graphopt.verify(support.model(PLAIN), support.model(ILL), tolerance=1e-2)
    assert found.passed
    assert set(found.tolerance.values()) == {1e-2}
    assert graphopt.verify(support.model(ILL), support.model(RIGHT), tolerance=1e-9).status == "different"


def test_weights_move_by_one_unit_and_constants_of_few_digits_stay() -> None:
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    grid = np.arange(16, dtype=np.float32).reshape(4, 4)
    text = "g (float[4,4] x) => (float[4,4] y) { a = MatMul(x, w) b = Add(a, grid) y = Mul(b, small) }"
    model = load(support.model(text, w=weight, grid=grid, small=np.array([0.1], np.float32)))
    moved = moved_weights(model)
    assert moved is not None
    arrays = {name: value.const_value.numpy() for name, value in moved.graph.initializers.items() if value.const_value}
    units = np.abs(arrays["w"].view(np.int32) - weight.view(np.int32))
    assert units.min() == units.max() == 1
    assert np.array_equal(arrays["grid"], grid)
    assert arrays["small"] == np.float32(0.1)


def test_weights_of_branches_move_too() -> None:
    """In Constant nodes of a branch, as exporters leave them."""
    numbers = ", ".join(f"{value:.6f}" for value in np.random.default_rng(1).standard_normal(8))
    model = load(support.model(
        f"""g (float[8] x, bool flag) => (float[8] y) {{
            y = If(flag) <
                then_branch = one () => (float[8] a) {{
                    k = Constant <value = float[8] {{{numbers}}}> ()
                    a = Mul(x, k)
                }},
                else_branch = two () => (float[8] b) {{ b = Neg(x) }}
            >
        }}"""
    ))  # fmt: skip
    x = np.ones(8, np.float32)
    moved = moved_weights(model)
    assert moved is not None
    before, after = (
        ReferenceEvaluator(ir.to_proto(one)).run(None, {"x": x, "flag": np.asarray(True)})[0] for one in (model, moved)
    )
    units = np.abs(before.view(np.int32) - after.view(np.int32))
    assert units.min() == units.max() == 1


def test_a_model_without_weights_has_none_to_move() -> None:
    assert moved_weights(load(support.model("g (float[4] x) => (float[4] y) { y = Relu(x) }"))) is None


def test_an_overflow_of_the_original_is_its_own_rounding() -> None:
    """Log(1 + Exp(x)) is infinite from 89 on in float32, and Softplus is not."""
    text = "g (float[n] x) => (float[n] y) <float one = {1.0}> { e = Exp(x) s = Add(e, one) y = Log(s) }"
    plain = "g (float[n] x) => (float[n] y) { y = Softplus(x) }"
    assert graphopt.verify(support.model(text), support.model(plain)).passed
    assert graphopt.verify(support.model(plain), support.model(text)).status == "different"


def test_the_engine_optimizes_in_a_process_of_its_own() -> None:
    """ONNX Runtime's optimizers crash on some valid models; such an end is told like any other refusal."""
    model = load(support.model("g (float[4] x) => (float[4] y) { a = Neg(x) y = Neg(a) }"))
    with Workplace() as workplace:
        runner = workplace.runner(model, True, optimized=True)
        assert runner.engine == "ONNX Runtime"
        process = workplace._process
        assert process is not None
        (found,) = runner.run({"x": np.ones(4, np.float32)})
        assert np.array_equal(np.asarray(found), np.ones(4))
        process._process.kill()
        process._process.wait()
        with pytest.raises(CannotRun):
            runner.run({"x": np.ones(4, np.float32)})


def test_sums_move_by_one_unit_and_what_cancels_shows_what_it_loses() -> None:
    """A variance as the mean of squares less the square of the mean, of numbers that are all nearly one."""
    text = """g (float[2,64] x) => (float[2,1] y) <int64[1] last = {-1}> {
        m = ReduceMean(x, last) s = Mul(x, x) a = ReduceMean(s, last) b = Mul(m, m) y = Sub(a, b)
    }"""
    model = load(support.model(text, 18))
    moved = moved_sums(model)
    assert moved is not None
    x = (1 + np.random.default_rng(0).standard_normal((2, 64)) * 1e-3).astype(np.float32)
    (plain,), (other,) = (ReferenceEvaluator(ir.to_proto(one)).run(None, {"x": x}) for one in (model, moved))
    assert 1e-8 < np.abs(plain - other).max() < 1e-6  # of a variance of 1e-6
    assert moved_sums(load(support.model(PLAIN))) is None


def test_equal_elements_of_a_row_are_moved_apart() -> None:
    """Other lanes sum in another order; a normalization of equal elements shows by what it makes of that."""
    text = "g (float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }"
    model = load(support.model(text, w=np.ones((64, 64), np.float32)))
    moved = moved_sums(model)
    assert moved is not None
    (found,) = ReferenceEvaluator(ir.to_proto(moved)).run(None, {"x": np.full((1, 64), 0.3, np.float32)})
    assert 0 < np.ptp(found) < 1e-5


def test_operators_that_a_runtime_fused_are_taken_apart() -> None:
    """Float64 has no kernel of SkipLayerNormalization, and its sums are inside of it."""
    node = onnx.helper.make_node("SkipLayerNormalization", ["x", "s", "w"], ["y"], domain="com.microsoft")
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1, 2, 8]) for name in "xsy"]
    weight = onnx.numpy_helper.from_array(np.linspace(0.3, 1.1, 8, dtype=np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", ends[:2], ends[2:], [weight])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = load(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
    feed = {name: np.random.default_rng(3).standard_normal((1, 2, 8)).astype(np.float32) for name in "xs"}
    with Workplace() as workplace:
        runner = workplace.runner(model, True)
        case = Case(feed, runner.run(feed), "normal")
        noise = Noise(workplace, model, runner, True, lambda: 1, [case])
        samples = list(noise.samples(case))
    assert case.samples[WAYS.index("double")] is not case.outputs
    assert case.samples[WAYS.index("sums")] is not case.outputs
    assert all(np.abs(np.asarray(one[0]) - np.asarray(case.outputs[0])).max() < 1e-5 for one in samples)


@pytest.mark.parametrize(("draw", "is_moved"), [("zeros", True), ("grid", False)])
def test_zeros_stay_zeros_where_sums_and_steps_are_moved(draw: str, is_moved: bool) -> None:
    """Of a grid ties are meant; of zeros only what biases make of them is rounded, which lies anywhere."""
    text = """g (float[1,8] x) => (float[1,8] y) {
        p = MatMul(x, w) a = Add(p, b) q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z)
    }"""
    numbers = np.random.default_rng(3).standard_normal((9, 8)).astype(np.float32)
    model = load(
        support.model(text, w=numbers[1:], b=numbers[0], s=np.array(1e-2, np.float32), z=np.array(100, np.uint8))
    )
    feed = {"x": np.zeros((1, 8), np.float32)}
    with Workplace() as workplace:
        runner = workplace.runner(model, True)
        case = Case(feed, runner.run(feed), draw)
        list(Noise(workplace, model, runner, True, lambda: 1, [case]).samples(case))
    assert (len(case.samples) > len(EXACT_WAYS)) is is_moved


@pytest.mark.parametrize(
    ("before", "moves"),
    [("a = MatMul(x, w)", False), ("a = MatMul(f, w)", True), ("c = Softmax(x) a = MatMul(c, w)", True)],
)
def test_on_a_grid_steps_are_moved_behind_others_only(before: str, moves: bool) -> None:
    """Ties of x are meant; what is made of rounded numbers, or of a function, stands beside a tie by luck."""
    text = f"""g (float[1,8] x) => (float[1,8] y, float[1,8] f) {{
        p = QuantizeLinear(x, s, z) f = DequantizeLinear(p, s, z)
        {before} q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z)
    }}"""
    numbers = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    scale, zero = np.array(1e-2, np.float32), np.array(100, np.uint8)
    model = load(support.model(text, w=numbers, s=scale, z=zero))
    feed = {"x": np.linspace(-1, 1, 8, dtype=np.float32)[None]}
    with Workplace() as workplace:
        runner = workplace.runner(model, True)
        case = Case(feed, runner.run(feed), "grid")
        list(Noise(workplace, model, runner, True, lambda: 1, [case]).samples(case))
    count = sum(one is not case.outputs for one in case.samples[-len(LATER_WAYS) :])
    assert count == (len(LATER_WAYS) if moves else 0)


def test_weights_that_are_inputs_have_all_samples_of_weights() -> None:
    """As a training step has them: a model without other weights is run on several moved feeds all the same."""
    text = "g (float[4,8] x, float[8,8] w) => (float[4,8] y) { y = MatMul(x, w) }"
    model = load(support.model(text))
    draw = np.random.default_rng(7)
    x, w = (draw.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 8)))
    model.graph.inputs[1].const_value = ir.Tensor(w, name="w")
    feed = {"x": x, "w": w}
    with Workplace() as workplace:
        runner = workplace.runner(model, True)
        case = Case(feed, runner.run(feed), "normal")
        list(Noise(workplace, model, runner, True, lambda: 1, [case]).samples(case))
    both = [WAYS.index(way) for way in ("both", "both again", "both once more")]
    assert all(case.samples[at] is not case.outputs for at in both)


def test_what_is_rounded_to_steps_moves_by_what_counts_as_equal() -> None:
    """The factor of an operand lies along its last dim; a scale is another constant; zero points stay."""
    text = """g (float[2,8] x) => (float[2,8] y) <float scale = {0.1}, uint8 zero = {3}> {
        a = Relu(x)
        q = QuantizeLinear(a, scale, zero)
        y = DequantizeLinear(q, scale, zero)
    }"""
    moved, back = (moved_steps(load(support.model(text)), seed) for seed in (0, 1))
    assert moved is not None and back is not None
    quantize, dequantize = (one for one in moved.graph if "Quantize" in one.op_type or "Dequantize" in one.op_type)
    units, units_back = (
        next(2.0**23 * (one.inputs[1].const_value.numpy() - 1) for one in graph if one.op_type == "Mul")  # type: ignore[union-attr]
        for graph in (moved.graph, back.graph)
    )
    assert units.size == 8 and np.abs(units).max() <= 32 and np.abs(units).min() >= 8
    assert np.unique(units).size == 8 and np.allclose(units, -units_back, atol=1)
    scales = [one.inputs[1] for one in (quantize, dequantize)]
    assert [one.name for one in scales if one is not None] == ["q:step1", "scale"]
    assert quantize.inputs[2] is dequantize.inputs[2]
    assert moved_steps(load(support.model(PLAIN))) is None


def test_another_side_of_a_tie_is_rounding_and_another_scale_is_none() -> None:
    """The sum of 64 products in another order; a scale that is a hundredth off."""
    weight = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)
    text = """g (int64[1,64] i) => (float[1,64] y) <float scale = {%s}, uint8 zero = {128}> {
        x = Cast<to = 1>(i)
        s = MatMul(x, w)
        q = QuantizeLinear(s, scale, zero)
        y = DequantizeLinear(q, scale, zero)
    }"""
    model = support.model(text % "0.5", w=weight)
    assert graphopt.verify(model, support.model(text % "0.50001", w=weight)).status == "different"
    turned = "s = MatMul(x, w)", "r = Gather<axis = 1>(x, turn) s = MatMul(r, v)"
    order = np.random.default_rng(6).permutation(64)
    other = support.model((text % "0.5").replace(*turned), v=weight[order], turn=order)
    assert graphopt.verify(model, other).passed


def test_the_engine_has_one_thread_where_threads_decide_the_numbers() -> None:
    """Each thread takes the range of its own rows in a DynamicQuantizeLSTM: a run of all rows is that of one thread."""
    draw = np.random.default_rng(7)
    weights = {"w": draw.integers(0, 255, (1, 8, 64), np.uint8), "r": draw.integers(0, 255, (1, 16, 64), np.uint8)}
    scale, zero = np.array([0.01], np.float32), np.array([128], np.uint8)
    model = support.model(
        """g (float[8,4,8] x) => (float[8,1,4,16] y) {
            y = com.microsoft.DynamicQuantizeLSTM<hidden_size = 16>(x, w, r, , , , , , s, z, s, z)
        }""",
        s=scale, z=zero, **weights,
    )  # fmt: skip
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    made = graphopt.compile(model, tune=0, threads=1)
    assert made.verification.status == "verified" and made.verification.rounding == 0


def test_of_a_recurrent_layer_the_state_moves_where_its_input_is_meant_as_it_is() -> None:
    """Ties of x may be meant. From the second step on the state is a sum of codes: the scale of R moves it."""
    draw = np.random.default_rng(7)
    weights = {"w": draw.integers(0, 255, (1, 8, 64), np.uint8), "r": draw.integers(0, 255, (1, 16, 64), np.uint8)}
    model = load(support.model(
        """g (float[8,4,8] x) => (float[8,1,4,16] y) {
            y = com.microsoft.DynamicQuantizeLSTM<hidden_size = 16>(x, w, r, , , , , , s, z, s, z)
        }""",
        s=np.array([0.01], np.float32), z=np.array([128], np.uint8), **weights,
    ))  # fmt: skip
    moved, later = moved_steps(model), moved_steps(model, later=True)
    assert moved is not None and later is not None
    before = [value and value.name for value in model.graph.node(0).inputs]
    (layer,) = later.graph
    changed = [at for at, value in enumerate(layer.inputs) if (value and value.name) != before[at]]
    assert changed == [10]
    scale = layer.inputs[10]
    assert scale is not None and scale.const_value is not None
    assert 0 < abs(float(scale.const_value.numpy()[0]) / np.float32(0.01) - 1) < 1e-5
    assert [node.op_type for node in moved.graph] == ["Mul", "DynamicQuantizeLSTM"]  # of x
    feed = {"x": draw.standard_normal((8, 4, 8)).astype(np.float32)}
    with Workplace() as workplace:
        runner = workplace.runner(model, True)
        case = Case(feed, runner.run(feed), "grid")
        (sample,) = Noise(workplace, model, runner, True, lambda: 1, [case]).moved(case, "later steps") or ()
    assert not np.array_equal(np.asarray(sample), np.asarray(case.outputs[0]))


SHUT = """g (float16[2,4] scores, bool[2,4] seen) => (float16[2,4] y) {
    mask = Where(seen, zero, least) masked = Add(scores, mask) y = Softmax(masked)
}"""


def test_numbers_of_float16_are_stored_between_operators_of_a_large_model() -> None:
    """-65504 and a score are -65504 in float16: a row that sees nothing is level. ONNX Runtime keeps the scores."""
    least, zero = np.array(-65504, np.float16), np.array(0, np.float16)
    model = load(support.model(SHUT, least=least, zero=zero))
    scores = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float16)
    feed = {"scores": scores, "seen": np.array([[False] * 4, [True] * 4])}
    with Workplace() as workplace:
        runner = workplace.runner(model, True)
        case = Case(feed, runner.run(feed), "grid")
        (sample,) = Noise(workplace, model, runner, True, lambda: LARGE, [case]).moved(case, "definition") or ()
    assert np.asarray(sample)[0].tolist() == [0.25] * 4
    assert np.asarray(case.outputs[0])[0, 3] > 0.5
    assert np.allclose(np.asarray(sample)[1].astype("f4"), np.asarray(case.outputs[0])[1].astype("f4"), atol=1e-3)


def test_what_a_function_of_the_model_computes_is_moved_too() -> None:
    """The variance of a row of nearly equal numbers, a mean of squares less the square of a mean, is rounding."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
    g (float[6,256] x) => (float[6,256] y) { y = local.norm(x) }
    <domain: "local", opset_import: ["" : 18]>
    norm (x) => (y) { axis = Constant<value_ints = [-1]>() m = ReduceMean(x, axis) s = Mul(x, x)
        p = ReduceMean(s, axis) q = Mul(m, m) v = Sub(p, q) zero = Constant<value_float = 0.0>() w = Max(v, zero)
        tiny = Constant<value_float = 1e-6>() a = Add(w, tiny) r = Sqrt(a) c = Sub(x, m) y = Div(c, r) }""")
    x = np.float32(3) + np.random.default_rng(0).uniform(-1e-4, 1e-4, (6, 256)).astype(np.float32)
    with Workplace() as workplace:
        model = load(proto)
        runner = workplace.runner(model, True)
        case = Case({"x": x}, list(runner.run({"x": x})), "flat")
        found = Noise(workplace, model, runner, True, lambda: LARGE).moved(case, "sums")
    assert found is not None and np.abs(np.asarray(found[0]) - np.asarray(case.outputs[0])).max() > 1e-3
    assert graphopt.compile(proto, threads=1).verification.passed


def test_a_model_may_know_a_sigmoid_where_the_engine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's is zero for -60, and e^-60 is no mistake where nothing else stands in its row.

    Of a large model float64 does not tell it: there ONNX Runtime's own has none for -60 either.
    """
    ways = tuple(way for way in WAYS if way not in ("double", "definition"))
    monkeypatch.setattr(noise, "WAYS", ways)
    low = np.where(np.arange(16) == 3, -60, 0).astype(np.float32)
    head, tail = "g (float[32,16] x) => (float[16,32] y) { b = Add(x, low)", "t = Transpose(s) y = Mul(t, two) }"
    numbers = {"low": low, "one": np.float32(1), "two": np.float32(2)}
    fused = support.model(f"{head} s = Sigmoid(b) {tail}", **numbers)
    spelled_out = support.model(f"{head} c = Neg(b) e = Exp(c) d = Add(e, one) s = Div(one, d) {tail}", **numbers)
    assert graphopt.verify(fused, spelled_out).passed
    monkeypatch.setattr(noise, "WAYS", tuple(way for way in ways if way != "functions"))
    assert not graphopt.verify(fused, spelled_out).passed
