"""Attention spelled out in a few operators, and what the rules make of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from graphopt.passes import algebra, elimination, fusion
from tests import support

FOUR = "float[2, 4, 3, 8] q, float[2, 4, 5, 8] k, float[2, 4, 5, 8] v"
RESULT = "float[2, 4, 3, 8] y"
SCORES = "t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t)"
END = "p = Softmax <axis = -1> (a) y = MatMul (p, v)"
GUARDED = "p = Softmax <axis = -1> (a) n = IsNaN (p) g = Where (n, nothing, p) y = MatMul (g, v)"
RULES = (*elimination.RULES, *algebra.RULES, *fusion.RULES)
LOWEST = float(np.finfo(np.float32).min)


def number(value: float, dtype: type = np.float32) -> np.ndarray:
    """One number, as exporters write it."""
    return np.array(value, dtype)


def spelled(
    middle: str, *, more: str = "", inputs: str = FOUR, end: str = END, opset: int = 23, **constants: np.ndarray
) -> onnx.ModelProto:
    """q k^T, then `middle` from s to a, then the Softmax and the product with v."""
    text = f"g ({inputs}{more}) => ({RESULT}) {{ {SCORES} {middle} {end} }}"
    return support.model(text, opset, 10, nothing=number(0), **constants)


def fused(proto: onnx.ModelProto, *, rtol: float = 1e-4, **dims: int) -> onnx.ModelProto:
    """The model after the rules of algebra and fusion, checked equal."""
    result, _ = support.apply_rules(proto, RULES)
    support.assert_equal(proto, result, rtol=rtol, atol=1e-5, **dims)
    return result


def kinds(proto: onnx.ModelProto, ignored: Sequence[str] = ("Constant",)) -> list[str]:
    """The operators, in order."""
    return [kind for kind in support.op_types(proto) if kind not in ignored]


def attributes(proto: onnx.ModelProto, op_type: str = "Attention") -> dict[str, object]:
    """The attributes of the only node of the type."""
    (node,) = [node for node in proto.graph.node if node.op_type == op_type]
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
