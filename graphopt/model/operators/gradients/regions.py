"""Gradients of pools over regions of images: RoiAlign and MaxRoiPool. Regions themselves have none, as in PyTorch.

What a region reads along each side is a matrix, [results, elements of that side]: shares that are averaged, or which
elements a maximum is over. What regions of one image give it adds up in a product with a matrix of ones and zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import NoGradient, Term
from graphopt.model.operators.gradients.windows import spatial


def _of_images(back: Backward, image: Term) -> Term:
    """[N, R]: 1 where a region is of an image, from the images' numbers [R]."""
    x, maker = back.x(), back.maker
    numbers = image.cast(ir.DataType.INT64)
    chosen = maker.op("OneHot", numbers, x.dim(0).squeeze(0), maker.ints(0, 1), attributes={"axis": 0})
    return chosen.cast(x.dtype)


def _elements(back: Backward, side: int) -> Term:
    """The places of the elements along a side."""
    x = back.x()
    return back.maker.array(np.arange(side).astype(x.dtype.numpy()), x.dtype)


def aligned(back: Backward) -> Gradients:
    """RoiAlign: each region reads as two matrices say, one for either side, and so gives back."""
    back.only(0)
    x, rois, dy, maker = back.x(), back.x(1), back.dy, back.maker
    if back.text("mode", "avg") != "avg":
        raise NoGradient("there is no rule for its mode max")
    if not back.integer("sampling_ratio", 0):
        raise NoGradient("its sampling_ratio is 0, so that how many samples a region has depends on data")
    sides = spatial(x)
    vertical, across = (_shares(back, rois, axis, side) for axis, side in enumerate(sides))
    wide = dy @ across.unsqueeze(1)  # [R, C, out, W]
    chosen = _of_images(back, back.x(2)).unsqueeze(2, 3) * vertical.unsqueeze(0)  # [N, R, out, H]
    height, width = (maker.ints(side) for side in sides)
    left = chosen.transpose(0, 3, 1, 2).reshape(x.dim(0), height, maker.ints(-1))
    right = wide.transpose(0, 2, 1, 3).reshape(chosen.dim(1) * chosen.dim(2), x.dim(1) * width)
    return ((left @ right).reshape(x.dim(0), height, x.dim(1), width).transpose(0, 2, 1, 3),)


def _shares(back: Backward, rois: Term, axis: int, side: int) -> Term:
    """[R, out, side]: how much of each element enters each result, the mean over samples of what is read between two.

    Samples more than one element outside read zero, others outside the nearest element.
    """
    half = back.maker.opset >= 16 and back.text("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale, ratio = back.real("spatial_scale", 1.0), back.integer("sampling_ratio", 0)
    count = back.integer(("output_height", "output_width")[axis], 1)
    start, end = (rois.slice(1, at, at + 1) * scale - (0.5 if half else 0.0) for at in (1 - axis, 3 - axis))
    length = end - start
    if not half:
        length = back.maker.op("Max", length, length.number(1.0))
    steps = (np.arange(count * ratio) + 0.5) / (count * ratio)
    positions = start + length * back.maker.array(steps[None].astype(rois.dtype.numpy()), rois.dtype)  # [R, samples]
    drawn = back.maker.op("Min", back.maker.op("Max", positions, rois.number(0.0)), rois.number(side - 1.0))
    apart = (drawn.unsqueeze(2) - _elements(back, side)).apply("Abs")
    share = back.maker.op("Max", 1.0 - apart, rois.number(0.0))
    inside = back.maker.op("And", positions >= -1.0, positions <= float(side)).cast(rois.dtype)
    return (share * inside.unsqueeze(2)).reshape(-1, count, ratio, side).mean(2, keep=False)


def largest(back: Backward) -> Gradients:
    """MaxRoiPool: equal elements of a region's part share its gradient; a step of a Scan for each of its results."""
    back.only(0)
    x, rois, dy, maker = back.x(), back.x(1), back.dy, back.maker
    sides, counts = spatial(x), back.integers("pooled_shape") or (1, 1)
    image = rois.slice(1, 0, 1).squeeze(1).cast(ir.DataType.INT64)
    seen = maker.op("Gather", x, image, attributes={"axis": 0})  # [R, C, H, W]
    masks = [_parts(back, rois, axis, side, counts[axis]) for axis, side in enumerate(sides)]
    places = [
        np.repeat(np.arange(counts[0]), counts[1]), np.tile(np.arange(counts[1]), counts[0]),
    ]  # fmt: skip
    rows = [
        maker.op("Gather", mask, maker.array(place.astype(np.int64)), attributes={"axis": 1}).transpose(1, 0, 2)
        for mask, place in zip(masks, places, strict=True)
    ]
    rows += [one.reshape(0, 0, -1).transpose(2, 0, 1) for one in (back.y(), dy)]

    def step(states: Sequence[Term], given: Sequence[Term]) -> tuple[Sequence[Term], Sequence[Term]]:
        high, wide, y, share = given
        part = high.unsqueeze(1, 3) * wide.unsqueeze(1, 2)
        equal = seen.equals(y.unsqueeze(2, 3)).cast(x.dtype) * part
        count = maker.op("Max", equal.sum(2, 3), x.number(1.0))
        return [states[0] + equal * (share.unsqueeze(2, 3) / count)], []

    (found,), _ = maker.scan([seen.zeros()], rows, step)
    flat = found.reshape(found.dim(0), x.dim(1) * sides[0] * sides[1])
    return ((_of_images(back, image) @ flat).reshape_like(x),)


def _parts(back: Backward, rois: Term, axis: int, side: int, count: int) -> Term:
    """[R, count, side]: 1 for the elements of each part of a region along a side."""
    maker, scale = back.maker, back.real("spatial_scale", 1.0)
    start, end = (_rounded(rois.slice(1, at, at + 1) * scale) for at in (2 - axis, 4 - axis))
    length = maker.op("Max", end - start + 1.0, rois.number(1.0))
    numbers = maker.array(np.arange(count)[None].astype(rois.dtype.numpy()), rois.dtype)
    size = length / float(count)
    first = (numbers * size).apply("Floor") + start
    last = ((numbers + 1.0) * size).apply("Ceil") + start
    places = _elements(back, side)
    within = maker.op("And", places >= first.unsqueeze(2), places < last.unsqueeze(2))
    return within.cast(rois.dtype)


def _rounded(term: Term) -> Term:
    """To the nearest whole number, halves away from zero."""
    return term.apply("Sign") * (term.apply("Abs") + 0.5).apply("Floor")
