"""Hardmax: a one where the first of the largest elements along an axis is, zeros elsewhere.

No element behind a NaN counts, nor does that NaN. Rows are looked at in vectors, columns side by side.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from graphopt.program.regions.routines.normalizations import around
from graphopt.program.regions.routines.sorting import SIGNED, infinity
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, eq, gt, le, lt, maximum, minimum, number, pick
from kernels.tensor.expression import Binary, Expression

_TOGETHER = 1024  # columns that a worker looks at together: what it keeps of them stays in a cache
_FEW = 8  # columns that have variables of their own
_SHORT = 16  # elements of a row in which no vector is worth its while
_LOOKED_AT = 256  # elements that are looked at before it is asked whether the largest is among them


def hardmax(node: Defined) -> None:
    """By rows, or by as many columns as lie side by side; the axis says which, where any size shall be served."""
    before, along, behind = around(node, node.shape(0), -1, flattens=node.opset < 13)
    steady, last = node.is_steady, node.axis(-1, len(node.shape(0))) == len(node.shape(0)) - 1
    is_row = node.opset < 13 or last if steady else behind == 1
    with node.stage() as w:
        if is_row and (steady or along >= _SHORT):
            _hardmax_of_rows(node, w, before, along)
            return
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        if not steady and behind < _FEW:
            with w.shared(before) as (row,):
                _hardmax_of_few(w, x, y, w.local(DType.I64, row * (along * behind)), along, behind)
            return
        with w.shared(before, 1 if steady else -(-behind // _TOGETHER)) as (row, part):
            first = w.local(DType.I64, part * _TOGETHER)
            end = w.local(DType.I64, behind if steady else minimum(first + _TOGETHER, behind))
            best, largest = w.scratch(DType.I32, (_TOGETHER,)), w.scratch(held(x.dtype), (_TOGETHER,))
            with w.loop_while(lt(first, end)):
                columns = w.local(DType.I64, minimum(end - first, _TOGETHER))
                start = w.local(DType.I64, row * (along * behind) + first)
                _hardmax_of_columns(w, x, y, best, largest, start, along, behind, columns)
                w.set(first, first + columns)


def _hardmax_of_rows(node: Defined, w: Stage, rows: int, along: int) -> None:
    """The largest element of each row, the first place that has it, and zeros around a one.

    Elements are compared as integers, whose largest one LLVM finds in vectors: of floats it would lose a NaN.
    """
    source, aim, kind = node.input(0), node.output(0), node.dtype(0)
    bits = SIGNED[kind.bytes]
    infinite = number(infinity(kind), bits)
    x, y = w.reads(replace(source, dtype=bits)), w.writes(aim)

    def magnitude(at: Expression) -> Expression:
        return Binary("and", x.at(at), number(2 ** (8 * kind.bytes - 1) - 1, bits))

    def ordered(at: Expression) -> Expression:
        return pick(lt(x.at(at), 0), number(0, bits) - magnitude(at), magnitude(at))

    with w.shared(rows) as (row,):
        start, end = w.local(DType.I64, row * along), w.local(DType.I64, along)
        largest, widest = w.local(bits, -infinity(kind)), w.local(bits, 0)

        def look() -> None:
            with w.loop(end) as at:
                w.set(largest, maximum(largest, ordered(start + at)))
                w.set(widest, maximum(widest, magnitude(start + at)))

        look()
        with w.when(gt(widest, infinite)):  # there is a NaN
            w.set(end, 0)
            with w.loop_while(le(magnitude(start + end), infinite)):
                w.set(end, end + 1)
            w.set(largest, -infinity(kind))
            look()
        best, here = w.local(DType.I64, 0), w.local(DType.I64, 0)
        with w.loop_while(lt(here, end)):
            count = w.local(DType.I64, minimum(end - here, _LOOKED_AT))
            place = w.local(DType.I32, _LOOKED_AT)
            with w.loop(count) as at:
                is_largest = eq(ordered(start + here + at), largest)
                w.set(place, minimum(place, pick(is_largest, as_type(at, DType.I32), _LOOKED_AT)))
            with w.when(lt(place, _LOOKED_AT)):
                w.set(best, here + as_type(place, DType.I64))
                w.set(here, end)
            w.set(here, here + count)
        with w.loop(along) as at:
            y.put(start + at, number(0, y.dtype))
        with w.when(lt(best, along)):  # unless there are no elements
            y.put(start + best, number(1, y.dtype))


def _hardmax_of_few(w: Stage, x: Grid, y: Grid, start: Expression, along: int, behind: int) -> None:
    """The same of a few columns that lie side by side, each in variables of its own."""
    kind = held(x.dtype)
    best = [w.local(DType.I64, 0) for _ in range(behind)]
    largest = [w.local(kind, number(-inf, kind)) for _ in range(behind)]
    with w.loop(along) as at:
        for column in range(behind):
            one = w.local(kind, as_type(x.at(start + at * behind + column), kind))
            w.set(best[column], pick(gt(one, largest[column]), at, best[column]))
            w.set(largest[column], maximum(largest[column], one))
    with w.loop(along) as at:
        for column in range(behind):
            y.put(start + at * behind + column, pick(eq(at, best[column]), number(1, y.dtype), 0))


def _hardmax_of_columns(
    w: Stage, x: Grid, y: Grid, best: Grid, largest: Grid, start: Expression, along: int, behind: int,
    columns: Expression,
) -> None:  # fmt: skip
    """The same of columns that lie side by side: the first place of the largest element of each so far."""
    kind = largest.dtype
    with w.loop(columns) as column:
        best.put(column, 0)
        largest.put(column, number(-inf, kind))
    with w.loop(along) as at:
        here, place = w.local(DType.I64, start + at * behind), w.local(DType.I32, as_type(at, DType.I32))
        with w.loop(columns) as column:
            one = w.local(kind, as_type(x.at(here + column), kind))
            best.put(column, pick(gt(one, largest.at(column)), place, best.at(column)))
            largest.put(column, maximum(largest.at(column), one))
    with w.loop(along) as at:
        here, place = w.local(DType.I64, start + at * behind), w.local(DType.I32, as_type(at, DType.I32))
        with w.loop(columns) as column:
            y.put(here + column, pick(eq(best.at(column), place), number(1, y.dtype), 0))


DEFINITIONS: dict[str, Definition] = {"Hardmax": hardmax}
