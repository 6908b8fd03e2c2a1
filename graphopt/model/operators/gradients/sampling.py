"""Gradients of operators that read an image between its elements: GridSample and DeformConv.

A position reads a few elements along each axis (its taps), by weights that depend on where between them it is. The
gradient to the image goes to the taps by these weights; that to a position is the sum over taps of what they hold by
the slopes of the weights. At a whole number the slope is that of the elements above it. With the padding of borders a
position outside stays where it is, and only its taps are drawn inside: so do ONNX Runtime and PyTorch, while ONNX's
evaluator draws the position too, which is another result where the mode is cubic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import NoGradient, Term
from graphopt.model.operators.gradients.windows import spatial

CUBIC = -0.75  # the coefficient of the kernel of Keys, as ONNX Runtime has it
PLAIN = {"bilinear": "linear", "bicubic": "cubic"}  # modes as opset 16 names them


@dataclass(frozen=True, eq=False)
class Tap:
    """One element that every position reads along one axis, or in the whole image."""

    place: Term  # [N, P], int64
    weight: Term  # [N, P]
    slopes: tuple[Term, ...]  # [N, P] each: of the weight, by the position's coordinates


@dataclass(frozen=True, eq=False)
class Reads:
    """Positions that read images [N, C, S], S elements of all spatial axes; P positions an image."""

    image: Term
    taps: tuple[Tap, ...]

    def _seen(self, tap: Term, like: Term) -> Term:
        return tap.unsqueeze(1).expand(like)

    def values(self, like: Term) -> Term:
        """[N, C, P]: what positions read, of the dims of `like`."""
        parts = [self._read(tap, like) * tap.weight.unsqueeze(1) for tap in self.taps]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _read(self, tap: Tap, like: Term) -> Term:
        return self.image.maker.op("GatherElements", self.image, self._seen(tap.place, like), attributes={"axis": 2})

    def to_image(self, given: Term) -> Term:
        """[N, C, S] from [N, C, P]."""
        total = self.image.zeros()
        for tap in self.taps:
            total = total.maker.op(
                "ScatterElements", total, self._seen(tap.place, given), given * tap.weight.unsqueeze(1),
                attributes={"axis": 2, "reduction": "add"},
            )  # fmt: skip
        return total

    def to_positions(self, given: Term) -> list[Term]:
        """[N, P] for each coordinate, from [N, C, P]."""
        totals: list[Term | None] = [None] * len(self.taps[0].slopes)
        for tap in self.taps:
            seen = (given * self._read(tap, given)).sum(1, keep=False)
            for axis, slope in enumerate(tap.slopes):
                part = seen * slope
                before = totals[axis]
                totals[axis] = part if before is None else before + part
        return [total for total in totals if total is not None]


def _reads(image: Term, size: Sequence[int], by_axis: Sequence[Sequence[Tap]]) -> Reads:
    """Taps of whole images from those of their axes, each of which has one slope."""
    taps = []
    for chosen in product(*by_axis):
        place, weight = chosen[0].place, chosen[0].weight
        for side, tap in zip(size[1:], chosen[1:], strict=True):
            place = place * side + tap.place
            weight = weight * tap.weight
        slopes = []
        for axis in range(len(size)):
            slope = chosen[axis].slopes[0]
            for other, tap in enumerate(chosen):
                slope = slope if other == axis else slope * tap.weight
            slopes.append(slope)
        taps.append(Tap(place, weight, tuple(slopes)))
    return Reads(image, tuple(taps))


def _linear(position: Term) -> list[tuple[Term, Term, Term]]:
    """Elements below and above: place, weight and slope."""
    low = position.apply("Floor")
    part = position - low
    one = part.zeros() + 1.0
    return [(low, 1.0 - part, -one), (low + 1.0, part, one)]


def _cubic(position: Term) -> list[tuple[Term, Term, Term]]:
    """The two elements below and the two above, by the kernel of Keys."""
    low = position.apply("Floor")
    part = position - low
    found = []
    for offset in (-1, 0, 1, 2):
        way = 1.0 if offset < 1 else -1.0  # of the distance, as the position grows
        far = (part - float(offset)) * way
        if offset in (-1, 2):
            weight = ((far * CUBIC - 5 * CUBIC) * far + 8 * CUBIC) * far - 4 * CUBIC
            slope = (far * (3 * CUBIC) - 10 * CUBIC) * far + 8 * CUBIC
        else:
            weight = (far * (CUBIC + 2) - (CUBIC + 3)) * far * far + 1.0
            slope = (far * (3 * (CUBIC + 2)) - 2 * (CUBIC + 3)) * far
        found.append((low + float(offset), weight, slope * way))
    return found


def _nearest(position: Term) -> list[tuple[Term, Term, Term]]:
    """The nearest element, the even one of two."""
    return [(position.apply("Round"), position.zeros() + 1.0, position.zeros())]


MODES = {"linear": _linear, "cubic": _cubic, "nearest": _nearest}


def _clipped(term: Term, low: float, high: float) -> Term:
    return term.maker.op("Min", term.maker.op("Max", term, term.number(low)), term.number(high))


def _reflected(term: Term, low: float, high: float) -> tuple[Term, Term]:
    """Thrown back at both ends as often as needed; and whether it goes the other way, 1 or -1."""
    width = high - low
    if not width:
        return term.zeros() + low, term.zeros()
    turned = (term - low) / (2 * width)
    turned = (turned - turned.apply("Floor")) * (2 * width)
    way = term.number(1.0).where(turned < width, term.number(-1.0))
    return high - (turned - width).apply("Abs"), way


def _taps(position: Term, size: int, mode: str, outside: str, ends: tuple[float, float]) -> list[Tap]:
    """The taps of an axis. Elements outside count as zero, or are those at the border or thrown back at the ends."""
    found = []
    for at, weight, slope in MODES[mode](position):
        if outside == "zeros":
            inside = _clipped(at, 0.0, size - 1.0).equals(at).cast(position.dtype)
            weight, slope = weight * inside, slope * inside
        elif outside == "reflection":
            at = _reflected(at, *ends)[0].apply("Round")
        found.append(Tap(_clipped(at, 0.0, size - 1.0).cast(ir.DataType.INT64), weight, (slope,)))
    return found


def grid_sampled(back: Backward) -> Gradients:
    """GridSample: to the image, and to the grid but for the mode nearest, where the result is flat in it."""
    x, grid = back.x(), back.x(1)
    size, aligned = spatial(x), bool(back.integer("align_corners", 0))
    given = back.text("mode", "linear")
    mode, outside = PLAIN.get(given, given), back.text("padding_mode", "zeros")
    ends = [(0.0, side - 1.0) if aligned else (-0.5, side - 0.5) for side in size]
    scales = [(side - 1) / 2 if aligned else side / 2 for side in size]
    last = len(size)
    parts = [grid.slice(grid.rank - 1, last - 1 - axis, last - axis).reshape(0, -1) for axis in range(last)]
    positions = [
        (part + 1.0) * scale - (0.0 if aligned else 0.5) for part, scale in zip(parts, scales, strict=True)
    ]  # fmt: skip
    ways: list[Term | float] = [1.0] * last
    if mode == "nearest":
        positions = [one.apply("Round") for one in positions]
    if outside == "reflection":
        found = [_reflected(one, *end) for one, end in zip(positions, ends, strict=True)]
        positions, ways = [one for one, _ in found], [way for _, way in found]
    by_axis = [
        _taps(one, side, mode, outside, end) for one, side, end in zip(positions, size, ends, strict=True)
    ]  # fmt: skip
    reads, dy = _reads(x.reshape(0, 0, -1), size, by_axis), back.dy.reshape(0, 0, -1)
    to_grid = None
    if back.wants(1) and mode != "nearest":
        rows = zip(reads.to_positions(dy), ways, scales, strict=True)
        slopes = [(one * way * scale).unsqueeze(2) for one, way, scale in rows]
        to_grid = back.maker.join(slopes[::-1], 2).reshape_like(grid)
    return reads.to_image(dy).reshape_like(x) if back.wants(0) else None, to_grid


def deformed(back: Backward) -> Gradients:
    """DeformConv: what the kernel sees is read between elements, and enters a product; each by its own gradient."""
    x, weights, offset, mask, dy, maker = back.x(), back.x(1), back.x(2), back.optional(4), back.dy, back.maker
    size, out, kernel = spatial(x), spatial(dy), spatial(weights)
    channels = x.shape[1]
    if len(size) != 2 or not isinstance(channels, int):
        raise NoGradient("there is a rule for images of two sides and known channels alone")
    groups, apart = back.integer("group", 1), back.integer("offset_group", 1)
    places, count = prod(kernel), prod(out)
    strides, dilations = back.integers("strides") or (1, 1), back.integers("dilations") or (1, 1)
    pads = back.integers("pads") or (0, 0, 0, 0)
    moved = offset.reshape(maker.ints(-1), maker.ints(places), maker.ints(2), maker.ints(count))
    by_axis = []
    for axis in range(2):
        first = np.arange(out[axis]) * strides[axis] - pads[axis]
        grid = first + np.arange(kernel[axis])[:, None] * dilations[axis]  # [kernel, out]
        whole = grid[:, None, :, None] if axis == 0 else grid[None, :, None, :]
        start = np.broadcast_to(whole, (*kernel, *out)).reshape(1, places * count)
        position = moved.slice(2, axis, axis + 1).reshape(-1, places * count)
        position = position + maker.array(start.astype(x.dtype.numpy()), x.dtype)
        by_axis.append(_taps(position, size[axis], "linear", "zeros", (0.0, 0.0)))
    image = x.reshape(-1, channels // apart, prod(size))
    reads = _reads(image, size, by_axis)
    flat = weights.reshape(groups, -1, channels // groups * places)  # [groups, M / groups, C / groups places]
    rows = dy.reshape(maker.ints(-1), maker.ints(groups), flat.dim(1), maker.ints(count))
    to_seen = (flat.transpose(0, 2, 1) @ rows).reshape(-1, channels // apart, places * count)
    factor = None if mask is None else mask.reshape(-1, 1, places * count)
    to_read = to_seen if factor is None else to_seen * factor
    found: list[Term | None] = [None] * 5
    if back.wants(0):
        found[0] = reads.to_image(to_read).reshape_like(x)
    if back.wants(1) or back.wants(4):
        read = reads.values(to_seen)
        seen = (read if factor is None else read * factor).reshape(-1, groups, channels // groups * places, count)
        found[1] = (rows @ seen.transpose(0, 1, 3, 2)).sum(0, keep=False).reshape_like(weights)
        found[4] = None if mask is None else (to_seen * read).sum(1, keep=False).reshape_like(mask)
    if back.wants(2):
        slopes = [one.reshape(-1, places, 1, count) for one in reads.to_positions(to_read)]
        found[2] = maker.join(slopes, 2).reshape_like(offset)
    if back.wants(3):
        found[3] = dy.sum(0, *range(2, dy.rank), keep=False)
    return found
