"""Operators that move elements: Slice, Tile, Expand, Trilu, ReverseSequence, SpaceToDepth, DepthToSpace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import (
    as_type,
    both,
    ge,
    integer,
    le,
    lt,
    maximum,
    minimum,
    number,
    pick,
    quotient,
    remainder,
)
from kernels.tensor.expression import Expression

_BITS = {DType.F16: DType.U16, DType.BF16: DType.U16}


def bits(view: View) -> View:
    """The same elements, halves as the integers that they are in memory: moved, and not computed with."""
    return replace(view, dtype=_BITS.get(view.dtype, view.dtype))


# -- Slice ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bound:
    start: Expression
    step: Expression


def slice_(node: Defined) -> None:
    """Every dim from its start on by its step; what a run gives is kept inside of the operand."""
    shape = node.output_shape(0)
    node.require(0 not in node.shape(0) or 0 in shape, "takes elements of an empty operand")
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        with w.shared(*shape[:-1]) as outer:
            if not shape:
                y[()] = x[()]
                return
            bounds = _bounds(node, w, x.shape, shape)
            from_places = [one.start + at * one.step for at, one in zip(outer, bounds, strict=False)]
            first = w.local(DType.I64, x.place((*from_places, bounds[-1].start)))
            here = w.local(DType.I64, y.place((*outer, 0)))
            with w.loop(shape[-1]) as last:
                y.put(here + last, x.at(first + last * bounds[-1].step))


def _bounds(node: Defined, w: Stage, size: Sequence[int], count: Sequence[int]) -> list[_Bound]:
    """The bounds of every dim: attributes before opset 10, operands since then."""
    rank = len(size)
    if not node.has(1):
        starts = node.integers("starts")
        given = dict(zip(node.integers("axes", range(len(starts))), starts, strict=True))
        chosen = {axis % rank: integer(start) for axis, start in given.items()}
        return [_bound(w, chosen.get(axis, integer(0)), integer(1), size[axis], count[axis]) for axis in range(rank)]
    starts_at = w.reads(node.input(1))
    steps_at = w.reads(node.input(4)) if node.has(4) else None
    axes = node.constant(3)
    if node.has(3) and axes is None:
        axes_at = w.reads(node.input(3))
        start, step = w.scratch(DType.I64, (rank,)), w.scratch(DType.I64, (rank,))
        for axis in range(rank):
            start.put(axis, 0)
            step.put(axis, 1)
        with w.loop(starts_at.shape[0]) as one:
            axis_here = w.local(DType.I64, counted(axes_at.at(one), rank))
            start.put(axis_here, as_type(starts_at.at(one), DType.I64))
            step.put(axis_here, integer(1) if steps_at is None else as_type(steps_at.at(one), DType.I64))
        return [_bound(w, start.at(axis), step.at(axis), size[axis], count[axis]) for axis in range(rank)]
    names = range(starts_at.shape[0]) if axes is None else [int(one) % rank for one in axes.reshape(-1)]
    position = {axis: at for at, axis in enumerate(names)}
    found = []
    for axis in range(rank):
        if axis not in position:
            found.append(_bound(w, integer(0), integer(1), size[axis], count[axis]))
            continue
        at = position[axis]
        step_here = integer(1) if steps_at is None else as_type(steps_at.at(at), DType.I64)
        found.append(_bound(w, as_type(starts_at.at(at), DType.I64), step_here, size[axis], count[axis]))
    return found


def _bound(w: Stage, start: Expression, step: Expression, size: int, count: int) -> _Bound:
    """The first element of a dim, and the step: 0 where `count` steps would leave the operand."""
    begin = w.local(DType.I64, start)
    by = w.local(DType.I64, step)
    w.set(begin, minimum(maximum(pick(lt(begin, 0), begin + size, begin), 0), max(size - 1, 0)))
    span = maximum(minimum(by, size), -size) * max(count - 1, 0)
    w.set(by, pick(both(ge(begin + span, 0), lt(begin + span, max(size, 1))), by, 0))
    return _Bound(begin, by)


# -- Tile, Trilu ------------------------------------------------------------------------------------------------------


def tile(node: Defined) -> None:
    """The operand again and again; how often follows from the dims of the result.

    Axes behind the last one that is repeated lie in one piece with it.
    """
    shape, given = node.output_shape(0), node.shape(0)
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        if not shape or 0 in given:
            with w.shared(*shape[:-1]):
                if not shape:
                    y[()] = x[()]
            return
        axis = max((at for at, size in enumerate(given) if shape[at] != size), default=len(shape) - 1)
        length, times, rest = prod(given[axis:]), shape[axis] // given[axis], [0] * (len(shape) - axis)
        is_long = axis < len(shape) - 1
        with w.shared(*shape[:axis], times if is_long else 1) as (*outer, part):
            first = w.local(DType.I64, x.place((*map(remainder, outer, given[:axis]), *rest)))
            here = w.local(DType.I64, y.place((*outer, *rest)))
            with w.loops(1 if is_long else times, length) as (again, last):
                y.put(here + (part + again) * length + last, x.at(first + last))


def trilu(node: Defined) -> None:
    """The elements on one side of a diagonal; zeros on the other."""
    shape = node.output_shape(0)
    rows, columns = shape[-2:]
    upper = bool(node.integer("upper", 1))
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        with w.shared(*shape[:-1]) as outer:
            k = as_type(w.reads(node.input(1)).at(0), DType.I64) if node.has(1) else integer(0)
            near = minimum(maximum(k, -rows - 1), columns + 1)
            bound = outer[-1] + near + (0 if upper else 1)
            border = w.local(DType.I64, minimum(maximum(bound, 0), columns))
            with w.loop(border) as last:
                y[(*outer, last)] = number(0, y.dtype) if upper else x[(*outer, last)]
            with w.loop(columns, border) as last:
                y[(*outer, last)] = x[(*outer, last)] if upper else number(0, y.dtype)


# -- ReverseSequence, blocks of depth ---------------------------------------------------------------------------------


def reverse_sequence(node: Defined) -> None:
    """The first elements of every sequence in the other order, as many as its length says."""
    time = node.integer("time_axis", 0)
    shape = node.output_shape(0)
    inner = 1
    for size in shape[2:]:
        inner *= size
    node.require(node.shape(1) == (shape[1 - time],), "has a length for another number of sequences")
    with node.stage() as w:
        x, lengths, y = w.reads(bits(node.input(0))), w.reads(node.input(1)), w.writes(bits(node.output(0)))
        with w.shared(*shape[:2]) as outer:
            length = w.local(DType.I64, minimum(as_type(lengths.at(outer[1 - time]), DType.I64), shape[time]))
            at = outer[time]
            moved = w.local(DType.I64, pick(lt(at, length), length - 1 - at, at))
            source = (moved, outer[1]) if time == 0 else (outer[0], moved)
            first = w.local(DType.I64, (source[0] * shape[1] + source[1]) * inner)
            here = w.local(DType.I64, (outer[0] * shape[1] + outer[1]) * inner)
            with w.loop(inner) as one:
                y.put(here + one, x.at(first + one))


def depth_to_space(node: Defined) -> None:
    """Channels as blocks of pixels: DCR has the place in the block first, CRD the channel."""
    block, mode = node.integer("blocksize", 1), node.text("mode", "DCR")
    images, depth, rows, columns = node.shape(0)
    channels = depth // (block * block)
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        with w.shared(images, channels, rows * block) as (image, channel, row):
            down = w.local(DType.I64, remainder(row, block))
            above = w.local(DType.I64, quotient(row, block))
            with w.loop(block) as right:
                place = down * block + right
                source = place * channels + channel if mode == "DCR" else channel * (block * block) + place
                first = w.local(DType.I64, x.place((image, source, above, 0)))
                here = w.local(DType.I64, y.place((image, channel, row, 0)) + right)
                with w.loop(columns) as column:
                    y.put(here + column * block, x.at(first + column))


def space_to_depth(node: Defined) -> None:
    """Blocks of pixels as channels, the inverse of DepthToSpace."""
    block, mode = node.integer("blocksize", 1), node.text("mode", "DCR")
    images, channels, height, width = node.shape(0)
    rows, columns = height // block, width // block
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        with w.shared(images, channels, rows) as (image, channel, row), w.loops(block, block) as (down, right):
            place = down * block + right
            aim = place * channels + channel if mode == "DCR" else channel * (block * block) + place
            first = w.local(DType.I64, x.place((image, channel, row * block + down, right)))
            here = w.local(DType.I64, y.place((image, aim, row, 0)))
            with w.loop(columns) as column:
                y.put(here + column, x.at(first + column * block))


def center_crop_pad(node: Defined) -> None:
    """The middle of every dim, with zeros around where the result is larger."""
    shape = node.output_shape(0)
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        before = [
            (size - wanted) // 2 if size >= wanted else -((wanted - size) // 2)
            for size, wanted in zip(x.shape, shape, strict=True)
        ]
        with w.shared(*shape[:-1]) as outer:
            if not shape:
                y[()] = x[()]
                return
            inside: Expression = number(True, DType.BOOL)
            places = [at + first for at, first in zip(outer, before, strict=False)]
            for place, size in zip(places, x.shape, strict=False):
                inside = both(inside, both(ge(place, 0), le(place, size - 1)))
            start, end = max(0, -before[-1]), min(shape[-1], x.shape[-1] - before[-1])
            with w.loop(shape[-1]) as last:
                y[(*outer, last)] = number(0, y.dtype)
            with w.when(inside), w.loop(end, start) as last:
                y[(*outer, last)] = x[(*places, last + before[-1])]


DEFINITIONS: dict[str, Definition] = {
    "CenterCropPad": center_crop_pad,
    "DepthToSpace": depth_to_space,
    "ReverseSequence": reverse_sequence,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Tile": tile,
    "Trilu": trilu,
}
