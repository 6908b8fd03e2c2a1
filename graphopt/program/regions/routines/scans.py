"""CumSum and CumProd along an axis that may be known only when they run."""

from __future__ import annotations

from math import prod

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted, held
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, eq, number
from kernels.tensor.expression import Binary, Expression


def scan(node: Defined) -> None:
    """Every element combined with those before it; `exclusive` leaves it out, `reverse` begins at the end."""
    shape, axis = node.shape(0), node.constant(1)
    rank = len(shape)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        if axis is not None or rank == 1:
            known = 0 if axis is None else int(axis.reshape(-1)[0]) % rank
            with w.shared(prod(shape[:known])) as (before,):
                _along(node, w, x, y, known, before * prod(shape[known:]))
            return
        with w.shared(1):
            chosen = w.local(DType.I64, counted(w.reads(node.input(1)).at(0), rank))
            for one in range(rank):
                with w.when(eq(chosen, one)), w.loop(prod(shape[:one])) as before:
                    _along(node, w, x, y, one, before * prod(shape[one:]))


def _along(node: Defined, w: Stage, x: Grid, y: Grid, axis: int, start: Expression) -> None:
    """All rows of one outer index: along the axis outside, so that what lies side by side is combined at once."""
    size, inner, kind = x.shape[axis], prod(x.shape[axis + 1 :]), held(x.dtype)
    is_sum = node.node.op_type == "CumSum"
    reverse, exclusive = bool(node.integer("reverse", 0)), bool(node.integer("exclusive", 0))
    first = w.local(DType.I64, start)
    neutral = number(0 if is_sum else 1, kind)
    totals = w.scratch(kind, (inner,))
    with w.loop(inner) as after:
        totals.put(after, neutral)
    with w.loop(size) as at:
        here = w.local(DType.I64, first + (size - 1 - at if reverse else at) * inner)
        with w.loop(inner) as after:
            one = as_type(x.at(here + after), kind)
            total = w.local(kind, Binary("add" if is_sum else "mul", totals.at(after), one))
            y.put(here + after, as_type(totals.at(after) if exclusive else total, y.dtype))
            totals.put(after, total)


DEFINITIONS: dict[str, Definition] = {"CumProd": scan, "CumSum": scan}
