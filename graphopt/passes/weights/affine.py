"""Multiplying and adding constants per channel, behind or in front of a layer, folds into its weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.constants import Array
from graphopt.passes.weights.gelu import require_no_gelu
from graphopt.passes.weights.layer import (
    LAYERS,
    Layer,
    claim_with_layers,
    layer_at,
    layer_before,
    output_rank,
    per_channel,
)
from graphopt.passes.weights.refit import with_inputs, with_outputs
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@any_node("Mul", "Div", "Add", "Sub", level=2)
def affine_after_layer(match: Match) -> Replacement:
    """Conv(x, W, b) * c  -->  Conv(x, W * c, b * c);   c - Conv(x, W, b)  -->  Conv(x, -W, c - b)

    c is a number or one per output channel; ConvTranspose, Gemm and MatMul [+ b] alike; an absent bias is made. Leaves
    alone c that differs along other axes, a bias that is computed, weights that other nodes read (a copy would make
    the file grow), results that are read elsewhere, and c / Conv(x), which is not linear. MatMul + c is left to the
    rule that makes a Gemm of it, and beyond two dims stays: MatMul has no bias.
    """
    value, constant, swapped = constant_operand(match, match.root)
    layer = layer_before(match, value, match.root)
    lone = layer.kind == "MatMul" and layer.added is None
    match.require(not (lone and match.root.op_type == "Add"), "a MatMul has no bias")
    vector = per_channel(match, constant, layer.output_axis, output_rank(match, layer), layer.outputs)
    scale, shift = as_scale_and_shift(match, match.root.op_type, vector, swapped)
    return with_outputs(match, layer, scale, shift)


@any_node(*LAYERS, level=2, near=("Mul", "Div"))
def scale_before_layer(match: Match) -> Replacement:
    """Conv(x * c, W, b),  Conv(x / c, W, b)  -->  Conv(x, W * c, b)      with c per input channel; Gemm, MatMul alike

    Where several Gemm or MatMul read x * c, all take it, each in its turn. Leaves alone c that differs along other axes
    or widens x, a product that something else reads, shared weights, and the 0.5 of a Gelu.
    """
    layer = layer_at(match, match.root)
    node = claim_with_layers(match, layer.data, match.root, shift=False)
    match.require(node.op_type in ("Mul", "Div"), f"{nodes.describe(node)} is in front, no product")
    require_no_gelu(match, node)
    value, scale, _ = _operands_in_front(match, layer, node)
    return with_inputs(match, layer, value, scale, None)


@any_node("Conv", "Gemm", "MatMul", "Add", level=2, near=("Add", "Sub"))
def shift_before_layer(match: Match) -> Replacement:
    """Conv(x + c, W, b)  -->  Conv(x, W, b + W(c));   MatMul(x + c, W) + b  -->  MatMul(x, W) + (b + c W)

    Only without padding: the border of a padded Conv sees zeros, not c. A MatMul of more than two dims needs an Add of
    a constant behind it that can take the shift.
    """
    layer = layer_at(match, match.root)
    require_no_padding(match, layer)
    node = claim_with_layers(match, layer.data, layer.node, shift=True)
    match.require(node.op_type in ("Add", "Sub"), f"{nodes.describe(node)} is in front, no sum")
    value, scale, shift = _operands_in_front(match, layer, node)
    return with_inputs(match, layer, value, scale, shift)


def _operands_in_front(match: Match, layer: Layer, node: ir.Node) -> tuple[ir.Value, Array | None, Array | None]:
    """What an arithmetic node in front of a layer reads, and what it does to each input channel."""
    value, constant, swapped = constant_operand(match, node)
    shape = match.shape(value)
    vector = per_channel(match, constant, layer.input_axis, len(shape), layer.inputs)
    if constant.size > 1:
        match.require(shape[layer.input_axis] == layer.inputs, f"the constant may widen '{value.name}'")
    scale, shift = as_scale_and_shift(match, node.op_type, vector, swapped)
    return value, scale, shift


def constant_operand(match: Match, node: ir.Node) -> tuple[ir.Value, Array, bool]:
    """The computed operand of an arithmetic node, its constant operand's data, and whether that one stands first."""
    match.require(match.opset >= 7, "before opset 7 operands are aligned by attributes")
    left, right = node.inputs[0], node.inputs[1]
    assert left is not None and right is not None, "both operands are given"
    first, second = match.facts.is_constant(left), match.facts.is_constant(right)
    match.require(first != second, "not exactly one operand is a constant")
    return (right, match.array(left), True) if first else (left, match.array(right), False)


def as_scale_and_shift(match: Match, kind: str, vector: Array, swapped: bool) -> tuple[Array | None, Array | None]:
    """Mul, Div, Add or Sub of a constant as y = scale * x + shift; `swapped`: the constant is the first operand."""
    if kind == "Add":
        return None, vector
    if kind == "Sub":
        return (np.array([-1.0]), vector) if swapped else (None, -vector)
    if kind == "Mul":
        return vector, None
    match.require(not swapped, "it divides by the data")
    match.require((vector != 0).all(), "it divides by zero")
    return 1.0 / vector, None


def require_no_padding(match: Match, layer: Layer) -> None:
    """Refuse a convolution whose border sees padding."""
    if layer.kind == "Conv":
        match.require(
            nodes.string_attribute(layer.node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
            and not any(nodes.ints_attribute(layer.node, "pads") or ()),
            "the convolution pads with zeros, which a shift would have to change",
        )


RULES: tuple[Rule, ...] = (affine_after_layer, scale_before_layer, shift_before_layer)
