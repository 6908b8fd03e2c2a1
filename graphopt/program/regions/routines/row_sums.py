"""Sums of a ConvTranspose's columns, row by row of its result: one vector of sums for each place in a stride.

y[s j + p] = sum over the taps k of one phase p of columns[k, j - (k d - pad - p) / s]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from graphopt.program.regions.routines.stage import Defined
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import Grid, both, eq, ge, integer, lt, number, quotient, remainder
from kernels.tensor.expression import Expression

PIECE = 1 << 20  # bytes of columns that are there at once
MOST_PIECES, MOST_BANDS = 16, 64  # of channels and of rows
FEW = 4  # channels of a group that are summed without a product
MOST_TAPS, LEAST_ROW = 32, 16  # taps along a row, each of which is a loop of its own; pixels that such a loop pays for


def pieces(matrices: int, channels: int, bytes_each: int) -> list[tuple[int, int]]:
    """The first channel of the result and the number of channels whose columns are there at once.

    Columns of one product stay in a cache, and take little memory beside it, where there is only one.
    """
    wanted = min(-(-channels * bytes_each // PIECE), MOST_PIECES, channels) if matrices == 1 else 1
    each = -(-channels // max(wanted, 1))
    return [(first, min(each, channels - first)) for first in range(0, channels, each)]


def are_gathered(taps: int, pixels: int) -> bool:
    """Whether rows of so many pixels are summed by vectors, under a kernel of so many taps."""
    return taps <= MOST_TAPS and pixels >= LEAST_ROW


def are_bands(groups: int, each: int, kernel: Sequence[int], count: Sequence[int]) -> bool:
    """Whether the columns of few channels take much memory, so that some rows of pixels are computed at a time."""
    much = 4 * each * prod(kernel) * prod(count) > PIECE
    return groups == 1 and each <= FEW and len(count) > 1 and much and are_gathered(kernel[-1], count[-1])


def sum_in_bands(node: Defined, weights: View, x: View, image: int) -> None:
    """One image, some rows of the result at a time: the columns of the windows that these see, and their sums."""
    shape, (_, depth, *count) = node.output_shape(0), node.shape(0)
    each, *kernel = node.shape(1)[1:]
    places, inner, height = prod(kernel), prod(count[1:]), shape[2]
    step, dilation = (node.integers(name, (1,) * len(kernel))[0] for name in ("strides", "dilations"))
    before = cut_before(node)[0]
    bands = min(-(-4 * each * places * prod(count) // PIECE), MOST_BANDS, height)
    rows = -(-height // (bands * step)) * step
    for top in range(0, height, rows):
        some = min(rows, height - top)
        first = min(max(0, -(-(top + before - (kernel[0] - 1) * dilation) // step)), count[0] - 1)
        windows = max(min(count[0], (top + some - 1 + before) // step + 1) - first, 1)
        columns = node.temporary(DType.F32, (1, 1, each * places, windows * inner))
        a = View(weights.buffer, DType.F32, (1, 1, each * places, depth), (0, 0, 1, each * places))
        b = View(x.buffer, DType.F32, (1, 1, depth, windows * inner), (0, 0, prod(count), 1))
        node.product(a, b, columns, b_start=image * depth * prod(count) + first * inner)
        for channel in range(each):
            made = node.output(0).sliced(0, image, 1).sliced(1, channel, 1).sliced(2, top, some)
            own, ahead = columns.sliced(2, channel * places, places), top + before - first * step
            sum_rows(node, own, made, channel, (ahead, windows))


def sum_rows(
    node: Defined, columns: View | None, made: View, channel_first: int = 0, band: tuple[int, int] | None = None
) -> None:
    """Rows of the result, each of the rows that its pixels have of columns: per place in a stride one sum of vectors.

    Columns are those of what is `made`: some images, some channels, or some rows. Of a `band` of rows the first pixel
    is so many behind the first of so many windows. Without columns the rows are those of the operand, times their
    weights: so it is where a group has few channels.
    """
    _, channels, *count = node.shape(0)
    each, *kernel = node.shape(1)[1:]
    (*outer, width), rank = made.shape[2:], len(kernel)
    depth = channels // node.integer("group", 1)
    strides, dilations = node.integers("strides", (1,) * rank), node.integers("dilations", (1,) * rank)
    before, step = list(cut_before(node)), strides[-1]
    if band is not None:
        before[0], count[0] = band
    points = prod(count)
    with node.stage() as w:
        y, bias = w.writes(made), bias_of(node, made, channel_first)
        source = w.reads(node.input(0) if columns is None else columns)
        weights = w.reads(node.input(1)) if columns is None else None
        sums = w.scratch(DType.F32, (step, -(-width // step)))

        def add(row: Expression, between: int, weight: Callable[[int], Expression] | None) -> None:
            """Add what each tap has of a row that begins there; the next tap's lies so many elements behind."""
            for tap in range(kernel[-1]):
                moved, phase = divmod(tap * dilations[-1] - before[-1], step)
                low, high = max(0, moved), min(count[-1] + moved, -(-(width - phase) // step))
                base = w.local(DType.I64, row + (tap * between - moved))
                factor = None if weight is None else w.local(DType.F32, weight(tap))
                with w.loop(high, low) as at:
                    here, one = sums.shape[1] * phase + at, source.at(base + at)
                    sums.put(here, sums.at(here) + (one if factor is None else factor * one))

        with w.shared(*y.shape[:2], *outer) as (image, channel, *pixels):
            start: Expression = number(0, DType.F32)
            if bias is not None:
                start = w.local(DType.F32, w.reads(bias).at(channel))
            with w.loop(prod(sums.shape)) as at:
                sums.put(at, start)
            plane = w.local(DType.I64, image * y.shape[1] + channel)
            with w.loops(*kernel[:-1]) as places:
                place: Expression = integer(0)
                window: Expression = integer(0)
                inside: Expression = number(True, DType.BOOL)
                for axis, (one, pixel) in enumerate(zip(places, pixels, strict=True)):
                    ahead = w.local(DType.I64, pixel + before[axis] - one * dilations[axis])
                    at_window = w.local(DType.I64, quotient(ahead, strides[axis]))
                    fits = both(ge(ahead, 0), eq(at_window * strides[axis], ahead))
                    inside = both(inside, both(fits, lt(at_window, count[axis])))
                    place, window = place * kernel[axis] + one, window * count[axis] + at_window
                with w.when(inside):
                    if weights is None:
                        rows = w.local(DType.I64, (plane * prod(kernel[:-1]) + place) * kernel[-1])
                        add(rows * points + window * count[-1], points, None)
                    else:
                        group = w.local(DType.I64, quotient(channel, each))
                        with w.loop(depth) as one:
                            own = w.local(DType.I64, group * depth + one)
                            pair = own * each + remainder(channel, each)
                            taps = w.local(DType.I64, (pair * prod(kernel[:-1]) + place) * kernel[-1])
                            row = (image * channels + own) * points + window * count[-1]
                            add(row, 0, partial(_weight, weights, taps))
            line_of: Expression = plane
            for pixel, size in zip(pixels, outer, strict=True):
                line_of = line_of * size + pixel
            first_pixel = w.local(DType.I64, line_of * width)
            for phase in range(min(step, width)):
                with w.loop(-(-(width - phase) // step)) as at:
                    y.put(first_pixel + at * step + phase, sums.at(sums.shape[1] * phase + at))


def _weight(weights: Grid, taps: Expression, tap: int) -> Expression:
    return weights.at(taps + tap)


def made_of(node: Defined, columns: View, first: int, channel_first: int) -> View:
    """Where the sums of columns belong: some images of the result, or some channels of one."""
    channels = columns.shape[1] * columns.shape[2] // prod(node.shape(1)[2:])
    return node.output(0).sliced(0, first, columns.shape[0]).sliced(1, channel_first, channels)


def bias_of(node: Defined, made: View, channel_first: int) -> View | None:
    """The numbers of these channels; those of a group follow one another, as groups do."""
    return node.input(2).sliced(0, channel_first, made.shape[1]) if node.has(2) else None


def cut_before(node: Defined) -> tuple[int, ...]:
    """How much is cut off the start of each dim: by `pads`, or by what the result's dims leave over."""
    size, out, kernel = node.shape(0)[2:], node.output_shape(0)[2:], node.shape(1)[2:]
    rank, automatic = len(kernel), node.text("auto_pad", "NOTSET")
    if automatic == "VALID":
        return (0,) * rank
    if automatic == "NOTSET" and not node.integers("output_shape"):
        return node.integers("pads", (0,) * (2 * rank))[:rank]
    strides, dilations = node.integers("strides", (1,) * rank), node.integers("dilations", (1,) * rank)
    more = node.integers("output_padding", (0,) * rank)
    found = []
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        total = max(0, strides[axis] * (size[axis] - 1) + more[axis] + reach - out[axis])
        found.append(total // 2 if automatic == "SAME_UPPER" else total - total // 2)
    return tuple(found)
