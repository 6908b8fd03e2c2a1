"""The model's own rounding: what its samples move, and what they leave as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import graphopt
from graphopt.check.double import Double, in_double
from graphopt.check.moved import moved_steps, moved_sums, moved_weights
from graphopt.check.narrowed import narrowed
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


@pytest.mark.parametrize(("before", "count"), [("a = MatMul(x, w)", 0), ("a = MatMul(f, w)", 3)])
def test_on_a_grid_steps_are_moved_behind_others_only(before: str, count: int) -> None:
    """Ties of x are meant; what is a sum of rounded numbers stands beside a tie by luck."""
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
    assert sum(one is not case.outputs for one in case.samples[-len(LATER_WAYS) :]) == count


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
