"""Boxes in images: NonMaxSuppression, RoiAlign, MaxRoiPool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphopt.program.regions.routines.sorting import Keys, key_of
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted, held
from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    either,
    gt,
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
from kernels.tensor.expression import Expression, Unary

_CORNERS = 5  # low and high of the first and of the second coordinate, area
_AT_ONCE = 128  # chosen boxes that a box is compared with before it is asked whether one covers it

# -- NonMaxSuppression ------------------------------------------------------------------------------------------------


def non_max_suppression(node: Defined) -> None:
    """Of each class the boxes of the best scores, leaving out those that cover a chosen one too much.

    Equal scores: the earlier box first. As many are written as the model declares, or as there
    can be; zeros follow where there are fewer.
    """
    batches, number_of, _ = node.shape(0)
    classes, (rows, _), counter = node.shape(1)[1], node.output_shape(0), node.counter(0, 0)
    center = bool(node.integer("center_point_box", 0))
    node.require(node.shape(1) == (batches, classes, number_of), "has other scores than boxes")
    with node.stage() as w:
        boxes, scores, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        keys = Keys(w, DType.U32, number_of)
        corners, chosen = (w.scratch(DType.F32, (_CORNERS, number_of)) for _ in range(2))
        with w.shared(1):
            most = _given(node, w, 2, DType.I64)
            threshold = _given(node, w, 3, DType.F32)
            written = w.local(DType.I64, 0)
            (there,) = node.extents(w, node.dims(0)[1:2])
            with w.loops(batches, classes) as (batch, kind):
                with w.loop(there) as at:
                    _set_corners(w, boxes, corners, batch, at, center=center)
                count = _candidates(node, w, there, scores, scores.place((batch, kind, 0)), keys)
                taken, at = w.local(DType.I64, 0), w.local(DType.I64, 0)
                with w.loop_while(both(lt(at, count), lt(taken, most))):
                    one = w.local(DType.I64, keys.place(at))
                    w.set(at, at + 1)
                    mine = [w.local(DType.F32, corners[place, one]) for place in range(_CORNERS)]
                    with w.when(Unary("not", _is_covered(w, mine, chosen, taken, threshold))):
                        for place in range(_CORNERS):
                            chosen[place, taken] = mine[place]
                        w.set(taken, taken + 1)
                        with w.when(lt(written, rows)):
                            for place, value in enumerate((batch, kind, one)):
                                y[written, place] = value
                            w.set(written, written + 1)
            if counter is not None:
                w.writes(counter).put(0, written)
            if node.zeros_follow(0, counter):
                with w.loop(rows, written) as row, w.loop(3) as column:
                    y[row, column] = 0


def _given(node: Defined, w: Stage, at: int, kind: DType) -> Expression:
    """A number that is an operand, 0 where it is left out."""
    return w.local(kind, as_type(w.reads(node.input(at)).at(0), kind) if node.has(at) else number(0, kind))


def _candidates(
    node: Defined, w: Stage, boxes: Expression, scores: Grid, first: Expression, keys: Keys
) -> Expression:  # fmt: skip
    """How many boxes of a class have a score above the threshold; `keys` has them, the best first."""
    base, count = w.local(DType.I64, first), w.local(DType.I64, 0)
    bits = w.reads(replace(node.input(1), dtype=DType.U32))
    with w.loop(boxes) as at:
        keys.places.put(count, at)
        enters = gt(scores.at(base + at), w.reads(node.input(4)).at(0)) if node.has(4) else number(True, DType.BOOL)
        w.set(count, count + pick(enters, integer(1), 0))
    with w.loop(count) as at:
        place = w.local(DType.I64, keys.places.at(at))
        keys.put(at, key_of(bits.at(base + place), DType.F32, is_largest=True), place)
    keys.sort(count)
    return count


def _is_covered(
    w: Stage, one: Sequence[Expression], chosen: Grid, taken: Expression, threshold: Expression
) -> Expression:
    """Whether one of the chosen boxes covers this one too much; so many at once are looked at in vectors."""
    covered, start = w.local(DType.BOOL, False), w.local(DType.I64, 0)
    with w.loop_while(both(lt(start, taken), Unary("not", covered))):
        end = w.local(DType.I64, minimum(start + _AT_ONCE, taken))
        with w.loop(end, start) as other:
            covers = _covers(w, one, [chosen[place, other] for place in range(_CORNERS)], threshold)
            w.set(covered, either(covered, covers))
        w.set(start, end)
    return covered


def _set_corners(w: Stage, boxes: Grid, corners: Grid, batch: Expression, at: Expression, *, center: bool) -> None:
    """The corners of a box, the smaller coordinate first, and its area."""
    one, two, three, four = (w.local(DType.F32, boxes[batch, at, place]) for place in range(4))
    if center:
        ends = ((one - three / 2.0, one + three / 2.0), (two - four / 2.0, two + four / 2.0))
    else:
        ends = ((minimum(one, three), maximum(one, three)), (minimum(two, four), maximum(two, four)))
    for place, value in enumerate((*ends[0], *ends[1])):
        corners[place, at] = value
    low, high, left, right = (w.local(DType.F32, corners[place, at]) for place in range(4))
    corners[4, at] = (high - low) * (right - left)


def _covers(w: Stage, one: Sequence[Expression], other: Sequence[Expression], threshold: Expression) -> Expression:
    """Whether two boxes have more in common than the threshold, of what both cover together."""
    spans = [
        w.local(DType.F32, minimum(one[end], other[end]) - maximum(one[end - 1], other[end - 1])) for end in (1, 3)
    ]
    common = w.local(DType.F32, spans[0] * spans[1])
    together = w.local(DType.F32, one[4] + other[4] - common)
    some = both(both(gt(spans[0], 0.0), gt(spans[1], 0.0)), both(gt(common, 0.0), gt(together, 0.0)))
    areas = both(gt(one[4], 0.0), gt(other[4], 0.0))
    return both(both(some, areas), gt(common / together, threshold))


# -- regions of interest -----------------------------------------------------------------------------------------------


def roi_align(node: Defined) -> None:
    """Bilinear samples of each bin of a region, their mean or their maximum.

    A maximum is that of the four weighted pixels of every sample, as ONNX Runtime has it. Where the number of samples
    is given, their pixels and weights are found once for all channels.
    """
    images, channels, height, width = node.shape(0)
    regions, _, rows, columns = node.output_shape(0)
    mode = node.text("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    ratio, scale = node.integer("sampling_ratio", 0), node.number("spatial_scale", 1.0)
    node.require(node.shape(1) == (regions, 4) and node.shape(2) == (regions,), "has images for other regions")
    node.require(0 not in (images, height, width) or 0 in node.output_shape(0), "samples no pixels")
    kind, half = held(node.dtype(0)), 0.5 if mode == "half_pixel" else 0.0
    with node.stage() as w:
        x, rois, which = (w.reads(node.input(at)) for at in range(3))
        y = w.writes(node.output(0))
        with w.shared(regions) as (region,), w.when(lt(region, *node.extents(w, node.dims(1)[:1]))):
            corners = [w.local(kind, as_type(rois[region, at], kind) * scale - half) for at in range(4)]
            lines = []
            for start, end, count, size in ((1, 3, rows, height), (0, 2, columns, width)):
                span = corners[end] - corners[start]
                each = w.local(kind, (span if half else maximum(span, 1.0)) / float(count))
                adaptive = maximum(as_type(Unary("ceil", each), DType.I64), 0)
                samples = w.local(DType.I64, integer(ratio) if ratio > 0 else adaptive)
                lines.append(_Line(w, corners[start], each, samples, size, count * ratio))
            image = w.local(DType.I64, counted(which.at(region), images) * channels)
            with w.loops(channels, rows, columns) as (channel, row, column):
                plane = w.local(DType.I64, (image + channel) * (height * width))
                value = _bin_of(node, w, x, plane, (lines[0], lines[1]), row, column)
                y[region, channel, row, column] = as_type(value, y.dtype)


def _bin_of(
    node: Defined, w: Stage, x: Grid, plane: Expression, lines: tuple[_Line, _Line], row: Expression,
    column: Expression,
) -> Expression:  # fmt: skip
    """What the samples of one bin give."""
    vertical, horizontal = lines
    kind, width, is_mean = vertical.kind, node.shape(0)[3], node.text("mode", "avg") == "avg"
    total, is_first = w.local(kind, 0.0), w.local(DType.BOOL, True)
    with w.loop(vertical.samples) as down:
        above = [(w.local(DType.I64, plane + at * width), weight) for at, weight in vertical.pixels(row, down)]
        with w.loop(horizontal.samples) as right:
            across = horizontal.pixels(column, right)
            parts = [
                weight * other * as_type(x.at(start + at), kind) for start, weight in above for at, other in across
            ]
            if is_mean:
                w.set(total, total + (parts[0] + parts[1] + (parts[2] + parts[3])))
            else:
                most = w.local(kind, maximum(maximum(parts[0], parts[1]), maximum(parts[2], parts[3])))
                w.set(total, pick(is_first, most, maximum(total, most)))
                w.set(is_first, False)
    return total / as_type(maximum(vertical.samples * horizontal.samples, 1), kind) if is_mean else total


class _Line:
    """The samples along one dim of a region: their two pixels and weights, in a table where `known` is how many."""

    def __init__(
        self, w: Stage, start: Expression, each: Expression, samples: Expression, size: int, known: int
    ) -> None:
        self._w, self._start, self._each, self._size = w, start, each, size
        self.samples, self.kind = samples, each.dtype
        self._table: tuple[Grid, Grid] | None = None
        if known:
            places, weights = w.scratch(DType.I64, (known, 2)), w.scratch(self.kind, (known, 2))
            with w.loop(known) as at:
                found = self._found(quotient(at, samples), remainder(at, samples))
                for side, (pixel, weight) in enumerate(found):
                    places[at, side], weights[at, side] = pixel, weight
            self._table = places, weights

    def pixels(self, bin_: Expression, sample: Expression) -> tuple[tuple[Expression, Expression], ...]:
        """The two pixels of a sample of a bin, with their weights."""
        if self._table is None:
            return self._found(bin_, sample)
        w, (places, weights) = self._w, self._table
        at = w.local(DType.I64, bin_ * self.samples + sample)
        return tuple((w.local(DType.I64, places[at, side]), w.local(self.kind, weights[at, side])) for side in (0, 1))

    def _found(self, bin_: Expression, sample: Expression) -> tuple[tuple[Expression, Expression], ...]:
        place = _sample(self._w, self._start, bin_, self._each, sample, self.samples)
        return _between(self._w, place, self._size)


def _sample(
    w: Stage, start: Expression, bin_: Expression, size: Expression, at: Expression, count: Expression
) -> Expression:
    kind = start.dtype
    begin = start + as_type(bin_, kind) * size
    return w.local(kind, begin + (as_type(at, kind) + 0.5) * size / as_type(count, kind))


def _between(w: Stage, place: Expression, size: int) -> tuple[tuple[Expression, Expression], ...]:
    """The two pixels of a place with their weights, which are 0 for a place more than a pixel outside."""
    kind = place.dtype
    inside = both(Unary("not", lt(place, -1.0)), le(place, float(size)))
    held_place = w.local(kind, pick(inside, minimum(maximum(place, 0.0), float(size - 1)), 0.0))
    low = w.local(DType.I64, as_type(held_place, DType.I64))
    some = w.local(kind, pick(inside, number(1.0, kind), 0.0))
    part = w.local(kind, (held_place - as_type(low, kind)) * some)
    return (low, some - part), (minimum(low + 1, size - 1), part)


def max_roi_pool(node: Defined) -> None:
    """The largest pixel of each bin of a region; 0 where a bin has none."""
    images, channels, height, width = node.shape(0)
    regions, _, rows, columns = node.output_shape(0)
    scale, kind = node.number("spatial_scale", 1.0), held(node.dtype(0))
    node.require(node.shape(1) == (regions, 5) and (images > 0 or not regions), "has other regions than results")
    with node.stage() as w:
        x, rois, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        with w.shared(regions, channels) as (region, channel):
            corners = [_rounded(w, as_type(rois[region, at], kind) * scale) for at in range(1, 5)]
            which = counted(as_type(rois[region, 0], DType.I64), images)
            base = w.local(DType.I64, x.place((which, channel, 0, 0)))
            with w.loops(rows, columns) as (row, column):
                top, bottom = _bin(w, corners[1], corners[3], row, rows, height)
                left, right = _bin(w, corners[0], corners[2], column, columns, width)
                largest = w.local(kind, 0.0)
                with w.when(both(lt(top, bottom), lt(left, right))):
                    w.set(largest, as_type(x.at(base + top * width + left), kind))
                with w.loop(bottom, top) as down, w.loop(right, left) as across:
                    w.set(largest, maximum(largest, as_type(x.at(base + down * width + across), kind)))
                y[region, channel, row, column] = as_type(largest, y.dtype)


def _rounded(w: Stage, x: Expression) -> Expression:
    """To the nearest integer, halves away from 0."""
    away = pick(lt(x, 0.0), Unary("ceil", x - 0.5), Unary("floor", x + 0.5))
    return w.local(x.dtype, away)


def _bin(
    w: Stage, start: Expression, end: Expression, at: Expression, count: int, size: int
) -> tuple[Expression, Expression]:
    """The first pixel of a bin, and the one after its last."""
    kind = start.dtype
    each = w.local(kind, maximum(end - start + 1.0, 1.0) / float(count))
    low = Unary("floor", as_type(at, kind) * each) + start
    high = Unary("ceil", as_type(at + 1, kind) * each) + start
    first, last = (as_type(minimum(maximum(one, 0.0), float(size)), DType.I64) for one in (low, high))
    return w.local(DType.I64, first), w.local(DType.I64, last)


DEFINITIONS: dict[str, Definition] = {
    "MaxRoiPool": max_roi_pool,
    "NonMaxSuppression": non_max_suppression,
    "RoiAlign": roi_align,
}
