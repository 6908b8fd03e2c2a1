"""Neutral elements, powers, signs, reciprocals, and constants regrouped."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.passes.algebra import arithmetic, regroup
from graphopt.rewrite import driver
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Refused, Rule
from tests.passes.algebra_checks import EXACT, ROUNDING, build, constants, floats, leaves, refuses
from tests.support import apply_rules, assert_equal, op_types, session

IO = "g (float[N, 4] X) => (float[N, 4] Y)"
INT = "g (int64[N, 4] X) => (int64[N, 4] Y)"
TWO = "g (float[N, 4] X, float[N, 4] Z) => (float[N, 4] Y)"


@pytest.mark.parametrize(
    "expression, number",
    [("Add(a, c)", 0), ("Add(c, a)", 0), ("Sub(a, c)", 0), ("Mul(a, c)", 1), ("Mul(c, a)", 1), ("Div(a, c)", 1),
     ("Pow(a, c)", 1)],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4)])
def test_neutral_element(expression: str, number: float, shape: tuple[int, ...]) -> None:
    text = f"{IO} {{ a = Tanh(X) b = {expression} Y = Exp(b) }}"
    leaves(build(text, c=np.full(shape, number, np.float32)), ["Tanh", "Exp"], EXACT, N=3)


def test_sum_of_two_operands() -> None:
    leaves(build(f"{TWO} {{ a = Tanh(X) Y = Sum(a, Z) }}"), ["Tanh", "Add"], EXACT, N=3)
    refuses(build(f"{TWO} {{ a = Tanh(X) Y = Sum(a, Z, a) }}"))
    refuses(build(f"{TWO} {{ a = Tanh(X) Y = Sum(a, Z) }}", 7))


def test_neutral_element_in_a_constant_node_of_integers() -> None:
    text = f"{INT} {{ c = Constant<value_int = 0>() b = Add(X, c) Y = Abs(b) }}"
    after, log = apply_rules(build(text), arithmetic.RULES)
    assert [entry.rule for entry in log] == ["add-zero"]
    assert op_types(after) == ["Abs"]


@pytest.mark.parametrize(
    "text, constant",
    [
        (f"{IO} {{ a = Tanh(X) b = Add(a, c) Y = Exp(b) }}", floats(0, 0, 0, 1)),  # not 0 everywhere
        ("g (float[4] X) => (float[3, 4] Y) { b = Add(X, c) Y = Exp(b) }", np.zeros((3, 1), np.float32)),  # widens
        ("g (float[1, 4] X) => (float[3, 4] Y) { b = Mul(X, c) Y = Exp(b) }", np.ones((3, 4), np.float32)),
        (f"{IO} {{ a = Tanh(X) b = Sub(c, a) Y = Exp(b) }}", np.float32(0)),  # 0 - 0 is 0, not -0
        (f"{IO} {{ a = Tanh(X) b = Mul(a, c) Y = Exp(b) }}", np.float32(0)),  # NaN * 0 is NaN
        (f"{IO} {{ a = Tanh(X) b = Mul(a, c) Y = Exp(b) }}", np.float32(1 + 2**-23)),  # nearly 1
        (f"{IO} {{ a = Tanh(X) b = Div(c, a) Y = Exp(b) }}", np.float32(2)),
        (f"{IO} {{ a = Tanh(X) b = Pow(a, c) Y = Exp(b) }}", np.float32(0.5)),  # -inf ^ 0.5 is inf, sqrt(-inf) is NaN
        (f"{IO} {{ a = Tanh(X) b = Pow(a, c) Y = Exp(b) }}", np.int64(2)),  # exponent of another type
    ],
)
def test_no_neutral_element(text: str, constant: np.ndarray) -> None:
    refuses(build(text, c=constant))


@pytest.mark.parametrize(
    "text, constant, expected, tolerance",
    [
        (f"{IO} {{ Y = Pow(X, c) }}", np.float32(2), ["Mul"], EXACT),
        (f"{INT} {{ Y = Pow(X, c) }}", np.int64(2), ["Mul"], EXACT),
        (f"{IO} {{ Y = Pow(X, c) }}", np.float32(-1), ["Reciprocal"], ROUNDING),
        (f"{IO} {{ Y = Mul(X, c) }}", np.float32(-1), ["Neg"], EXACT),
        (f"{IO} {{ Y = Mul(c, X) }}", np.float32(-1), ["Neg"], EXACT),
        (f"{IO} {{ Y = Div(X, c) }}", np.float32(-1), ["Neg"], EXACT),
        (f"{INT} {{ Y = Sub(c, X) }}", np.int64(0), ["Neg"], EXACT),
        (f"{IO} {{ Y = Div(c, X) }}", np.float32(1), ["Reciprocal"], EXACT),
        (f"{IO} {{ a = Neg(X) Y = Mul(c, a) }}", np.float32(3), ["Mul"], EXACT),
        (f"{IO} {{ a = Neg(X) Y = Div(a, c) }}", np.float32(3), ["Div"], EXACT),
        (f"{IO} {{ a = Mul(X, c) Y = Neg(a) }}", np.float32(3), ["Mul"], EXACT),
        (f"{IO} {{ a = Neg(X) Y = Div(c, a) }}", np.float32(3), ["Div"], EXACT),
        (f"{IO} {{ a = Neg(X) Y = Add(a, c) }}", np.float32(3), ["Sub"], EXACT),
    ],
)
def test_with_a_number(text: str, constant: np.ndarray, expected: list[str], tolerance: float) -> None:
    leaves(build(text, c=constant), expected, tolerance, N=3)


@pytest.mark.parametrize(
    "text, expected, tolerance",
    [
        (f"{IO} {{ a = Neg(X) b = Neg(a) Y = Exp(b) }}", ["Exp"], EXACT),
        (f"{TWO} {{ a = Neg(Z) Y = Add(X, a) }}", ["Sub"], EXACT),
        (f"{TWO} {{ a = Neg(X) Y = Add(a, Z) }}", ["Sub"], EXACT),
        (f"{TWO} {{ a = Neg(Z) Y = Sub(X, a) }}", ["Add"], EXACT),
        (f"{TWO} {{ a = Neg(X) b = Neg(Z) Y = Mul(a, b) }}", ["Mul"], EXACT),
        (f"{TWO} {{ a = Neg(X) b = Neg(Z) Y = Div(a, b) }}", ["Div"], EXACT),
        (f"{TWO} {{ a = Reciprocal(Z) Y = Mul(X, a) }}", ["Div"], ROUNDING),
        (f"{TWO} {{ a = Reciprocal(Z) Y = Div(X, a) }}", ["Mul"], ROUNDING),
        (f"{IO} {{ a = Softmax(X) Y = Log(a) }}", ["LogSoftmax"], ROUNDING),
    ],
)
def test_without_constants(text: str, expected: list[str], tolerance: float) -> None:
    leaves(build(text), expected, tolerance, N=3)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N, 4] X, float[N, 4] Z) => (float[N, 4] Y, float[N, 4] A) { A = Neg(Z) Y = Add(X, A) }",
        f"{INT} {{ a = Neg(X) b = Neg(X) Y = Div(a, b) }}",  # the smallest integer has no opposite
        f"{IO} {{ a = Reciprocal(X) b = Reciprocal(a) Y = Exp(b) }}",
        "g (float[N, 4] X, float[N, 1] Z) => (float[N, 4] Y) { a = Reciprocal(Z) Y = Mul(X, a) }",  # few reciprocals
        f"{IO} {{ a = Log(X) b = Exp(a) Y = Neg(b) }}",
    ],
)
def test_without_constants_stays(text: str) -> None:
    refuses(build(text))


def test_negation_read_elsewhere_is_undone_all_the_same() -> None:
    text = "g (float[N, 4] X) => (float[N, 4] Y, float[N, 4] Z) { a = Neg(X) b = Neg(a) Y = Exp(b) Z = Exp(a) }"
    leaves(build(text), ["Neg", "Exp", "Exp"], EXACT, N=3)


def test_level_3_turns_square_roots_and_zero_minus_x() -> None:
    proto = build(f"{IO} {{ a = Abs(X) b = Pow(a, h) Y = Sub(z, b) }}", h=np.float32(0.5), z=np.float32(0))
    after, _ = apply_rules(proto, [arithmetic.pow_half, arithmetic.zero_minus_float])
    assert op_types(after) == ["Abs", "Sqrt", "Neg"]
    assert arithmetic.pow_half.level == arithmetic.zero_minus_float.level == 3
    assert_equal(proto, after, rtol=ROUNDING, atol=0)


@pytest.mark.parametrize("kind", ["Mul(X, c)", "Pow(X, d)"])
def test_special_numbers(kind: str) -> None:
    """NaN, infinities and both zeros come out the same, sign included."""
    proto = build(f"g (float[6] X) => (float[6] Y) {{ Y = {kind} }}", c=np.float32(-1), d=np.float32(2))
    after, log = apply_rules(proto, arithmetic.RULES)
    assert log
    given = {"X": floats(np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30)}
    before, found = session(proto).run(None, given)[0], session(after).run(None, given)[0]
    np.testing.assert_array_equal(before, found)
    np.testing.assert_array_equal(np.signbit(before[1:]), np.signbit(found[1:]))


A, B = floats(1.5, -2, 3, 4), floats(2.5, -3, 5, 0.5)
SUM = ["Add(X, a)", "Sub(X, a)", "Sub(a, X)"]
PRODUCT = ["Mul(a, X)", "Div(X, a)", "Div(a, X)"]


@pytest.mark.parametrize("inner", SUM)
@pytest.mark.parametrize("outer", ["Add(b, t)", "Sub(t, b)", "Sub(b, t)"])
def test_regrouped_sum(inner: str, outer: str) -> None:
    proto = build(f"{IO} {{ t = {inner} Y = {outer} }}", a=A, b=B)
    after, log = apply_rules(proto, regroup.RULES)
    assert len(after.graph.node) == 1 and len(log) == 1
    assert_equal(proto, after, rtol=ROUNDING, atol=ROUNDING, N=3)


@pytest.mark.parametrize("inner", PRODUCT)
@pytest.mark.parametrize("outer", ["Mul(t, b)", "Div(t, b)", "Div(b, t)"])
def test_regrouped_product(inner: str, outer: str) -> None:
    proto = build(f"{IO} {{ t = {inner} Y = {outer} }}", a=A, b=np.float32(4))
    after, log = apply_rules(proto, regroup.RULES)
    assert len(after.graph.node) == 1 and len(log) == 1
    assert_equal(proto, after, rtol=ROUNDING, atol=ROUNDING, N=3)


def test_regrouped_integers_wrap_around() -> None:
    large = np.int64(2**62)
    proto = build(f"{INT} {{ s = Mul(X, a) t = Mul(s, a) u = Add(t, a) Y = Add(u, a) }}", a=large)
    after = leaves(proto, ["Mul", "Add"], EXACT, N=3)
    assert sorted(constants(after).values()) == [[-(2**63)], [0]]


def test_regrouped_extremes() -> None:
    proto = build(f"{IO} {{ s = Max(X, a) t = Max(b, s) u = Min(t, c) Y = Min(u, d) }}",
                  a=A, b=B, c=floats(9, 9, 9, 9), d=floats(8, 10, 10, 10))  # fmt: skip
    leaves(proto, ["Max", "Min"], EXACT, N=3)


@pytest.mark.parametrize(
    "text, a, b",
    [
        (f"{IO} {{ s = Add(X, a) Y = Sub(s, b) }}", np.float32(12582912), np.float32(12582912)),  # rounds on purpose
        (f"{IO} {{ s = Mul(X, a) Y = Mul(s, b) }}", np.float32(1e-30), np.float32(1e-30)),  # underflow
        (f"{IO} {{ s = Mul(X, a) Y = Mul(s, b) }}", np.float32(1e30), np.float32(1e30)),  # overflow
        (f"{IO} {{ s = Mul(X, a) Y = Mul(s, b) }}", np.float32(0), np.float32(3)),
        (f"{INT} {{ s = Div(X, a) Y = Mul(s, b) }}", np.int64(2), np.int64(2)),  # drops the remainder
        (f"{INT} {{ s = Mul(X, a) Y = Div(s, b) }}", np.int64(2), np.int64(2)),
        ("g (float[N, 4] X) => (float[N, 4] Y, float[N, 4] S) { S = Add(X, a) Y = Add(S, b) }", A, B),  # read twice
        ("g (float[300, 300] X) => (float[300, 300] Y) { S = Add(X, a) Y = Add(S, b) }",  # would grow to 360 kB
         np.ones((300, 1), np.float32), np.ones((1, 300), np.float32)),
    ],
)  # fmt: skip
def test_not_regrouped(text: str, a: np.ndarray, b: np.ndarray) -> None:
    refuses(build(text, a=a, b=b))


def test_splats_stay_splats() -> None:
    """Two constants of 4 MB that are one repeated number make a third, which takes no memory either."""
    proto = build(
        "g (float[1024, 1024] X) => (float[1024, 1024] Y) {"
        " k = ConstantOfShape<value = float[1] {2.0}>(s) t = Add(X, k) Y = Add(t, k) }",
        s=np.array([1024, 1024], np.int64),
    )
    after, log = apply_rules(proto, regroup.RULES)
    assert len(log) == 1
    assert op_types(after) == ["ConstantOfShape", "Add"]
    assert after.ByteSize() < 1000
    assert_equal(proto, after, rtol=ROUNDING, atol=0)


@pytest.mark.parametrize(
    "rule, text, constant, reason",
    [
        (arithmetic.add_zero, f"{IO} {{ Y = Add(X, c) }}", np.float32(1), "'c' is not 0"),
        (arithmetic.mul_one, f"{IO} {{ Y = Mul(X, c) }}", floats(1, 1, 1, 2), "'c' holds different numbers"),
        (arithmetic.mul_one, "g (float[1, 4] X) => (float[3, 4] Y) { Y = Mul(X, c) }", np.ones((3, 1), np.float32),
         "the constant may widen 'X'"),
        (arithmetic.pow_two, f"{IO} {{ Y = Pow(X, c) }}", np.int64(2), "the exponent is of another type than the base"),
        (regroup.regroup_sum, f"{IO} {{ a = Add(X, c) Y = Sub(a, c) }}", np.float32(5),
         "the constants nearly cancel: the first was there to round"),
    ],
)  # fmt: skip
def test_a_refusal_says_why(rule: Rule, text: str, constant: np.ndarray, reason: str) -> None:
    editor = Editor(ir.from_proto(build(text, c=constant)))
    root = editor.model.graph.outputs[0].producer()
    assert root is not None
    with pytest.raises(Refused, match=f"^{re.escape(reason)}$"):
        driver.build(editor, rule, root)
