"""Gemm says in one node what MatMul, Add, Transpose and a number say in several."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.passes.operands import FLOATS
from graphopt.passes.weights.layer import GEMM_TYPES, claim, may_be_gemm
from graphopt.rewrite.rule import Match, Refused, Replacement, Rule, any_node


@any_node("Add", level=2)
def matmul_add_to_gemm(match: Match) -> Replacement:
    """Add(MatMul(a, b), c)  -->  Gemm(a, b, c);   Add(Gemm(a, b), c)  -->  Gemm(a, b, c)

    Leaves alone products of more than two dims, a c that would widen the product, types without a Gemm kernel
    (integers), and dequantized operands, which have kernels of their own.
    """
    match.require(match.opset >= 7, "before opset 7 operands are aligned by attributes")
    left, right = match.root.inputs[0], match.root.inputs[1]
    assert left is not None and right is not None, "both operands are given"
    reason = "neither operand is a product"
    for product, added in ((left, right), (right, left)):
        producer = product.producer()
        if producer is None or producer.op_type not in ("MatMul", "Gemm"):
            continue
        try:
            return _with_addend(match, product, added)
        except Refused as refusal:
            reason = str(refusal)
    match.refuse(reason)


def _with_addend(match: Match, product: ir.Value, added: ir.Value) -> ir.Value:
    node = claim(match, product, match.root)
    if node.op_type == "MatMul":
        match.require(may_be_gemm(match, node), "the product is not one of two floating point matrices")
        match.require(not _is_dequantized(node), "an operand is dequantized, and the quantized kernel would be lost")
    else:
        match.require(nodes.input_at(node, 2) is None, f"{nodes.describe(node)} has a bias")
        match.require(match.dtype(product) in GEMM_TYPES, "the product is not one of floating point matrices")
    match.require(_fits(match, added, product), f"'{added.name}' does not broadcast to the product")
    return match.op("Gemm", *node.inputs[:2], added, attributes={"beta": None}, like=node)


def _fits(match: Match, added: ir.Value, product: ir.Value) -> bool:
    """Whether an addend broadcasts to the matrix without widening it."""
    target, shape = match.shape(product), match.shape(added)
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= 2 and all(dims.equal(size, 1) or dims.equal(size, full) for size, full in pairs)


def _is_dequantized(node: ir.Node) -> bool:
    producers = [value.producer() for value in node.inputs if value is not None]
    return any(producer is not None and producer.op_type == "DequantizeLinear" for producer in producers)


@any_node("Gemm", "MatMul", level=2)
def transpose_into_gemm(match: Match) -> Replacement:
    """Gemm(Transpose(a), b, c)  -->  Gemm(a, b, c, transA=1);   MatMul(Transpose(a), b)  -->  Gemm(a, b, transA=1)

    A MatMul must be one of two matrices, and the opset one in which Gemm needs no third operand (11). Leaves a
    Transpose alone that others read, since it would have to be computed all the same.
    """
    root = match.root
    is_gemm = root.op_type == "Gemm"
    match.require(match.opset >= (7 if is_gemm else 11), "Gemm needs a third operand before opset 11")
    if not is_gemm:
        match.require(may_be_gemm(match, root), "the product is not one of two floating point matrices")
        match.require(not _is_dequantized(root), "an operand is dequantized, and the quantized kernel would be lost")
    operands = list(root.inputs)
    flags = [nodes.int_attribute(root, "transA", 0), nodes.int_attribute(root, "transB", 0)]
    found = False
    for index in (0, 1):
        value = root.inputs[index]
        producer = None if value is None else value.producer()
        if value is None or producer is None or producer.op_type != "Transpose" or not _swaps(producer):
            continue
        if not all(user.op_type in ("Gemm", "MatMul") for user in value.consumers()) or value.is_graph_output():
            continue
        operands[index] = producer.inputs[0]
        flags[index] = 1 - flags[index]
        found = True
    match.require(found, "no operand is a transposed matrix that only products read")
    attributes = {"transA": flags[0] or None, "transB": flags[1] or None}
    return match.op("Gemm", *operands, attributes=attributes, like=root)


@any_node("Transpose", level=2)
def transpose_of_gemm(match: Match) -> Replacement:
    """Transpose(Gemm(a, b, c))  -->  Gemm(b, a, c transposed, with both operands turned);   of a MatMul alike

    c must be absent, a single number, or a constant.
    """
    root = match.root
    value = nodes.given_input(root)
    producer = value.producer()
    if producer is None or producer.op_type not in ("Gemm", "MatMul"):
        match.refuse("it does not transpose a product")
    match.require(_swaps(root), "it does not swap two axes")
    node = claim(match, value, root)
    is_gemm = node.op_type == "Gemm"
    match.require(match.opset >= (7 if is_gemm else 11), "Gemm needs a third operand before opset 11")
    if not is_gemm:
        match.require(may_be_gemm(match, node), "the product is not one of two floating point matrices")
        match.require(not _is_dequantized(node), "an operand is dequantized, and the quantized kernel would be lost")
    bias = nodes.input_at(node, 2) if is_gemm else None
    if bias is not None:
        shape = match.shape(bias)
        if any(size != 1 for size in shape):
            array = match.array(bias)
            bias = match.constant(array.reshape(1, -1).T if array.ndim == 1 else array.T, match.dtype(bias))
    attributes = {
        "transA": 1 - nodes.int_attribute(node, "transB", 0) or None,
        "transB": 1 - nodes.int_attribute(node, "transA", 0) or None,
    }
    return match.op("Gemm", node.inputs[1], node.inputs[0], bias, attributes=attributes, like=node)


def _swaps(transpose: ir.Node) -> bool:
    """Whether a Transpose, known to see a matrix, swaps its axes."""
    return nodes.ints_attribute(transpose, "perm") in (None, (1, 0))


def scaled_gemm(match: Match, node: ir.Node, factor: float) -> ir.Value:
    """A Gemm times a number, by its own factors."""
    match.require(match.dtype(node.outputs[0]) in FLOATS - {ir.DataType.DOUBLE}, "alpha is a float32 number")
    attributes = {}
    for name in ("alpha", "beta"):
        with np.errstate(over="ignore"):
            changed = float(np.float32(nodes.float_attribute(node, name, 1.0) * factor))
        match.require(np.isfinite(changed), "the factor does not fit a float32 number")
        attributes[name] = None if changed == 1.0 else changed
    if nodes.input_at(node, 2) is None:
        attributes["beta"] = None
    result = match.op("Gemm", *node.inputs, attributes=attributes, like=node)
    match.facts.set_known(result, match.facts.known(node.outputs[0]))
    return result


RULES: tuple[Rule, ...] = (matmul_add_to_gemm, transpose_into_gemm, transpose_of_gemm)
