"""Conversions to and from quantized integers, and layers between them as programs compute them."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge, Known
from graphopt.model.operators import linear
from graphopt.model.operators.axes import Axes, counted, rank_of
from graphopt.model.operators.gradients import quantized as gradients
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.record import Operator, per_element

IN_BYTES = "graphopt.bytes"  # ONNX's QLinear operators, with these attributes beside theirs
BIAS = "bias"  # what is added to each channel or column, in no scale: float64
DIMS = "dims"  # of the result


def _scaled_axes(node: ir.Node, facts: Knowledge) -> Axes:
    """One scale for all elements, or one for each position of the attribute `axis`."""
    scale = nodes.input_at(node, 1)
    shape = None if scale is None else facts.static_shape(scale)
    if shape is None or nodes.int_attribute(node, "block_size", 0):
        raise Unclear("it has scales for blocks of elements")
    rank = rank_of(facts, node)
    if prod(shape) == 1:
        return Axes(rank, frozenset())
    names = counted([nodes.int_attribute(node, "axis", 1)], rank)
    return Axes(rank, frozenset(names), names, "axis")


def _told(node: ir.Node, facts: Knowledge) -> tuple[Known, ...] | None:
    """The dims that the node tells, of the type of the result's zero point."""
    zero = node.inputs[7]
    return None if zero is None else (Known(facts.known(zero).type, nodes.ints_attribute(node, DIMS, ()), None),)


OPERATORS = (
    Operator(
        name="QuantizeLinear",
        flops=per_element(3),
        axes=_scaled_axes,
        formula=linear.quantize,
        along=True,
        gradient=gradients.quantized,
    ),
    Operator(
        name="DequantizeLinear",
        flops=per_element(2),
        axes=_scaled_axes,
        formula=linear.dequantize,
        along=True,
        gradient=gradients.dequantized,
    ),
    Operator(name="DynamicQuantizeLinear", axes="symmetric"),
    *(Operator(name=name, domain=IN_BYTES, shape=_told, epilogue=True) for name in ("QLinearConv", "QLinearMatMul")),
)
