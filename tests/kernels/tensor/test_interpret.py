"""The interpreter gives what NumPy gives, and what the grammar says where NumPy has no answer."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
    Variable,
)
from kernels.tensor.interpret import InvalidInput, evaluate, interpret
from kernels.tensor.program import Program, Stage, stage
from tests.kernels.tensor.programs import softmax


def test_softmax_of_rows() -> None:
    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    result = interpret(softmax(3, 7), {"x": x})["y"]
    wide = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    # A sum of 7 terms and 3 roundings: well below 10 units of 2^-24.
    np.testing.assert_allclose(result, wide / wide.sum(axis=1, keepdims=True), rtol=6e-7)


def test_padding_reads_nothing_outside() -> None:
    i = Variable("i", 6)
    x, y = Buffer("x", DType.F32, (4,)), Buffer("y", DType.F32, (6,))
    inside = Binary("and", _at_least(i, 1), _below(i, 5))
    program = Program("pad", (x,), (y,), (Stage(y, (i,), Select(inside, x[i - 1], Number(9.0))),))
    assert interpret(program, {"x": np.arange(4, dtype=np.float32)})["y"].tolist() == [9, 0, 1, 2, 3, 9]


def test_two_stages_fill_one_buffer() -> None:
    i, j = Variable("i", 2), Variable("j", 3)
    a, b, y = Buffer("a", DType.I32, (2,)), Buffer("b", DType.I32, (3,)), Buffer("y", DType.I32, (5,))
    program = Program("concat", (a, b), (y,), (stage(y, (i,), a[i], i), stage(y, (j,), b[j], j + 2)))
    a_values, b_values = np.array([1, 2], np.int32), np.array([3, 4, 5], np.int32)
    assert interpret(program, {"a": a_values, "b": b_values})["y"].tolist() == [1, 2, 3, 4, 5]


def test_sums_run_in_order() -> None:
    """In f32, 1e8 + 1 is 1e8: in order the sum is 0, in another order it is 1."""
    k = Variable("k", 3)
    x, y = Buffer("x", DType.F32, (3,)), Buffer("y", DType.F32, ())
    program = Program("sum", (x,), (y,), (Stage(y, (), Reduce("sum", (k,), x[k])),))
    assert interpret(program, {"x": np.array([1, 1e8, -1e8], np.float32)})["y"] == 0


def test_reduction_of_nothing_gives_the_identity() -> None:
    k, i = Variable("k", 0), Variable("i", 2)
    x, y = Buffer("x", DType.F32, (2, 0)), Buffer("y", DType.F32, (2,))
    program = Program("max", (x,), (y,), (Stage(y, (i,), Reduce("max", (k,), x[i, k])),))
    assert interpret(program, {"x": np.zeros((2, 0), np.float32)})["y"].tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [
        ("div", [7, -7, 7, -7, 5, -(2**31)], [2, 2, -2, -2, 0, -1], [3, -3, -3, 3, 0, -(2**31)]),
        ("fmod", [7, -7, 7, -7, 5, -(2**31)], [2, 2, -2, -2, 0, -1], [1, -1, 1, -1, 0, 0]),
        ("mod", [7, -7, 7, -7, 5, 6], [4, 4, -4, -4, 0, 3], [3, 1, -1, -3, 0, 0]),
        ("pow", [3, -1, -1, 2, 0, 1], [4, -3, -2, -1, -1, -9], [81, -1, 1, 0, 0, 1]),
        ("shr", [-8, -8, 8, 8, -8, 1], [1, 40, 40, -1, -1, 0], [-4, -1, 0, 0, -1, 1]),
        ("shl", [1, 1, 3, 3, -1, 1], [31, 32, 1, -1, 4, 0], [-(2**31), 0, 6, 0, -16, 1]),
    ],
)
def test_integers_have_no_undefined_result(op: str, left: list[int], right: list[int], expected: list[int]) -> None:
    i = Variable("i", len(left))
    a, b = Buffer("a", DType.I32, (len(left),)), Buffer("b", DType.I32, (len(left),))
    arrays = {"a": np.array(left, np.int32), "b": np.array(right, np.int32)}
    assert evaluate(Binary(op, a[i], b[i]), arrays, (i,)).tolist() == expected  # type: ignore[arg-type]


def test_casts_from_floats_saturate() -> None:
    given = [np.nan, np.inf, -np.inf, 3.9, -3.9, 1e10]
    i = Variable("i", len(given))
    x = Buffer("x", DType.F32, (len(given),))
    arrays = {"x": np.array(given, np.float32)}
    assert evaluate(Cast(DType.I8, x[i]), arrays, (i,)).tolist() == [0, 127, -128, 3, -3, 127]
    assert evaluate(Cast(DType.U8, x[i]), arrays, (i,)).tolist() == [0, 255, 0, 3, 0, 255]
    assert evaluate(Cast(DType.I64, x[i]), arrays, (i,)).tolist() == [0, 2**63 - 1, -(2**63), 3, -3, 10**10]
    assert evaluate(Cast(DType.BOOL, x[i]), arrays, (i,)).tolist() == [True] * 6


def test_nan_spreads_through_min_and_max_and_is_not_equal() -> None:
    i = Variable("i", 1)
    x = Buffer("x", DType.F32, (1,))
    arrays = {"x": np.array([np.nan], np.float32)}
    assert np.isnan(evaluate(Binary("max", x[i], Number(0.0)), arrays, (i,)))
    assert np.isnan(evaluate(Binary("min", Number(0.0), x[i]), arrays, (i,)))
    assert not evaluate(Compare("le", x[i], x[i]), arrays, (i,))
    assert evaluate(Compare("ne", x[i], x[i]), arrays, (i,))


def test_bfloat16_is_computed_in_float32_and_rounded_to_even_once() -> None:
    i = Variable("i", 3)
    x = Buffer("x", DType.BF16, (3,))
    # 0x3F81 is 1 + 2^-7; its square 1 + 2^-6 + 2^-14 rounds down to 0x3F82; halves of one unit go to even.
    arrays = {"x": np.array([0x3F81, 0x3F80, 0x7FC0], np.uint16)}
    assert [hex(v) for v in evaluate(x[i] * x[i], arrays, (i,))] == ["0x3f82", "0x3f80", "0x7fc0"]
    assert [hex(v) for v in evaluate(x[i] + 2.0**-8, arrays, (i,))] == ["0x3f82", "0x3f80", "0x7fc0"]


def test_functions_are_rounded_once() -> None:
    i = Variable("i", 4)
    x = Buffer("x", DType.F32, (4,))
    given = np.array([-3.0, -0.5, 0.1, 2.0], np.float32)
    result = evaluate(Unary("sigmoid", x[i]), {"x": given}, (i,))
    assert (result == (1 / (1 + np.exp(-given.astype(np.float64)))).astype(np.float32)).all()


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"input 'x' is f32\[3, 7\], the array is float64\[3, 7\]"):
        interpret(softmax(3, 7), {"x": np.zeros((3, 7))})
    with pytest.raises(InvalidInput, match="no array is given for input 'x'"):
        interpret(softmax(3, 7), {})


def _at_least(i: Variable, low: int) -> Compare:
    return Compare("ge", Position(i + 0), Number(low, DType.I64))


def _below(i: Variable, high: int) -> Compare:
    return Compare("lt", Position(i + 0), Number(high, DType.I64))
