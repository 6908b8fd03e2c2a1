"""Quantized models: Q/DQ pairs that undo each other, and data movement of dequantized weights. Bit for bit the same.

A DequantizeLinear of a weight itself is never folded: it would make the file four times as large and cost the runtime
its integer kernels.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, any_node, rule


@rule(
    op("QuantizeLinear", op("DequantizeLinear", var("q"), var("scale"), name="dequantize", shared=True), var("again")),
    level=1,
)
def quantize_what_was_dequantized(match: Match) -> Replacement:
    """QuantizeLinear(DequantizeLinear(q, s, z), s, z)  -->  q

    (q - z) * s / s rounds back to q - z for every 8-bit q. Leaves alone other types, scales that are not the same
    constant, and block-wise scales.
    """
    outer, inner = match.root, match.node("dequantize")
    _require_same_constant(match, match["scale"], match["again"], "the two scales")
    first, second = nodes.input_at(inner, 2), nodes.input_at(outer, 2)
    kind = match.dtype("q")
    match.require(kind in (ir.DataType.INT8, ir.DataType.UINT8), f"quantized type is {kind}, not an 8-bit integer")
    match.require(match.dtype(match.output) == kind, "the two quantized types differ")
    match.require(match.dtype("scale") == ir.DataType.FLOAT, "the scale is not float32")
    if first is None or second is None:
        present = first if second is None else second
        zero = present is None or (match.facts.array(present) is not None and not match.array(present).any())
        match.require(zero, "only one of the two has a zero point")
    else:
        _require_same_constant(match, first, second, "the two zero points")
    scale = match.array("scale")
    match.require(np.all(np.isfinite(scale)) and np.all(scale > 0), "a scale is not a positive number")
    axes = [nodes.int_attribute(node, "axis", 1) for node in (outer, inner)]
    match.require(scale.size == 1 or (scale.ndim == 1 and axes[0] == axes[1]), "the scales belong to different axes")
    return match["q"]


def _require_same_constant(match: Match, one: ir.Value, other: ir.Value, what: str) -> None:
    if one is other:
        match.require(match.facts.is_constant(one), f"{what} are not constant")
        return
    left, right = match.array(one), match.array(other)
    match.require(
        left.dtype == right.dtype and left.size == right.size and np.array_equal(left.reshape(-1), right.reshape(-1)),
        f"{what} differ",
    )


@any_node("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", level=1)
def move_data_before_dequantizing(match: Match) -> Replacement:
    """Transpose(DequantizeLinear(weight, s, z))  -->  DequantizeLinear(Transpose(weight), s, z)

    The inner Transpose is then folded into the stored integers. With a scale per channel only a Transpose can move
    (its axis follows); leaves alone weights that are not constant, and block-wise scales.
    """
    root = match.root
    value = nodes.input_at(root, 0)
    dequantize = None if value is None else value.producer()
    if value is None or dequantize is None or dequantize.op_type != "DequantizeLinear" or dequantize.domain != "":
        match.refuse("it does not read a DequantizeLinear")
    match.require(dequantize.graph is root.graph, "the DequantizeLinear belongs to an outer graph")
    match.require(len(value.uses()) == 1 and not value.is_graph_output(), "the dequantized value is read elsewhere too")
    weight, scale = dequantize.inputs[0], dequantize.inputs[1]
    if weight is None or scale is None or not match.facts.is_constant(weight):
        match.refuse("what is dequantized is not a constant")
    others = root.inputs[1:]
    match.require(all(v is None or match.facts.is_constant(v) for v in others), "the new shape is not constant")
    match.require(not nodes.int_attribute(dequantize, "block_size", 0), "the scales are block-wise")
    sizes = match.static_shape(scale)
    attributes: dict[str, int | None] = {"axis": None}
    if int(np.prod(sizes)) != 1:
        match.require(root.op_type == "Transpose" and len(sizes) == 1, "the scales belong to an axis")
        rank = match.rank(weight)
        axis = nodes.int_attribute(dequantize, "axis", 1) % rank
        perm = nodes.ints_attribute(root, "perm") or tuple(reversed(range(rank)))
        attributes["axis"] = perm.index(axis)
    moved = match.op(root.op_type, weight, *others, like=root)
    return match.op("DequantizeLinear", moved, *dequantize.inputs[1:], like=dequantize, attributes=attributes)


RULES = (quantize_what_was_dequantized, move_data_before_dequantizing)
