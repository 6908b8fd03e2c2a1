"""Resize: every mode is one matrix for each axis, worked out in float64 as ONNX's text says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from bench.gradients.node import Function, Node, Results

Floats = npt.NDArray[np.float64]


def _coordinates(node: Node, size: int, result: int, scale: float, region: Sequence[float]) -> Floats:
    """Where each element of the result lies among those of the operand."""
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    at = np.arange(result, dtype=np.float64)
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        return at * (size - 1) / (result - 1) if result > 1 else np.zeros(result)
    if mode == "pytorch_half_pixel" and result <= 1:
        return np.zeros(result)
    if mode == "half_pixel_symmetric":
        adjusted = result / (scale * size)
        return size / 2 * (1 - adjusted) + (at + 0.5) / scale - 0.5
    if mode == "tf_crop_and_resize":
        start, end = region
        if result > 1:
            return start * (size - 1) + at * (end - start) * (size - 1) / (result - 1)
        return np.full(result, 0.5 * (start + end) * (size - 1))
    return (at + 0.5) / scale - 0.5


ROUNDINGS: Mapping[str, Callable[[Floats], Floats]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip


def _cubic(distance: Floats, a: float) -> Floats:
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    weights: Floats = np.where(x <= 1, near, np.where(x < 2, far, 0.0))
    return weights


def _matrix(node: Node, size: int, result: int, scale: float, region: Sequence[float]) -> Floats:
    """[result, size]: the weights of the operand's elements."""
    mode, at = node.get("mode", "nearest"), _coordinates(node, size, result, scale, region)
    rows, matrix = np.arange(result), np.zeros((result, size))
    if mode == "nearest":
        nearest = ROUNDINGS[node.get("nearest_mode", "round_prefer_floor")](at)
        matrix[rows, np.clip(nearest, 0, size - 1).astype(np.int64)] = 1.0
    else:
        reach = 1 if mode == "linear" else 2
        stretch = min(scale, 1.0) if node.get("antialias", 0) else 1.0
        reach = int(np.ceil(reach / stretch))
        first = np.floor(at).astype(np.int64)
        offsets = np.arange(-reach + 1, reach + 1)
        places = first[:, None] + offsets
        distance = (places - at[:, None]) * stretch
        weights: Floats = (
            np.maximum(1 - np.abs(distance), 0.0) if mode == "linear"
            else _cubic(distance, node.get("cubic_coeff_a", -0.75))
        )  # fmt: skip
        if node.get("exclude_outside", 0):
            weights = np.where((places < 0) | (places >= size), 0.0, weights)
        weights /= weights.sum(axis=1, keepdims=True)
        columns = np.clip(places, 0, size - 1).astype(np.int64)
        np.add.at(matrix, (np.broadcast_to(rows[:, None], columns.shape), columns), weights)
    return matrix


def _resize(node: Node) -> Results:
    x, region, scales = (*node.inputs, None, None)[:3]
    axes = [one % x.dim() for one in node.get("axes") or range(x.dim())]
    wanted = node.ints(3)
    if wanted is None:
        factors = [float(one) for one in scales.tolist()]
        wanted = [int(np.floor(x.shape[axis] * factor)) for axis, factor in zip(axes, factors, strict=True)]
    else:
        factors = [want / x.shape[axis] for want, axis in zip(wanted, axes, strict=True)]
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            wanted = [int(np.floor(factor * x.shape[axis] + 0.5)) for axis in axes]
    crops = node.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    parts = [float(one) for one in region.tolist()] if crops and region is not None else [0.0, 1.0] * len(axes)
    for place, (axis, want, factor) in enumerate(zip(axes, wanted, factors, strict=True)):
        size = x.shape[axis]
        own = (parts[place], parts[place + len(axes)]) if crops else (0.0, 1.0)
        if want == size and factor == 1.0 and own == (0.0, 1.0):
            continue
        if crops and (_coordinates(node, size, want, factor, own) > size - 1).any():
            raise node.refuse("of a region beyond the image")
        matrix = torch.from_numpy(_matrix(node, size, want, factor, own)).to(x.dtype)
        x = torch.tensordot(x, matrix, ([axis], [1])).movedim(-1, axis)
    return [x]


OPERATORS: Mapping[str, Function] = {"Resize": _resize}
