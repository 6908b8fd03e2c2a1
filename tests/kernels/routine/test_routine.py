"""Routines as machine code against their interpreter, and what the grammar refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.llvm.module import OPTIMIZED
from kernels.routine.build import ROUTINE
from kernels.routine.grammar import Area, Assign, Element, InvalidRoutine, Local, Put, Routine, Shared
from kernels.routine.interpret import interpret
from kernels.routine.writer import (
    Writer,
    as_type,
    both,
    eq,
    ge,
    gt,
    integer,
    lt,
    maximum,
    minimum,
    pick,
    quotient,
    remainder,
)
from kernels.target import host, named
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.tensor.expression import Buffer, Number, Unary, Variable
from tests.kernels.guard import run_guarded

DTYPES = [DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32, DType.U8, DType.I8, DType.BOOL]


def _agrees(routine: Routine, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs, which code and interpreter agree about bit by bit."""
    got = run_guarded(ROUTINE.kernel(routine, host()), arrays)
    wanted = {**arrays, **{one.name: np.zeros(one.elements, one.dtype.numpy) for one in routine.outputs}}
    interpret(routine, wanted)
    for one in routine.outputs:
        np.testing.assert_array_equal(got[one.name], wanted[one.name])
    return got


def _numbers(dtype: DType, count: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 9, count)
    if dtype is DType.BF16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype.numpy)


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(0, 5), columns=st.integers(0, 40), dtype=st.sampled_from(DTYPES), grain=st.integers(1, 3),
       seed=st.integers(0, 99))  # fmt: skip
def test_running_maxima_of_every_type(rows: int, columns: int, dtype: DType, grain: int, seed: int) -> None:
    """A loop inside the shared one, a variable, a condition, in blocks of several sizes."""
    wide = DType.F32 if dtype in (DType.F16, DType.BF16) else DType.I32 if dtype is DType.BOOL else dtype
    w = Writer("running maxima")
    x, y = w.input("x", dtype, (rows, columns)), w.output("y", dtype, (rows, columns))
    with w.shared(rows) as (i,):
        most = w.local(wide, 0)
        with w.loop(columns) as j:
            value = as_type(x[i, j], wide)
            with w.when(gt(value, most)):
                w.set(most, value)
            y[i, j] = as_type(most, dtype)
    routine = replace(w.routine(), grain=grain)
    assert ROUTINE.kernel(routine, host()).blocks == max(1, -(-rows // grain))
    _agrees(routine, {"x": _numbers(dtype, rows * columns, seed)})


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=20))
def test_while_loops_run_for_as_long_as_the_data_says(values: list[int]) -> None:
    """Steps of the Collatz sequence: no bound is known before the run."""
    w = Writer("steps")
    x, y = w.input("x", DType.I64, (len(values),)), w.output("y", DType.I64, (len(values),))
    with w.shared(len(values)) as (i,):
        at, steps = w.local(DType.I64, x[i]), w.local(DType.I64, 0)
        with w.loop_while(gt(at, 1)):
            with w.when(eq(remainder(at, 2), 0)):
                w.set(at, quotient(at, 2))
            with w.otherwise():
                w.set(at, at * 3 + 1)
            w.set(steps, steps + 1)
        y[i] = steps
    got = _agrees(w.routine(), {"x": np.asarray(values, np.int64)})["y"]
    for value, taken in zip(values, got, strict=True):
        at, wanted = value, 0
        while at > 1:
            at, wanted = at // 2 if at % 2 == 0 else 3 * at + 1, wanted + 1
        assert taken == wanted


@settings(deadline=None, max_examples=20)
@given(count=st.integers(1, 30), seed=st.integers(0, 99))
def test_scratch_places_from_data_and_loops_with_computed_bounds(count: int, seed: int) -> None:
    """Each row sorted in scratch by insertion, then gathered by indices that are clamped."""
    w = Writer("sorted rows")
    x, order = w.input("x", DType.F32, (3, count)), w.input("order", DType.I64, (count,))
    y, held = w.output("y", DType.F32, (3, count)), w.scratch(DType.F32, (count,))
    with w.shared(3) as (i,):
        with w.loop(count) as j:
            value, at = w.local(DType.F32, x[i, j]), w.local(DType.I64, j)
            going = w.local(DType.BOOL, gt(at, 0))
            with w.loop_while(going):
                before = w.local(DType.F32, held[at - 1])
                with w.when(gt(before, value)):
                    held[at] = before
                    w.set(at, at - 1)
                    w.set(going, gt(at, 0))
                with w.otherwise():
                    w.set(going, Number(False, DType.BOOL))
            held[at] = value
        with w.loop(count, start=i - i) as j:
            y[i, j] = held[minimum(maximum(order[j], 0), count - 1)]
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((3, count)).astype(np.float32)
    places = generator.integers(-3, count + 3, count)
    got = _agrees(w.routine(), {"x": values.ravel(), "order": places})["y"].reshape(3, count)
    np.testing.assert_array_equal(got, np.sort(values, axis=1)[:, np.clip(places, 0, count - 1)])


def test_indices_of_several_dims() -> None:
    """Shared loops over three extents, of which one is 1, and loops inside one another."""
    w = Writer("transposed")
    x, y = w.input("x", DType.I32, (4, 1, 3, 2, 5)), w.output("y", DType.I32, (3, 1, 4, 5, 2))
    with w.shared(3, 1, 4) as (a, b, c), w.loops(5, 2) as (d, e):
        y[a, b, c, d, e] = x[c, b, a, e, d]
    values = np.arange(120, dtype=np.int32)
    got = _agrees(w.routine(), {"x": values})["y"].reshape(3, 1, 4, 5, 2)
    np.testing.assert_array_equal(got, values.reshape(4, 1, 3, 2, 5).transpose(2, 1, 0, 4, 3))


def test_no_dims_at_all() -> None:
    """A routine of one iteration on tensors of one element."""
    w = Writer("one")
    x, y = w.input("x", DType.F32, ()), w.output("y", DType.BOOL, ())
    with w.shared():
        y[()] = both(ge(x[()], 0.0), lt(x[()], 1.0))
    assert _agrees(w.routine(), {"x": np.asarray([0.5], np.float32)})["y"][0]


def test_optimizer_makes_vectors_of_plain_loops() -> None:
    """The text of a routine is left to the optimizer; that of a template beside it is not."""
    w = Writer("doubled")
    x, y = w.input("x", DType.F32, (4096,)), w.output("y", DType.F32, (4096,))
    with w.shared(1), w.loop(4096) as i:
        y[i] = pick(gt(x[i], 0.0), x[i] * 2.0, 1.0)
    target = named("x86-64-v3")
    module = ROUTINE.kernel(w.routine(), target, "doubled").module
    axis, a, b = Variable("i", 64), Buffer("a", DType.F32, (64,)), Buffer("b", DType.F32, (64,))
    negated = Elementwise((axis,), (Output(b, Unary("neg", a[axis])),))
    module.include(ELEMENTWISE.kernel(negated, target, "negated").module)
    tiled, _, plain = module.text().partition(OPTIMIZED)
    assert "@doubled" in plain and "@negated" not in plain
    assert "@negated" in tiled and "@doubled" not in tiled
    code = assembly(module.text(), target)
    assert "ymm" in code.partition("doubled:")[2]


def test_refusals() -> None:
    """Names, types and places that do not fit."""
    x, y, i = Area("x", DType.F32, 4), Area("y", DType.F32, 4), Local("i", DType.I64)

    def routine(*body: object, outputs: tuple[Area, ...] = (y,)) -> Routine:
        return Routine("test", (x,), outputs, (), Shared(i, 4, body))  # type: ignore[arg-type]

    routine(Put(y, i, Element(x, i)))
    with pytest.raises(InvalidRoutine, match="two areas have one name"):
        routine(outputs=(x,))
    with pytest.raises(InvalidRoutine, match="neither an output nor scratch"):
        routine(Put(x, i, Number(0.0)))
    with pytest.raises(InvalidRoutine, match="is f32 and is given i64"):
        routine(Put(y, i, i))
    with pytest.raises(InvalidRoutine, match="is no area of the routine"):
        routine(Put(y, i, Element(Area("z", DType.F32, 4), i)))
    with pytest.raises(InvalidRoutine, match="variables are f32"):
        routine(Assign(Local("h", DType.F16), Number(0.0, DType.F16)))
    with pytest.raises(InvalidRoutine, match="'v' is f64 and is given f32"):
        routine(Assign(Local("v", DType.F64), Number(0.0)))
    with pytest.raises(InvalidRoutine, match="place that is no i64"):
        routine(Put(y, i, Element(x, Number(0, DType.I32))))
    w = Writer("test")
    a = w.input("a", DType.F32, (2, 2))
    with pytest.raises(InvalidRoutine, match="outside of the shared loop"):
        w.local(DType.F32, 0.0)
    with w.shared(2), pytest.raises(InvalidRoutine, match="2 dims and is given 1"):
        a[integer(0)]
    with pytest.raises(InvalidRoutine, match="one shared loop"), w.shared(2):
        pass
