"""Reshape, Flatten, Squeeze and Unsqueeze: other dims for the same elements in the same order."""

from __future__ import annotations

from math import lcm, prod

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import constants, dims, nodes
from graphopt.model.known import Knowledge, Known
from graphopt.model.limits import MOST_DIMS
from graphopt.model.operators import arrays
from graphopt.model.operators.arrays import Arrays
from graphopt.model.operators.axes import Axes, counted, rank_of
from graphopt.model.operators.gradients import movement as gradients
from graphopt.model.operators.parameters import AXES, Unclear, parameter
from graphopt.model.operators.parts import Part, Range, Shape, Wanted
from graphopt.model.operators.record import mover
from graphopt.model.operators.shapes import Result, first_type, like_first, source_shape


def _reshaped_dims(node: ir.Node, facts: Knowledge) -> Result:
    if facts.opset(node) < 5 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    source, target = facts.shape(node.inputs[0]), facts.content(node.inputs[1])
    kind = first_type(node, facts)
    if target is not None and target.ndim != 1:
        return None  # the schema refuses it
    if target is None:
        length = facts.shape(node.inputs[1])
        if length is None or len(length) != 1 or not isinstance(length[0], int) or length[0] > MOST_DIMS:
            return (Known(kind, None, None),)
        if length[0] == 1 and source is not None:  # one dim takes all elements, whatever the run says
            return (Known(kind, (dims.product(source),), None),)
        return (Known(kind, tuple(facts.fresh() for _ in range(length[0])), None),)
    keep_zero = nodes.int_attribute(node, "allowzero", 0) == 1
    result: list[dims.Dim | None] = []
    for axis, item in enumerate(target.tolist()):
        if isinstance(item, int) and item == 0 and not keep_zero:
            known = source is not None and axis < len(source)
            result.append(source[axis] if known and source is not None else facts.fresh())
        elif isinstance(item, int) and item == -1:
            result.append(None)
        else:
            result.append(item)
    if result.count(None) == 1:
        rest = dims.product(dim for dim in result if dim is not None)
        missing = None if source is None else dims.quotient(dims.product(source), rest)
        if missing is None and source is not None and rest != 0:
            missing = dims.floor(sympy.sympify(dims.product(source)) / sympy.sympify(rest))
            missing = facts.fresh() if isinstance(missing, sympy.Expr) and not missing.is_Symbol else missing
        result = [(facts.fresh() if missing is None else missing) if dim is None else dim for dim in result]
    return (Known(kind, tuple(dim for dim in result if dim is not None), None),)


def _flattened_dims(node: ir.Node, facts: Knowledge) -> Result:
    source = source_shape(node, facts)
    if source is None:
        return None
    axis = nodes.int_attribute(node, "axis", 1)
    axis = min(max(axis + len(source) if axis < 0 else axis, 0), len(source))
    return like_first(node, facts, (dims.product(source[:axis]), dims.product(source[axis:])))


def _reshape(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    data, target = arrays.present(inputs[0], inputs[1])
    shape = list(arrays.numbers(target) or ())
    if not nodes.int_attribute(node, "allowzero", 0):
        shape = [data.shape[axis] if item == 0 else item for axis, item in enumerate(shape)]
    if -1 in shape:
        rest = int(np.prod([item for item in shape if item != -1]))
        shape[shape.index(-1)] = data.size // rest if rest else 0
    return constants.reshape(data, shape)


def _flatten(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = arrays.present(*inputs)
    axis = nodes.int_attribute(node, "axis", 1)
    axis = axis + data.ndim if axis < 0 else axis
    return constants.reshape(data, (int(np.prod(data.shape[:axis])), int(np.prod(data.shape[axis:]))))


def _unsqueeze(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = arrays.present(inputs[0])
    axes = arrays.axes(node, inputs, opset)
    return None if axes is None else np.expand_dims(data, axes)


def _squeeze(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = arrays.present(inputs[0])
    return np.squeeze(data, arrays.axes(node, inputs, opset))


def named_axes(node: ir.Node, facts: Knowledge) -> tuple[int, ...]:
    """The axes of a Squeeze or Unsqueeze as they are written; raises Unclear where they are not known or not said."""
    axes = parameter(facts, node, "axes", AXES)
    if axes is None:
        raise Unclear("it does not say its axes")
    return axes


def _squeezed_axes(node: ir.Node, facts: Knowledge) -> Axes:
    rank = rank_of(facts, node)
    names = counted(named_axes(node, facts), rank)
    return Axes(rank, frozenset(names), names, "axes", gone=True)


def _same_positions(wanted: Wanted) -> Part | None:
    """The axis is there in the operand too, with as many elements before it."""
    shape, result = wanted.shapes[0], wanted.result
    before = prod(result[: wanted.axis])
    for axis, size in enumerate(shape):
        if size == result[wanted.axis] and size > 1 and prod(shape[:axis]) == before:
            break
    else:
        return None
    if wanted.node.op_type == "Flatten" and (
        wanted.axis != 0 or nodes.int_attribute(wanted.node, "axis", 1) != 1
    ):  # fmt: skip
        return None
    return wanted.first(Range(axis, *wanted.range[1:]))


def _blocks(wanted: Wanted) -> Part | None:
    """Blocks of elements of the outermost axis of dims that together become other dims: heads of columns, rows of
    positions, windows of rows.

    Both axes have as many elements before them. What is made are whole positions of either axis, around those that are
    asked for.
    """
    shape, result = wanted.shapes[0], wanted.result
    before = prod(result[: wanted.axis])
    axis = next((at for at, size in enumerate(shape) if size > 1 and prod(shape[:at]) == before), None)
    if axis is None or 0 in result:
        return None
    theirs, ours = _inside(shape, axis, result, wanted.axis)
    each = lcm(theirs, ours)  # elements of the blocks that are whole positions of both
    low = wanted.range.low * ours // each * each
    high = -(-wanted.range.high * ours // each) * each
    made = (low // ours, high // ours)
    target = list(result)
    target[wanted.axis] = made[1] - made[0]
    constants = {1: np.array(target, np.int64)}
    return Part((Range(axis, low // theirs, high // theirs), None), made, constants=constants)


def _inside(shape: Shape, axis: int, result: Shape, at: int) -> tuple[int, int]:
    """How many elements a position of either axis has, up to where as many elements are behind both again."""
    end, behind = axis + 1, at + 1
    theirs, ours = shape[axis], result[at]
    while theirs != ours:
        if theirs < ours:
            theirs, end = theirs * shape[end], end + 1
        else:
            ours, behind = ours * result[behind], behind + 1
    return theirs // shape[axis], ours // result[at]


OPERATORS = (
    mover(
        name="Reshape", shape=_reshaped_dims, evaluate=_reshape, content=_reshape, storage="same",
        part=_blocks, gradient=gradients.reshaped,
    ),
    mover(
        name="Flatten", shape=_flattened_dims, evaluate=_flatten, storage="same", part=_same_positions,
        gradient=gradients.reshaped,
    ),
    mover(
        name="Squeeze", parameters={"axes": AXES}, evaluate=_squeeze, content=_squeeze, storage="same",
        axes=_squeezed_axes, part=_same_positions, gradient=gradients.reshaped,
    ),
    mover(
        name="Unsqueeze", parameters={"axes": AXES}, evaluate=_unsqueeze, content=_unsqueeze, storage="same",
        part=_same_positions, gradient=gradients.reshaped,
    ),
)  # fmt: skip
