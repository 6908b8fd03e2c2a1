"""Two products with constant matrices in a row are one, where that means fewer numbers and less work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphopt.model import constants, nodes
from graphopt.model.constants import Array
from graphopt.passes.weights.layer import Layer, claim, layer_at, may_be_gemm
from graphopt.passes.weights.refit import rounded
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

MOST_WORK = 1 << 33  # multiplications done while folding; about two seconds


@dataclass(frozen=True, slots=True)
class _Linear:
    """x @ matrix + bias, or matrix @ x + bias, in float64."""

    matrix: Array
    bias: Array | None


@any_node("MatMul", "Gemm", "Add", level=2)
def product_of_products(match: Match) -> Replacement:
    """MatMul(MatMul(x, a), b)  -->  MatMul(x, a b);   Gemm(Gemm(x, a, c), b, d)  -->  Gemm(x, a b, c b + d)

    Products from the left alike, and MatMul with an Add of a constant behind it. Leaves alone a bottleneck, whose
    product has more elements than its two factors (low rank adapters), and weights that others read.
    """
    outer = layer_at(match, match.root)
    producer = claim(match, outer.data, outer.node)
    match.require(producer.op_type in ("MatMul", "Gemm", "Add"), f"{nodes.describe(producer)} is in front, no product")
    inner = layer_at(match, producer)
    match.require(inner.side == outer.side, "the constants stand on different sides")
    match.require(len(inner.shape) == 2 and len(outer.shape) == 2, "a weight is no matrix")
    for layer in (inner, outer):
        others = [user for user in layer.weight.consumers() if user is not layer.node]
        match.require(not others and not layer.weight.is_graph_output(), f"'{layer.weight.name}' is read elsewhere too")
    rows, middle, columns = inner.inputs, inner.outputs, outer.outputs
    match.require(rows * columns <= rows * middle + middle * columns, "the product has more elements than its factors")
    match.require(rows * middle * columns <= MOST_WORK, "the matrices are too large to multiply here")
    match.require(not nodes.int_attribute(outer.node, "transA", 0), "the outer product turns its data")
    match.require(inner.bias is None or inner.side == 1, "the bias of a product from the left stays")
    is_gemm = outer.kind == "Gemm" or may_be_gemm(match, outer.node)
    match.require(inner.bias is None or is_gemm or outer.added, "a product of more than two dims has no bias")
    first, second = _read(match, inner), _read(match, outer)
    factors = (first.matrix, second.matrix) if inner.side == 1 else (second.matrix, first.matrix)
    matrix = _product(match, *factors)
    bias = second.bias
    if first.bias is not None:
        moved = first.bias @ second.matrix
        bias = moved if bias is None else bias + moved
    dtype = match.dtype(outer.weight)
    weight = match.constant(rounded(match, matrix, dtype), dtype)
    operands = (inner.data, weight) if inner.side == 1 else (weight, inner.data)
    if bias is None and inner.kind == outer.kind == "MatMul":
        return match.op("MatMul", *operands, like=outer.node)
    addend = None if bias is None else match.constant(rounded(match, bias, dtype), dtype)
    if not is_gemm:
        return match.op("Add", match.op("MatMul", *operands, like=outer.node), addend)
    match.require(addend is not None or match.opset >= 11, "Gemm needs a third operand before opset 11")
    attributes = {"transA": nodes.int_attribute(inner.node, "transA", 0) or None}
    return match.op("Gemm", *operands, addend, attributes=attributes)


def _read(match: Match, layer: Layer) -> _Linear:
    """The matrix as [K, N] with alpha applied, and the bias with beta applied."""
    array = match.array(layer.weight)
    alpha = nodes.float_attribute(layer.node, "alpha", 1.0)
    matrix = constants.elementwise(lambda numbers: numbers.astype(np.float64) * alpha, array)
    bias: Array | None = None
    if layer.bias is not None:
        beta = nodes.float_attribute(layer.node, "beta", 1.0) if layer.kind == "Gemm" else 1.0
        bias = match.array(layer.bias).astype(np.float64) * beta
        match.require(bias.ndim <= 1 or bias.shape[0] == 1, "a bias differs from row to row")
        match.require(bias.size in (1, layer.outputs), "a bias does not fit")
        bias = np.broadcast_to(bias.reshape(-1), (layer.outputs,))
    return _Linear(matrix.T if layer.turned else matrix, bias)


def _product(match: Match, left: Array, right: Array) -> Array:
    """The matrix product; of two splats again a splat."""
    if constants.is_splat(left) and constants.is_splat(right):
        return constants.splat(left[0, 0] * right[0, 0] * left.shape[1], (left.shape[0], right.shape[1]))
    match.require(
        not constants.is_splat(left) and not constants.is_splat(right),
        "a weight is one number repeated and stays so",
    )
    product: Array = left @ right
    return product


RULES: tuple[Rule, ...] = (product_of_products,)
