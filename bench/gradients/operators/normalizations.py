"""Normalizations: by torch's own functions where it has the operator, by ONNX's formula where it has not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gradients.node import Function, Node, Results


def _channels(x: Tensor, rank: int) -> Tensor:
    """A vector of channels as it meets a batch of `rank` dims."""
    return x.reshape(1, -1, *[1] * (rank - 2))


def _batch(node: Node) -> Results:
    x, scale, bias, mean, variance = node.inputs
    epsilon, keep = node.get("epsilon", 1e-5), node.get("momentum", 0.9)
    if node.get("training_mode", 0):
        followed = (None, None) if node.outputs == 1 else (mean.clone(), variance.clone())
        y = F.batch_norm(x, *followed, scale, bias, training=True, momentum=1 - keep, eps=epsilon)
        return [y] if node.outputs == 1 else [y, followed[0], _of_population(followed[1], variance, keep, x)]
    if not mean.requires_grad and not variance.requires_grad:
        return [F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)]
    factor = scale * torch.rsqrt(variance + epsilon)
    return [(x - _channels(mean, x.dim())) * _channels(factor, x.dim()) + _channels(bias, x.dim())]


def _of_population(followed: Tensor, before: Tensor, keep: float, x: Tensor) -> Tensor:
    """A running variance as ONNX has it, from torch's, which follows that of a sample: n / (n - 1) of ONNX's."""
    count = x.numel() // x.shape[1]
    return before * keep + (followed - before * keep) * ((count - 1) / count)


def _layer(node: Node) -> Results:
    x, scale, bias = (*node.inputs, None)[:3]
    epsilon, axis = node.get("epsilon", 1e-5), node.get("axis", -1) % x.dim()
    dims = x.shape[axis:]
    if scale.shape == dims and (bias is None or bias.shape == dims):
        y = F.layer_norm(x, dims, scale, bias, epsilon)
    else:
        y = F.layer_norm(x, dims, eps=epsilon) * scale
        y = y if bias is None else y + bias
    if node.outputs == 1:
        return [y]
    variance, mean = torch.var_mean(x, list(range(axis, x.dim())), correction=0, keepdim=True)
    return [y, mean, torch.rsqrt(variance + epsilon)]


def _rms(node: Node) -> Results:
    x, scale = node.inputs
    axis = node.get("axis", -1) % x.dim()
    square = (x * x).mean(list(range(axis, x.dim())), keepdim=True)
    return [x * torch.rsqrt(square + node.get("epsilon", 1e-5)) * scale]


def _group(node: Node) -> Results:
    x, scale, bias = node.inputs
    groups = node.get("num_groups")
    if node.opset < 21:  # a number for each group
        scale, bias = (one.repeat_interleave(x.shape[1] // groups) for one in (scale, bias))
    return [F.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))]


def _instance(node: Node) -> Results:
    x, scale, bias = node.inputs
    variance, mean = torch.var_mean(x, list(range(2, x.dim())), correction=0, keepdim=True)
    y = (x - mean) * torch.rsqrt(variance + node.get("epsilon", 1e-5))
    return [y * _channels(scale, x.dim()) + _channels(bias, x.dim())]


def _local_response(node: Node) -> Results:
    (x,) = node.inputs
    size = node.get("size")
    before, after = (size - 1) // 2, size // 2
    square = F.pad(x * x, [0, 0] * (x.dim() - 2) + [before, after]).unfold(1, size, 1).sum(-1)
    base = node.get("bias", 1.0) + node.get("alpha", 1e-4) / size * square
    return [x / base ** node.get("beta", 0.75)]


def _length(node: Node) -> Results:
    (x,) = node.inputs
    norm = torch.linalg.vector_norm(x, node.get("p", 2), node.get("axis", -1), keepdim=True)
    return [x / torch.where(norm == 0, torch.ones_like(norm), norm)]


def _mean_variance(node: Node) -> Results:
    (x,) = node.inputs
    variance, mean = torch.var_mean(x, node.get("axes", [0, 2, 3]), correction=0, keepdim=True)
    return [(x - mean) / (variance.sqrt() + 1e-9)]


OPERATORS: Mapping[str, Function] = {
    "BatchNormalization": _batch, "LayerNormalization": _layer, "RMSNormalization": _rms,
    "GroupNormalization": _group, "InstanceNormalization": _instance, "LRN": _local_response,
    "LpNormalization": _length, "MeanVarianceNormalization": _mean_variance,
}  # fmt: skip
