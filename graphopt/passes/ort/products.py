"""Matrix products that take their neighbours in. ONNX Runtime does the same at load, so that only nodes are saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.passes.ort.kernels import DOMAIN, require_kernel
from graphopt.passes.weights.numbers import factor_of
from graphopt.rewrite.rule import AttributeValue, Match, Replacement, Rule, any_node

ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu")
LEAK = 0.01  # LeakyRelu's default alpha


@any_node("MatMul", level=3)
def fused_matmul(match: Match) -> Replacement:
    """MatMul(Transpose(a), b),  MatMul(a, Transpose(b))  -->  FusedMatMul(a, b, transA=1),  ... transB=1

    For Transposes of the last two axes alone.
    """
    require_kernel(match, "FusedMatMul", match.dtype(match.output))
    operands: list[ir.Value] = []
    turned: list[bool] = []
    group: list[ir.Node] = []
    for value in match.root.inputs:
        assert value is not None, "a product has two operands"
        node = made_by(value, "Transpose")
        below = None if node is None else node.inputs[0]
        if node is None or below is None or not _is_swap(permutation(match, node)) or node in group:
            operands.append(value)
            turned.append(False)
            continue
        operands.append(below)
        turned.append(True)
        group.append(node)
    match.require(group, "no operand is transposed")
    match.require(all(match.rank(value) >= 2 for value in operands), "an operand is a vector")
    require_private(match, group)
    attributes = {"transA": int(turned[0]) or None, "transB": int(turned[1]) or None}
    return match.op("FusedMatMul", *operands, attributes=attributes, domain=DOMAIN)


def _is_swap(perm: Sequence[int]) -> bool:
    rank = len(perm)
    return rank >= 2 and tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)


@any_node("Mul", "Div", level=3)
def scaled_matmul(match: Match) -> Replacement:
    """MatMul(a, b) * s  -->  FusedMatMul(a, b, alpha=s)"""
    value, number = factor_of(match, match.root)
    product = made_by(value, "MatMul")
    if product is None:
        match.refuse("what is scaled is no product of matrices")
    require_kernel(match, "FusedMatMul", match.dtype(value))
    match.require(match.dtype(value) == ir.DataType.FLOAT, "the operator keeps its factor as a float")
    require_private(match, [product])
    return match.op("FusedMatMul", *product.inputs, attributes={"alpha": number}, domain=DOMAIN)


@any_node(*ACTIVATIONS, level=3)
def fused_gemm(match: Match) -> Replacement:
    """Relu(Gemm(a, b, c))  -->  FusedGemm(a, b, c, activation="Relu")      (Sigmoid, Tanh, LeakyRelu alike)"""
    gemm = made_by(match.root.inputs[0], "Gemm")
    if gemm is None:
        match.refuse("it is not the result of a Gemm")
    require_kernel(match, "FusedGemm", match.dtype(match.output))
    match.require(match.opset >= 7, "before opset 7 Gemm broadcasts by an attribute")
    require_private(match, [gemm])
    attributes: Mapping[str, AttributeValue | None] = {
        "activation": match.root.op_type,
        "activation_alpha": activation_alpha(match.root),
    }
    return match.op("FusedGemm", *gemm.inputs, attributes=attributes, like=gemm, domain=DOMAIN)


def activation_alpha(node: ir.Node) -> float | None:
    """The slope of a LeakyRelu, None for the others."""
    return nodes.float_attribute(node, "alpha", LEAK) if node.op_type == "LeakyRelu" else None


@any_node("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", level=3)
def fused_conv(match: Match) -> Replacement:
    """Relu(Conv(x, W, b))  -->  FusedConv(x, W, b, activation="Relu")

    Relu(Conv(x, W, b) + z)  -->  FusedConv(x, W, b, z, activation="Relu")

    ONNX Runtime brings either form to its blocked layout and runs both equally fast. Leaves alone limits of a Clip that
    are computed, and sums that widen the result of the Conv.
    """
    above = made_by(match.root.inputs[0], "Conv", "Add")
    if above is None:
        match.refuse("it is not the result of a Conv")
    conv, other = (above, None) if above.op_type == "Conv" else _summed_conv(match, above)
    require_kernel(match, "FusedConv", match.dtype(match.output))
    attributes = _activation(match, match.root)
    require_private(match, [above, conv])
    operands = [*conv.inputs, None][:3]
    return match.op("FusedConv", *operands, other, attributes=attributes, like=conv, domain=DOMAIN)


def _summed_conv(match: Match, total: ir.Node) -> tuple[ir.Node, ir.Value]:
    """The Conv and the other operand of a sum: the later Conv where both are one."""
    match.require(match.root.op_type == "Relu", "only Relu is taken in together with a sum")
    left, right = total.inputs[0], total.inputs[1]
    assert left is not None and right is not None, "a sum has two operands"
    for value, other in ((right, left), (left, right)):
        conv = made_by(value, "Conv")
        if conv is not None and len(value.uses()) == 1 and not value.is_graph_output() and value is not other:
            match.require(match.shape(other) == match.shape(value), "the sum widens the result of the Conv")
            return conv, other
    match.refuse("no operand of the sum is the result of a Conv alone")


def _activation(match: Match, node: ir.Node) -> dict[str, AttributeValue | None]:
    """The activation and its parameters as FusedConv has them."""
    parameters: list[float] = []
    if node.op_type == "LeakyRelu":
        parameters = [nodes.float_attribute(node, "alpha", LEAK)]
    elif node.op_type == "HardSigmoid":
        parameters = [nodes.float_attribute(node, "alpha", 0.2), nodes.float_attribute(node, "beta", 0.5)]
    elif node.op_type == "Clip":
        match.require(match.opset >= 11, "before opset 11 the limits are attributes")
        limits = np.finfo(np.float32)
        for index, default in ((1, float(limits.min)), (2, float(limits.max))):
            value = nodes.input_at(node, index)
            number = default if value is None else match.facts.scalar(value)
            match.require(number is not None, "a limit is computed")
            assert number is not None, "required just now"
            parameters.append(float(number))
    return {"activation": node.op_type, "activation_params": parameters or None}


RULES: tuple[Rule, ...] = (scaled_matmul, fused_matmul, fused_gemm, fused_conv)
