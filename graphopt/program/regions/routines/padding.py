"""Pad of every mode, with pads, axes and filler that are known only when it runs."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted
from kernels.dtype import DType
from kernels.routine.writer import both, ge, gt, integer, lt, maximum, minimum, pick
from kernels.tensor.expression import Binary, Expression, Number


def pad(node: Defined) -> None:
    """Every element of the result comes from one of the input, found dim by dim, or is the filler."""
    mode, shape = node.text("mode", "constant"), node.output_shape(0)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(*shape[:-1]) as outer:
            before = _begins(node, w, len(shape))
            filler = _filler(node, w, x.dtype)
            if not shape:
                y[()] = x[()]
                return
            with w.loop(shape[-1]) as last:
                at = (*outer, last)
                places = [w.local(DType.I64, one - first) for one, first in zip(at, before, strict=True)]
                if mode != "constant":
                    y[at] = x[[_moved(mode, one, size) for one, size in zip(places, x.shape, strict=True)]]
                    return
                inside: Expression = Number(True, DType.BOOL)
                for one, size in zip(places, x.shape, strict=True):
                    inside = both(inside, both(ge(one, 0), lt(one, size)))
                with w.when(inside):
                    y[at] = x[places]
                with w.otherwise():
                    y[at] = filler


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
