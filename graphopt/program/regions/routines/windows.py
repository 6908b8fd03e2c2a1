"""Windows over images of any rank: where they lie, and pools of every kind and type.

A row of results is computed at once: for each place in the window the part of the row whose pixel lies inside is a loop
along memory, without a condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from graphopt.model.operators.padding import padding
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, gt, integer, lt, maximum, minimum, number, pick, quotient
from kernels.tensor.expression import Binary, Expression, Unary


@dataclass(frozen=True, slots=True)
class Windows:
    """Each spatial dim: pixels, windows, pixels of a window, steps between windows and between pixels, pads."""

    size: tuple[int, ...]
    count: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, node: Defined, kernel: Sequence[int]) -> Windows:
        """Those of a node, by its attributes and the dims of its operand and result."""
        rank = len(kernel)
        size, count = node.shape(0)[2:], node.output_shape(0)[2:]
        strides, dilations = node.integers("strides", (1,) * rank), node.integers("dilations", (1,) * rank)
        reach = [(k - 1) * step + 1 for k, step in zip(kernel, dilations, strict=True)]
        before, after = padding(node.node, size, count, reach, strides)
        return cls(size, count, tuple(kernel), strides, dilations, before, after)

    @property
    def is_pointwise(self) -> bool:
        """Whether windows are the pixels themselves."""
        ones = (1,) * len(self.size)
        return self.kernel == ones and self.strides == ones and self.size == self.count and not any(self.before)

    def band(self, first: int, rows: int) -> Windows:
        """So many rows of windows from the `first` one on."""
        before = (self.before[0] - first * self.strides[0], *self.before[1:])
        return replace(self, count=(rows, *self.count[1:]), before=before)

    def first(self, axis: int, at: Expression) -> Expression:
        """The pixel at which a window begins; may lie before the image."""
        return at * self.strides[axis] - self.before[axis]

    def inside(self, w: Stage, axis: int, at: Expression, low: int, high: int) -> tuple[Expression, Expression]:
        """The places in a window, from one to before another, whose pixels lie between `low` and `high`."""
        first, step = w.local(DType.I64, self.first(axis, at)), self.dilations[axis]
        begin = w.clamped(quotient(low - first + (step - 1), step), 0, self.kernel[axis])
        end = w.clamped(quotient(maximum(high - first, 0) + (step - 1), step), 0, self.kernel[axis])
        return w.local(DType.I64, begin), w.local(DType.I64, end)

    def reached(self, w: Stage, at: Expression) -> tuple[Expression, Expression, Expression]:
        """For a place in the windows of the last dim: the first window and the one after the last whose pixel is
        inside, and the pixel of window 0."""
        axis = len(self.size) - 1
        step, size = self.strides[axis], self.size[axis]
        offset = w.local(DType.I64, at * self.dilations[axis] - self.before[axis])
        low = w.local(DType.I64, minimum(maximum(quotient((step - 1) - offset, step), 0), self.count[axis]))
        beyond = quotient(maximum(size - offset, 0) + (step - 1), step)
        return low, w.local(DType.I64, minimum(beyond, self.count[axis])), offset


@contextmanager
def outer_places(
    w: Stage, windows: Windows, outer: Sequence[Expression]
) -> Iterator[tuple[list[Expression], list[Expression]]]:
    """Loops over the places in a window along all spatial dims but the last: the places, and their pixels."""
    places: list[Expression] = []
    pixels: list[Expression] = []
    bounds = [windows.inside(w, axis, at, 0, windows.size[axis]) for axis, at in enumerate(outer)]
    with ExitStack() as stack:
        for axis, at in enumerate(outer):
            place = stack.enter_context(w.loop(bounds[axis][1], bounds[axis][0]))
            places.append(place)
            pixels.append(w.local(DType.I64, windows.first(axis, at) + place * windows.dilations[axis]))
        yield places, pixels


def line(plane: Expression, outer: Sequence[Expression], extents: Sequence[int]) -> Expression:
    """The flat place of indices inside of a plane, row-major."""
    for at, size in zip(outer, extents, strict=True):
        plane = plane * size + at
    return plane


# -- pools ----------------------------------------------------------------------------------------------------------


Combine = Callable[[Expression, Expression], Expression]


def _pooled(
    w: Stage, windows: Windows, x: Grid, plane: Expression, outer: Sequence[Expression],
    row: Callable[[Expression, Expression, Expression, Expression], None],
) -> None:  # fmt: skip
    """For each place in the windows of a row of results: `row(first window, last one, pixel of window 0, pixels)`."""
    with outer_places(w, windows, outer) as (_, pixels), w.loop(windows.kernel[-1]) as last:
        low, high, offset = windows.reached(w, last)
        start = w.local(DType.I64, line(plane, pixels, windows.size[:-1]) * windows.size[-1])
        row(low, high, start + offset, start)


def max_pool(node: Defined) -> None:
    """The largest pixel of each window, and where it is: the first one of equal ones."""
    windows = Windows.of(node, node.integers("kernel_shape"))
    shape, kind = node.output_shape(0), held(node.dtype(0))
    columns, step = windows.count[-1], windows.strides[-1]
    lowest = number(-math.inf if kind.is_float else int(np.iinfo(kind.numpy).min), kind)  # type: ignore[type-var]
    lying = None if node.wants(1) else node.channels_last()
    if lying is not None:
        _largest_of_channels(node, windows, *lying, lowest)
        return
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        indices = w.writes(node.output(1)) if node.wants(1) else None
        largest, places = w.scratch(kind, (columns,)), w.scratch(DType.I64, (columns if indices else 1,))
        with w.shared(shape[0] * shape[1], *shape[2:-1]) as (plane, *outer):
            with w.loop(columns) as at:
                largest.put(at, lowest)
                if indices is not None:
                    places.put(at, -1)

            def row(low: Expression, high: Expression, start: Expression, _: Expression) -> None:
                begin = w.local(DType.I64, start)
                with w.loop(high, low) as at:
                    pixel = begin + at * step
                    value = as_type(x.at(pixel), kind)
                    if indices is None:
                        largest.put(at, maximum(largest.at(at), value))
                    else:
                        is_more = Binary("or", gt(value, largest.at(at)), lt(places.at(at), 0))
                        places.put(at, pick(is_more, pixel, places.at(at)))
                        largest.put(at, pick(is_more, value, largest.at(at)))

            _pooled(w, windows, x, plane, outer, row)
            here = w.local(DType.I64, line(plane, outer, shape[2:-1]) * columns)
            with w.loop(columns) as at:
                y.put(here + at, as_type(largest.at(at), y.dtype))
                if indices is not None:
                    found = maximum(places.at(at), 0)
                    ordered = _by_columns(w, found, windows.size) if node.integer("storage_order", 0) else found
                    indices.put(here + at, ordered)


def _largest_of_channels(node: Defined, windows: Windows, source: View, result: View, lowest: Expression) -> None:
    """The largest pixel of each window of each channel, where channels lie side by side."""
    kind, channels, axis = lowest.dtype, source.shape[-1], len(windows.size) - 1
    with node.stage() as w:
        x, y = w.reads(source), w.writes(result)
        largest = w.scratch(kind, (channels,))
        with w.shared(*result.shape[:-2]) as (image, *outer), w.loop(windows.count[-1]) as column:
            with w.loop(channels) as channel:
                largest[channel] = lowest
            begin, end = windows.inside(w, axis, column, 0, windows.size[-1])
            first = w.local(DType.I64, windows.first(axis, column))
            with outer_places(w, windows, outer) as (_, pixels), w.loop(end, begin) as place:
                pixel = first + place * windows.dilations[-1]
                start = w.local(DType.I64, line(image, (*pixels, pixel), windows.size) * channels)
                with w.loop(channels) as channel:
                    largest[channel] = maximum(largest[channel], as_type(x.at(start + channel), kind))
            here = w.local(DType.I64, line(image, (*outer, column), windows.count) * channels)
            with w.loop(channels) as channel:
                y.put(here + channel, as_type(largest[channel], y.dtype))


def _by_columns(w: Stage, pixel: Expression, size: Sequence[int]) -> Expression:
    """The place of a pixel where the first spatial dim is the one that lies side by side."""
    plane, *indices = w.unraveled(w.local(DType.I64, pixel), (1 << 40, *size))
    total, stride = plane * prod(size), 1
    for index, extent in zip(indices, size, strict=True):
        total, stride = total + index * stride, stride * extent
    return total


def average_pool(node: Defined) -> None:
    """The mean of each window: of its pixels inside the image, or of those inside the image and its pads."""
    windows = Windows.of(node, node.integers("kernel_shape"))
    counts_pads = bool(node.integer("count_include_pad", 0))

    def share(w: Stage, total: Expression, outer: Sequence[Expression], at: Expression) -> Expression:
        counted: Expression = integer(1)
        for axis, place in enumerate((*outer, at)):
            before, after = (windows.before[axis], windows.after[axis]) if counts_pads else (0, 0)
            begin, end = windows.inside(w, axis, place, -before, windows.size[axis] + after)
            counted = counted * (end - begin)
        return total / as_type(maximum(counted, 1), total.dtype)

    _summed(node, windows, lambda w, x: x, share)


def lp_pool(node: Defined) -> None:
    """The p-norm of each window."""
    power, root = _norm(node)
    _summed(node, Windows.of(node, node.integers("kernel_shape")), power, lambda w, total, outer, at: root(w, total))


def _norm(node: Defined) -> tuple[Callable[[Stage, Expression], Expression], Callable[[Stage, Expression], Expression]]:
    """|x|^p of an element, and the p-th root of a sum."""
    p = node.number("p", 2)

    def power(w: Stage, x: Expression) -> Expression:
        size = Unary("abs", x)
        return size if p == 1 else x * x if p == 2 else Binary("pow", size, number(p, x.dtype))

    def root(w: Stage, total: Expression) -> Expression:
        if p == 1:
            return total
        return Unary("sqrt", total) if p == 2 else Binary("pow", total, number(1.0 / p, total.dtype))

    return power, root


def _summed(
    node: Defined,
    windows: Windows,
    element: Callable[[Stage, Expression], Expression],
    final: Callable[[Stage, Expression, Sequence[Expression], Expression], Expression],
) -> None:
    """Sums over windows, of something of each pixel, with something done to every sum."""
    shape, kind = node.output_shape(0), held(node.dtype(0))
    columns, step = windows.count[-1], windows.strides[-1]
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        totals = w.scratch(kind, (columns,))
        with w.shared(shape[0] * shape[1], *shape[2:-1]) as (plane, *outer):
            with w.loop(columns) as at:
                totals.put(at, 0.0)

            def row(low: Expression, high: Expression, start: Expression, _: Expression) -> None:
                begin = w.local(DType.I64, start)
                with w.loop(high, low) as at:
                    value = as_type(x.at(begin + at * step), kind)
                    totals.put(at, totals.at(at) + element(w, value))

            _pooled(w, windows, x, plane, outer, row)
            here = w.local(DType.I64, line(plane, outer, shape[2:-1]) * columns)
            with w.loop(columns) as at:
                y.put(here + at, as_type(final(w, totals.at(at), outer, at), y.dtype))


def global_pool(node: Defined) -> None:
    """One number for each plane: its mean, its largest pixel, or its p-norm."""
    shape, kind, name = node.shape(0), held(node.dtype(0)), node.node.op_type
    pixels = prod(shape[2:])
    power, root = _norm(node)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(shape[0] * shape[1]) as (plane,):
            total = w.local(kind, -math.inf if name == "GlobalMaxPool" else 0.0)
            with w.loop(pixels) as at:
                one = w.local(kind, as_type(x.at(plane * pixels + at), kind))
                if name == "GlobalMaxPool":
                    w.set(total, maximum(total, one))
                else:
                    w.set(total, total + (one if name == "GlobalAveragePool" else power(w, one)))
            made = root(w, total) if name == "GlobalLpPool" else total
            y.put(plane, as_type(made / float(max(pixels, 1)) if name == "GlobalAveragePool" else made, y.dtype))


DEFINITIONS: dict[str, Definition] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool,
    "GlobalLpPool": global_pool,
    "GlobalMaxPool": global_pool,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
}
