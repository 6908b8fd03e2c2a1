"""Programs that do not say what every element is worth are refused, with the fault by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.target import host
from kernels.tensor.default import scheduled
from kernels.tensor.expression import (
    Binary,
    Buffer,
    Cast,
    Compare,
    Expression,
    InvalidExpression,
    Number,
    Position,
    Reduce,
    Select,
    Unary,
    Variable,
)
from kernels.tensor.interpret import interpret
from kernels.tensor.lower import lower
from kernels.tensor.program import InvalidProgram, Program, Stage, stage
from kernels.tensor.show import show, show_program
from tests.kernels.tensor.golden_text import assert_golden
from tests.kernels.tensor.programs import layer_norm

ROW, COLUMN = Variable("i", 4), Variable("j", 3)
X = Buffer("x", DType.F32, (4,))
Y = Buffer("y", DType.F32, (4,))
M = Buffer("m", DType.F32, (4, 3))
FLAGS = Buffer("flags", DType.BOOL, (4,))
WHOLE = Buffer("whole", DType.I32, (4,))


def _one(value: Expression, *at: object) -> Program:
    return Program("p", (X, M, FLAGS, WHOLE), (Y,), (Stage(Y, (ROW,), value),))


def _below(i: Variable, high: int) -> Compare:
    return Compare("lt", Position(i + 0), Number(high, DType.I64))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Program("p", (X,), (Y,), ()), "no stage writes the output 'y'"),
        (
            lambda: Program("p", (X,), (X,), (Stage(X, (ROW,), Number(1.0)),)),
            "'x' is listed twice among inputs and outputs",
        ),
        (lambda: Program("p", (X,), (Y,), (Stage(X, (ROW,), Number(1.0)),)), "stage 0 writes the input 'x'"),
        (
            lambda: Program("p", (), (Y,), (Stage(Y, (ROW,), X[ROW]),)),
            "reads 'x', which is no input and which no earlier",
        ),
        (lambda: Program("p", (), (Y,), (Stage(Y, (ROW,), Y[ROW]),)), "stage 0 reads 'y', which it writes"),
        (
            lambda: Program("p", (), (Y,), (stage(Y, (Variable("a", 2),), Number(1.0), Variable("a", 2)),)),
            "buffer 'y' has 4 elements, of which the stages write 2",
        ),
        (
            lambda: Program("p", (), (Y,), (stage(Y, (ROW,), Number(1.0), ROW + 1),)),
            "'y' has 4 elements in dim 0 and is written from 1 to 4",
        ),
        (
            lambda: Program("p", (), (Y,), (stage(Y, (ROW,), Number(1.0), ROW * 0),)),
            "the stage of 'y' may write an element twice",
        ),
        (
            lambda: Program("p", (), (Y,), (stage(Y, (ROW,), Number(1.0), ROW, ROW),)),
            "'y' has 1 dims and is written with 2 indices",
        ),
        (
            lambda: Program("p", (), (Y,), (stage(Y, (ROW,), Number(1.0), COLUMN),)),
            "'y' is written at j, which is no axis of its stage",
        ),
        (
            lambda: Program("p", (X,), (Y,), (Stage(Y, (ROW,), X[ROW]), Stage(Y, (ROW,), X[ROW]))),
            "two stages may write the same element of 'y'",
        ),
        (
            lambda: Program("p", (Buffer("y", DType.F32, (5,)),), (Y,), ()),
            "two different buffers are called 'y'",
        ),
        (
            lambda: Program("p", (), (Y,), (Stage(Y, (ROW,), Number(1, DType.I32)),)),
            "'y' is f32 and its stage computes i32",
        ),
    ],
)
def test_a_program_that_leaves_elements_open_is_refused(make: Callable[[], Program], reason: str) -> None:
    with pytest.raises(InvalidProgram) as refusal:
        make()
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (X[ROW + 1], "'x' has 4 elements in dim 0 and is read from 1 to 4: guard the load with a Select"),
        (Select(_below(ROW, 3), Number(0.0), X[ROW + 1]), "'x' has 4 elements in dim 0 and is read from 1 to 4"),
        (X[COLUMN], "variable 'j' is no axis of the stage that uses it"),
        (Cast(DType.F32, Unary("exp", WHOLE[ROW])), "exp of i32: cast to a float type first"),
        (Cast(DType.F32, Binary("add", FLAGS[ROW], FLAGS[ROW])), "add of bool: use and, or, xor"),
        (Binary("and", X[ROW], X[ROW]), "and of f32: it is for bool and integers"),
        (
            X[ROW] + Reduce("sum", (COLUMN,), M[ROW, COLUMN]),
            "a reduction inside an expression: give it a stage of its own",
        ),
        (Cast(DType.F32, Unary("not", WHOLE[ROW])), "not of i32: compare with zero instead"),
    ],
)
def test_an_expression_without_a_meaning_is_refused(value: Expression, reason: str) -> None:
    with pytest.raises(InvalidExpression) as refusal:
        _one(value)
    assert reason in str(refusal.value)


def test_a_load_inside_under_its_condition_is_accepted() -> None:
    _one(Select(_below(ROW, 3), X[ROW + 1], Number(0.0)))
    _one(Select(Unary("not", _below(ROW, 3)), Number(0.0), X[ROW + 1]))
    either = Binary("or", _below(ROW, 1), Unary("not", _below(ROW, 4)))
    _one(Select(either, Number(0.0), X[ROW - 1]))


def test_interleaved_stages_cover_a_buffer() -> None:
    k = Variable("k", 2)
    Program("p", (X,), (Y,), (stage(Y, (k,), X[k], k * 2), stage(Y, (k,), X[k + 2], k * 2 + 1)))


def test_shared_and_deep_expressions_cost_what_they_hold() -> None:
    """Forty squarings are a tree of 2^40 leaves, and a chain of 700 sums is deeper than Python's stack."""
    power: Expression = X[ROW]
    chain: Expression = X[ROW]
    for _ in range(40):
        power = power * power
    for _ in range(700):
        chain = chain + 1
    for value in (power, chain):
        program = _one(value)
        kernel = lower(scheduled(program, host()), host())
        assert len(kernel.module.text()) < 100_000
        assert "operations>" in show_program(program)
        inputs = {"x": np.ones(4, np.float32), "m": np.zeros((4, 3), np.float32)}
        inputs |= {"flags": np.zeros(4, np.bool_), "whole": np.zeros(4, np.int32)}  # type: ignore[dict-item]
        assert (interpret(program, inputs)["y"] == (1 if value is power else 701)).all()


def test_expressions_as_text() -> None:
    assert show((X[ROW] + 1) * 2 - X[ROW] * X[ROW]) == "(x[i] + 1) * 2 - x[i] * x[i]"
    assert show(X[ROW] - (X[ROW] - 1)) == "x[i] - (x[i] - 1)"
    assert show(-(X[ROW] + 1)) == "-(x[i] + 1)"
    assert show(Select(_below(ROW, 3), X[ROW * -1 + 3], Number(0.0))) == "select(i < 3, x[-i + 3], 0.0)"
    assert show(Cast(DType.I64, Binary("max", X[ROW], Number(0)))) == "i64(max(x[i], 0))"
    assert_golden("program_layer_norm", show_program(layer_norm(4, 12)))
