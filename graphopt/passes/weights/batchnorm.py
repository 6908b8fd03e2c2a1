"""BatchNormalization at inference is a scale and a shift per channel: it folds into what stands next to it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.constants import Array
from graphopt.passes.weights.affine import as_scale_and_shift, constant_operand, require_no_padding
from graphopt.passes.weights.layer import claim, layer_at, layer_before, output_rank, per_channel, uniform
from graphopt.passes.weights.refit import rounded, with_inputs, with_outputs
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@any_node("BatchNormalization", level=2)
def batchnorm_after_layer(match: Match) -> Replacement:
    """BatchNormalization(Conv(x, W, b))  -->  Conv(x, W * s, b * s + t)       (ConvTranspose, Gemm, MatMul alike)

    with s = scale / sqrt(var + epsilon) and t = bias - mean * s. A MatMul becomes a Gemm. Leaves alone training mode,
    statistics that are computed, and results that are read elsewhere.
    """
    require_inference(match, match.root)
    value = nodes.given_input(match.root)
    layer = layer_before(match, value, match.root)
    match.require(
        output_rank(match, layer) + layer.output_axis == 1,
        "the channels it normalizes are not those of the weight",
    )
    scale, shift = scale_and_shift(match, match.root)
    match.require(scale.size in (1, layer.outputs) and shift.size in (1, layer.outputs), "the channels do not agree")
    return with_outputs(match, layer, scale, shift)


@any_node("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", level=2, near=("BatchNormalization",))
def batchnorm_before_layer(match: Match) -> Replacement:
    """Conv(BatchNormalization(x), W, b)  -->  Conv(x, W * s, b + W(t))        (Gemm, MatMul [+ b] alike)

    Only without padding: the border of a padded Conv sees zeros behind the normalization.
    """
    layer = layer_at(match, match.root)
    require_no_padding(match, layer)
    node = claim(match, layer.data, layer.node)
    match.require(node.op_type == "BatchNormalization", f"{nodes.describe(node)} is in front, no BatchNormalization")
    require_inference(match, node)
    data = nodes.given_input(node)
    rank = len(layer.shape) if layer.is_convolution else match.rank(data)
    match.require(rank + layer.input_axis == 1, "the channels it normalizes are not those of the weight")
    scale, shift = scale_and_shift(match, node)
    match.require(scale.size in (1, layer.inputs) and shift.size in (1, layer.inputs), "the channels do not agree")
    return with_inputs(match, layer, data, scale, shift)


@any_node("Mul", "Div", "Add", "Sub", "BatchNormalization", level=2, near=("BatchNormalization",))
def affine_after_batchnorm(match: Match) -> Replacement:
    """BatchNormalization(x) * c + d  -->  BatchNormalization(x) with other scale and bias (two in a row alike)"""
    root = match.root
    if root.op_type == "BatchNormalization":
        require_inference(match, root)
        value = nodes.given_input(root)
        node = _batchnorm_before(match, value)
        scale, shift = _as_pair(scale_and_shift(match, root))
    else:
        value, constant, swapped = constant_operand(match, root)
        node = _batchnorm_before(match, value)
        rank = match.rank(value)
        vector = per_channel(match, constant, 1 - rank, rank, _channels(match, node))
        scale, shift = _as_pair(as_scale_and_shift(match, root.op_type, vector, swapped))
    gain, offset = _parameter(match, node, 1) * scale, _parameter(match, node, 2) * scale + shift
    return _rebuilt(match, node, node.inputs[0], gain, offset)


@any_node("BatchNormalization", level=2)
def affine_before_batchnorm(match: Match) -> Replacement:
    """BatchNormalization(x * c + d)  -->  BatchNormalization(x) with other scale, bias and mean"""
    node = match.root
    require_inference(match, node)
    data = nodes.given_input(node)
    before = claim(match, data, node)
    found = f"{nodes.describe(before)} is in front, no arithmetic"
    match.require(before.op_type in ("Mul", "Div", "Add", "Sub"), found)
    value, constant, swapped = constant_operand(match, before)
    shape = match.shape(value)
    channels = _channels(match, node)
    match.require(len(shape) >= 2, "the data has no channel axis")
    vector = per_channel(match, constant, 1 - len(shape), len(shape), channels)
    match.require(constant.size == 1 or shape[1] == channels, f"the constant may widen '{value.name}'")
    scale, shift = _as_pair(as_scale_and_shift(match, before.op_type, vector, swapped))
    # gain / sigma * (scale * x + shift - mean) + bias, written with the old mean and variance
    mean, spread = _parameter(match, node, 3), _deviation(match, node)
    gain = _parameter(match, node, 1)
    offset = _parameter(match, node, 2) + gain / spread * (scale * mean + shift - mean)
    return _rebuilt(match, node, value, gain * scale, offset)


def require_inference(match: Match, node: ir.Node) -> None:
    """Refuse a BatchNormalization that trains, that normalizes per element, or whose parameters are computed."""
    match.require(not any(output.name for output in node.outputs[1:]), "it has the outputs of training")
    if match.opset < 7:
        match.require(nodes.int_attribute(node, "is_test", 0) == 1, "it is in training mode")
    if match.opset < 9:
        match.require(nodes.int_attribute(node, "spatial", 1) == 1, "it normalizes every element on its own")
    match.require(nodes.int_attribute(node, "training_mode", 0) == 0, "it is in training mode")
    for index in range(1, 5):
        value = nodes.input_at(node, index)
        if value is None or not match.facts.is_constant(value):
            match.refuse(f"a parameter of {nodes.describe(node)} is not a constant")
        match.require(match.rank(value) == 1, f"a parameter of {nodes.describe(node)} is no vector")


def scale_and_shift(match: Match, node: ir.Node) -> tuple[Array, Array]:
    """The normalization as y = scale * x + shift."""
    scale = _parameter(match, node, 1) / _deviation(match, node)
    return uniform(match, scale), uniform(match, _parameter(match, node, 2) - _parameter(match, node, 3) * scale)


def _as_pair(terms: tuple[Array | None, Array | None]) -> tuple[Array, Array]:
    scale, shift = terms
    return np.ones(1) if scale is None else scale, np.zeros(1) if shift is None else shift


def _batchnorm_before(match: Match, value: ir.Value) -> ir.Node:
    node = claim(match, value, match.root)
    match.require(node.op_type == "BatchNormalization", f"{nodes.describe(node)} is in front, no BatchNormalization")
    require_inference(match, node)
    return node


def _channels(match: Match, node: ir.Node) -> int:
    scale = nodes.given_input(node, 1)
    return match.static_shape(scale)[0]


def _deviation(match: Match, node: ir.Node) -> Array:
    """The root of variance + epsilon; refuses where that is not positive."""
    variance = _parameter(match, node, 4) + nodes.float_attribute(node, "epsilon", 1e-5)
    match.require((variance > 0).all(), "a variance is not positive")
    return np.sqrt(variance)


def _parameter(match: Match, node: ir.Node, index: int) -> Array:
    value = node.inputs[index]
    assert value is not None, "the parameters of a BatchNormalization are given"
    return uniform(match, match.array(value))


def _rebuilt(match: Match, node: ir.Node, data: ir.Value | None, gain: Array, offset: Array) -> ir.Value:
    """The normalization of `data` with another scale and bias (mean and variance stay)."""
    parameters = []
    for index, numbers in ((1, gain), (2, offset)):
        old = node.inputs[index]
        assert old is not None, "the parameters of a BatchNormalization are given"
        kind = match.dtype(old)
        full = constants.splat(numbers[0], match.static_shape(old)) if numbers.size == 1 else numbers
        parameters.append(match.constant(rounded(match, full, kind), kind))
    return match.op("BatchNormalization", data, *parameters, *node.inputs[3:5], like=node)


RULES: tuple[Rule, ...] = (
    batchnorm_after_layer,
    batchnorm_before_layer,
    affine_after_batchnorm,
    affine_before_batchnorm,
)
