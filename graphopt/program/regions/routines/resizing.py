"""Resize and Upsample of every mode and rank, axis by axis, with sizes and scales that may be known only at run time.

What a place along an axis reads stands in a table (`resized_places.py`); the stages here mix rows by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from graphopt.program.regions.routines.moving import bits
from graphopt.program.regions.routines.resized_places import Axis, Table, changing_axes, table_of
from graphopt.program.regions.routines.stage import Defined, Definition, held
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import as_type, either, number, pick
from kernels.tensor.expression import Expression, Number

_FEW_TAPS = 8  # written out side by side; more are a loop


def resize(node: Defined) -> None:
    """Nearest pixels at once; weighted sums one axis after the other, the one that shrinks most first."""
    axes = [] if 0 in (*node.shape(0), *node.output_shape(0)) else changing_axes(node)
    tables = {axis.number: table_of(node, axis) for axis in axes}
    if node.text("mode", "nearest") == "nearest" or not axes:
        _nearest(node, tables)
        return
    kind = held(node.dtype(0)) if node.dtype(0).is_float else DType.F64
    source, order = node.input(0), sorted(axes, key=lambda axis: axis.count / axis.size)
    for axis in order:
        dims = [*source.shape]
        dims[axis.number] = axis.count
        aim = node.output(0) if axis is order[-1] else node.temporary(kind, dims)
        _mix(node, source, aim, axis, tables[axis.number], kind)
        source = aim


def _nearest(node: Defined, tables: Mapping[int, Table]) -> None:
    """The pixels that the places name."""
    shape = node.output_shape(0)
    extra = node.number("extrapolation_value", 0.0)
    extra = extra if node.dtype(0).is_float else int(extra)
    crops = any(table.outside is not None for table in tables.values())
    source, aim = (node.input(0), node.output(0)) if crops else (bits(node.input(0)), bits(node.output(0)))
    with node.stage() as w:
        x, y = w.reads(source), w.writes(aim)
        firsts = {axis: w.reads(table.first) for axis, table in tables.items()}
        flags = {axis: w.reads(table.outside) for axis, table in tables.items() if table.outside is not None}
        with w.shared(*shape[:-1]) as outer:
            if not shape:
                y[()] = x[()]
                return
            pixels = [firsts[axis].at(at) if axis in firsts else at for axis, at in enumerate(outer)]
            beyond: Expression = Number(False, DType.BOOL)
            for axis, at in enumerate(outer):
                beyond = either(beyond, flags[axis].at(at)) if axis in flags else beyond
            is_out = w.local(DType.BOOL, beyond)
            base = w.local(DType.I64, x.place((*pixels, 0)))
            here = w.local(DType.I64, y.place((*outer, 0)))
            final = len(shape) - 1
            with w.loop(shape[-1]) as last:
                value = x.at(base + (firsts[final].at(last) if final in firsts else last))
                if crops:
                    outside = either(is_out, flags[final].at(last)) if final in flags else is_out
                    y.put(here + last, pick(outside, number(extra, y.dtype), value))
                else:
                    y.put(here + last, value)


def _mix(node: Defined, source: View, aim: View, axis: Axis, table: Table, kind: DType) -> None:
    """One axis resized: sums over the window of each place, along memory where the axis is not the last one."""
    inner, before = prod(aim.shape[axis.number + 1 :]), prod(aim.shape[: axis.number])
    extra = number(node.number("extrapolation_value", 0.0), kind)
    assert table.weights is not None, "nearest pixels are not mixed"
    with node.stage() as w:
        x, y, firsts, weights = w.reads(source), w.writes(aim), w.reads(table.first), w.reads(table.weights)
        flags = None if table.outside is None else w.reads(table.outside)
        taps = weights.shape[1]
        if inner == 1:
            with w.shared(before) as (row,), w.loop(axis.count) as place:
                start = w.local(DType.I64, row * axis.size + firsts.at(place))
                total = w.local(kind, 0.0)
                for tap in range(taps) if taps <= _FEW_TAPS else ():
                    w.set(total, total + as_type(weights[place, tap], kind) * as_type(x.at(start + tap), kind))
                if taps > _FEW_TAPS:
                    with w.loop(taps) as each:
                        w.set(total, total + as_type(weights[place, each], kind) * as_type(x.at(start + each), kind))
                if flags is not None:
                    w.set(total, pick(flags.at(place), extra, total))
                y.put(row * axis.count + place, as_type(total, y.dtype))
            return
        with w.shared(before, axis.count) as (row, chosen):
            start = w.local(DType.I64, (row * axis.size + firsts.at(chosen)) * inner)
            here = w.local(DType.I64, (row * axis.count + chosen) * inner)
            outside = None if flags is None else w.local(DType.BOOL, flags.at(chosen))

            def store(after: Expression, value: Expression) -> None:
                y.put(here + after, as_type(value if outside is None else pick(outside, extra, value), y.dtype))

            if taps <= _FEW_TAPS:
                known = [w.local(kind, as_type(weights[chosen, tap], kind)) for tap in range(taps)]
                with w.loop(inner) as after:
                    value: Expression = number(0, kind)
                    for tap, weight in enumerate(known):
                        term = weight * as_type(x.at(start + tap * inner + after), kind)
                        value = value + term if tap else term
                    store(after, value)
                return
            totals = w.scratch(kind, (inner,))
            with w.loop(inner) as after:
                totals.put(after, 0.0)
            with w.loop(taps) as each:
                weight = w.local(kind, as_type(weights[chosen, each], kind))
                with w.loop(inner) as after:
                    term = weight * as_type(x.at(start + each * inner + after), kind)
                    totals.put(after, totals.at(after) + term)
            with w.loop(inner) as after:
                store(after, totals.at(after))


DEFINITIONS: dict[str, Definition] = {"Resize": resize, "Upsample": resize}
