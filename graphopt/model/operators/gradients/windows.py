"""Gradients of convolutions and pools.

The gradient of a convolution to its image is a transposed convolution, or the convolution that this one is. That to its
weights is a product for each place of the kernel: [channels, positions] of the image as that place sees it, times
[positions, channels] of the gradient.
Where the image has fewer channels than the kernel has places (a first layer, depthwise), or several groups, it is one
convolution of the image with the gradient as its kernel: batch and channels change places, strides and dilations too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.indexing import ADDING_SINCE
from graphopt.model.operators.gradients.products import product as matrix_product
from graphopt.model.operators.gradients.terms import AttributeValue, NoGradient, Term
from graphopt.model.operators.padding import padding

TURNED = 1 << 10  # windows of an image from which on the weights are turned around for the gradient to it
FLIPPED_SINCE = 10
BAND = 1 << 22  # bytes of images that are looked at together in the gradient to weights, and copied for each place


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over an image, each number by spatial dim."""

    size: tuple[int, ...]  # of the image
    out: tuple[int, ...]  # windows
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]  # zeros in front of the image

    @property
    def reach(self) -> tuple[int, ...]:
        """The elements that a window spans."""
        return tuple((k - 1) * step + 1 for k, step in zip(self.kernel, self.dilations, strict=True))

    @property
    def after(self) -> tuple[int, ...]:
        """Elements that the last window reaches beyond the image; negative: that it leaves out."""
        rows = zip(self.out, self.strides, self.reach, self.before, self.size, strict=True)
        return tuple((out - 1) * step + reach - low - size for out, step, reach, low, size in rows)

    def transposed(self) -> dict[str, AttributeValue]:
        """Attributes of the ConvTranspose that gives an image of this size."""
        return {
            "strides": self.strides, "dilations": self.dilations,
            "pads": (*self.before, *(max(one, 0) for one in self.after)),
            "output_padding": tuple(max(-one, 0) for one in self.after),
        }  # fmt: skip


def spatial(term: Term) -> tuple[int, ...]:
    """The sides of an image or a kernel; raises NoGradient where one is not known."""
    found = tuple(size for size in term.shape[2:] if isinstance(size, int))
    if len(found) != term.rank - 2:
        raise NoGradient(f"the sides of '{term.value.name}' are not known; fix them with --dim or --shape")
    return found


def _windows(back: Backward, kernel: tuple[int, ...]) -> Windows:
    size, out = spatial(back.x()), spatial(back.maker.term(back.node.outputs[0]))
    ones = (1,) * len(size)
    strides, dilations = back.integers("strides") or ones, back.integers("dilations") or ones
    reach = [(k - 1) * step + 1 for k, step in zip(kernel, dilations, strict=True)]
    before, _ = padding(back.node, size, out, reach, strides)
    return Windows(size, out, kernel, strides, dilations, before)


def convolution(back: Backward) -> Gradients:
    """Conv: a transposed convolution, products by place of the kernel, and the sum over images and positions."""
    x, weights, dy = back.x(), back.x(1), back.dy
    windows, groups = _windows(back, spatial(weights)), back.integer("group", 1)
    to_x = None
    if back.wants(0):
        to_x = _of_image(dy, weights, windows, groups)
    to_weights = _of_weights(x, dy, windows, groups) if back.wants(1) else None
    to_bias = dy.sum(0, *range(2, dy.rank), keep=False) if back.wants(2) else None
    return to_x, to_weights, to_bias


def _of_image(dy: Term, weights: Term, windows: Windows, groups: int) -> Term:
    """[N, C, image]: what every window gives back to its pixels.

    With steps of one, on images that are large for the weights, it is the convolution with each window turned around:
    runtimes compute that one in parts, and for a ConvTranspose hold a copy of the result for each place of the kernel.
    """
    ends = [reach - 1 - low for reach, low in zip(windows.reach, windows.before, strict=True)]
    behind = [reach - 1 - high for reach, high in zip(windows.reach, windows.after, strict=True)]
    is_convolution = groups == 1 and set(windows.strides) == {1} and min(*ends, *behind) >= 0
    if not is_convolution or prod(windows.out) < TURNED or dy.maker.opset < FLIPPED_SINCE:
        attributes: dict[str, AttributeValue] = {**windows.transposed(), "group": groups}
        return dy.maker.op("ConvTranspose", dy, weights, attributes=attributes)
    wide = [axis for axis, size in enumerate(windows.kernel, 2) if size > 1]
    turned = weights.flip(*wide).transpose(1, 0, *range(2, weights.rank))
    attributes = {"dilations": windows.dilations, "pads": (*ends, *behind)}
    return dy.maker.op("Conv", dy, turned, attributes=attributes)


def transposed_convolution(back: Backward) -> Gradients:
    """ConvTranspose: the convolution that it turns, whose image is its result."""
    x, weights, dy = back.x(), back.x(1), back.dy
    size, out, kernel = spatial(back.maker.term(back.node.outputs[0])), spatial(x), spatial(weights)
    ones = (1,) * len(size)
    strides, dilations = back.integers("strides") or ones, back.integers("dilations") or ones
    before = _cut(back, size, out, kernel, strides, dilations)
    windows, groups = Windows(size, out, kernel, strides, dilations, before), back.integer("group", 1)
    to_x = None
    if back.wants(0):
        attributes: dict[str, AttributeValue] = {
            "strides": strides, "dilations": dilations, "group": groups,
            "pads": (*before, *(max(one, 0) for one in windows.after)),
        }  # fmt: skip
        to_x = back.maker.op("Conv", dy, weights, attributes=attributes)
        for axis, (want, low, high) in enumerate(zip(out, before, windows.after, strict=True)):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            if (size[axis] + low + max(high, 0) - reach) // strides[axis] + 1 > want:
                to_x = to_x.slice(axis + 2, 0, want)
    to_weights = _of_weights(dy, x, windows, groups) if back.wants(1) else None
    to_bias = dy.sum(0, *range(2, dy.rank), keep=False) if back.wants(2) else None
    return to_x, to_weights, to_bias


def _cut(
    back: Backward,
    size: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """What a ConvTranspose takes away in front: its pads, or what its automatic padding or wanted sides come to."""
    automatic = back.text("auto_pad", "NOTSET")
    if automatic == "NOTSET" and back.integers("output_shape") is None:
        return (back.integers("pads") or (0,) * len(size))[: len(size)]
    if automatic == "VALID":
        return (0,) * len(size)
    more = back.integers("output_padding") or (0,) * len(size)
    rows = zip(size, out, kernel, strides, dilations, more, strict=True)
    total = [max(0, (o - 1) * s + (k - 1) * d + 1 + p - n) for n, o, k, s, d, p in rows]
    return tuple(one // 2 if automatic == "SAME_UPPER" else one - one // 2 for one in total)


def _of_weights(image: Term, dy: Term, windows: Windows, groups: int) -> Term:
    """[M, C / groups, kernel]: the sum over images and windows of the gradient times what a place of the kernel saw."""
    channels = image.shape[1]
    if not isinstance(channels, int):
        raise NoGradient(f"the channels of '{image.value.name}' are not known; fix them with --dim")
    if groups == 1 and prod(windows.kernel) <= channels:
        return _by_places(image, dy, windows, channels)
    return _by_convolution(image, dy, windows, groups, channels)


def _by_places(image: Term, dy: Term, windows: Windows, channels: int) -> Term:
    """One product for each place of the kernel, over all windows of all images, by bands of large ones."""
    rank = len(windows.size)
    found: Term | None = None
    for some, gradient, seen_by in _bands(image, dy, windows):
        sums = _products(some, gradient, seen_by, channels)
        found = sums if found is None else found + sums
    assert found is not None, "there is a band"
    stacked = found.reshape(*windows.kernel, -1, channels)  # [kernel, M, C]
    return stacked.transpose(rank, rank + 1, *range(rank))


def _products(image: Term, dy: Term, windows: Windows, channels: int) -> Term:
    """[M, C] for each place of the kernel, one behind the other.

    Stacked in front: reading them behind is as many streams, and [M, C] is in order already.
    """
    channels_first = (1, 0, *range(2, len(windows.size) + 2))
    turned = image.transpose(*channels_first)
    seen = turned.pad((0, 0, *windows.before), (0, 0, *windows.after))  # negative ones take away what no window sees
    rows = dy.transpose(*channels_first).reshape(dy.dim(1), image.maker.ints(-1))  # [M, N windows]
    found = []
    for place in product(*(range(size) for size in windows.kernel)):
        part = _seen(seen, windows, place).reshape(image.maker.ints(channels), image.maker.ints(-1))
        found.append(matrix_product(image.maker, rows, part, turn_right=True))
    return image.maker.join(found, 0)


def _bands(image: Term, dy: Term, windows: Windows) -> Iterator[tuple[Term, Term, Windows]]:
    """Parts of the batch, or of the windows by rows, with what they see: each place of the kernel copies its pixels."""
    shape = [size for size in image.shape if isinstance(size, int)]
    count = -(-prod(shape) * image.dtype.bitwidth // 8 // BAND) if len(shape) == image.rank else 1
    if count < 2:
        yield image, dy, windows
    elif shape[0] > 1:
        for first, end in _parts(shape[0], count):
            yield image.slice(0, first, end), dy.slice(0, first, end), windows
    else:
        for first, end in _parts(windows.out[0], count):
            low = first * windows.strides[0] - windows.before[0]
            high = (end - 1) * windows.strides[0] + windows.reach[0] - windows.before[0]
            begin, behind = (min(max(at, 0), windows.size[0]) for at in (low, high))
            before = min(max(-low, 0), high - low)  # all of it where nothing but zeros is seen
            seen_by = replace(
                windows, size=(behind - begin, *windows.size[1:]), out=(end - first, *windows.out[1:]),
                before=(before, *windows.before[1:]),
            )  # fmt: skip
            yield image.slice(2, begin, behind), dy.slice(2, first, end), seen_by


def _parts(extent: int, count: int) -> Iterator[tuple[int, int]]:
    """Where each of about so many parts begins and ends."""
    each = -(-extent // count)
    return ((first, min(first + each, extent)) for first in range(0, extent, each))


def _by_convolution(image: Term, dy: Term, windows: Windows, groups: int, channels: int) -> Term:
    """One convolution: [C / groups, groups N, ...] with kernels [M, N, ...]."""
    rank, each = len(windows.size), channels // groups
    rest = list(range(2, rank + 2))
    rows, kernels = image.transpose(1, 0, *rest), dy.transpose(1, 0, *rest)
    if groups > 1:
        sides = [image.maker.ints(size) for size in windows.size]
        rows = rows.reshape(groups, each, image.dim(0), *sides).transpose(1, 0, 2, *(at + 1 for at in rest))
        rows = rows.reshape(image.maker.ints(each), image.maker.ints(-1), *sides)
    attributes: dict[str, AttributeValue] = {
        "strides": windows.dilations, "dilations": windows.strides, "group": groups,
        "pads": (*windows.before, *(max(one, 0) for one in windows.after)),
    }  # fmt: skip
    found = image.maker.op("Conv", rows, kernels, attributes=attributes)  # [C / groups, M, kernel and more]
    for axis, (size, after) in enumerate(zip(windows.kernel, windows.after, strict=True)):
        if -after >= windows.dilations[axis]:
            found = found.slice(axis + 2, 0, size)
    return found.transpose(1, 0, *rest)


def largest(back: Backward) -> Gradients:
    """MaxPool: each gradient goes where the largest element was; there several add up where windows overlap."""
    x, dy, maker = back.x(), back.dy, back.maker
    if back.integer("storage_order", 0):
        raise NoGradient("there is no rule for storage_order 1")
    windows = _windows(back, back.integers("kernel_shape") or ())
    overlap = any(step < reach for step, reach in zip(windows.strides, windows.reach, strict=True))
    places = back.y(1)
    known = back.facts.static_shape(x.value)
    count = maker.op("Size", x).unsqueeze(0) if known is None else maker.ints(prod(known))
    filler = ir.Tensor(np.zeros(1, x.dtype.numpy()), dtype=x.dtype)
    zeros = maker.op("ConstantOfShape", count, attributes={"value": filler})
    if not overlap:
        flat = zeros.scatter(places.reshape(-1), dy.reshape(-1), 0)
    elif maker.opset >= ADDING_SINCE:
        attributes: dict[str, AttributeValue] = {"axis": 0, "reduction": "add"}
        flat = maker.op("ScatterElements", zeros, places.reshape(-1), dy.reshape(-1), attributes=attributes)
    else:
        flat = _by_phases(zeros, places, dy, windows)
    return (flat.reshape(x.dims()),)


def _by_phases(zeros: Term, places: Term, dy: Term, windows: Windows) -> Term:
    """The sum of scatters of windows so far from one another that no two of them meet."""
    phases = [-(-reach // step) for reach, step in zip(windows.reach, windows.strides, strict=True)]
    found: Term | None = None
    for phase in product(*map(range, phases)):
        if any(first >= out for first, out in zip(phase, windows.out, strict=True)):
            continue
        where, what = places, dy
        for axis, (first, apart) in enumerate(zip(phase, phases, strict=True)):
            if apart > 1:
                out = windows.out[axis]
                where, what = (one.slice(axis + 2, first, out, apart) for one in (where, what))
        part = zeros.scatter(where.reshape(-1), what.reshape(-1), 0)
        found = part if found is None else found + part
    assert found is not None, "there is a window"
    return found


def average(back: Backward) -> Gradients:
    """AveragePool: each element gets its share of every window that it is in."""
    x, dy = back.x(), back.dy
    windows = _windows(back, back.integers("kernel_shape") or ())
    counts = _counts(back, windows)
    share = (
        dy * float(1 / counts.flat[0])
        if (counts == counts.flat[0]).all()
        else dy * back.maker.array((1 / counts)[None, None].astype(dy.dtype.numpy()), dy.dtype)
    )
    return (_to_all(share, windows, x),)


def _to_all(share: Term, windows: Windows, x: Term) -> Term:
    """The sums, by element of an image, over the windows that it is in."""
    maker = share.maker
    one = maker.array(np.ones((1, 1, *windows.kernel)).astype(share.dtype.numpy()), share.dtype)
    flat = share.reshape(maker.ints(-1), maker.ints(1), *(maker.ints(size) for size in windows.out))
    return maker.op("ConvTranspose", flat, one, attributes=windows.transposed()).reshape_like(x)


def power_mean(back: Backward) -> Gradients:
    """LpPool: sign(x) |x|^(p - 1) times the windows' gradients by their lengths to that power."""
    windows = _windows(back, back.integers("kernel_shape") or ())
    return (_powers(back) * _to_all(_by_length(back), windows, back.x()),)


def global_power_mean(back: Backward) -> Gradients:
    """GlobalLpPool: the same with one window."""
    return (_powers(back) * _by_length(back),)


def _powers(back: Backward) -> Term:
    """sign(x) |x|^(p - 1)."""
    x, p = back.x(), back.integer("p", 2)
    if p == 2:
        return x
    sign = x.apply("Sign")
    return sign if p == 1 else sign * back.maker.op("Pow", x.apply("Abs"), x.number(p - 1))


def _by_length(back: Backward) -> Term:
    """dy / y^(p - 1), 0 where y is 0."""
    y, p = back.y(), back.integer("p", 2)
    if p == 1:
        return back.dy
    flat = y.equals(0.0)
    length = y.number(1.0).where(flat, y)
    power = length if p == 2 else back.maker.op("Pow", length, y.number(p - 1))
    return back.dy.zeros().where(flat, back.dy / power)


def unpooled(back: Backward) -> Gradients:
    """MaxUnpool: each element's gradient is where the element went."""
    if back.optional(2) is not None:
        raise NoGradient("there is no rule for its output_shape")
    flat, places = back.dy.reshape(-1), back.x(1).reshape(-1)
    return (back.maker.op("GatherElements", flat, places, attributes={"axis": 0}).reshape_like(back.x()),)


def folded(back: Backward) -> Gradients:
    """Col2Im: each window reads the gradient where it was added to the image."""
    x, dy, ones = back.x(), back.dy, (1,) * (back.dy.rank - 2)
    kernel = back.facts.ints(back.x(2).value)
    if kernel is None:
        raise NoGradient("its block_shape is not constant")
    size, strides = spatial(dy), back.integers("strides") or ones
    dilations, pads = back.integers("dilations") or ones, back.integers("pads") or (0,) * 2 * len(ones)
    rows = zip(size, kernel, strides, dilations, pads, pads[len(size) :], strict=False)
    out = tuple((n + low + high - (k - 1) * d - 1) // s + 1 for n, k, s, d, low, high in rows)
    windows = Windows(size, out, kernel, strides, dilations, pads[: len(size)])
    seen = dy.pad((0, 0, *windows.before), (0, 0, *windows.after))
    parts = [_seen(seen, windows, place).unsqueeze(2) for place in product(*map(range, kernel))]
    return (back.maker.join(parts, 2).reshape_like(x),)


def _seen(padded: Term, windows: Windows, place: Sequence[int]) -> Term:
    """[N, C, windows]: the elements of an image that a place of the kernel sees."""
    part = padded
    for axis, at in enumerate(place):
        start, step = at * windows.dilations[axis], windows.strides[axis]
        end = start + (windows.out[axis] - 1) * step + 1
        if (start, end, step) != (0, windows.size[axis] + windows.before[axis] + windows.after[axis], 1):
            part = part.slice(axis + 2, start, end, step)
    return part


def _counts(back: Backward, windows: Windows) -> np.ndarray:
    """By window, the elements that its mean is over: the image's, with count_include_pad the pads' too."""
    padded = back.integer("count_include_pad", 0)
    _, given = padding(back.node, windows.size, windows.out, windows.reach, windows.strides)
    found = np.ones((), np.float64)
    for axis, size in enumerate(windows.size):
        first = np.arange(windows.out[axis]) * windows.strides[axis] - windows.before[axis]
        places = first[:, None] + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        low, high = (-windows.before[axis], size + given[axis]) if padded else (0, size)
        found = np.multiply.outer(found, ((places >= low) & (places < high)).sum(1))
    return found


def global_average(back: Backward) -> Gradients:
    """GlobalAveragePool: the gradient by the number of positions."""
    x = back.x()
    return ((back.dy / x.count(*range(2, x.rank))).expand(x),)


def global_largest(back: Backward) -> Gradients:
    """GlobalMaxPool: positions that have the maximum share the gradient evenly."""
    x = back.x()
    chosen = x.equals(back.y()).cast(x.dtype)
    return (chosen * (back.dy / chosen.sum(*range(2, x.rank))),)
