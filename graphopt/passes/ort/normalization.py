"""Sums in front of normalizations.

ONNX Runtime fuses Add and LayerNormalization at load, and its kernel for the pair is about ten times slower than the
one for LayerNormalization alone (bench/ort_latency.py: bert_base +5 %, bert_small_rawdynamo +7 % without the fusion).
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@any_node("Add", level=2)
def sum_before_normalization(match: Match) -> Replacement:
    """LayerNormalization(Add(x, y))  -->  LayerNormalization(Sum(x, y))

    Sum is the same operator with any number of operands; ONNX Runtime does not fuse it. Leaves alone sums that others
    read too, which are not fused, and everything but float.
    """
    readers = match.output.consumers()
    match.require(len(readers) == 1 and not match.output.is_graph_output(), "it is read elsewhere, and not fused")
    norm = readers[0]
    match.require(norm.op_type == "LayerNormalization" and nodes.is_standard(norm), "it is not normalized")
    match.require(norm.inputs[0] is match.output, "it is not what is normalized")
    match.require(match.dtype(match.output) == ir.DataType.FLOAT, "only float is fused")
    left, right = match.root.inputs[0], match.root.inputs[1]
    return match.op("Sum", left, right)


RULES: tuple[Rule, ...] = (sum_before_normalization,)
