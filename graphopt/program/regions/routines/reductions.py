"""Reductions of every form: axes that are known only when the operator runs, empty sets, bool, integers and f64.

Sums of floats run in f64, so that their error does not grow with their length. A mean of integers is cut towards zero;
roots and logarithms of integers are those of f64, cut likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import numpy as np

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted, held
from graphopt.program.regions.routines.sums import Lanes
from kernels.dtype import DType
from kernels.routine.writer import as_type, dot, eq, integer, maximum, minimum, number, pick, quotient, remainder
from kernels.tensor.expression import Expression, Number, Unary, dense_strides

Extents = Sequence[Expression]
Step = Callable[[Expression, Expression], Expression]  # of what is held so far, and one more element
Fold = Callable[[float | int, DType, Step], Expression]  # over a result's elements, from a first value on


def reduce(node: Defined) -> None:
    """One element of the result after the other, each a loop over its part of the operand."""
    name, source, result = node.node.op_type.removeprefix("Reduce"), node.input(0), node.output(0)
    with node.stage() as w:
        x, y = w.reads(source), w.writes(result)
        with w.shared(prod(result.shape)) as (place,):
            kept, taken = _extents(node, w, source.shape)
            if prod(source.shape) == 0:
                taken = [integer(0)] * len(taken)  # nothing is read, whatever axes the data name
            base, steps = w.local(DType.I64, 0), dense_strides(source.shape)
            rest = w.local(DType.I64, place)
            for size, step in reversed(list(zip(kept, steps, strict=True))):
                if size != integer(1):
                    w.set(base, base + remainder(rest, size) * step)
                    w.set(rest, quotient(rest, size))

            def fold(first: float | int, kind: DType, step: Step) -> Expression:
                if first == 0 and kind.is_float:
                    lanes, nothing = Lanes(w, kind), number(0, kind)
                    with w.loops(*taken[:-1]) as outer:
                        start = w.local(DType.I64, base + dot(outer, steps[:-1]))
                        far = steps[-1] if steps else 0
                        lanes.add(
                            taken[-1] if taken else 1,
                            lambda at: step(nothing, x.at(start + at * far)),
                        )
                    return lanes.total()
                total = w.local(kind, number(first, kind))
                with w.loops(*taken) as at:
                    w.set(total, step(total, x.at(base + dot(at, steps))))
                return total

            count = integer(1)
            for size in taken:
                count = count * size
            y.put(place, as_type(_folded(name, source.dtype, w.local(DType.I64, count), fold), source.dtype))


def _extents(node: Defined, w: Stage, shape: Sequence[int]) -> tuple[Extents, Extents]:
    """How many results lie along each dim, and how many elements of it one result takes."""
    axes, rank = node.bound_axes(), len(shape)
    if axes is None and node.shape(1) == (0,):
        axes = frozenset() if node.integer("noop_with_empty_axes", 0) else frozenset(range(rank))
    if axes is not None:
        kept = [integer(1 if at in axes else size) for at, size in enumerate(shape)]
        return kept, node.extents(w, (size if at in axes else 1 for at, size in enumerate(node.dims(0))))
    listed, found = w.reads(node.input(1)), w.scratch(DType.I64, (max(rank, 1),))
    for at in range(rank):
        found.put(at, 0)
    with w.loop(prod(listed.shape)) as one:
        found.put(counted(listed.at(one), rank), 1)
    is_taken = [w.local(DType.BOOL, eq(found.at(at), 1)) for at in range(rank)]
    kept = [w.local(DType.I64, pick(one, integer(1), size)) for one, size in zip(is_taken, shape, strict=True)]
    return kept, [w.local(DType.I64, pick(one, integer(size), 1)) for one, size in zip(is_taken, shape, strict=True)]


def _folded(name: str, kind: DType, count: Expression, fold: Fold) -> Expression:
    """A result from the fold over its elements."""
    exact = kind if kind.is_integer else DType.F64  # in which sums run
    real = DType.F32 if kind in (DType.F16, DType.BF16, DType.F32) else DType.F64  # of roots and logarithms
    match name:
        case "Sum":
            return fold(0, exact, lambda total, one: total + as_type(one, exact))
        case "Prod":
            return fold(1, held(kind), lambda total, one: total * as_type(one, held(kind)))
        case "Max" | "Min":
            order = DType.U8 if kind is DType.BOOL else held(kind)
            better = maximum if name == "Max" else minimum
            return fold(_last(name, order), order, lambda total, one: better(total, as_type(one, order)))
        case "Mean" if kind.is_integer:
            wide = DType.I64 if kind.is_signed else DType.U64
            total = fold(0, wide, lambda total, one: total + as_type(one, wide))
            return quotient(total, as_type(count, wide))
        case "Mean":
            return fold(0, DType.F64, lambda total, one: total + as_type(one, DType.F64)) / as_type(count, DType.F64)
        case "L1":
            return fold(0, exact, lambda total, one: total + _magnitude(as_type(one, exact)))
        case "SumSquare":
            return fold(0, exact, lambda total, one: total + as_type(one, exact) * as_type(one, exact))
        case "L2":
            return Unary("sqrt", fold(0, DType.F64, lambda total, one: total + _square(as_type(one, DType.F64))))
        case "LogSum":
            return Unary("log", fold(0, DType.F64, lambda total, one: total + as_type(one, DType.F64)))
    assert name == "LogSumExp", "all reductions of ONNX"
    largest = fold(-inf, real, lambda total, one: maximum(total, as_type(one, real)))
    shift = pick(Unary("is_inf", largest), Number(0.0, real), largest)
    total = fold(0, DType.F64, lambda total, one: total + as_type(Unary("exp", as_type(one, real) - shift), DType.F64))
    return Unary("log", total) + as_type(shift, DType.F64)


def _last(name: str, kind: DType) -> float | int:
    """What every element is at least (Max) or at most (Min)."""
    if kind.is_float:
        return -inf if name == "Max" else inf
    if kind is DType.U8:
        return 0 if name == "Max" else 255
    limits = np.iinfo(kind.numpy)  # type: ignore[type-var]
    return int(limits.min if name == "Max" else limits.max)


def _magnitude(x: Expression) -> Expression:
    return Unary("abs", x)


def _square(x: Expression) -> Expression:
    return x * x


_NAMES = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
DEFINITIONS: dict[str, Definition] = {f"Reduce{name}": reduce for name in _NAMES}
