"""ConvTranspose, Col2Im and MaxUnpool: pixels that windows write, instead of windows that read pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from graphopt.program.regions.routines.convolving import (
    MOST_COLUMNS,
    PART,
    column_bytes,
    parts,
    unfolded,
    widened,
)
from graphopt.program.regions.routines.row_sums import (
    FEW,
    MOST_PIECES,
    are_bands,
    are_gathered,
    bias_of,
    cut_before,
    made_of,
    pieces,
    sum_in_bands,
    sum_rows,
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
        sum_rows(node, None, node.output(0))
        return
    if unfolded_bytes > MOST_COLUMNS or not in_products:
        _summed(node, None)
        return
    weights, x = widened(node, node.input(1)), widened(node, node.input(0))
    if in_f32 and are_bands(groups, each, kernel, count) and images <= MOST_PIECES:
        for image in range(images):
            sum_in_bands(node, weights, x, image)
        return
    for first, some in parts(node, unfolded_bytes):
        b = View.dense(x.buffer, DType.F32, (some, groups, depth, points))
        for channel, results in pieces(some * groups, each, 4 * prod(kernel) * points):
            wanted = results * prod(kernel)
            columns = node.temporary(DType.F32, (some, groups, wanted, points))
            a = View(weights.buffer, DType.F32, (some, groups, wanted, depth), (0, depth * rows, 1, rows))
            node.product(a, b, columns, a_start=channel * prod(kernel), b_start=first * channels * points)
            if are_gathered(kernel[-1], count[-1]) and node.output_dtype(0) is DType.F32:
                sum_rows(node, columns, made_of(node, columns, first, channel), channel)
            else:
                _summed(node, columns, first, channel)


def _turned(node: Defined, kernel: Sequence[int]) -> Windows | None:
    """The windows of the convolution that a node with steps of one is; None for others."""
    ones = (1,) * len(kernel)
    if node.integers("strides", ones) != ones:
        return None
    dilations = node.integers("dilations", ones)
    before = tuple(
        (k - 1) * step - cut for k, step, cut in zip(kernel, dilations, cut_before(node), strict=True)
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
    geometry = (shape[2:], count, kernel, strides, dilations, cut_before(node))
    with node.stage() as w:
        made = node.output(0) if columns is None else made_of(node, columns, first, channel_first)
        y, (images, results), bias = w.writes(made), made.shape[:2], bias_of(node, made, channel_first)
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
    planes, sizes, dims = given[0] * given[1], tuple(inferred), shape[2:]
    if sizes == dims:  # an index is the place itself: nothing is divided
        planes, sizes, dims = planes * prod(dims), (), ()
    with node.stage() as w:
        x, indices, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        with w.shared(1):
            with w.loop(prod(shape)) as at:
                y.put(at, number(0, y.dtype))
            with w.loop(prod(given)) as at:
                plane, *places = w.unraveled(w.local(DType.I64, indices.at(at)), (planes, *sizes))
                inside = both(ge(plane, 0), lt(plane, planes))
                for place, size in zip(places, dims, strict=True):
                    inside = both(inside, both(ge(place, 0), lt(place, size)))
                with w.when(inside):
                    y.put(line(plane, places, dims), x.at(at))


DEFINITIONS: dict[str, Definition] = {
    "Col2Im": col2im,
    "ConvTranspose": conv_transpose,
    "MaxUnpool": max_unpool,
}
