"""Kernels that run other kernels, beside NumPy and between guard pages: iterations, states by turns, rows, choices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.control import Carried, Choose, Inner, Iterations, Repetition, Seat, Stacked, written
from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.target import host
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.tensor.expression import Buffer, Compare, Expression, Variable, expression, index
from tests.kernels.guard import run_guarded

WIDTH = 70  # floats of a row: more than a cache line, and no multiple of one
ROOM = 320  # bytes for one
D = Variable("d", WIDTH)
X = Buffer("x", DType.F32, (WIDTH,))


def row(name: str, value: Expression) -> Kernel:
    """A kernel of one row."""
    return ELEMENTWISE.kernel(Elementwise((D,), (Output(Buffer("y", DType.F32, (WIDTH,)), value),)), host(), name)


def below(limit: float) -> Kernel:
    """Whether the first number of a row is less."""
    value = Compare("lt", X[0], expression(limit))
    return ELEMENTWISE.kernel(Elementwise((), (Output(Buffer("y", DType.BOOL, ()), value),)), host(), "below")


def operand(name: str, size: int, role: str = "input") -> Operand:
    """So many bytes."""
    return Operand(name, "output" if role == "output" else "input", DType.U8, size)


@settings(max_examples=15, deadline=None)
@given(st.integers(-1, 9), st.booleans(), st.booleans(), st.floats(0, 12, width=32), st.sampled_from([None, 0, 1]))
def test_a_loop_of_a_count_and_conditions(
    count: int, begins: bool, counts: bool, limit: float, home: int | None
) -> None:
    """Its state may lie by turns where it goes in the end: where the first iteration reads it, or the second one."""
    operands = [
        operand("x", 4 * WIDTH), operand("count", 8), operand("go", 1), operand("memory", 3 * ROOM, "output"),
        operand("state", 4 * WIDTH, "output"), operand("rows", 7 * 4 * WIDTH, "output"),
    ]  # fmt: skip
    first, second, going = Seat(4) if home == 0 else Seat(3), Seat(4) if home == 1 else Seat(3, ROOM), Seat(3, 2 * ROOM)
    read, write, rows = first.by_turns(second), second.by_turns(first), Seat(5, step=4 * WIDTH)
    runs = [
        Inner(row("add", X[index(D)] + 1.0), (read, write)),
        Inner(row("double", X[index(D)] * 2.0), (read, rows)),
        Inner(below(limit), (write, going)),
    ]
    iterations = Iterations(7, Seat(1) if counts else None, Seat(2), going)
    carried = Carried(Seat(0), first, second, Seat(4), 4 * WIDTH)
    kernel = written(
        Repetition(operands, tuple(runs), iterations, (carried,), (Stacked(Seat(5), 4 * WIDTH, 7),)), "loop", host()
    )
    x = np.random.default_rng(count + 1).random(WIDTH, np.float32)
    given = {"x": x.view(np.uint8), "count": np.array([count]).view(np.uint8), "go": np.array([begins]).view(np.uint8)}
    found = run_guarded(kernel, given)
    state, wanted, going_on, turn = x, np.zeros((7, WIDTH), np.float32), begins, 0
    while going_on and turn < (min(max(count, 0), 7) if counts else 7):
        wanted[turn] = state * np.float32(2)
        state = state + np.float32(1)
        going_on, turn = bool(state[0] < np.float32(limit)), turn + 1
    np.testing.assert_array_equal(found["state"].view(np.float32), state)
    np.testing.assert_array_equal(found["rows"].view(np.float32).reshape(7, WIDTH), wanted)


def test_an_iteration_reads_its_number_and_rows_from_the_last_to_the_first() -> None:
    size = 4 * WIDTH
    operands = [operand("x", 3 * size), operand("memory", 64, "output"), operand("y", 3 * size, "output")]
    number = Buffer("n", DType.I64, ())
    kinds = Buffer("y", DType.I64, ())
    store = ELEMENTWISE.kernel(Elementwise((), (Output(kinds, number[()]),)), host(), "number")
    runs = [
        Inner(row("double", X[index(D)] * 2.0), (Seat(0, 2 * size, -size), Seat(2, 0, size))),
        Inner(store, (Seat(1, 8), Seat(2, 0, size))),  # over the first numbers of each row
    ]
    kernel = written(Repetition(operands, tuple(runs), Iterations(3, number=Seat(1, 8), flag=Seat(1))), "scan", host())
    assert kernel.blocks == 1 and kernel.flops == 3 * sum(run.kernel.flops for run in runs)
    x = np.random.default_rng(0).random((3, WIDTH), np.float32)
    found = run_guarded(kernel, {"x": x.reshape(-1).view(np.uint8)})
    y = found["y"].view(np.float32).reshape(3, WIDTH)
    np.testing.assert_array_equal(y[:, 2:], 2 * x[::-1, 2:])
    assert [int(one[:2].view(np.int64)[0]) for one in y] == [0, 1, 2]
    assert found["memory"].view(np.uint8)[0] == 1


@pytest.mark.parametrize("condition", [True, False])
def test_one_of_two_lists_runs(condition: bool) -> None:
    size = 4 * WIDTH
    operands = [operand("x", size), operand("c", 1), operand("memory", ROOM, "output"), operand("y", size, "output")]
    add, double = row("add", X[index(D)] + 1.0), row("double", X[index(D)] * 2.0)
    yes = [Inner(add, (Seat(0), Seat(2))), Inner(double, (Seat(2), Seat(3)))]
    kernel = written(Choose(operands, Seat(1), tuple(yes), (Inner(double, (Seat(0), Seat(3))),)), "choice", host())
    x = np.random.default_rng(0).random(WIDTH, np.float32)
    found = run_guarded(kernel, {"x": x.view(np.uint8), "c": np.array([condition]).view(np.uint8)})
    np.testing.assert_array_equal(found["y"].view(np.float32), 2 * (x + np.float32(1)) if condition else 2 * x)


def test_a_loop_inside_a_loop_takes_its_own_part_of_scratch() -> None:
    size = 4 * WIDTH
    inner = [operand("a", size), operand("m", 2 * ROOM, "output"), operand("b", size, "output")]
    add = Inner(row("add", X[index(D)] + 1.0), (Seat(1, turn=ROOM), Seat(1, ROOM, turn=-ROOM)))
    state = Carried(Seat(0), Seat(1), Seat(1, ROOM), Seat(2), size)
    four = written(Repetition(inner, (add,), Iterations(4), (state,)), "inner", host())
    outer = [operand("x", size), operand("memory", 4 * ROOM, "output"), operand("y", size, "output")]
    run = Inner(four, (Seat(1, turn=ROOM), Seat(1, 2 * ROOM), Seat(1, ROOM, turn=-ROOM)))
    kernel = written(Repetition(outer, (run,), Iterations(3), (state,)), "outer", host())
    assert kernel.scratch_bytes > four.scratch_bytes > 0
    x = np.zeros(WIDTH, np.float32)
    found = run_guarded(kernel, {"x": x.view(np.uint8)})
    np.testing.assert_array_equal(found["y"].view(np.float32), x + 12)
