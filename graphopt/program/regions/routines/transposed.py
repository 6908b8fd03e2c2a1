"""ConvTranspose, Col2Im and MaxUnpool: pixels that windows write, instead of windows that read pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from graphopt.program.regions.routines.convolving import (
    MOST_COLUMNS,
    PART,
    column_bytes,
    parts,
    unfolded,
    widened,
)
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from graphopt.program.regions.routines.windows import Windows, line
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    eq,
    ge,
    integer,
    lt,
    maximum,
    minimum,
    number,
    quotient,
    remainder,
)
from kernels.tensor.expression import Expression, ExpressionLike

PIECE, MOST_PIECES = 1 << 20, 16  # bytes of columns of some channels, and how many such pieces there are at most
FEW = 4  # channels of a group that are summed without a product
MOST_TAPS, LEAST_ROW = 32, 16  # taps along a row, each of which is a loop of its own; pixels that such a loop pays for
Term = Callable[[Expression], Callable[[Expression], Expression]]  # by place in a window, then by window


def _add_windows(
    w: Stage, totals: Grid, size: Sequence[int], count: Sequence[ExpressionLike], kernel: Sequence[ExpressionLike],
    strides: Sequence[int], dilations: Sequence[int], before: Sequence[int], term: Term,
) -> None:  # fmt: skip
    """Add to a plane of pixels what every window has for each of its places; those outside are left out."""
    with w.loops(*kernel) as places:
        flat = integer(0)
        for place, extent in zip(places, kernel, strict=True):
            flat = flat * extent + place
        at_window = term(w.local(DType.I64, flat))
        offset = w.local(DType.I64, places[-1] * dilations[-1] - before[-1])
        step = strides[-1]
        low = w.local(DType.I64, minimum(maximum(quotient((step - 1) - offset, step), 0), integer(count[-1])))
        beyond = quotient(maximum(size[-1] - offset, 0) + (step - 1), step)
        high = w.local(DType.I64, minimum(beyond, integer(count[-1])))
        with w.loops(*count[:-1]) as outer:
            inside: Expression = number(True, DType.BOOL)
            row, window = integer(0), integer(0)
            for axis, at in enumerate(outer):
                pixel = w.local(DType.I64, at * strides[axis] + places[axis] * dilations[axis] - before[axis])
                inside = both(inside, both(ge(pixel, 0), lt(pixel, size[axis])))
                row, window = row * size[axis] + pixel, window * count[axis] + at
            with w.when(inside):
                start = w.local(DType.I64, row * size[-1] + offset)
                first = w.local(DType.I64, window * count[-1])
                with w.loop(high, low) as last:
                    here = start + last * step
                    totals.put(here, totals.at(here) + at_window(first + last))


def conv_transpose(node: Defined) -> None:
    """Every pixel of the operand adds its window of weights; in f32 all windows are one product of matrices.

    With steps of one it is the convolution with each window turned around, which can unfold large images in bands;
    on small ones the sums behind the product are as fast or faster.
    """
    groups = node.integer("group", 1)
    images, channels, *count = node.shape(0)
    each, kernel = node.shape(1)[1], node.shape(1)[2:]
    points, depth = prod(count), channels // groups
    rows = each * prod(kernel)
    bias = node.shape(2) if node.has(2) else (each * groups,)
    fits = node.shape(1)[0] == channels and node.output_shape(0)[1] == each * groups == bias[0]
    node.require(fits and channels % groups == 0, "has weights for others")
    in_products = held(node.dtype(0)) is DType.F32 and 0 not in (images, points, depth)
    turned = None if 4 * groups * rows * points <= PART else _turned(node, kernel)
    if in_products and turned is not None and column_bytes(node, turned) <= MOST_COLUMNS:
        unfolded(node, turned, _turned_weights(node, groups, depth, each, kernel), groups)
        return
    unfolded_bytes = 4 * images * groups * rows * points
    in_f32 = {node.dtype(0), node.dtype(1), node.output_dtype(0)} == {DType.F32}
    if in_products and in_f32 and depth <= FEW and are_gathered(kernel[-1], count[-1]):
        _gathered(node, None)
        return
    if unfolded_bytes > MOST_COLUMNS or not in_products:
        _summed(node, None)
        return
    weights, x = widened(node, node.input(1)), widened(node, node.input(0))
    for first, some in parts(node, unfolded_bytes):
        b = View.dense(x.buffer, DType.F32, (some, groups, depth, points))
        for channel, results in _pieces(some * groups, each, 4 * prod(kernel) * points):
            wanted = results * prod(kernel)
            columns = node.temporary(DType.F32, (some, groups, wanted, points))
            a = View(weights.buffer, DType.F32, (some, groups, wanted, depth), (0, depth * rows, 1, rows))
            node.product(a, b, columns, a_start=channel * prod(kernel), b_start=first * channels * points)
            summed = _gathered if are_gathered(kernel[-1], count[-1]) and node.output_dtype(0) is DType.F32 else _summed
            summed(node, columns, first, channel)


def _pieces(matrices: int, channels: int, bytes_each: int) -> list[tuple[int, int]]:
    """The first channel of the result and the number of channels whose columns are there at once.

    Columns of one product stay in a cache, and take little memory beside it, where there is only one.
    """
    wanted = min(-(-channels * bytes_each // PIECE), MOST_PIECES, channels) if matrices == 1 else 1
    each = -(-channels // max(wanted, 1))
    return [(first, min(each, channels - first)) for first in range(0, channels, each)]


def _turned(node: Defined, kernel: Sequence[int]) -> Windows | None:
    """The windows of the convolution that a node with steps of one is; None for others."""
    ones = (1,) * len(kernel)
    if node.integers("strides", ones) != ones:
        return None
    dilations = node.integers("dilations", ones)
    before = tuple(
        (k - 1) * step - cut for k, step, cut in zip(kernel, dilations, _before(node), strict=True)
    )  # fmt: skip
    return Windows(node.shape(0)[2:], node.output_shape(0)[2:], tuple(kernel), ones, dilations, before, ones)


def _turned_weights(node: Defined, groups: int, depth: int, each: int, kernel: Sequence[int]) -> View:
    """[groups depth, each, kernel] as [groups each, depth, kernel], each window from its last place to its first."""
    weights, places = widened(node, node.input(1)), prod(kernel)
    made = node.temporary(DType.F32, (groups * each, depth, *kernel))
    with node.stage() as w:
        x, y = w.reads(weights), w.writes(made)
        with w.shared(groups * each, depth) as (channel, one), w.loop(places) as at:
            own = quotient(channel, each) * depth + one
            start = (own * each + remainder(channel, each) + 1) * places
            y.put((channel * depth + one) * places + at, x.at(start - 1 - at))
    return made


def are_gathered(taps: int, pixels: int) -> bool:
    """Whether rows of so many pixels are summed by vectors, under a kernel of so many taps."""
    return taps <= MOST_TAPS and pixels >= LEAST_ROW


def _gathered(node: Defined, columns: View | None, first: int = 0, channel_first: int = 0) -> None:
    """Rows of the result, each of the rows that its pixels have of columns: per place in a stride one sum of vectors.

    Columns are those of all images, or of a part of them from the `first` one on; of all channels, or of some. Without
    columns the rows are those of the operand, times their weights: so it is where a group has few channels.
    """
    shape, (_, channels, *count) = node.output_shape(0), node.shape(0)
    each, *kernel = node.shape(1)[1:]
    (*outer, width), rank, points = shape[2:], len(kernel), prod(count)
    depth = channels // node.integer("group", 1)
    strides, dilations = node.integers("strides", (1,) * rank), node.integers("dilations", (1,) * rank)
    before, step = _before(node), strides[-1]
    with node.stage() as w:
        made = node.output(0) if columns is None else _made(node, columns, first, channel_first)
        y, bias = w.writes(made), _bias(node, made, channel_first)
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


def _made(node: Defined, columns: View, first: int, channel_first: int) -> View:
    """Where the sums of columns belong: some images of the result, or some channels of one."""
    channels = columns.shape[1] * columns.shape[2] // prod(node.shape(1)[2:])
    return node.output(0).sliced(0, first, columns.shape[0]).sliced(1, channel_first, channels)


def _bias(node: Defined, made: View, channel_first: int) -> View | None:
    """The numbers of these channels; those of a group follow one another, as groups do."""
    return node.input(2).sliced(0, channel_first, made.shape[1]) if node.has(2) else None


def _summed(node: Defined, columns: View | None, first: int = 0, channel_first: int = 0) -> None:
    """Planes of the result: the bias, and the windows on it; from columns or, without them, channel by channel.

    Columns are those of all images, or of a part of them from the `first` one on; of all channels, or of some.
    """
    groups, shape, kind = node.integer("group", 1), node.output_shape(0), held(node.dtype(0))
    _, channels, *count = node.shape(0)
    each, kernel = node.shape(1)[1], node.shape(1)[2:]
    depth, points, places = channels // groups, prod(count), prod(kernel)
    rank = len(kernel)
    strides, dilations = node.integers("strides", (1,) * rank), node.integers("dilations", (1,) * rank)
    geometry = (shape[2:], count, kernel, strides, dilations, _before(node))
    with node.stage() as w:
        made = node.output(0) if columns is None else _made(node, columns, first, channel_first)
        y, (images, results), bias = w.writes(made), made.shape[:2], _bias(node, made, channel_first)
        source = w.reads(node.input(0) if columns is None else columns)
        weights = w.reads(node.input(1)) if columns is None else None
        totals = w.scratch(kind, (prod(shape[2:]),))
        with w.shared(images, results) as (image, channel):
            start: Expression = number(0, kind)
            if bias is not None:
                start = w.local(kind, as_type(w.reads(bias).at(channel), kind))
            with w.loop(prod(shape[2:])) as at:
                totals.put(at, start)
            plane = w.local(DType.I64, image * results + channel)
            if weights is None:
                _add_windows(
                    w, totals, *geometry,
                    lambda place: lambda window: source.at((plane * places + place) * points + window),
                )  # fmt: skip
            else:
                group, within = (
                    w.local(DType.I64, quotient(channel, each)),
                    w.local(DType.I64, remainder(channel, each)),
                )
                with w.loop(depth) as one:
                    own = w.local(DType.I64, group * depth + one)

                    def term(place: Expression) -> Callable[[Expression], Expression]:
                        weight = w.local(kind, as_type(weights.at((own * each + within) * places + place), kind))
                        base = w.local(DType.I64, (image * channels + own) * points)
                        return lambda window: weight * as_type(source.at(base + window), kind)

                    _add_windows(w, totals, *geometry, term)
            with w.loop(prod(shape[2:])) as at:
                y.put(plane * prod(shape[2:]) + at, as_type(totals.at(at), y.dtype))


def _before(node: Defined) -> tuple[int, ...]:
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


def col2im(node: Defined) -> None:
    """Blocks as columns put back to where they were taken from; what overlaps is added."""
    shape, kind = node.output_shape(0), held(node.dtype(0))
    rank, rows, points = len(shape) - 2, node.shape(0)[1] // max(shape[1], 1), node.shape(0)[2]
    strides, dilations = node.integers("strides", (1,) * rank), node.integers("dilations", (1,) * rank)
    pads = node.integers("pads", (0,) * (2 * rank))
    node.require(node.shape(2) == (rank,), "has a block of another rank")
    with node.stage() as w:
        x, block, y = w.reads(node.input(0)), w.reads(node.input(2)), w.writes(node.output(0))
        totals = w.scratch(kind, (prod(shape[2:]),))
        with w.shared(*shape[:2]) as (image, channel):
            kernel = [w.local(DType.I64, as_type(block.at(axis), DType.I64)) for axis in range(rank)]
            count, all_rows, all_points = [], integer(1), integer(1)
            for axis in range(rank):
                free = shape[2 + axis] + pads[axis] + pads[rank + axis] - 1 - (kernel[axis] - 1) * dilations[axis]
                count.append(w.local(DType.I64, quotient(free, strides[axis]) + 1))
                all_rows, all_points = all_rows * kernel[axis], all_points * count[axis]
            with w.loop(prod(shape[2:])) as at:
                totals.put(at, 0)
            plane = w.local(DType.I64, image * shape[1] + channel)
            with w.when(both(eq(all_rows, rows), eq(all_points, points))):
                _add_windows(
                    w, totals, shape[2:], count, kernel, strides, dilations, pads[:rank],
                    lambda place: lambda window: as_type(x.at((plane * rows + place) * points + window), kind),
                )  # fmt: skip
            with w.loop(prod(shape[2:])) as at:
                y.put(plane * prod(shape[2:]) + at, as_type(totals.at(at), y.dtype))


def max_unpool(node: Defined) -> None:
    """Zeros, and every element at its index, which counts the pixels of the dims that the windows ask for."""
    kernel, shape, given = node.integers("kernel_shape"), node.output_shape(0), node.shape(0)
    rank = len(kernel)
    strides, pads = node.integers("strides", (1,) * rank), node.integers("pads", (0,) * (2 * rank))
    node.require(node.shape(1) == given and shape[:2] == given[:2], "has other indices than elements")
    inferred = [
        (given[2 + axis] - 1) * strides[axis] - pads[axis] - pads[rank + axis] + kernel[axis] for axis in range(rank)
    ]
    with node.stage() as w:
        x, indices, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        with w.shared(1):
            with w.loop(prod(shape)) as at:
                y.put(at, number(0, y.dtype))
            with w.loop(prod(given)) as at:
                plane, *places = w.unraveled(w.local(DType.I64, indices.at(at)), (given[0] * given[1], *inferred))
                inside = both(ge(plane, 0), lt(plane, given[0] * given[1]))
                for place, size in zip(places, shape[2:], strict=True):
                    inside = both(inside, both(ge(place, 0), lt(place, size)))
                with w.when(inside):
                    y.put(line(plane, places, shape[2:]), x.at(at))


DEFINITIONS: dict[str, Definition] = {
    "Col2Im": col2im,
    "ConvTranspose": conv_transpose,
    "MaxUnpool": max_unpool,
}
