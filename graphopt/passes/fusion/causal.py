"""Whether a mask is the causal one: each query sees the keys up to its own place, of as many keys as queries."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.facts import Facts
from graphopt.passes.fusion.private import made_by

Levels = tuple[float, float]  # the number on and below the diagonal, and the one above it
DEEPEST = 12  # operators that are followed upwards
# A comparison of places and what its first operand lies along: what it gives up to the diagonal, and above it.
COMPARED: Mapping[tuple[str, str], Levels] = {
    ("LessOrEqual", "column"): (1, 0),
    ("GreaterOrEqual", "row"): (1, 0),
    ("Greater", "column"): (0, 1),
    ("Less", "row"): (0, 1),
}
LARGEST = 1 << 22  # elements of a constant that are looked at


def levels(facts: Facts, value: ir.Value | None, depth: int = 0) -> Levels | None:
    """The two numbers of which a matrix consists: one on and below the diagonal, one above; None where it does not.

    Leading axes have length 1. True is 1, False is 0.
    """
    shape = None if value is None else facts.shape(value)
    if value is None or shape is None or depth > DEEPEST:
        return None
    if len(shape) < 2 or shape[-1] != shape[-2] or any(dim != 1 for dim in shape[:-2]):
        return None
    if facts.is_constant(value):
        return _of_constant(facts, value)
    node = value.producer()
    if node is None or not nodes.is_standard(node):
        return None
    kind = node.op_type
    if kind == "Trilu":
        return _of_triangle(facts, node)
    if kind == "Where":
        chosen = levels(facts, node.inputs[0], depth + 1)
        one, other = facts.scalar(node.inputs[1]), facts.scalar(node.inputs[2])
        if chosen is None or one is None or other is None:
            return None
        return _pair(one if chosen[0] else other, one if chosen[1] else other)
    if kind in ("Unsqueeze", "Squeeze", "Reshape", "Expand", "Identity"):  # between shapes with one matrix
        return levels(facts, node.inputs[0], depth + 1)
    if kind == "Slice":
        return _of_corner(facts, node, depth)
    if kind in ("Not", "Cast", "Equal"):
        return _of_elements(facts, node, depth)
    if kind in ("LessOrEqual", "GreaterOrEqual", "Less", "Greater"):
        return _of_places(facts, node)
    return None


def _pair(inside: float | int | bool, above: float | int | bool) -> Levels:
    return float(inside), float(above)


def _of_constant(facts: Facts, value: ir.Value) -> Levels | None:
    tensor = facts.tensor(value)
    if tensor is not None and tensor.size > LARGEST:
        return None
    array = facts.array(value)
    if array is None or array.dtype.kind not in "fiub" or array.size == 0 or constants.is_splat(array):
        return None
    matrix = array.reshape(array.shape[-2:])
    found = _pair(matrix[0, 0].item(), matrix[0, -1].item())
    place = np.arange(len(matrix))
    wanted = np.where(place <= place[:, None], matrix[0, 0], matrix[0, -1])
    return found if np.array_equal(matrix, wanted) else None


def _of_triangle(facts: Facts, node: ir.Node) -> Levels | None:
    """Trilu of one repeated number: from the diagonal on downwards, or from above it on upwards."""
    source = node.inputs[0]
    number = _repeated(facts, source)
    offset = nodes.input_at(node, 1)
    shift = 0 if offset is None else facts.scalar(offset)
    if number is None or shift is None:
        return None
    upper = nodes.int_attribute(node, "upper", 1)
    if not upper and shift == 0:
        return _pair(number, 0)
    return _pair(0, number) if upper and shift == 1 else None


def _repeated(facts: Facts, value: ir.Value | None) -> float | None:
    """The number that a tensor of any size repeats."""
    for _ in range(DEEPEST):
        number = facts.scalar(value)
        if number is not None:
            return float(number)
        node = made_by(value, "Expand", "ConstantOfShape", "Cast", "Reshape", "Unsqueeze")
        if node is None:
            return None
        if node.op_type == "ConstantOfShape":
            filler = node.attributes.get("value")
            return 0.0 if filler is None else float(filler.as_tensor().numpy().reshape(-1)[0])
        value = node.inputs[0]
    return None


def _of_elements(facts: Facts, node: ir.Node, depth: int) -> Levels | None:
    """Not, a Cast, or a comparison with a number."""
    operand, number = node.inputs[0], None
    if node.op_type == "Equal":
        number = facts.scalar(node.inputs[1])
        if number is None:
            number, operand = facts.scalar(operand), node.inputs[1]
        if number is None:
            return None
    below = levels(facts, operand, depth + 1)
    if below is None:
        return None
    if node.op_type == "Not":
        return _pair(not below[0], not below[1])
    if number is not None:
        return _pair(below[0] == number, below[1] == number)
    kept = facts.dtype(node.outputs[0]) in (ir.DataType.FLOAT, ir.DataType.FLOAT16) or set(below) <= {0.0, 1.0}
    return below if kept else None


def _of_corner(facts: Facts, node: ir.Node, depth: int) -> Levels | None:
    """The first rows and columns of a matrix."""
    starts = facts.ints(nodes.input_at(node, 1))
    steps = nodes.input_at(node, 4)
    if starts is None or any(starts) or (steps is not None and set(facts.ints(steps) or (0,)) != {1}):
        return None
    source = node.inputs[0]
    shape = None if source is None else facts.shape(source)
    if shape is not None and len(shape) >= 2 and shape[-1] != shape[-2]:
        below = made_by(source, "Slice")  # first the rows, then the columns
        return None if below is None else _of_corner(facts, below, depth + 1)
    return levels(facts, source, depth + 1)


def _of_places(facts: Facts, node: ir.Node) -> Levels | None:
    """column <= row, of one Range from 0 on that lies along both axes."""
    left, right = (_range(facts, operand) for operand in node.inputs[:2])
    if left is None or right is None or left[0] is not right[0]:
        return None
    if {left[1], right[1]} != {"column", "row"}:
        return None
    return COMPARED.get((node.op_type, left[1]))


def _range(facts: Facts, value: ir.Value | None) -> tuple[ir.Value, str] | None:
    """The Range below Unsqueeze or Reshape, and whether it lies along rows or columns."""
    shape = None if value is None else facts.shape(value)
    if value is None or shape is None or not shape:
        return None
    if any(dim != 1 for dim in shape[:-2]):
        return None
    along = "column" if len(shape) == 1 or (shape[-2] == 1 and shape[-1] != 1) else "row"
    if along == "row" and shape[-1] != 1:
        return None
    source: ir.Value | None = value
    for _ in range(DEEPEST):
        node = made_by(source, "Unsqueeze", "Reshape", "Range")
        if node is None or source is None:
            return None
        if node.op_type == "Range":
            from_zero = facts.scalar(node.inputs[0]) == 0 and facts.scalar(node.inputs[2]) == 1
            return (source, along) if from_zero else None
        source = node.inputs[0]
    return None
