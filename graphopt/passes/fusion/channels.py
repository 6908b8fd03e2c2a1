"""Normalization per channel or group of channels that is spelled out becomes InstanceNormalization, GroupNormalization.

A group normalization comes from exporters as an InstanceNormalization over a Reshape into groups.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.constants import Array
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@any_node("Mul", level=2)
def instance_normalization(match: Match) -> Replacement:
    """LayerNormalization(x, ones, axis=2) * s, s one number per channel  -->  InstanceNormalization(x, s, zeros)

    for images x[n, c, ...]: the mean and the deviation are over all that follows the channels.
    """
    norm, scale = _normalized_and_scale(match)
    match.require(nodes.input_at(norm, 2) is None, "the normalization has a bias")
    x = nodes.given_input(norm)
    shape = match.shape(x)
    match.require(len(shape) >= 3, "it is no image")
    axis = nodes.int_attribute(norm, "axis", -1) % len(shape)
    match.require(axis == 2, "the normalization is not over all that follows the channels")
    channels = shape[1]
    if not isinstance(channels, int):
        match.refuse("the number of channels is not known")
    ones = norm.inputs[1]
    match.require(ones is not None and bool((match.array(ones) == 1).all()), "the scale it has already is not all ones")
    numbers = _per_channel(match, scale, channels, len(shape))
    require_private(match, [norm])
    kind = match.dtype(x)
    match.require(kind == ir.DataType.FLOAT, "only float has the operator in runtimes")
    epsilon = nodes.float_attribute(norm, "epsilon", 1e-5)
    return match.op(
        "InstanceNormalization", x, match.constant(numbers.astype(np.float32)),
        match.constant(np.zeros(channels, np.float32)), attributes={"epsilon": epsilon},
    )  # fmt: skip


@any_node("Add", "Mul", level=2)
def affine_of_channels(match: Match) -> Replacement:
    """InstanceNormalization(x, s, b) + c  -->  InstanceNormalization(x, s, b + c)      (* c, GroupNormalization alike)

    for constants with one number per channel.
    """
    left, right = nodes.given_input(match.root), nodes.given_input(match.root, 1)
    for value, other in ((left, right), (right, left)):
        norm = made_by(value, "InstanceNormalization", "GroupNormalization")
        if norm is None or not match.facts.is_constant(other):
            continue
        scale, bias = nodes.given_input(norm, 1), nodes.given_input(norm, 2)
        match.require(match.shape(match.output) == match.shape(value), "the constant widens the tensor")
        (channels,) = match.static_shape(scale)
        shape = match.shape(value)
        match.require(len(shape) > 1 and shape[1] == channels, "the scale is per group, not per channel")
        numbers = _per_channel(match, other, channels, len(shape))
        s, b = match.array(scale).astype(np.float64), match.array(bias).astype(np.float64)
        kind = match.dtype(scale)
        require_private(match, [norm])
        s, b = (s * numbers, b * numbers) if match.root.op_type == "Mul" else (s, b + numbers)
        with np.errstate(over="ignore"):
            parts = [part.astype(kind.numpy()) for part in (s, b)]
        match.require(all(np.isfinite(part.astype(np.float64)).all() for part in parts), "the numbers do not fit")
        made = [match.constant(np.ascontiguousarray(np.broadcast_to(part, (channels,))), kind) for part in parts]
        return match.op(norm.op_type, norm.inputs[0], *made, like=norm)
    match.refuse("no operand is a normalization per channel and the other a constant")


@any_node("Reshape", level=2)
def group_normalization(match: Match) -> Replacement:
    """Reshape(InstanceNormalization(Reshape(x, [n, g, -1]), ones, zeros), shape of x)  -->  GroupNormalization(x)

    From opset 21 on, where the scale is per channel. Scales and biases per group are repeated for their channels.
    """
    match.require(match.opset >= 21, "GroupNormalization has a scale per channel from opset 21 on")
    norm = made_by(match.root.inputs[0], "InstanceNormalization")
    first = None if norm is None else made_by(norm.inputs[0], "Reshape")
    if norm is None or first is None or first.inputs[0] is None or norm.inputs[1] is None or norm.inputs[2] is None:
        match.refuse("it is no InstanceNormalization between two Reshapes")
    x = first.inputs[0]
    shape, grouped = match.shape(x), match.shape(first.outputs[0])
    match.require(match.shape(match.output) == shape, "the second Reshape does not restore the shape")
    match.require(len(shape) >= 3 and len(grouped) >= 3 and shape[0] == grouped[0], "it is no image cut into groups")
    channels, groups = shape[1], grouped[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or groups < 1 or channels % groups:
        match.refuse("the channels are not cut into groups of equal size")
    rest = dims.product((channels // groups, *shape[2:]))
    match.require(dims.equal(dims.product(grouped[2:]), rest), "the groups hold something else than their channels")
    match.require(match.dtype(x) == ir.DataType.FLOAT, "only float has the operator in runtimes")
    parts = [np.repeat(match.array(value), channels // groups) for value in (norm.inputs[1], norm.inputs[2])]
    require_private(match, [norm, first])
    epsilon = nodes.float_attribute(norm, "epsilon", 1e-5)
    made = [match.constant(np.ascontiguousarray(part)) for part in parts]
    return match.op("GroupNormalization", x, *made, attributes={"num_groups": groups, "epsilon": epsilon})


def _normalized_and_scale(match: Match) -> tuple[ir.Node, ir.Value]:
    left, right = match.root.inputs[0], match.root.inputs[1]
    for value, other in ((left, right), (right, left)):
        norm = made_by(value, "LayerNormalization")
        if norm is not None and other is not None and match.facts.is_constant(other):
            return norm, other
    match.refuse("it is no normalization times a constant")


def _per_channel(match: Match, constant: ir.Value, channels: int, rank: int) -> Array:
    """A constant with one number per channel, [c, 1, ...] or [1, c, 1, ...], or a single one, in float64."""
    array = match.array(constant).astype(np.float64)
    if array.size == 1:
        return np.full(channels, array.reshape(-1)[0])
    padded = (1,) * (rank - array.ndim) + array.shape
    match.require(array.ndim <= rank, f"'{constant.name}' widens the tensor")
    wanted = (1, channels, *(1,) * (rank - 2))
    match.require(padded == wanted, f"'{constant.name}' has not one number per channel")
    return array.reshape(-1)


RULES: tuple[Rule, ...] = (instance_normalization, affine_of_channels, group_normalization)
