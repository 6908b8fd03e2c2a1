"""Conv and DeformConv of any rank and type, with weights that may be known only at run time.

The pixels of all windows are written as columns in f32, and the weights multiply them as a matrix, a part of a large
batch after the other, so that columns of one part take the memory of those before; halves are cast before and behind.
Doubles, and groups of few channels, are summed row by row: rows of results, or of the kernel where these are longer, as
in the gradient of a depthwise convolution's weights, whose kernel is an image.
"""

from __future__ import annotations

from itertools import product
from math import prod

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from graphopt.program.regions.routines.windows import Windows, line, outer_places
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import as_type, both, ge, integer, lt, number, pick, quotient
from kernels.tensor.expression import Expression, Unary

MOST_COLUMNS = 1 << 28  # bytes; more are not written out
PART = 1 << 19  # bytes of columns that are multiplied at once: they stay in a cache, and take little of a budget
_LINE = 64  # bytes
_MOST_PARTS = 4  # of a batch: each is two regions
_TIGHT = 4  # of what lies beside a band, where memory is tight
_LANES = 16  # sums side by side along a row of the kernel
_FEW_CHANNELS = 4  # of a group's result: fewer are no matrix worth a product


def conv(node: Defined) -> None:
    """Sums of pixels and weights: as a product of matrices where that pays."""
    windows = Windows.of(node, node.shape(1)[2:])
    groups = node.integer("group", 1)
    require_channels(node, node.shape(1)[1] * groups, node.shape(1)[0], 2)
    if 0 in (*node.shape(0), *node.output_shape(0)):
        _empty(node, 2)
    elif held(node.dtype(0)) is not DType.F32 or node.shape(1)[0] // groups < _FEW_CHANNELS or _is_large(node, windows):
        if windows.kernel[-1] > windows.count[-1]:
            _by_kernel_rows(node, windows, groups)
        else:
            _by_rows(node, windows, groups)
    else:
        unfolded(node, windows, widened(node, node.input(1)), groups)


def unfolded(node: Defined, windows: Windows, weights: View, groups: int) -> None:
    """The products of weights and columns, part by part, and band by band."""
    columns = 0 if windows.is_pointwise else column_bytes(node, windows)
    batch = parts(node, columns)
    bands, width = _bands(node, windows, batch[0][1], columns), prod(windows.count[1:])
    for first, count in batch:
        for row, rows in bands:
            made = _columns(node, windows.band(row, rows), first, count)
            multiply(node, made, weights, groups, 2, first, slice(row * width, (row + rows) * width))


def _is_large(node: Defined, windows: Windows) -> bool:
    return column_bytes(node, windows) > MOST_COLUMNS


def column_bytes(node: Defined, windows: Windows) -> int:
    """What the columns of all images take."""
    return 4 * prod(node.shape(0)[:2]) * prod(windows.kernel) * prod(windows.count)


def parts(node: Defined, column_bytes: int) -> list[tuple[int, int]]:
    """The first image and the number of images of each part of the batch; parts begin at whole cache lines."""
    images = node.shape(0)[0]
    each = -(-images // max(1, min(-(-column_bytes // PART), _MOST_PARTS, images)))
    are_lines = all(4 * each * prod(shape[1:]) % _LINE == 0 for shape in (node.shape(0), node.output_shape(0)))
    if not are_lines or {node.dtype(0), node.output_dtype(0)} != {DType.F32}:
        return [(0, images)]
    return [(first, min(each, images - first)) for first in range(0, images, each)]


def _bands(node: Defined, windows: Windows, images: int, column_bytes: int) -> list[tuple[int, int]]:
    """The first row of windows and the number of rows of each band, where parts cannot have fewer images.

    So it is with the gradient to weights, whose images are channels, each as deep as the batch is large. Bands are so
    many that the columns of one take no more than what is read and written beside, or a quarter of that where memory is
    tight: more would read weights too often.
    """
    rows, batch = windows.count[0], node.shape(0)[0]
    if images not in (1, batch) or len(windows.count) < 2 or node.output_dtype(0) is not DType.F32:
        return [(0, rows)]
    part_bytes = column_bytes * images // batch
    beside = 4 * (images * sum(prod(one[1:]) for one in (node.shape(0), node.output_shape(0))) + prod(node.shape(1)))
    allowed = max(PART, beside // _TIGHT if node.is_tight else beside)
    each = -(-rows // max(1, min(-(-part_bytes // allowed), rows)))
    return [(first, min(each, rows - first)) for first in range(0, rows, each)]


def require_channels(node: Defined, channels: int, results: int, bias_at: int) -> None:
    """As many channels as the weights are for, in the image, the result and the bias."""
    fits = node.shape(0)[1] == channels and node.output_shape(0)[1] == results
    bias = node.shape(bias_at) if node.has(bias_at) else (results,)
    node.require(fits and results % node.integer("group", 1) == 0 and bias == (results,), "has weights for others")


def _empty(node: Defined, bias_at: int) -> None:
    """No pixels or no channels: the bias alone."""
    shape, kind = node.output_shape(0), node.output_dtype(0)
    with node.stage() as w:
        y = w.writes(node.output(0))
        bias = w.reads(node.input(bias_at)) if node.has(bias_at) else None
        with w.shared(*shape[:2]) as (image, channel), w.loop(prod(shape[2:])) as at:
            value = number(0, kind) if bias is None else bias.at(channel)
            y.put((image * shape[1] + channel) * prod(shape[2:]) + at, value)


def multiply(
    node: Defined, columns: View, weights: View, groups: int, bias_at: int, first: int = 0, band: slice = slice(None)
) -> None:
    """The weights times the columns [images, channels times places, windows], group by group, plus the bias.

    The weights are those of a convolution: [channels of the result, channels of a group, kernel].
    Columns are those of all images, or of a part of them from the `first` one on; of all windows, or of a band.
    """
    shape, result = node.output_shape(0), node.output(0)
    channels, points = shape[1], prod(shape[2:])
    depth, each = prod(weights.shape[1:]), channels // groups
    begin, end, _ = band.indices(points)
    images = prod(columns.shape) // max(groups * depth * (end - begin), 1)
    a = View(weights.buffer, weights.dtype, (images, groups, each, depth), (0, each * depth, depth, 1))
    b = View.dense(columns.buffer, columns.dtype, (images, groups, depth, end - begin))
    sums = result if result.dtype is DType.F32 else node.temporary(DType.F32, shape)
    c = View.dense(sums.buffer, DType.F32, (images, groups, each, points)).sliced(3, begin, end - begin)
    added = None
    if node.has(bias_at):
        bias = widened(node, node.input(bias_at))
        added = View(bias.buffer, bias.dtype, c.shape, (0, each, 1, 0))
    node.product(a, b, c, added, c_start=first * channels * points)
    if sums is not result:
        _cast(node, sums, result)


def widened(node: Defined, view: View) -> View:
    """The same numbers in f32, in which halves are computed with."""
    if view.dtype is DType.F32:
        return view
    made = node.temporary(DType.F32, view.shape)
    _cast(node, view, made)
    return made


def _cast(node: Defined, source: View, aim: View) -> None:
    with node.stage() as w:
        x, y = w.reads(source), w.writes(aim)
        with w.shared(prod(source.shape[:1])) as (row,), w.loop(prod(source.shape[1:])) as at:
            here = row * prod(source.shape[1:]) + at
            y.put(here, as_type(x.at(here), y.dtype))


def _columns(node: Defined, windows: Windows, begin: int, images: int) -> View:
    """The pixels of all windows of some images: [images, channels times places, windows]; those outside are 0."""
    channels = node.shape(0)[1]
    count, kernel = windows.count, windows.kernel
    if windows.is_pointwise:
        return widened(node, node.input(0))
    made = node.temporary(DType.F32, (images * channels, prod(kernel), prod(count)))
    with node.stage() as w:
        x, y = w.reads(node.input(0).sliced(0, begin, images)), w.writes(made)
        zero = number(0.0, DType.F32)
        with w.shared(images * channels, *kernel) as (plane, *places):
            low, high, offset = windows.reached(w, places[-1])
            column = line(integer(0), places, kernel)
            start = w.local(DType.I64, (plane * prod(kernel) + column) * prod(count))
            with w.loops(*count[:-1]) as outer:
                pixels: list[Expression] = []
                inside: Expression = number(True, DType.BOOL)
                for axis, (at, place) in enumerate(zip(outer, places, strict=False)):
                    pixel = w.local(DType.I64, windows.first(axis, at) + place * windows.dilations[axis])
                    pixels.append(pixel)
                    inside = both(inside, both(ge(pixel, 0), lt(pixel, windows.size[axis])))
                here = w.local(DType.I64, start + line(integer(0), outer, count[:-1]) * count[-1])
                with w.when(inside):
                    row = line(plane, pixels, windows.size[:-1]) * windows.size[-1]
                    first = w.local(DType.I64, row + offset)
                    with w.loop(low) as at:
                        y.put(here + at, zero)
                    with w.loop(high, low) as at:
                        y.put(here + at, as_type(x.at(first + at * windows.strides[-1]), DType.F32))
                    with w.loop(count[-1], high) as at:
                        y.put(here + at, zero)
                with w.otherwise(), w.loop(count[-1]) as at:
                    y.put(here + at, zero)
    return made


def _by_rows(node: Defined, windows: Windows, groups: int) -> None:
    """A row of the result at a time: each weight times the part of a row of pixels that it meets."""
    shape, kind = node.output_shape(0), held(node.dtype(0))
    channels, each, last = node.shape(1)[1], shape[1] // groups, windows.count[-1]
    with node.stage() as w:
        x, weights, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        totals = w.scratch(kind, (last,))
        with w.shared(*shape[:-1]) as (image, channel, *outer):
            start: Expression = number(0, kind)
            if node.has(2):
                start = w.local(kind, as_type(w.reads(node.input(2)).at(channel), kind))
            with w.loop(last) as at:
                totals.put(at, start)
            group = w.local(DType.I64, quotient(channel, each))
            with w.loop(channels) as one, outer_places(w, windows, outer) as (places, pixels):
                plane = w.local(DType.I64, image * (groups * channels) + group * channels + one)
                row = w.local(DType.I64, line(plane, pixels, windows.size[:-1]) * windows.size[-1])
                with w.loop(windows.kernel[-1]) as place:
                    weight = w.local(kind, as_type(weights[(channel, one, *places, place)], kind))
                    low, high, offset = windows.reached(w, place)
                    first = w.local(DType.I64, row + offset)
                    with w.loop(high, low) as at:
                        pixel = as_type(x.at(first + at * windows.strides[-1]), kind)
                        totals.put(at, totals.at(at) + weight * pixel)
            here = w.local(DType.I64, y.place((image, channel, *outer, 0)))
            with w.loop(last) as at:
                y.put(here + at, as_type(totals.at(at), y.dtype))


def _by_kernel_rows(node: Defined, windows: Windows, groups: int) -> None:
    """An element of the result at a time: rows of the kernel times the pixels they meet, in sums side by side."""
    shape, kind = node.output_shape(0), held(node.dtype(0))
    channels, each, axis = node.shape(1)[1], shape[1] // groups, len(windows.size) - 1
    with node.stage() as w:
        x, weights, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        totals = w.scratch(kind, (_LANES,))
        with w.shared(*shape) as (image, channel, *outer):
            with w.loop(_LANES) as lane:
                totals.put(lane, number(0, kind))
            group = w.local(DType.I64, quotient(channel, each))
            begin, end = windows.inside(w, axis, outer[-1], 0, windows.size[axis])
            whole = w.local(DType.I64, quotient(end - begin, _LANES))
            with w.loop(channels) as one, outer_places(w, windows, outer[:-1]) as (places, pixels):
                plane = w.local(DType.I64, image * (groups * channels) + group * channels + one)
                row = line(plane, pixels, windows.size[:-1]) * windows.size[-1] + windows.first(axis, outer[-1])
                first = w.local(DType.I64, row + begin * windows.dilations[axis])
                kernel = w.local(DType.I64, weights.place((channel, one, *places, begin)))

                def add(lane: Expression, at: Expression) -> None:
                    pixel = first + at * windows.dilations[axis]
                    share = as_type(weights.at(kernel + at), kind) * as_type(x.at(pixel), kind)
                    totals.put(lane, totals.at(lane) + share)

                with w.loop(whole) as block, w.loop(_LANES) as lane:
                    add(lane, block * _LANES + lane)
                with w.loop(end - begin - whole * _LANES) as lane:
                    add(lane, whole * _LANES + lane)
            start: Expression = number(0, kind)
            if node.has(2):
                start = as_type(w.reads(node.input(2)).at(channel), kind)
            total = w.local(kind, start)
            with w.loop(_LANES) as lane:
                w.set(total, total + totals.at(lane))
            y.put(y.place((image, channel, *outer)), as_type(total, y.dtype))


# -- DeformConv -----------------------------------------------------------------------------------------------------


def deform_conv(node: Defined) -> None:
    """Conv whose pixels lie off their places by what an operand says, read between pixels, and times a mask."""
    windows = Windows.of(node, node.shape(1)[2:])
    images, channels = node.shape(0)[:2]
    kind = held(node.dtype(0))
    rank, places, points = len(windows.size), prod(windows.kernel), prod(windows.count)
    sharing = channels // node.integer("offset_group", 1)
    require_channels(node, node.shape(1)[1] * node.integer("group", 1), node.shape(1)[0], 3)
    own = images * channels // sharing * places * points
    fits = (
        channels % sharing == 0
        and prod(node.shape(2)) == own * rank
        and (not node.has(4) or prod(node.shape(4)) == own)
    )
    node.require(fits and 0 not in windows.size, "has offsets for other windows")
    made = node.temporary(kind, (images * channels, places, points))
    with node.stage() as w:
        x, offsets, columns = w.reads(node.input(0)), w.reads(node.input(2)), w.writes(made)
        mask = w.reads(node.input(4)) if node.has(4) else None
        pixels = prod(windows.size)
        with w.shared(images * channels // sharing, *windows.kernel) as (group, *place):
            column = w.local(DType.I64, line(group, place, windows.kernel))
            with w.loops(*windows.count) as at:
                point = w.local(DType.I64, line(integer(0), at, windows.count))
                taps = []
                for axis in range(rank):
                    given = as_type(offsets.at((column * rank + axis) * points + point), kind)
                    whole = windows.first(axis, at[axis]) + place[axis] * windows.dilations[axis]
                    taps.append(_neighbours(w, as_type(whole, kind) + given, windows.size[axis]))
                corners = []
                for corner in product(*taps):
                    pixel, weight = integer(0), as_type(number(1.0, kind), kind)
                    for (one, share), size in zip(corner, windows.size, strict=True):
                        pixel, weight = pixel * size + one, weight * share
                    if mask is not None:
                        weight = weight * as_type(mask.at(column * points + point), kind)
                    corners.append((w.local(DType.I64, pixel), w.local(kind, weight)))
                with w.loop(sharing) as channel:
                    plane = group * sharing + channel
                    total = w.local(kind, 0.0)
                    for place_of, share in corners:
                        w.set(total, total + share * as_type(x.at(plane * pixels + place_of), kind))
                    row = line(plane, place, windows.kernel)
                    columns.put(row * points + point, total)
    groups = node.integer("group", 1)
    if kind is DType.F32:
        multiply(node, made, widened(node, node.input(1)), groups, 3)
    else:
        _multiply_by_rows(node, made, groups)


def _neighbours(w: Stage, place: Expression, size: int) -> tuple[tuple[Expression, Expression], ...]:
    """The pixels on both sides of a place with their weights, which are 0 outside of the image."""
    kind = place.dtype
    known = w.local(kind, pick(Unary("is_nan", place), number(-2.0, kind), place))
    low = w.local(kind, Unary("floor", w.clamped(known, -2.0, size + 1.0)))
    part = w.local(kind, w.clamped(known, -2.0, size + 1.0) - low)
    found = []
    for offset, weight in ((0.0, 1.0 - part), (1.0, part)):
        at = low + offset
        inside = both(ge(at, 0.0), lt(at, float(size)))
        pixel = w.local(DType.I64, as_type(w.clamped(at, 0.0, float(max(size - 1, 0))), DType.I64))
        found.append((pixel, w.local(kind, pick(inside, weight, 0.0))))
    return tuple(found)


def _multiply_by_rows(node: Defined, columns: View, groups: int) -> None:
    """The weights times the columns, in the type that elements are computed with."""
    shape, kind = node.output_shape(0), held(node.dtype(0))
    points, each, depth = prod(shape[2:]), shape[1] // groups, prod(node.shape(1)[1:])
    with node.stage() as w:
        weights, x, y = w.reads(node.input(1)), w.reads(columns), w.writes(node.output(0))
        totals = w.scratch(kind, (points,))
        with w.shared(*shape[:2]) as (image, channel):
            start: Expression = number(0, kind)
            if node.has(3):
                start = w.local(kind, as_type(w.reads(node.input(3)).at(channel), kind))
            with w.loop(points) as at:
                totals.put(at, start)
            group = w.local(DType.I64, quotient(channel, each))
            with w.loop(depth) as one:
                weight = w.local(kind, as_type(weights.at(channel * depth + one), kind))
                row = w.local(DType.I64, ((image * groups + group) * depth + one) * points)
                with w.loop(points) as at:
                    totals.put(at, totals.at(at) + weight * x.at(row + at))
            here = w.local(DType.I64, (image * shape[1] + channel) * points)
            with w.loop(points) as at:
                y.put(here + at, as_type(totals.at(at), y.dtype))


DEFINITIONS: dict[str, Definition] = {"Conv": conv, "DeformConv": deform_conv}
