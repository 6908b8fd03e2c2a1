"""Gates: comparisons of numbers that are as good as equal come out on both sides when rounding is sampled."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from graphopt.check import held
from graphopt.check.gates import gates_of, squares_of, widths_of
from graphopt.check.noise import SQUARES_FIRST, WAYS, Case, Noise
from graphopt.check.runner import Workplace
from graphopt.model.load import load
from graphopt.model.rooms import is_written
from tests import support

PLAIN = "g (float[4,16] x) => (float[4,16] y) <float three = {3.0}> { t = Div(x, three) y = Sigmoid(t) }"
BOTH = "g (float[5] x) => (bool[5] y, bool[5] z) <float zero = {0.0}> { y = Greater(x, zero) z = Less(x, zero) }"


def _moved(text: str, x: np.ndarray, direction: int, sample: np.ndarray | None = None) -> list[list[object]] | None:
    """The outputs of a model whose gates decide the other way, as far as a sample of x lets them.

    Without a sample one unit in the last place moves every element.
    """
    gates = gates_of(load(support.model(text)))
    assert gates is not None
    operands = [np.asarray(one) for one in ReferenceEvaluator(ir.to_proto(gates.operands)).run(None, {"x": x})]
    moved = [one * np.float32(1 + 2**-23) for one in operands] if sample is None else [sample, *operands[1:]]
    given = gates.moved(operands, widths_of(operands, [moved]), direction)
    if given is None:
        return None
    wanted = {value.name for value in gates.decided.graph.inputs}
    feed = {name: one for name, one in {"x": x, **given}.items() if name in wanted}
    return [one.tolist() for one in ReferenceEvaluator(ir.to_proto(gates.decided)).run(None, feed)]


def test_what_is_greater_by_rounding_alone_comes_out_the_other_way() -> None:
    """Of -1, 0, 5e-8, 1 and 2, one is above 0 by less than what rounding moves; 0 stays what it is."""
    x = np.array([-1, 0, 5e-8, 1, 2], np.float32)
    assert _moved(BOTH, x, -1) == [[False, False, False, True, True], [True, False, True, False, False]]
    assert _moved(BOTH, x, 1) is None
    assert gates_of(load(support.model(PLAIN))) is None


def test_what_is_not_greater_by_rounding_alone_comes_out_the_other_way_too() -> None:
    """Of -1, -5e-8, 0, 1 and 2, one is below 0 by less than what rounding moves; 0 stays what it is."""
    x = np.array([-1, -5e-8, 0, 1, 2], np.float32)
    assert _moved(BOTH, x, 1) == [[False, True, False, True, True], [True, False, False, False, False]]
    assert _moved(BOTH, x, -1) is None


def test_a_gate_is_three_times_as_wide_as_samples_move_its_operand() -> None:
    """A sample moves one element by 1e-3: 2e-3 below zero is within the width, and in the next element it is not."""
    x = np.array([-2e-3, -2e-3, 1, 1, 1], np.float32)
    sample = x + np.array([1e-3, 0, 0, 0, 0], np.float32)
    found = _moved(BOTH, x, 1, sample)
    assert found == [[True, False, True, True, True], [False, True, False, False, False]]
    assert _moved(BOTH, x, 1, x) is None


def test_the_gate_of_a_relu_is_one_of_the_operand_of_the_relu() -> None:
    """Its result is 0 far below the kink and near it; a gate of another bound than zero is one of the result."""
    text = """g (float[5] x) => (bool[5] y, bool[5] z) <float zero = {0.0}, float one = {1.0}> {
        r = Relu(x) y = Greater(r, zero) z = Greater(r, one)
    }"""
    x = np.array([-1, -5e-8, 0, 1 - 5e-8, 2], np.float32)
    assert _moved(text, x, 1) == [[False, True, False, True, True], [False, False, False, True, True]]


def test_a_gate_of_a_number_without_bound_is_not_moved() -> None:
    x = np.array([np.inf, np.nan, -5e-8, -np.inf, 1], np.float32)
    assert _moved(BOTH, x, 1) == [[True, False, True, False, True], [False, False, False, True, False]]


@pytest.mark.parametrize(("kind", "direction", "expected"), [("Sign", -1, -1.0), ("LessOrEqual", -1, True)])
def test_other_kinds_of_gates_are_moved_too(kind: str, direction: int, expected: object) -> None:
    """5e-8 beside 1 may be below zero; zero itself stays zero, which is no more than zero."""
    operands, type_ = ("x", "float") if kind == "Sign" else ("x, zero", "bool")
    text = f"g (float[5] x) => ({type_}[5] y) <float zero = {{0.0}}> {{ y = {kind}({operands}) }}"
    found = _moved(text, np.array([5e-8, 0, 1, 1, 1], np.float32), direction)
    assert found is not None and found[0][0] == expected
    assert found[0][1] == (0.0 if kind == "Sign" else True)


def test_integers_and_operands_that_are_broadcast_by_attributes_are_no_gates() -> None:
    counts = "g (int64[5] x) => (bool[5] y) <int64 zero = {0}> { y = Greater(x, zero) }"
    assert gates_of(load(support.model(counts))) is None
    old = "g (float[2,3] x, float[2] z) => (bool[2,3] y) { y = Greater <broadcast = 1, axis = 0> (x, z) }"
    assert gates_of(load(support.model(old, opset=6))) is None


def test_what_rounding_adds_up_to_before_a_gate_decides_there() -> None:
    """Beside 10,000 a number loses ten bits: a sixth may be more than 0.1668 then, and a third is in any case."""
    text = """g (float[1,16] x) => (float[1,16] y) <
            float big = {10000.0}, float three = {3.0}, float bound = {0.1668}
        > {
        t = Div(x, three) a = Add(t, big) b = Sub(a, big) s = Greater(b, bound) f = Cast<to = 1>(s) y = Mul(f, x)
    }"""
    model, x = load(support.model(text)), np.ones((1, 16), np.float32)
    x[0, 0] = 0.5
    feed = {"x": x}
    with Workplace() as workplace:
        runner = workplace.runner(model, True)
        case = Case(feed, runner.run(feed), "normal")
        list(Noise(workplace, model, runner, True, lambda: 1, [case]).samples(case))
    (closed,) = case.samples[WAYS.index("gates")]
    assert np.asarray(case.outputs[0])[0].tolist() == x[0].tolist()
    assert np.asarray(closed)[0].tolist() == [0.0, *x[0, 1:].tolist()]
    assert case.samples[WAYS.index("gates open")] is case.outputs


def test_what_is_squared_is_moved_by_its_width_with_all_its_uses() -> None:
    """Three times as much rounding is nine times as much in a square; a sum beside it is moved along."""
    text = "g (float[3] x) => (float[3] y, float[3] z) { t = Neg(x) s = Mul(t, t) y = Sqrt(s) z = Add(t, x) }"
    squares = squares_of(load(support.model(text)))
    assert squares is not None
    t = np.array([0.0, -1, 4], np.float32)
    widths = [np.array([0.5, 0.25, 0], np.float64)]
    given = squares.moved([t], widths, 1)
    assert given is not None and given["t:decided"].tolist() == [0.5, -0.75, 4]
    found = ReferenceEvaluator(ir.to_proto(squares.decided)).run(None, {"x": -t, **given})
    assert found[0].tolist() == [0.5, 0.75, 4] and found[1].tolist() == [0.5, 0.25, 0]
    assert squares.moved([t], [np.zeros(3)], 1) is None


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3] x) => (float[1] y) { t = Neg(x) s = Mul(t, t) y = ReduceMean(s) }",
        "g (float[3] x) => (float[3] y) { t = Neg(x) y = Mul(t, x) }",
        "g (float[3] x) => (float[3] y) { y = Mul(x, x) }",
        "g (int64[3] x) => (int64[3] y) { t = Neg(x) y = Mul(t, t) }",
    ],
    ids=["through a mean", "a product", "of an input", "of integers"],
)
def test_other_products_are_no_squares_of_outputs(text: str) -> None:
    assert squares_of(load(support.model(text))) is None


def test_the_sign_of_a_step_by_a_gradient_of_rounding_alone_comes_out_both_ways() -> None:
    """Adam's first step is the sign of the gradient: a third less a third, beside numbers that are no rounding."""
    text = """g (float[1,16] x) => (float[1,16] y) <float three = {3.0}, float third = {0.33333334}> {
        t = Div(x, three) a = Sub(t, third) s = Mul(a, a) r = Sqrt(s) e = Abs(third) d = Mul(e, r) y = Div(a, d)
    }"""
    model, x = load(support.model(text)), np.full((1, 16), 2, np.float32)
    x[0, 0] = 1 + 2**-22
    with Workplace() as workplace:
        runner = workplace.runner(model, True)
        case = Case({"x": x}, runner.run({"x": x}), "normal")
        list(Noise(workplace, model, runner, True, lambda: 1, [case]).samples(case))
    down, up = (np.asarray(case.samples[SQUARES_FIRST.index(way)][0]) for way in ("squares", "squares up"))
    assert down[0, 0] * up[0, 0] < 0, "its gradient is as large as its rounding"
    assert (down[0, 1:] * up[0, 1:] > 0).all()


def test_widths_in_files_are_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is squared, and moved by them, too."""
    rng = np.random.default_rng(5)
    operands = [rng.standard_normal((40, 30), np.float32), np.array([np.inf, 1, 2], np.float32)]
    samples = [[one * np.float32(1 + 2**-23 * number) for one in operands] for number in (1, 2)]
    squares = squares_of(load(support.model("g (float[40,30] x) => (float[40,30] y) { t = Neg(x) y = Mul(t, t) }")))
    assert squares is not None

    def found() -> tuple[list[np.ndarray], np.ndarray]:
        widths = widths_of(operands, samples)
        given = squares.moved(operands, widths, 1)
        assert given is not None
        return widths, np.asarray(given["t:decided"])

    plain = found()
    monkeypatch.setattr(held, "LARGE", 64)
    filed = found()
    assert [is_written(one) for one in filed[0]] == [True, False] and not any(map(is_written, plain[0]))
    for one, other in zip((*plain[0], plain[1]), (*filed[0], filed[1]), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
