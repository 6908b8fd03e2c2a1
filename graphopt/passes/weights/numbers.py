"""One number that multiplies, far from any weights, moves through what only moves data until it meets weights.

Attention scales its scores by 1/sqrt(d): Mul(MatMul(q, k), s) with q = Transpose(Reshape(MatMul(x, W) + b)). The number
passes the product, the Transpose and the Reshape, and W and b take it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.passes.weights.gelu import require_no_gelu
from graphopt.passes.weights.gemm import scaled_gemm
from graphopt.passes.weights.layer import LAYERS, claim, layer_at
from graphopt.passes.weights.refit import COPY_LIMIT, rounded, with_inputs, with_outputs
from graphopt.rewrite.rule import Match, Refused, Replacement, Rule, any_node

# Operators that move, repeat or drop elements of their first input: they commute with any factor.
MOVERS = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Identity", "Expand", "DepthToSpace",
     "SpaceToDepth"}
)  # fmt: skip
# Those that commute with a positive factor.
KEEPS_SIGN = frozenset({"Relu", "LeakyRelu"})
DEEPEST = 12  # operators passed on the way; chains in real models have three to five


@any_node("Mul", "Div", level=2)
def number_to_weights_above(match: Match) -> Replacement:
    """Transpose(Reshape(MatMul(x, W) + b)) * s  -->  Transpose(Reshape(MatMul(x, W * s) + b * s))

    Passes operators that move data, products of two computed operands (into either), and Relu when s > 0. A product
    with another constant on the way takes the number as well. Leaves alone chains that others read, and those that end
    at no constant.
    """
    value, number = factor_of(match, match.root)
    return _scaled(match, value, match.root, number, DEEPEST)


def _scaled(match: Match, value: ir.Value, user: ir.Node, number: float, depth: int) -> ir.Value:
    """A value equal to number * value, made by scaling weights above it; refuses where there are none."""
    node = claim(match, value, user)
    match.require(depth > 0, "no weights within reach")
    kind = node.op_type
    if kind in MOVERS or (kind in KEEPS_SIGN and number > 0):
        source = nodes.given_input(node)
        return _moved(match, node, _scaled(match, source, node, number, depth - 1))
    if kind == "MatMul" and _is_product(match, node):
        reason = ""
        for index in (0, 1):
            source = nodes.given_input(node, index)
            passed = len(match.binding.inner)
            try:
                new = _scaled(match, source, node, number, depth - 1)
            except Refused as refusal:
                reason = reason or str(refusal)
                del match.binding.inner[passed:]
                continue
            operands = [new if place == index else operand for place, operand in enumerate(node.inputs)]
            result = match.op("MatMul", *operands, like=node)
            match.facts.set_known(result, match.facts.known(value))
            return result
        match.refuse(reason)
    if kind == "Gemm" and node.inputs[1] is not None and not match.facts.is_constant(node.inputs[1]):
        return scaled_gemm(match, node, number)
    if kind in ("Mul", "Div") and user is not match.root:
        return _scaled_constant(match, node, number)
    return with_outputs(match, layer_at(match, node), np.array([number]), None)


def _scaled_constant(match: Match, node: ir.Node, number: float) -> ir.Value:
    """number * (x * c) as x * (number * c), and number * (x / c) as x / (c / number)."""
    left, right = node.inputs[0], node.inputs[1]
    assert left is not None and right is not None, "both operands are given"
    index = 1 if match.facts.is_constant(right) else 0
    constant = right if index else left
    match.require(match.facts.is_constant(constant), f"{nodes.describe(node)} multiplies two computed tensors")
    match.require(number != 0 and match.opset >= 7, "the factor is zero")
    factor = 1.0 / number if node.op_type == "Div" and index == 1 else number
    array = match.array(constant)
    match.require(constants.is_splat(array) or array.size <= COPY_LIMIT, f"'{constant.name}' is large")
    kind = match.dtype(constant)
    scaled = constants.elementwise(lambda numbers: numbers.astype(np.float64) * factor, array)
    operands = list(node.inputs)
    operands[index] = match.constant(rounded(match, scaled, kind), kind)
    result = match.op(node.op_type, *operands, like=node)
    match.facts.set_known(result, match.facts.known(node.outputs[0]))
    return result


@any_node(*LAYERS, level=2)
def number_to_weights_below(match: Match) -> Replacement:
    """MatMul(Transpose(Reshape(x * s)), W)  -->  MatMul(Transpose(Reshape(x)), W * s)      (Conv, Gemm alike)

    Passes operators that move data, Relu when s > 0, and products. Leaves alone the 0.5 of a Gelu.
    """
    layer = layer_at(match, match.root)
    first = claim(match, layer.data, match.root)
    require_no_gelu(match, first)
    match.require(first.op_type in MOVERS | KEEPS_SIGN or _is_product(match, first), "no factor stands further up")
    value, number = _without_number(match, layer.data, match.root, DEEPEST)
    return with_inputs(match, layer, value, np.array([number]), None)


def _without_number(match: Match, value: ir.Value, user: ir.Node, depth: int) -> tuple[ir.Value, float]:
    """`value` without one factor that is a number, and that number; refuses where there is none above it."""
    node = claim(match, value, user)
    match.require(depth > 0, "no factor within reach")
    require_no_gelu(match, node)
    if _is_product(match, node):
        reason = ""
        for index in (0, 1):
            passed = len(match.binding.inner)
            source = nodes.given_input(node, index)
            try:
                new, number = _without_number(match, source, node, depth - 1)
            except Refused as refusal:
                reason = reason or str(refusal)
                del match.binding.inner[passed:]
                continue
            operands = [new if place == index else operand for place, operand in enumerate(node.inputs)]
            result = match.op(node.op_type, *operands, like=node)
            match.facts.set_known(result, match.facts.known(value))
            return result, number
        match.refuse(reason)
    if node.op_type in MOVERS | KEEPS_SIGN:
        source = nodes.given_input(node)
        new, number = _without_number(match, source, node, depth - 1)
        match.require(number > 0 or node.op_type in MOVERS, "the factor is not positive")
        return _moved(match, node, new), number
    match.require(node.op_type in ("Mul", "Div"), f"{nodes.describe(node)} is in front, no product")
    return factor_of(match, node)


def _is_product(match: Match, node: ir.Node) -> bool:
    """Whether the node multiplies two computed tensors."""
    operands = [value for value in node.inputs if value is not None]
    computed = not any(match.facts.is_constant(value) for value in operands)
    return node.op_type in ("Mul", "MatMul") and computed and operands[0] is not operands[1]


@any_node("MatMul", level=2)
def numbers_of_both_operands(match: Match) -> Replacement:
    """MatMul(a * s, b * t)  -->  MatMul(a * (s t), b)      what scaled attention exports

    The product stays with the operand that has fewer elements, a where that is not known. Left alone in float16 and
    bfloat16, where each of the products is rounded by more than the node tests allow.
    """
    left, right = match.root.inputs[0], match.root.inputs[1]
    assert left is not None and right is not None, "both operands are given"
    first, second = (claim(match, value, match.root) for value in (left, right))
    match.require(first is not second and {first.op_type, second.op_type} <= {"Mul", "Div"}, "not both are products")
    (a, s), (b, t) = factor_of(match, first), factor_of(match, second)
    kind = match.dtype(left)
    match.require(kind not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16), f"each product of {kind.name} is rounded")
    with np.errstate(over="ignore"):
        number = np.array(s * t).astype(kind.numpy())
    match.require(np.isfinite(number.astype(np.float64)), f"the product of the two numbers does not fit {kind.name}")
    sizes = [match.facts.static_shape(value) for value in (a, b)]
    constant = match.constant(number, kind)
    if sizes[0] is not None and sizes[1] is not None and np.prod(sizes[1]) < np.prod(sizes[0]):
        return match.op("MatMul", a, match.op("Mul", b, constant), like=match.root)
    return match.op("MatMul", match.op("Mul", a, constant), b, like=match.root)


def factor_of(match: Match, node: ir.Node) -> tuple[ir.Value, float]:
    """The operand and the number of x * s or x / s that leaves the shape of x as it is."""
    match.require(match.opset >= 7, "before opset 7 operands are aligned by attributes")
    left, right = node.inputs[0], node.inputs[1]
    assert left is not None and right is not None, "both operands are given"
    constant, value = right, left
    number = match.facts.scalar(right)
    if number is None and node.op_type == "Mul":
        constant, value = left, right
        number = match.facts.scalar(left)
    if number is None or match.facts.is_constant(value):
        match.refuse(f"{nodes.describe(node)} does not multiply by one number")
    match.require(match.dtype(value).is_floating_point(), f"{nodes.describe(node)} does not compute with floats")
    shape = match.shape(constant)
    match.require(all(size == 1 for size in shape), "the constant may widen the tensor")
    match.require(not shape or len(shape) <= match.rank(value), "the constant adds dims to the tensor")
    if node.op_type == "Div":
        match.require(number != 0, "it divides by zero")
        number = 1.0 / number
    match.require(np.isfinite(number), "the factor is infinite or not a number")
    return value, float(number)


def _moved(match: Match, node: ir.Node, source: ir.Value) -> ir.Value:
    """The same node over another source of the same shape."""
    result = match.op(node.op_type, source, *node.inputs[1:], like=node)
    match.facts.set_known(result, match.facts.known(node.outputs[0]))
    return result


RULES: tuple[Rule, ...] = (number_to_weights_above, number_to_weights_below, numbers_of_both_operands)
