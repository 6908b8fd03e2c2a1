"""Reductions, products, softmaxes, sums along an axis, and losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gradients.node import Function, Node, Results

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _reduced(operation: Reduction) -> Function:
    def function(node: Node) -> Results:
        x, axes = node.inputs[0], node.ints(1, "axes")
        if not axes:
            if node.get("noop_with_empty_axes", 0):
                return [x]
            axes = list(range(x.dim()))
        if not x.numel() and node.operator in ("ReduceMax", "ReduceMin"):
            raise node.refuse("of nothing")
        return [operation(x, tuple(axes), bool(node.get("keepdims", 1)))]

    return function


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted((one % x.dim() for one in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


REDUCTIONS: Mapping[str, Reduction] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keepdim=keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep),
}


def _arg(operation: Callable[..., Tensor]) -> Function:
    def function(node: Node) -> Results:
        (x,) = node.inputs
        axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
        if node.get("select_last_index", 0):
            return [x.shape[axis] - 1 - operation(x.flip(axis), axis, keepdim=keep)]
        return [operation(x, axis, keepdim=keep)]

    return function


def _running(operation: Callable[[Tensor, int], Tensor], neutral: float) -> Function:
    def function(node: Node) -> Results:
        x, axis = node.inputs[0], (node.ints(1) or [0])[0] % node.inputs[0].dim()
        reverse = node.get("reverse", 0)
        x = x.flip(axis) if reverse else x
        if node.get("exclusive", 0):
            first = torch.full_like(x.narrow(axis, 0, 1), neutral)
            x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        x = operation(x, axis)
        return [x.flip(axis) if reverse else x]

    return function


def _topk(node: Node) -> Results:
    x, (count,) = node.inputs[0], node.ints(1) or [0]
    values, index = torch.topk(x, count, node.get("axis", -1), bool(node.get("largest", 1)), True)
    return [values, index]


def _softmax(node: Node) -> Results:
    return [torch.softmax(node.inputs[0], node.get("axis", -1))]


def _log_softmax(node: Node) -> Results:
    return [torch.log_softmax(node.inputs[0], node.get("axis", -1))]


def _hardmax(node: Node) -> Results:
    (x,) = node.inputs
    axis = node.get("axis", -1)
    return [torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)]


def _gemm(node: Node) -> Results:
    a, b, c = (*node.inputs, None)[:3]
    a, b = a.T if node.get("transA", 0) else a, b.T if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is None:
        return [alpha * (a @ b)]
    return [torch.addmm(c.expand(a.shape[0], b.shape[1]), a, b, beta=beta, alpha=alpha)]


def _einsum(node: Node) -> Results:
    return [torch.einsum(node.get("equation").replace(" ", ""), *node.inputs)]


def _nll(node: Node, log_probability: Tensor) -> Tensor:
    target, weight = node.inputs[1], node.input(2)
    ignored = node.get("ignore_index")
    index = -100 if ignored is None else ignored
    return F.nll_loss(
        log_probability, target.to(torch.int64), weight, ignore_index=index, reduction=node.get("reduction", "mean")
    )


def _negative_log_likelihood(node: Node) -> Results:
    return [_nll(node, node.inputs[0])]


def _cross_entropy(node: Node) -> Results:
    log_probability = torch.log_softmax(node.inputs[0], 1)
    return [_nll(node, log_probability), log_probability]


OPERATORS: Mapping[str, Function] = {
    **{name: _reduced(operation) for name, operation in REDUCTIONS.items()},
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin), "CumSum": _running(torch.cumsum, 0.0),
    "CumProd": _running(torch.cumprod, 1.0), "TopK": _topk, "Softmax": _softmax, "LogSoftmax": _log_softmax,
    "Hardmax": _hardmax, "MatMul": lambda node: [torch.matmul(*node.inputs)], "Gemm": _gemm, "Einsum": _einsum,
    "Det": lambda node: [torch.linalg.det(node.inputs[0])], "NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}  # fmt: skip
