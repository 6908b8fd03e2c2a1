"""Elementwise operators; kinks have the gradients that torch gives them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from onnx import TensorProto
from torch import Tensor

from bench.gradients.node import Function, Node, Results

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
TYPES = {
    TensorProto.BOOL: torch.bool, TensorProto.UINT8: torch.uint8, TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16, TensorProto.INT32: torch.int32, TensorProto.INT64: torch.int64,
    TensorProto.UINT16: torch.uint16, TensorProto.UINT32: torch.uint32, TensorProto.UINT64: torch.uint64,
}  # fmt: skip


def torch_type(node: Node, number: int) -> torch.dtype:
    """The type of ONNX that `number` says; every float is the oracle's own."""
    return node.dtype if number in FLOATS else TYPES[TensorProto.DataType.ValueType(number)]


def _plain(operation: Callable[..., Any]) -> Function:
    """An operation of torch on the node's inputs."""
    return lambda node: [operation(*node.inputs)]


def _folded(operation: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda node: [functools.reduce(operation, node.inputs)]


def _div(node: Node) -> Results:
    x, y = node.inputs
    return [x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")]


def _pow(node: Node) -> Results:
    x, y = node.inputs
    if y.numel() == 1 and not y.requires_grad:
        y = y.reshape([1] * max(x.dim(), y.dim())) if y.dim() > x.dim() else y.item()
    return [torch.pow(x, y).to(x.dtype)]


def _mod(node: Node) -> Results:
    x, y = node.inputs
    return [torch.fmod(x, y) if node.get("fmod", 0) else torch.remainder(x, y)]


def _mean(node: Node) -> Results:
    return [functools.reduce(torch.add, node.inputs) / len(node.inputs)]


def _clip(node: Node) -> Results:
    x, least, most = (*node.inputs, None, None)[:3]
    return [x if least is None and most is None else torch.clamp(x, least, most)]


def _cast(node: Node) -> Results:
    return [node.inputs[0].to(torch_type(node, node.get("to")))]


def _cast_like(node: Node) -> Results:
    x, like = node.inputs
    return [x.to(like.dtype)]


def _leaky(node: Node) -> Results:
    return [F.leaky_relu(node.inputs[0], node.get("alpha", 0.01))]


def _elu(node: Node) -> Results:
    return [F.elu(node.inputs[0], node.get("alpha", 1.0))]


def _selu(node: Node) -> Results:
    alpha, gamma = node.get("alpha", 1.67326319217681884765625), node.get("gamma", 1.05070102214813232421875)
    return [gamma * F.elu(node.inputs[0], alpha)]


def _celu(node: Node) -> Results:
    return [F.celu(node.inputs[0], node.get("alpha", 1.0))]


def _prelu(node: Node) -> Results:
    x, slope = node.inputs
    return [torch.where(x < 0, x * slope, x)]


def _hard_sigmoid(node: Node) -> Results:
    return [torch.clamp(node.get("alpha", 0.2) * node.inputs[0] + node.get("beta", 0.5), 0, 1)]


def _gelu(node: Node) -> Results:
    return [F.gelu(node.inputs[0], approximate=node.get("approximate", "none"))]


def _swish(node: Node) -> Results:
    (x,) = node.inputs
    return [x * torch.sigmoid(node.get("alpha", 1.0) * x)]


def _thresholded(node: Node) -> Results:
    return [F.threshold(node.inputs[0], node.get("alpha", 1.0), 0.0)]


def _shrink(node: Node) -> Results:
    (x,) = node.inputs
    bias, edge = node.get("bias", 0.0), node.get("lambd", 0.5)
    return [torch.where(x < -edge, x + bias, torch.where(x > edge, x - bias, torch.zeros_like(x)))]


def _softplus(node: Node) -> Results:
    return [F.softplus(node.inputs[0], threshold=math.inf if node.dtype is torch.float64 else 20)]


def _is_inf(node: Node) -> Results:
    (x,) = node.inputs
    found = torch.zeros_like(x, dtype=torch.bool)
    if node.get("detect_positive", 1):
        found = found | torch.isposinf(x)
    if node.get("detect_negative", 1):
        found = found | torch.isneginf(x)
    return [found]


def _where(node: Node) -> Results:
    condition, x, y = node.inputs
    return [torch.where(condition, x, y)]


def _dropout(node: Node) -> Results:
    training, ratio = node.input(2), node.input(1)
    if training is not None and bool(training) and (ratio is None or float(ratio) > 0):
        raise node.refuse("draws numbers of its own in training mode")
    x = node.inputs[0]
    return [x, torch.ones_like(x, dtype=torch.bool)]


OPERATORS: Mapping[str, Function] = {
    "Abs": _plain(torch.abs), "Neg": _plain(torch.neg), "Exp": _plain(torch.exp), "Log": _plain(torch.log),
    "Sqrt": _plain(torch.sqrt), "Reciprocal": _plain(torch.reciprocal), "Sign": _plain(torch.sign),
    "Sin": _plain(torch.sin), "Cos": _plain(torch.cos), "Tan": _plain(torch.tan), "Asin": _plain(torch.asin),
    "Acos": _plain(torch.acos), "Atan": _plain(torch.atan), "Sinh": _plain(torch.sinh), "Cosh": _plain(torch.cosh),
    "Asinh": _plain(torch.asinh), "Acosh": _plain(torch.acosh), "Atanh": _plain(torch.atanh),
    "Tanh": _plain(torch.tanh), "Sigmoid": _plain(torch.sigmoid), "Erf": _plain(torch.erf),
    "Floor": _plain(torch.floor), "Ceil": _plain(torch.ceil), "Round": _plain(torch.round),
    "Relu": _plain(torch.relu), "LeakyRelu": _leaky, "Elu": _elu, "Selu": _selu, "Celu": _celu, "PRelu": _prelu,
    "Softplus": _softplus, "Softsign": _plain(F.softsign), "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(F.hardswish), "Mish": _plain(F.mish), "Gelu": _gelu, "Swish": _swish,
    "ThresholdedRelu": _thresholded, "Shrink": _shrink, "Identity": _plain(lambda x: x), "Dropout": _dropout,
    "Add": _plain(torch.add), "Sub": _plain(torch.sub), "Mul": _plain(torch.mul), "Div": _div, "Pow": _pow,
    "Mod": _mod, "Max": _folded(torch.maximum), "Min": _folded(torch.minimum), "Sum": _folded(torch.add),
    "Mean": _mean, "Clip": _clip, "Where": _where, "Cast": _cast, "CastLike": _cast_like,
    "And": _plain(torch.logical_and), "Or": _plain(torch.logical_or), "Xor": _plain(torch.logical_xor),
    "Not": _plain(torch.logical_not), "Equal": _plain(torch.eq), "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge), "Less": _plain(torch.lt), "LessOrEqual": _plain(torch.le),
    "IsNaN": _plain(torch.isnan), "IsInf": _is_inf, "BitwiseAnd": _plain(torch.bitwise_and),
    "BitwiseOr": _plain(torch.bitwise_or), "BitwiseXor": _plain(torch.bitwise_xor),
    "BitwiseNot": _plain(torch.bitwise_not),
}  # fmt: skip
