"""Normalizations and Dropout whose outputs or operands changed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.versions.inputs import one_result, remade, source
from graphopt.rewrite.rule import Match, Replacement


def batch_norm_per_activation(match: Match) -> Replacement | None:
    """BatchNormalization(..., spatial=1)  -->  BatchNormalization(...)"""
    match.require(nodes.int_attribute(match.root, "spatial", 1) == 1, "it has statistics for each activation")
    return remade(match, *match.root.inputs, spatial=None) if "spatial" in match.root.attributes else None


def batch_norm_in_training(match: Match) -> None:
    """BatchNormalization stays; one with more than one output trained, which an attribute says now."""
    match.require(len(match.root.outputs) == 1, "its outputs are those of a training")


def dropout_mask(match: Match) -> None:
    """Dropout stays; its mask became boolean, so nothing may read it."""
    one_result(match, "its mask is read, which became boolean")


def group_norm(match: Match) -> Replacement:
    """GroupNormalization(x, a, b) with a scale for each group  -->  with a scale for each channel"""
    x = source(match)
    groups = nodes.int_attribute(match.root, "num_groups", 0)
    channels = match.shape(x)[1]
    match.require(isinstance(channels, int) and groups > 0 and channels % groups == 0, "its channels are not known")
    assert isinstance(channels, int), "required just now"
    operands = [_per_channel(match, value, groups, channels) for value in match.root.inputs[1:3]]
    return remade(match, x, *operands)


def _per_channel(match: Match, value: ir.Value | None, groups: int, channels: int) -> ir.Value:
    assert value is not None, "scale and bias are always given"
    if match.facts.is_constant(value):
        return match.constant(np.repeat(match.array(value), channels // groups), match.dtype(value))
    column = match.op("Unsqueeze", value, match.ints_constant(1))
    wide = match.op("Expand", column, match.ints_constant(groups, channels // groups))
    return match.op("Reshape", wide, match.ints_constant(channels))
