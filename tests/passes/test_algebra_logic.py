"""Logic, chains of Casts, and clamps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto

from graphopt.passes.algebra import cast, clip, logic
from tests.passes.algebra_checks import EXACT, build, floats, leaves, refuses
from tests.support import apply_rules, assert_equal, op_types, session

BOOL = "g (bool[N, 4] X) => (bool[N, 4] Y)"
BOOLS = "g (bool[N, 4] X, bool[N, 4] Z) => (bool[N, 4] Y)"
IO = "g (float[N, 4] X) => (float[N, 4] Y)"
INTS = "g (int64[N, 4] X, int64[N, 4] Z) => (bool[N, 4] Y)"


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"{BOOLS} {{ a = And(X, Z) b = Not(a) c = Not(b) Y = Or(c, X) }}", ["And", "Or"]),
        (f"{BOOLS} {{ a = And(X, Z) Y = Or(a, a) }}", ["And"]),
        (f"{INTS} {{ a = Less(X, Z) Y = Not(a) }}", ["GreaterOrEqual"]),
        (f"{INTS} {{ a = LessOrEqual(X, Z) Y = Not(a) }}", ["Greater"]),
        ("g (float[N, 4] X) => (float[N, 4] Y) { a = Neg(X) b = Max(a, a) Y = Exp(b) }", ["Neg", "Exp"]),
        ("g (bool[N, 1] C, float[N, 4] X) => (float[N, 4] Y) { a = Neg(X) b = Where(C, a, a) Y = Exp(b) }",
         ["Neg", "Exp"]),
        ("g (bool[N, 1] C, float[N, 4] X, float[4] Z) => (float[N, 4] Y) { a = Not(C) Y = Where(a, X, Z) }", ["Where"]),
    ],
)  # fmt: skip
def test_logic(text: str, expected: list[str]) -> None:
    leaves(build(text), expected, EXACT, N=3)


@pytest.mark.parametrize(
    "expression, truth, expected",
    [("And(a, c)", True, ["And", "Not"]), ("Or(c, a)", False, ["And", "Not"]), ("Xor(a, c)", False, ["And", "Not"]),
     ("Equal(a, c)", True, ["And", "Not"]), ("Xor(a, c)", True, ["And"]), ("Equal(c, a)", False, ["And"])],
)  # fmt: skip
def test_logic_with_a_constant(expression: str, truth: bool, expected: list[str]) -> None:
    """Below stands a Not: where x comes back negated, the two cancel as well."""
    text = f"{BOOLS} {{ a = And(X, Z) b = {expression} Y = Not(b) }}"
    leaves(build(text, c=np.array([truth])), expected, EXACT, N=3)


def test_a_constant_that_widens() -> None:
    """The Expand goes where its reader broadcasts by itself; that is a rule of elimination."""
    text = "g (bool[2, 1] X) => (bool[2, 3] Y) { a = Not(X) b = And(a, c) Y = Not(b) }"
    leaves(build(text, c=np.ones((2, 3), np.bool_)), ["Not", "Expand", "Not"], EXACT)
    refuses(build("g (bool[N, 1] X) => (bool[N, 3] Y) { a = And(X, c) Y = Not(a) }", c=np.ones(3, np.bool_)))
    refuses(build("g (bool[2, 1] X) => (bool[2, 3] Y) { a = Xor(X, c) Y = And(a, X) }", c=np.ones(3, np.bool_)))


def test_the_deciding_constant_of_known_shape() -> None:
    text = "g (bool[2, 4] X) => (bool[2, 4] Y) { a = And(X, c) Y = Xor(a, X) }"
    proto = build(text, c=np.bool_(False))
    after, log = apply_rules(proto, [logic.constant_logic])
    assert len(log) == 1
    assert op_types(after) == ["Xor"]
    assert_equal(proto, after, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(
    "text, condition, expected",
    [
        (f"{IO} {{ a = Neg(X) b = Abs(X) Y = Where(c, a, b) }}", np.array([True]), ["Neg"]),
        (f"{IO} {{ a = Neg(X) b = Abs(X) Y = Where(c, a, b) }}", np.bool_(False), ["Abs"]),
        ("g (float[1, 4] X, float[3, 4] Z) => (float[3, 4] Y) { a = Neg(X) b = Abs(Z) Y = Where(c, a, b) }",
         np.bool_(True), ["Neg", "Expand"]),
    ],
)  # fmt: skip
def test_where_of_a_constant(text: str, condition: np.ndarray, expected: list[str]) -> None:
    leaves(build(text, c=condition), expected, EXACT, N=3)


@pytest.mark.parametrize(
    "text, constant",
    [
        ("g (float[N, 4] X, float[N, 4] Z) => (bool[N, 4] Y) { a = Less(X, Z) Y = Not(a) }", None),  # NaN
        ("g (float[N, 4] X) => (bool[N, 4] Y) { a = Neg(X) Y = Equal(a, a) }", None),  # NaN
        (f"{BOOL} {{ a = And(X, c) Y = Not(a) }}", np.bool_(False)),  # constant, but of unknown shape
        (f"{BOOL} {{ a = And(X, c) Y = Not(a) }}", np.array([True, True, False, True])),
        ("g (float[N, 4] X, float[N, 4] Z) => (float[N, 4] Y) { Y = Where(c, X, Z) }", np.array([True, False] * 2)),
        ("g (bool[N, 4] C, float[1, 4] X) => (float[N, 4] Y) { a = Neg(X) Y = Where(C, a, a) }", None),  # widens
        ("g (float[1, 4] X, float[N, 4] Z) => (float[N, 4] Y) { a = Neg(X) Y = Where(c, a, Z) }", np.bool_(True)),
    ],
)
def test_logic_stays(text: str, constant: np.ndarray | None) -> None:
    refuses(build(text) if constant is None else build(text, c=constant))


def test_equal_to_itself() -> None:
    leaves(build("g (int64[2, 4] X) => (bool[2, 4] Y) { a = Abs(X) b = Equal(a, a) Y = Not(b) }"), ["Not"], EXACT)


# -- casts --------------------------------------------------------------------------------------------------------

F32, F64, F16, I8, U8, I32, I64, BOOLEAN, STRING = (
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8,
    TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING,
)  # fmt: skip
NAMES: dict[int, str] = {
    F32: "float", F64: "double", F16: "float16", I8: "int8", U8: "uint8", I32: "int32", I64: "int64",
    BOOLEAN: "bool", STRING: "string",
}  # fmt: skip


def _casts(first: int, middle: int, last: int) -> str:
    return (
        f"g ({NAMES[first]}[N, 4] X) => ({NAMES[last]}[N, 4] Y)"
        f" {{ a = Identity(X) b = Cast<to = {middle}>(a) c = Cast<to = {last}>(b) Y = Identity(c) }}"
    )


@pytest.mark.parametrize(
    "first, middle, last",
    [(F32, F64, F32), (F16, F32, F16), (BOOLEAN, F32, BOOLEAN), (U8, F16, U8), (I8, I64, I8), (I32, F64, I32)],
)
def test_cast_there_and_back(first: int, middle: int, last: int) -> None:
    leaves(build(_casts(first, middle, last)), ["Identity", "Identity"], EXACT, N=3)


@pytest.mark.parametrize(
    "first, middle, last",
    [(F32, F64, F16), (BOOLEAN, I64, F32), (I64, I32, I8), (U8, I64, F32), (F16, F32, I32), (I8, F32, I32)],
)
def test_cast_of_cast(first: int, middle: int, last: int) -> None:
    leaves(build(_casts(first, middle, last)), ["Identity", "Cast", "Identity"], EXACT, N=3)


@pytest.mark.parametrize(
    "first, middle, last",
    [(F32, F16, F32), (F64, F32, F64), (I64, F64, I64), (I32, F32, I32), (I64, BOOLEAN, I64), (I64, I8, I32),
     (F32, I32, F32), (I8, F32, U8), (I64, I32, BOOLEAN), (F32, STRING, F64)],
)  # fmt: skip
def test_cast_that_loses_something_stays(first: int, middle: int, last: int) -> None:
    refuses(build(_casts(first, middle, last)))


def test_what_a_type_holds_agrees_with_numpy() -> None:
    """`holds_all` says yes only where NumPy calls the cast safe, and always where it does (bfloat16 NumPy lacks)."""
    kinds = [kind for kind in cast.MAGNITUDE if kind.name != "BFLOAT16"]
    for wide, narrow in itertools.product(kinds, kinds):
        safe = np.can_cast(narrow.numpy(), wide.numpy(), "safe")
        # NumPy calls int64 -> double safe as well, though 2^53 + 1 is not a double.
        if narrow.name in ("INT64", "UINT64") and wide.name == "DOUBLE":
            safe = False
        assert cast.holds_all(wide, narrow) == safe, f"{narrow.name} in {wide.name}"


# -- clamps -------------------------------------------------------------------------------------------------------

LOW, HIGH, ZERO = np.float32(-1), np.float32(6), np.float32(0)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a = Max(X, lo) Y = Min(a, hi)", ["Clip"]),
        ("a = Min(hi, X) Y = Max(lo, a)", ["Clip"]),
        ("a = Relu(X) Y = Min(a, hi)", ["Clip"]),
        ("a = Min(X, hi) Y = Relu(a)", ["Clip"]),
        ("a = Relu(X) Y = Clip(a, lo, hi)", ["Clip"]),
        ("a = Clip(X, lo, hi) Y = Relu(a)", ["Clip"]),
        ("a = Clip(X, lo, hi) Y = Clip(a, zero, hi)", ["Clip"]),
        ("a = Clip(X, lo) Y = Clip(a, , hi)", ["Clip"]),
        ("a = Relu(X) Y = Max(a, lo)", ["Relu"]),
        ("a = Max(X, zero) b = Tanh(a) Y = Exp(b)", ["Relu", "Tanh", "Exp"]),
        ("a = Max(X, lo) b = Clip(a, lo, hi) Y = Relu(b)", ["Clip"]),
        ("a = Relu(X) Y = Max(a, hi)", ["Max"]),
    ],
)
def test_clamps(text: str, expected: list[str]) -> None:
    leaves(build(f"{IO} {{ {text} }}", lo=LOW, hi=HIGH, zero=ZERO), expected, EXACT, N=3)


@pytest.mark.parametrize("opset", [8, 11])
def test_clamp_of_floats_at_an_old_opset(opset: int) -> None:
    after = leaves(build(f"{IO} {{ a = Max(X, lo) Y = Min(a, hi) }}", opset, lo=LOW, hi=HIGH), ["Clip"], EXACT, N=3)
    assert len(after.graph.node[0].attribute) == (2 if opset < 11 else 0)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.int8, np.uint8, np.float64, np.float16])
def test_clamp_of_other_types(kind: type) -> None:
    name = np.dtype(kind).name.replace("float64", "double")
    text = f"g ({name}[N, 4] X) => ({name}[N, 4] Y) {{ a = Max(X, lo) Y = Min(a, hi) }}"
    leaves(build(text, lo=kind(1), hi=kind(3)), ["Clip"], EXACT, N=3)


def test_clamps_pass_on_special_numbers() -> None:
    for body in ("a = Max(X, lo) Y = Min(a, hi)", "a = Relu(X) Y = Min(a, hi)", "a = Relu(X) Y = Max(a, hi)"):
        proto = build(f"g (float[5] X) => (float[5] Y) {{ {body} }}", lo=LOW, hi=HIGH)
        after, log = apply_rules(proto, clip.RULES)
        assert log
        given = {"X": floats(np.nan, np.inf, -np.inf, 3, -0.0)}
        np.testing.assert_array_equal(session(proto).run(None, given)[0], session(after).run(None, given)[0])


@pytest.mark.parametrize(
    "text, low, high",
    [
        ("a = Max(X, lo) Y = Min(a, hi)", np.float32(6), np.float32(-1)),  # crossed: all are -1
        ("a = Clip(X, hi, lo) Y = Relu(a)", LOW, HIGH),
        ("a = Max(X, lo) Y = Min(a, hi)", floats(1, 2, 3, 4), HIGH),  # one bound per channel
        ("a = Max(X, lo) Y = Min(a, hi)", np.float32(np.nan), HIGH),
        ("a = Relu(X) Y = Min(a, hi)", LOW, LOW),
    ],
)
def test_clamps_stay(text: str, low: np.ndarray, high: np.ndarray) -> None:
    refuses(build(f"{IO} {{ {text} }}", lo=low, hi=high))


def test_clamp_of_integers_stays_before_clip_takes_them() -> None:
    text = "g (int64[N, 4] X) => (int64[N, 4] Y) { a = Max(X, lo) Y = Min(a, hi) }"
    refuses(build(text, 11, lo=np.int64(0), hi=np.int64(3)))


def test_clamp_read_twice_stays() -> None:
    text = "g (float[N, 4] X) => (float[N, 4] Y, float[N, 4] Z) { a = Max(X, lo) Y = Min(a, hi) Z = Exp(a) }"
    refuses(build(text, lo=LOW, hi=HIGH))
