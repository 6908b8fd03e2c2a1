"""A projection of a batch between reshapes becomes one Gemm: the batch's dims are flattened on the way in."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims
from graphopt.passes.shapes import reshape_target
from graphopt.passes.weights.layer import GEMM_TYPES
from graphopt.rewrite.pattern import const, op, var
from graphopt.rewrite.rule import Match, Replacement, rule


@rule(op("Reshape", op("Add", op("MatMul", var("x"), const("w")), const("b")), const("target")), level=2)
def flat_gemm(match: Match) -> Replacement:
    """Reshape(MatMul(x, W) + b)  -->  Reshape(Gemm(Reshape(x, [-1, K]), W, b))   for x of rank 3 and more

    Fires where the Reshape in front costs nothing: x comes from a Reshape itself (the two become one), or several such
    projections read x (query, key and value: they share the new Reshape). So the graph never gets more nodes.
    """
    root = match.root
    x, weight, bias = match["x"], match["w"], match["b"]
    match.require(match.opset >= 7, "Gemm broadcasts its bias only since opset 7")
    match.require(match.dtype(x) in GEMM_TYPES, f"Gemm is not used for {match.dtype(x)}")
    match.require(match.rank(x) >= 3, "x has two dims: MatMul and Add become a Gemm as they are")
    sizes = match.static_shape(weight)
    match.require(len(sizes) == 2, "the weight is not a matrix")
    match.require(match.static_shape(bias) in ((sizes[1],), (1, sizes[1])), "the added constant is not one per column")
    producer = x.producer()
    comes_from_reshape = producer is not None and producer.op_type == "Reshape" and producer.graph is root.graph
    match.require(
        comes_from_reshape or sum(_is_projection(match, use.node) for use in x.uses()) >= 2,
        "x is neither the result of a Reshape nor read by several projections",
    )
    rows = dims.product(match.shape(x)[:-1])
    wanted = match.shape(match.output)
    target = reshape_target((rows, sizes[1]), wanted)
    if target is None or 0 in wanted:
        match.refuse("the result has more than one unknown dimension")
    source = x
    if comes_from_reshape and producer is not None and producer.inputs[0] is not None:
        source = producer.inputs[0]
    flat = match.op("Reshape", source, match.ints_constant(-1, sizes[0]))
    product = match.op("Gemm", flat, weight, bias)
    return match.op("Reshape", product, match.ints_constant(*target))


def _is_projection(match: Match, node: ir.Node) -> bool:
    """MatMul with a constant matrix whose result is only read by an Add whose result is only read by a Reshape."""
    if node.op_type != "MatMul" or node.inputs[1] is None or not match.facts.is_constant(node.inputs[1]):
        return False
    for expected in ("Add", "Reshape"):
        readers = node.outputs[0].consumers()
        if len(readers) != 1 or readers[0].op_type != expected or node.outputs[0].is_graph_output():
            return False
        node = readers[0]
    return True


RULES = (flat_gemm,)
