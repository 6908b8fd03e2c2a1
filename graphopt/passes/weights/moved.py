"""Arithmetic per channel folds into a layer whose result is reshaped and transposed before."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.constants import Array
from graphopt.model.operators.movement import permutation
from graphopt.passes.weights.affine import as_scale_and_shift, constant_operand
from graphopt.passes.weights.batchnorm import require_inference, scale_and_shift
from graphopt.passes.weights.layer import Layer, claim, layer_at, may_be_gemm, output_rank, per_channel
from graphopt.passes.weights.refit import rounded, with_outputs
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

MOVERS = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze")


@any_node("BatchNormalization", "Mul", "Div", "Add", "Sub", level=2, near=MOVERS)
def affine_after_moved_layer(match: Match) -> Replacement:
    """BatchNormalization(Reshape(MatMul(x, W)))  -->  Reshape(MatMul(x, W * s) + t)   (Conv, Gemm alike)

    with s and t of the normalization, or of Mul, Div, Add and Sub of a constant that has one number per channel, and
    with Transpose and whatever else keeps all channels on one axis. Leaves alone a reshape that cuts channels or joins
    them with something else, results that are read elsewhere, and a sum that would only change its place.
    """
    value, axis, scale, shift = _per_channel(match)
    movers: list[ir.Node] = []
    node = claim(match, value, match.root)
    while node.op_type in MOVERS:
        source = nodes.given_input(node)
        axis = _axis_before(match, node, source, axis)
        movers.append(node)
        node = claim(match, source, node)
    match.require(movers, f"{nodes.describe(node)} is in front, which moves nothing")
    layer = layer_at(match, node)
    match.require(output_rank(match, layer) + layer.output_axis == axis, "the axis is not that of the layer's channels")
    sizes = {one.size for one in (scale, shift) if one is not None}
    match.require(sizes <= {1, layer.outputs}, "the channels do not agree")
    result = _with_outputs(match, layer, scale, shift)
    for mover in reversed(movers):
        result = match.op(mover.op_type, result, *mover.inputs[1:], like=mover)
    return result


def _per_channel(match: Match) -> tuple[ir.Value, int, Array | None, Array | None]:
    """What the root reads, the axis along which its numbers differ, and these as a scale and a shift."""
    root = match.root
    if root.op_type == "BatchNormalization":
        require_inference(match, root)
        return nodes.given_input(root), 1, *scale_and_shift(match, root)
    value, constant, swapped = constant_operand(match, root)
    shape = match.shape(value)
    long = [place - constant.ndim for place, size in enumerate(constant.shape) if size != 1]
    match.require(len(long) == 1, "the constant does not differ along one axis alone")
    match.require(constant.ndim <= len(shape), "the constant has more dims than the tensor")
    size = constant.shape[long[0]]
    match.require(shape[long[0]] == size, f"the constant may widen '{value.name}'")
    vector = per_channel(match, constant, long[0], len(shape), size)
    return value, len(shape) + long[0], *as_scale_and_shift(match, root.op_type, vector, swapped)


def _axis_before(match: Match, node: ir.Node, source: ir.Value, axis: int) -> int:
    """The axis of what is moved that holds what `axis` of the result does; refuses where no single one does."""
    before, after = match.shape(source), match.shape(node.outputs[0])
    if node.op_type == "Transpose":
        return permutation(node, len(after))[axis]
    for place, size in enumerate(before):
        alike = dims.equal(dims.product(before[:place]), dims.product(after[:axis]))
        if alike and isinstance(size, int) and size == after[axis]:
            return place
    match.refuse(f"{nodes.describe(node)} does not keep the channels on one axis")


def _with_outputs(match: Match, layer: Layer, scale: Array | None, shift: Array | None) -> ir.Value:
    """The layer with other numbers; a product that has no bias is followed by an Add, in the place of the root."""
    lone = layer.kind == "MatMul" and layer.added is None and not may_be_gemm(match, layer.node)
    if shift is None or not lone:
        return with_outputs(match, layer, scale, shift)
    match.require(scale is not None, "a sum behind a product would only change its place")
    result = with_outputs(match, layer, scale, None)
    dtype = match.dtype(layer.weight)
    column = (-1, 1) if layer.output_axis == -2 else (-1,)
    added = np.broadcast_to(shift, (layer.outputs,)).reshape(column)
    return match.op("Add", result, match.constant(rounded(match, np.ascontiguousarray(added), dtype), dtype))


RULES: tuple[Rule, ...] = (affine_after_moved_layer,)
