"""A Gelu that is spelled out keeps its 0.5.

Below opset 20 there is no Gelu operator, but runtimes recognise x * 0.5 * (1 + erf(x / sqrt(2))) as a whole and compute
it faster than what would be left of it if the weights behind it took the 0.5 (bench/ort_latency.py, vit_s16_legacy).
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.rewrite.rule import Match

DEEPEST = 2  # products above the last one


def require_no_gelu(match: Match, node: ir.Node) -> None:
    """Refuse where `node` is the last product of a Gelu."""
    match.require(not _is_gelu(node), "the factor belongs to a Gelu, which runtimes recognise as a whole")


def _is_gelu(node: ir.Node) -> bool:
    """Whether the node is a product, or a product of products, with `erf(...) + 1` or `tanh(...) + 1` in it."""
    pending = [(node, 0)]
    while pending:
        current, depth = pending.pop()
        if current.op_type not in ("Mul", "Div") or depth > DEEPEST:
            continue
        for value in current.inputs:
            producer = None if value is None else value.producer()
            if producer is None:
                continue
            if producer.op_type == "Add":
                above = (None if operand is None else operand.producer() for operand in producer.inputs)
                if any(operator is not None and operator.op_type in ("Erf", "Tanh") for operator in above):
                    return True
            pending.append((producer, depth + 1))
    return False
