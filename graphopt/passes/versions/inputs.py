"""What used to be an attribute and is an input now: axes, sizes of parts, bounds, pads, a number of results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.rule import AttributeValue, Match, Replacement

LIMIT = float(np.finfo(np.float32).max)  # the bounds of a Clip that has none


def remade(match: Match, *inputs: ir.Value | None, **attributes: AttributeValue | None) -> Replacement:
    """The same operator with other inputs, and with attributes changed or (None) left out."""
    root = match.root
    node = match.node_of(root.op_type, *inputs, attributes=attributes, outputs=len(root.outputs), like=root)
    return tuple(node.outputs)


def source(match: Match) -> ir.Value:
    """The first input."""
    value = match.root.inputs[0]
    assert value is not None, "the first input is never absent"
    return value


def axes(match: Match) -> Replacement | None:
    """Squeeze(x, axes=a)  -->  Squeeze(x, [a])      (Unsqueeze and reductions alike)"""
    given = nodes.ints_attribute(match.root, "axes")
    if given is None:
        return None
    if not given and match.root.op_type.startswith("Reduce"):  # no axes meant every axis
        return remade(match, source(match), axes=None)
    return remade(match, source(match), match.ints_constant(*given), axes=None)


def split_sizes(match: Match) -> Replacement | None:
    """Split(x, split=s)  -->  Split(x, [s])"""
    given = nodes.ints_attribute(match.root, "split")
    return None if given is None else remade(match, source(match), match.ints_constant(*given), split=None)


def split_count(match: Match) -> Replacement | None:
    """Split(x) in equal parts  -->  Split(x, num_outputs=n)"""
    if nodes.input_at(match.root, 1) is not None:
        return None
    return remade(match, source(match), num_outputs=len(match.root.outputs))


def slice_bounds(match: Match) -> Replacement:
    """Slice(x, starts=, ends=, axes=)  -->  Slice(x, [starts], [ends], [axes])"""
    starts, ends = nodes.ints_attribute(match.root, "starts"), nodes.ints_attribute(match.root, "ends")
    along = nodes.ints_attribute(match.root, "axes")
    match.require(starts is not None and ends is not None, "it has no starts and ends")
    bounds = [match.ints_constant(*(numbers or ())) for numbers in (starts, ends)]
    over = None if along is None else match.ints_constant(*along)
    return remade(match, source(match), *bounds, over, starts=None, ends=None, axes=None)


def top_count(match: Match) -> Replacement:
    """TopK(x, k=n)  -->  TopK(x, [n])"""
    count = nodes.int_attribute(match.root, "k", 0)
    return remade(match, source(match), match.ints_constant(count), k=None)


def clip_bounds(match: Match) -> Replacement:
    """Clip(x, min=a, max=b)  -->  Clip(x, a, b)"""
    bounds: list[ir.Value | None] = []
    for name, none in (("min", -LIMIT), ("max", LIMIT)):
        number = nodes.float_attribute(match.root, name, none)
        bounds.append(None if number == none else _scalar(match, number))
    return remade(match, source(match), *bounds, min=None, max=None)


def pads(match: Match) -> Replacement:
    """Pad(x, pads=p, value=v)  -->  Pad(x, [p], v)"""
    given = nodes.ints_attribute(match.root, "pads")
    match.require(given is not None, "it has no pads")
    number = nodes.float_attribute(match.root, "value", 0.0)
    filler = None if number == 0 else _scalar(match, number)
    return remade(match, source(match), match.ints_constant(*(given or ())), filler, pads=None, value=None)


def dropout_ratio(match: Match) -> Replacement:
    """Dropout(x, ratio=r)  -->  Dropout(x, r)"""
    ratio = nodes.float_attribute(match.root, "ratio", 0.5)
    given = match.constant(np.array(ratio, np.float32), ir.DataType.FLOAT)
    return remade(match, source(match), given, ratio=None)


def transform_axis(match: Match) -> Replacement:
    """DFT(x, n, axis=a)  -->  DFT(x, n, a)"""
    axis = nodes.int_attribute(match.root, "axis", 1)
    number = match.constant(np.array(axis, np.int64))
    return remade(match, source(match), nodes.input_at(match.root, 1), number, axis=None)


def _scalar(match: Match, number: float) -> ir.Value:
    kind = match.dtype(source(match))
    return match.constant(np.array(number).astype(kind.numpy()), kind)


def one_result(match: Match, reason: str) -> None:
    """Refuse where more than the first output is read."""
    others: Sequence[ir.Value] = match.root.outputs[1:]
    match.require(not any(nodes.is_used(output) for output in others), reason)
