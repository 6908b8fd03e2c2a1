"""Softmax, normalization and reductions: each row by one thread, by a warp, or by the whole block.

Rows that lie across (neighbours in memory are of different rows) are a thread's, so that neighbours read what lies
side by side. x is computed again in each pass; it comes from a cache then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from kernels.dtype import DType
from kernels.kernel import Kernel, operands_of
from kernels.llvm.conversion import held_type
from kernels.llvm.function import Function, Value
from kernels.llvm.operations import unary
from kernels.math.exponential import exp_nonpositive
from kernels.math.logarithm import log
from kernels.math.rounding import sqrt
from kernels.ptx.tasks.elementwise import spread
from kernels.ptx.tasks.leaves import Places, ThreadElements
from kernels.ptx.tasks.threads import (
    MOST_ELEMENTS,
    THREADS,
    WARP,
    Block,
    NoTask,
    each_of,
    shared_bytes,
    span,
    write_task,
)
from kernels.target import Target
from kernels.templates.axes import Axis, fused, indices_of, place
from kernels.templates.normalization import NORMALIZED, Normalization
from kernels.templates.reduction import Op, Reduction
from kernels.templates.row_problem import RowProblem
from kernels.templates.rows import lies_across
from kernels.templates.softmax import SOFTMAX, Softmax
from kernels.templates.streams import inputs_of
from kernels.tensor.expression import Buffer, Cast, Expression, Index, Position, dense_strides, index

_SHORT, _LONG, _ACROSS = 4, 1024, 512  # elements of a row: a thread's below, a block's above; a thread's across
RowValues = tuple[Value, ...]
Combining = Callable[[RowValues, RowValues], RowValues]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the threads of blocks share rows."""

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    group: int  # threads of a row
    each: int  # rows of a group of threads, one after the other

    @property
    def length(self) -> int:
        """ThreadElements of a row."""
        return prod(axis.extent for axis in self.columns)

    @property
    def count(self) -> int:
        """Rows."""
        return prod(axis.extent for axis in self.rows)

    @property
    def blocks(self) -> int:
        """Blocks of threads."""
        return -(-self.count * self.group // span(self.each))


def _plan(problem: RowProblem, x: Expression, read: tuple[Expression, ...], target: Target) -> _Plan:
    if problem.elements > MOST_ELEMENTS:
        raise NoTask("there are more elements than 32 bits count.")
    places = [*indices_of((*read, *problem.values)), *(place(one) for one in problem.stores)]
    rows, columns = fused(problem.rows, places), fused(problem.columns, places)
    length = prod(axis.extent for axis in columns)
    if problem.elements and lies_across(problem.rows, problem.columns, x):
        group = 1 if length <= _ACROSS else THREADS
    else:
        group = 1 if length <= _SHORT else WARP if length <= _LONG else THREADS
    return _Plan(rows, columns, group, each_of(prod(axis.extent for axis in rows) * group, target))


class _TaskRow:
    """The row of a thread, and its elements that are the thread's."""

    def __init__(self, block: Block, plan: _Plan, thread: Value) -> None:
        self.block, self.plan = block, plan
        self.number, self.lane = block.split(thread, (plan.count, plan.group))
        self.is_there = block.below(self.number, plan.count)
        self.at = spread(block, block.least(self.number, plan.count - 1), plan.rows)

    def each(self, body: Callable[[Places, RowValues], Sequence[Value]], carried: RowValues) -> RowValues:
        """carried = body(places, carried) for each element that is the thread's."""

        def one(column: Value, held: RowValues) -> Sequence[Value]:
            return body({**self.at, **spread(self.block, column, self.plan.columns)}, held)

        return self.block.strided(self.lane, self.plan.length, self.plan.group, one, carried)

    def all(
        self, body: Callable[[Places, RowValues], Sequence[Value]], start: RowValues, combine: Combining
    ) -> RowValues:
        """The same of all elements of the row, in each of its threads."""
        return self.block.combined(self.each(body, start), self.plan.group, combine)

    def put(self, problem: RowProblem, result: Callable[[ThreadElements], Value], stand_in: Buffer) -> None:
        """Store the outputs of each element, given the value that they are made of."""
        f = self.block.f

        def one(at: Places, _: RowValues) -> Sequence[Value]:
            value = result(ThreadElements(self.block, at))
            leaves = ThreadElements(self.block, at, {stand_in.name: value})
            for some, store in zip(leaves.values(problem.values), problem.stores, strict=True):
                leaves.store(some, store)
            return ()

        f.when(self.is_there, lambda: self.each(one, ()))


def softmax(problem: Softmax, target: Target, name: str) -> Kernel:
    """Softmax or its logarithm: the maximum, the sum of powers, the results."""
    x = problem.x if problem.x.dtype is DType.F32 else Cast(DType.F32, problem.x)
    plan = _plan(problem, problem.x, (problem.x,), target)

    def each(block: Block, thread: Value) -> None:
        f, row = block.f, _TaskRow(block, plan, thread)

        def read(at: Places) -> Value:
            return ThreadElements(block, at).values((x,))[0]

        def larger(held: RowValues, other: RowValues) -> RowValues:
            return (f.maximum(held[0], other[0]),)

        def added(held: RowValues, other: RowValues) -> RowValues:
            return (f.add(held[0], other[0]),)

        (largest,) = row.all(lambda at, held: larger(held, (read(at),)), (f.number("float", -math.inf),), larger)
        (total,) = row.all(
            lambda at, held: added(held, (exp_nonpositive(f, f.sub(read(at), largest)),)),
            (f.number("float", 0.0),),
            added,
        )
        if problem.logarithm:
            beyond = f.add(largest, log(f, total))
            row.put(problem, lambda leaves: f.sub(leaves.values((x,))[0], beyond), SOFTMAX)
        else:
            factor = f.div(f.number("float", 1.0), total)

            def result(leaves: ThreadElements) -> Value:
                return f.mul(exp_nonpositive(f, f.sub(leaves.values((x,))[0], largest)), factor)

            row.put(problem, result, SOFTMAX)

    return _written(problem, (problem.x,), SOFTMAX, plan, target, name, each, 12)


def normalization(problem: Normalization, target: Target, name: str) -> Kernel:
    """Normalization: the mean, the variance around it, the results."""
    x = problem.x if problem.x.dtype is DType.F32 else Cast(DType.F32, problem.x)
    plan = _plan(problem, problem.x, (problem.x,), target)

    def each(block: Block, thread: Value) -> None:
        f, row = block.f, _TaskRow(block, plan, thread)
        zero, length = f.number("float", 0.0), f.number("float", float(plan.length))

        def added(held: RowValues, other: RowValues) -> RowValues:
            return (f.add(held[0], other[0]),)

        def read(at: Places) -> Value:
            return ThreadElements(block, at).values((x,))[0]

        mean = None
        if problem.center == "mean":
            (total,) = row.all(lambda at, held: added(held, (read(at),)), (zero,), added)
            mean = f.div(total, length)

        def apart(value: Value) -> Value:
            return value if mean is None else f.sub(value, mean)

        def square(at: Places, held: RowValues) -> RowValues:
            one = apart(read(at))
            return (f.fma(one, one, held[0]),)

        (squares,) = row.all(square, (zero,), added)
        variance = f.add(f.div(squares, length), f.number("float", problem.epsilon))
        scale = f.div(f.number("float", 1.0), sqrt(f, variance))
        row.put(problem, lambda leaves: f.mul(apart(leaves.values((x,))[0]), scale), NORMALIZED)

    return _written(problem, (problem.x,), NORMALIZED, plan, target, name, each, 8)


def reduction(problem: Reduction, target: Target, name: str) -> Kernel:
    """Reductions of each row to one value; what they give of NaN and of nothing is said beside the problem."""
    with_place = problem.op in ("argmax", "argmin")
    dtype = (problem.x.dtype if with_place else problem.reduced.dtype).held
    x = problem.x if problem.x.dtype is dtype else Cast(dtype, problem.x)
    number = Index(())
    for variable, step in zip(
        problem.columns, dense_strides(tuple(one.extent for one in problem.columns)), strict=True
    ):
        number = number + index(variable) * step
    read = (x, Position(number)) if with_place else (x,)
    plan = _plan(problem, problem.x, read, target)

    def each(block: Block, thread: Value) -> None:
        f, row = block.f, _TaskRow(block, plan, thread)

        def gathered(op: Op, shift: Value | None = None) -> RowValues:
            return row.all(
                lambda at, held: _step(f, op, dtype, ThreadElements(block, at).values(read), held, shift, problem.last),
                _start(f, op, dtype, problem.last),
                lambda a, b: _together(f, op, dtype, a, b, problem.last),
            )

        if problem.op == "log_sum_exp":
            (largest,) = gathered("max")
            shift = f.select(unary(f, "is_inf", largest, dtype), f.number(largest.type, 0.0), largest)
            result = f.add(shift, unary(f, "log", gathered("log_sum_exp", shift)[0], dtype))
        else:
            result = _final(f, problem, plan, dtype, gathered(problem.op))

        def put() -> None:
            leaves = ThreadElements(block, row.at, {problem.reduced.name: result})
            for some, store in zip(leaves.values(problem.values), problem.stores, strict=True):
                leaves.store(some, store)

        first = f.binary("and", row.is_there, f.compare("eq", row.lane, block.word(0)))
        f.when(first, put)

    return _written(problem, read, problem.reduced, plan, target, name, each, 2, per_row=True)


def _written(
    problem: RowProblem, read: tuple[Expression, ...], stand_in: Buffer, plan: _Plan, target: Target, name: str,
    each: Callable[[Block, Value], None], operations: int, *, per_row: bool = False,
) -> Kernel:  # fmt: skip
    operands = operands_of(
        inputs_of((*read, *problem.values), (stand_in,)), (output.buffer for output in problem.outputs)
    )
    rows = prod(one.extent for one in problem.rows)
    empty = not rows or (not problem.elements and not per_row)
    return write_task(
        target, name, operands, 0 if empty else plan.blocks,
        lambda block: block.turns(plan.each, lambda thread: each(block, thread)),
        shared=shared_bytes(2) if plan.group == THREADS else 0, flops=operations * problem.elements,
        candidate=f"{plan.group} threads a row",
    )  # fmt: skip


# -- reductions ------------------------------------------------------------------------------------------------------


def _start(f: Function, op: Op, dtype: DType, last: bool) -> RowValues:
    """What nothing gives."""
    kind = _kind(dtype)
    if op in ("argmax", "argmin"):
        return (*_start(f, "max" if op == "argmax" else "min", dtype, last), f.number("i64", -1 if last else 2**62))
    if op in ("max", "min"):
        sign = -1 if op == "max" else 1
        if dtype.is_float:
            return (f.number(kind, sign * math.inf),)
        limits = np.iinfo(dtype.numpy)  # type: ignore[type-var]
        return (f.number(kind, int(limits.min if op == "max" else limits.max)),)
    return (f.number(kind, 1 if op == "prod" else 0),)


def _kind(dtype: DType) -> str:
    return held_type(dtype, 1)


def _step(
    f: Function, op: Op, dtype: DType, found: RowValues, held: RowValues, shift: Value | None, last: bool
) -> RowValues:
    """What is held, with one more element."""
    x = found[0]
    if op == "l1":
        x = unary(f, "abs", x, dtype)
    if op == "log_sum_exp":
        assert shift is not None, "the greatest element comes first"
        x = unary(f, "exp", f.sub(x, shift), dtype)
    if op in ("l2", "sum_square"):
        return (f.fma(x, x, held[0]) if dtype.is_float else f.add(held[0], f.mul(x, x)),)
    return _together(f, op, dtype, held, (x, *found[1:]), last)


def _together(f: Function, op: Op, dtype: DType, a: RowValues, b: RowValues, last: bool) -> RowValues:
    """Two partial results as one."""
    if op in ("argmax", "argmin"):
        return _better(f, op, dtype, a, b, last)
    if op in ("max", "min"):
        name = f"{op}imum" if dtype.is_float else ("s" if dtype.is_signed else "u") + op
    elif op == "prod":
        name = "fmul" if dtype.is_float else "mul"
    else:
        name = "fadd" if dtype.is_float else "add"
    return (f.combine(name, a[0], b[0]),)


def _better(f: Function, op: Op, dtype: DType, a: RowValues, b: RowValues, last: bool) -> RowValues:
    """Of two (value, place) the one that is asked for: a NaN before any number, of equals the first, or the last."""
    beyond = "gt" if op == "argmax" else "lt"
    if dtype.is_float:
        number = f.compare("ord", a[0], a[0])
        more = f.binary("and", f.compare(f"u{beyond}", b[0], a[0]), number)
        both = f.binary("and", f.compare("uno", a[0], a[0]), f.compare("uno", b[0], b[0]))
        equal = f.binary("or", f.compare("oeq", a[0], b[0]), both)
    else:
        more = f.compare(("s" if dtype.is_signed else "u") + beyond, b[0], a[0])
        equal = f.compare("eq", a[0], b[0])
    nearer = f.compare("sgt" if last else "slt", b[1], a[1])
    taken = f.binary("or", more, f.binary("and", equal, nearer))
    return tuple(f.select(taken, new, old) for new, old in zip(b, a, strict=True))


def _final(f: Function, problem: Reduction, plan: _Plan, dtype: DType, held: RowValues) -> Value:
    if problem.op == "mean":
        return f.div(held[0], f.number(held[0].type, float(plan.length)))
    if problem.op == "l2":
        return unary(f, "sqrt", held[0], dtype)
    return held[-1]
