"""Softmax before opset 13 ran over all axes from its own on, as if they were one."""

from __future__ import annotations

from graphopt.model import dims, nodes
from graphopt.passes.versions.inputs import remade, source
from graphopt.rewrite.rule import Match, Replacement


def softmax(match: Match) -> Replacement:
    """Softmax(x, axis=a)  -->  Reshape(Softmax(Flatten(x, a), -1), Shape(x))      LogSoftmax and Hardmax alike

    One Softmax, where the axis is the last one that is longer than 1.
    """
    x = source(match)
    axis = nodes.int_attribute(match.root, "axis", 1)
    shape = match.facts.shape(x)
    if shape is not None and shape:
        first = axis % len(shape) if axis < len(shape) else axis
        long = [place for place in range(first, len(shape)) if shape[place] != 1]
        if first < len(shape) and len(long) <= 1:
            place = long[0] if long else len(shape) - 1
            return remade(match, x, axis=-1 if place == len(shape) - 1 else place)
    elif axis == -1:
        return remade(match, x, axis=-1)
    flat = match.op("Flatten", x, attributes={"axis": axis})
    result = match.op(match.root.op_type, flat, attributes={"axis": -1}, like=match.root)
    known = dims.static(shape)
    size = match.op("Shape", x) if known is None else match.ints_constant(*known)
    return match.op("Reshape", result, size)
