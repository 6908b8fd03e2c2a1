"""Pad of every mode, with pads, axes and filler that are known only when it runs."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted
from kernels.dtype import DType
from kernels.routine.writer import both, ge, gt, integer, lt, maximum, minimum, pick
from kernels.tensor.expression import Binary, Expression, Number


def pad(node: Defined) -> None:
    """Every element of the result comes from one of the input, found dim by dim, or is the filler.

    Of the last dim a row's middle is copied as it is; what lies before and behind is looked for element by element.
    """
    mode, shape = node.text("mode", "constant"), node.output_shape(0)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(*shape[:-1]) as outer:
            before = _begins(node, w, len(shape))
            filler = _filler(node, w, x.dtype)
            if not shape:
                y[()] = x[()]
                return
            sizes, first = node.extents(w, node.dims(0)), before[-1]
            places = [w.local(DType.I64, one - begin) for one, begin in zip(outer, before, strict=False)]
            low = w.local(DType.I64, minimum(maximum(first, 0), shape[-1]))
            high = w.local(DType.I64, minimum(maximum(first + sizes[-1], low), shape[-1]))
            if mode != "constant":
                moved = [w.local(DType.I64, _moved(mode, *one)) for one in zip(places, x.shape, strict=False)]
                for end, begin in ((low, integer(0)), (integer(shape[-1]), high)):
                    with w.loop(end, begin) as last:
                        y[*outer, last] = x[*moved, _moved(mode, last - first, x.shape[-1])]
                with w.loop(high, low) as last:
                    y[*outer, last] = x[*moved, last - first]
                return
            inside: Expression = Number(True, DType.BOOL)
            for place, extent in zip(places, sizes, strict=False):
                inside = both(inside, both(ge(place, 0), lt(place, extent)))
            with w.when(inside):
                for end, begin in ((low, integer(0)), (integer(shape[-1]), high)):
                    with w.loop(end, begin) as last:
                        y[*outer, last] = filler
                with w.loop(high, low) as last:
                    y[*outer, last] = x[*places, last - first]
            with w.otherwise(), w.loop(shape[-1]) as last:
                y[*outer, last] = filler


def _begins(node: Defined, w: Stage, rank: int) -> Sequence[Expression]:
    """What comes before each dim: an input since opset 11, an attribute before; axes since opset 18."""
    if not node.has(1):
        return [integer(one) for one in node.integers("pads", (0,) * (2 * rank))[:rank]]
    pads, axes = node.constant(1), node.constant(3)
    if pads is not None and (axes is not None or not node.has(3)):
        chosen = range(rank) if axes is None else [int(one) for one in axes]
        given = dict(zip((one % rank for one in chosen), pads.tolist(), strict=False))
        return [integer(given.get(one, 0)) for one in range(rank)]
    counts = w.reads(node.input(1))
    if not node.has(3):
        return [w.local(DType.I64, counts.at(one)) for one in range(rank)]
    chosen_axes, found = w.reads(node.input(3)), w.scratch(DType.I64, (rank,))
    for one in range(rank):
        found.put(one, 0)
    with w.loop(chosen_axes.shape[0]) as place:
        found.put(counted(chosen_axes.at(place), rank), counts.at(place))
    return [w.local(DType.I64, found.at(one)) for one in range(rank)]


def _filler(node: Defined, w: Stage, dtype: DType) -> Expression:
    if node.has(2):
        return w.reads(node.input(2)).at(0)
    return Number(node.number("value", 0.0) if dtype.is_float else 0, dtype)


def _moved(mode: str, place: Expression, size: int) -> Expression:
    """Where an element outside of a dim comes from; pads may be longer than the dim."""
    if mode == "edge":
        return minimum(maximum(place, 0), size - 1)
    if mode == "wrap":
        return Binary("mod", place, integer(size))
    if size == 1:
        return integer(0)
    period = Binary("mod", place, integer(2 * (size - 1)))
    return pick(gt(period, size - 1), 2 * (size - 1) - period, period)


DEFINITIONS: dict[str, Definition] = {"Pad": pad}
