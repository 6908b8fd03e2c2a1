"""Convolutions along sides that a run sets.

    Conv(x of [n, c, h, w], k)      -->  the sum of MatMul(Slice(y), k[:, :, row]) over rows of the kernel, where y is
                                         Concat(Slice(x), ..., Slice(x)) of [n, h, outputs, k c], channels last
    ... where Winograd's or a depthwise kernel is likely the fastest
                                    -->  as it is: that kernel takes sides from the run; so of ConvTranspose's phases
    ... as large as its strides     -->  MatMul(patches of x, w): each pixel is read once
    ... with a group for a channel  -->  Slice(x) * w[:, 0] + ... + Slice(x) * w[:, k - 1]
    ... in other groups             -->  MatMul(w of [g, m / g, k c / g], Concat(Slice(x), ..., Slice(x)))
    Conv(x of [n, c, h, length], w as high as x)
                                    -->  the same of x as [n, c h, length]: a sequence, as exporters write it
    ConvTranspose(x, w)             -->  MatMul(x, w of [c, k m]), channels last; of each stride of taps an image whose
                                         elements lie side by side, and the sum of these, one stride apart

Slices have the stride of a convolution. Where the channels lie behind, Concat is a view of rows that overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from graphopt.model.nodes import OF_ANY_SIDES, input_at, int_attribute, ints_attribute
from graphopt.program.free_sides.writer import Sides, Weights, Writer
from graphopt.program.regions.images.phases import convolution_of, has_phases, kernels_of
from graphopt.program.regions.images.sources import merging_of
from kernels.templates.convolution.depthwise import Depthwise
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import convolution as whole_convolution
from kernels.templates.convolution.problem import whole
from kernels.templates.convolution.ways import CONVOLUTION, EXACT_CONVOLUTION
from kernels.templates.convolution.winograd_choice import Winograd

PADDED_BY_INPUT = 11
PLANE = 2  # sides at most of images whose kernels take them from the run
FEW, FEWEST = 16, 8  # of the depth of a product with a row of the kernel: of any and of narrow results
NARROW = 32  # channels of a result whose sums are read again for less than it takes to copy what windows see


def convolution(writer: Writer, sides: Sides) -> None:
    """A product of the kernel and of the image as often as the kernel has taps, or a sum for channels apart."""
    w, x, fixed = _weights(writer), writer.x, sides.fixed()
    if w is None:
        return
    pads, strides, dilations = writer.numbers(w.shape[2:])
    if pads is None:
        image = writer.surrounded(x, w.shape[2:])
        if image is not None:
            none = (0,) * 2 * sides.rank
            writer.put(_convolved(writer, image, w, sides.channels, none, dilations, strides))
        return
    if min(pads) < 0:
        return
    is_sequence = len(fixed) == 1 and sides.rank == 2 and _is_sequence(w, sides, fixed[0], pads, dilations)
    is_high = is_sequence and w.shape[2 + fixed[0]] > 1
    if not is_high and _has_kernel(writer, w, sides, pads, strides, dilations):
        reach = [(taps - 1) * dilation + 1 for taps, dilation in zip(w.shape[2:], dilations, strict=True)]
        writer.keep(pads, reach, strides)
    elif is_sequence:
        _sequence(writer, w, sides, fixed[0], pads, strides, dilations)
    else:
        writer.put(_convolved(writer, x, w, sides.channels, pads, dilations, strides))


def transposed(writer: Writer, sides: Sides) -> None:
    """A product with the kernel, whose rows are images of one stride of taps each; the sum of these."""
    w, node, rank = _weights(writer), writer.node, sides.rank
    if w is None:
        return
    pads, strides, dilations = writer.numbers(w.shape[2:])
    more = tuple(ints_attribute(node, "output_padding", (0,) * rank))
    if pads is None or min(pads) < 0:
        return
    groups, channels = int_attribute(node, "group", 1), sides.channels
    if set(dilations) == {1} and _has_phase_kernels(writer, w, sides, pads, strides):
        node.metadata_props[OF_ANY_SIDES] = ""
        return
    reach = tuple((taps - 1) * dilation + 1 for taps, dilation in zip(w.shape[2:], dilations, strict=True))
    # Taps up to a multiple of the stride, as [groups, c / groups, m / groups, (count, stride) of each side].
    counts = tuple(-(-taps // step) for taps, step in zip(reach, strides, strict=True))
    whole = np.zeros((*w.shape[:2], *(count * step for count, step in zip(counts, strides, strict=True))), w.dtype)
    places = tuple(slice(0, taps, dilation) for taps, dilation in zip(reach, dilations, strict=True))
    whole[(slice(None), slice(None), *places)] = w
    pairs = [one for pair in zip(counts, strides, strict=True) for one in pair]
    cut = whole.reshape(groups, channels // groups, w.shape[1], *pairs)
    x = writer.channels_last(writer.x, rank)
    shape = writer.dims(x, 1, rank)
    flat = writer.reshape(x, [0, -1, *((groups, channels // groups) if groups > 1 else (channels,))])
    if groups > 1:
        flat = writer.add("Transpose", [flat], {"perm": [0, 2, 1, 3]})
    total: ir.Value | None = None
    for place in itertools.product(*map(range, counts)):
        taps = cut[(slice(None),) * 3 + tuple(one for at in place for one in (at, slice(None)))]
        columns = np.moveaxis(taps, 2, -1).reshape(groups, channels // groups, -1)
        made = writer.add("MatMul", [flat, _factor(writer, columns if groups > 1 else columns[0])])
        image = _side_by_side(writer, made, groups, w.shape[1], strides, shape)
        before = [at * step for at, step in zip(place, strides, strict=True)]
        behind = [(count - 1 - at) * step for at, count, step in zip(place, counts, strides, strict=True)]
        padded = writer.padded(image, (*before, *behind), 1)
        total = padded if total is None else writer.add("Add", [total, padded])
    # The sum ends a stride behind the last element, and one more for every further stride of taps.
    behind = [
        count * step - taps + pads[rank + at] - extra
        for at, (count, step, taps, extra) in enumerate(zip(counts, strides, reach, more, strict=True))
    ]
    assert total is not None, "a kernel has taps"
    total = writer.padded(total, (*[0] * rank, *(max(0, -one) for one in behind)), 1)
    total = writer.part(total, pads[:rank], [max(0, one) for one in behind], (1,) * rank, 1)
    bias = input_at(node, 2)
    writer.put(writer.channels_first(total if bias is None else writer.add("Add", [total, bias]), rank))


def _side_by_side(
    writer: Writer, x: ir.Value, groups: int, channels: int, strides: Sequence[int], shape: ir.Value
) -> ir.Value:
    """[n, (groups,) elements, (a place in each stride, channel)] as images of as many elements, and strides, aside."""
    rank = len(strides)
    split = writer.reshape(x, [0, *((groups,) if groups > 1 else ()), shape, *strides, channels])
    first = 2 if groups > 1 else 1
    apart = [one for at in range(rank) for one in (first + at, first + rank + at)]
    turned = writer.add("Transpose", [split], {"perm": [0, *apart, *range(1, first), first + 2 * rank]})
    sides = writer.add("Mul", [shape, writer.constant(np.array(strides))])
    return writer.reshape(turned, [0, sides, groups * channels])


def _has_kernel(
    writer: Writer, w: Weights, sides: Sides, pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> bool:
    """Whether a kernel takes the sides from the run, and is likely the fastest for the greatest ones."""
    target, groups, (batch, channels, *size) = writer.target, int_attribute(writer.node, "group", 1), sides.given[0]
    is_plain = w.dtype == np.float32 and sides.rank <= PLANE
    if target is None or not is_plain:
        return False
    problem = whole_convolution(
        batch, channels, len(w), size, w.shape[2:], strides=strides, dilations=dilations, pads=pads, groups=groups,
        order="NHWC",
    )  # fmt: skip
    template = EXACT_CONVOLUTION if writer.exact else CONVOLUTION
    best, *_ = template.candidates(replace(problem, merging=merging_of(target, groups, w.shape[1])), target)
    return isinstance(best, (Winograd, Depthwise))


def _has_phase_kernels(writer: Writer, w: Weights, sides: Sides, pads: Sequence[int], strides: Sequence[int]) -> bool:
    """The same of a transposed convolution, each phase of whose rows is a convolution."""
    rank, target = sides.rank, writer.target
    if (
        target is None
        or writer.exact
        or w.dtype != np.float32
        or rank > PLANE
        or int_attribute(writer.node, "group", 1) > 1
    ):
        return False
    window, stride, before = whole(w.shape[2:], 1), whole(strides, 1), whole(pads[:rank], 0)
    if not all(has_phases(stride, whole(dims[2:], 1)) for dims in sides.made):
        return False
    (batch, channels, *size), (*_, high, wide) = sides.given[0], (1, *sides.made[0][2:])
    given = Layout(batch, channels, whole(size, 1), "NHWC")
    made = Layout(batch, w.shape[1] * stride[2], (1, high // stride[1], wide // stride[2]), "NHWC")
    problems = [convolution_of(kernel, given, made) for _, kernel in kernels_of(window, stride, before)]
    return all(isinstance(CONVOLUTION.candidates(one, target)[0], Winograd) for one in problems)


def _is_sequence(w: Weights, sides: Sides, side: int, pads: Sequence[int], dilations: Sequence[int]) -> bool:
    """Whether the kernel is as high as the image, so that nothing is left of that side but one row."""
    reach = (w.shape[2 + side] - 1) * dilations[side] + 1
    return bool(pads[side] + sides.given[0][2 + side] + pads[2 + side] == reach)


def _sequence(
    writer: Writer, w: Weights, sides: Sides, side: int, pads: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> None:  # fmt: skip
    """An image whose kernel is as high as it is: its rows are channels, what is left is a length."""
    x, channels, other = writer.x, sides.channels, 1 - side
    reach, dilation = (w.shape[2 + side] - 1) * dilations[side] + 1, dilations[side]
    spread = np.zeros((*w.shape[:2], reach, w.shape[2 + other]), w.dtype)
    spread[:, :, ::dilation] = w if side == 0 else w.transpose(0, 1, 3, 2)
    if side == 1:
        x = writer.add("Transpose", [x], {"perm": [0, 1, 3, 2]})
    x = writer.padded(x, (pads[side], 0, pads[2 + side], 0))
    x = writer.reshape(x, [0, channels * reach, -1])
    lines = spread.reshape(len(w), -1, spread.shape[3])
    around = pads[other], pads[2 + other]
    along = dilations[other:][:1], strides[other:][:1]
    made = _convolved(writer, x, lines, channels * reach, around, *along)
    writer.put(writer.reshape(made, [0, len(w), 1, -1] if side == 0 else [0, len(w), -1, 1]))


def _weights(writer: Writer) -> Weights | None:
    """The kernel; None where it, the input's type or the opset is none that is spelled out."""
    node = writer.node
    w = writer.array(1)
    is_plain = not ints_attribute(node, "output_shape") and writer.opset >= PADDED_BY_INPUT
    return w if is_plain and writer.facts.dtype(writer.x) is ir.DataType.FLOAT else None


def _products(writer: Writer, x: ir.Value, w: Weights, dilations: Sequence[int], strides: Sequence[int]) -> ir.Value:
    """The sum of products with rows of the kernel, of images whose channels lie behind."""
    taps = w.shape[2:]
    least = FEWEST if len(w) <= NARROW else FEW
    by_row = len(taps) - 1 if taps[-1] * w.shape[1] >= least else 0  # of few channels all taps are one product's
    last = writer.parts(x, taps[by_row:], dilations[by_row:], strides[by_row:], 1 + by_row)
    columns = last[0] if len(last) == 1 else writer.add("Concat", last, {"axis": 1 + len(strides)})
    rows = np.moveaxis(w, (0, 1), (-1, -2)).reshape(-1, len(last) * w.shape[1], len(w))
    places = writer.parts(columns, taps[:by_row], dilations[:by_row], strides[:by_row], 1)
    total: ir.Value | None = None
    for part, row in zip(places, rows, strict=True):
        made = writer.add("MatMul", [part, _factor(writer, row)])
        total = made if total is None else writer.add("Add", [total, made])
    assert total is not None, "a kernel has taps"
    return total


def _patches(writer: Writer, x: ir.Value, w: Weights) -> ir.Value:
    """The product with the whole kernel of images, channels behind, that are cut in patches as large as it is."""
    taps, rank = w.shape[2:], w.ndim - 2
    step = writer.constant(np.array(taps))
    counts = writer.divided(writer.dims(x, 1, rank), taps)
    ends = [writer.constant(np.zeros(rank, np.int64)), writer.add("Mul", [counts, step])]
    whole = writer.add("Slice", [x, *ends, writer.constant(np.arange(1, 1 + rank))])
    each = [writer.add("Gather", [counts, writer.constant(np.array([at]))]) for at in range(rank)]
    pairs = [one for pair in zip(each, taps, strict=True) for one in pair]
    apart = writer.reshape(whole, [0, *pairs, w.shape[1]])
    order = [0, *range(1, 2 * rank, 2), *range(2, 1 + 2 * rank, 2), 1 + 2 * rank]
    turned = writer.add("Transpose", [apart], {"perm": order})
    flat = writer.reshape(turned, [0, counts, int(np.prod(taps)) * w.shape[1]])
    rows = np.moveaxis(w, (0, 1), (-1, -2)).reshape(-1, len(w))
    return writer.add("MatMul", [flat, _factor(writer, rows)])


def _convolved(
    writer: Writer, x: ir.Value, w: Weights, channels: int, pads: Sequence[int], dilations: Sequence[int],
    strides: Sequence[int],
) -> ir.Value:  # fmt: skip
    """The convolution of [n, channels, sides] with [m, channels / groups, taps], and its bias."""
    groups, rank, bias = int_attribute(writer.node, "group", 1), len(strides), input_at(writer.node, 2)
    if groups > 1 and not groups == channels == len(w):
        return _in_groups(writer, x, w, channels, pads, dilations, strides)
    reach = [(taps - 1) * dilation + 1 for taps, dilation in zip(w.shape[2:], dilations, strict=True)]
    image = writer.padded(writer.channels_last(x, rank), pads, 1)
    if groups > 1:
        made = _apart(writer, image, w, dilations, strides)
    elif len(strides) > 1 and w.shape[2:] == tuple(strides) and not any(pads) and set(dilations) == {1}:
        made = _patches(writer, image, w)
    else:
        made = _products(writer, image, w, dilations, strides)
    made = made if bias is None else writer.add("Add", [made, bias])
    return writer.channels_first(writer.of_windows(made, x, pads, reach, strides), rank)


def _in_groups(
    writer: Writer, x: ir.Value, w: Weights, channels: int, pads: Sequence[int], dilations: Sequence[int],
    strides: Sequence[int],
) -> ir.Value:  # fmt: skip
    """The same of channels in groups: a product for each with the columns of its channels."""
    rank, groups, bias = len(strides), int_attribute(writer.node, "group", 1), input_at(writer.node, 2)
    image = writer.padded(x, pads)
    image = writer.reshape(image, [0, groups, channels // groups, writer.dims(image, 2, rank)])
    parts = writer.parts(image, w.shape[2:], dilations, strides, 3)
    columns = parts[0] if len(parts) == 1 else writer.add("Concat", parts, {"axis": 2})
    shape = writer.dims(columns, 3, rank)
    columns = writer.reshape(columns, [0, groups, channels // groups * len(parts), -1])
    rows = np.moveaxis(w, 1, -1).reshape(groups, len(w) // groups, -1)
    result = writer.add("MatMul", [_factor(writer, rows), columns])
    result = writer.reshape(result, [0, len(w), shape])
    return result if bias is None else writer.add("Add", [result, writer.reshape(bias, [-1, *[1] * rank])])


def _apart(writer: Writer, x: ir.Value, w: Weights, dilations: Sequence[int], strides: Sequence[int]) -> ir.Value:
    """The sum of all taps of channels that are convolved apart, and lie behind."""
    taps = w.reshape(len(w), -1)
    parts = writer.parts(x, w.shape[2:], dilations, strides, 1)
    factors = [_factor(writer, taps[:, place]) for place in range(taps.shape[1])]
    result, *others = (writer.add("Mul", pair) for pair in zip(parts, factors, strict=True))
    for other in others:
        result = writer.add("Add", [result, other])
    return result


def _factor(writer: Writer, array: Weights) -> ir.Value:
    """A part of the kernel, which is widened where it is of short floats."""
    made = writer.constant(array)
    return made if array.dtype == np.float32 else writer.add("Cast", [made], {"to": int(ir.DataType.FLOAT)})
