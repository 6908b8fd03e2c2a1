"""Assignments to a slice that an exporter wrote as scatters: x[:, 1:] = y."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.evaluate import evaluate
from graphopt.passes.operands import operand
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

LONGEST = 1 << 20  # different numbers of the indices of one dim; more are not looked through
COMPUTED = frozenset({"Range", "Reshape"})  # of constants; folding leaves long ones, which would make the file larger
SIDES = 2  # axes along which the box is not everything; each takes a Concat


@any_node("ScatterND", level=1)
def scatter_to_box(match: Match) -> Replacement:
    """ScatterND(x, indices of x[:, 1:], y)  -->  Concat(x[:, :1], y, axis=1),  of all of x  -->  y

    Exporters write an assignment to a slice so, with an index for every element of it; the indices may be constants or
    grids of Expand, Unsqueeze and Concat. Leaves alone steps other than 1 and slices along more than two axes.
    """
    data, indices, updates = operand(match), operand(match, 1), operand(match, 2)
    match.require(nodes.string_attribute(match.root, "reduction", "none") == "none", "updates are added up")
    sizes, shape = match.static_shape(data), match.static_shape(updates)
    columns = _columns(match, indices)
    depth = len(columns)
    match.require(0 < depth <= len(sizes) == len(shape), "the updates have other dims than what they replace")
    match.require(0 not in shape, "nothing is replaced")
    match.require(shape[depth:] == sizes[depth:], "the updates are a part of what they replace")
    starts = [_start(match, column, axis, shape[:depth]) for axis, column in enumerate(columns)]
    starts += [0] * (len(sizes) - depth)
    match.require(
        all(start >= 0 and start + size <= whole for start, size, whole in zip(starts, shape, sizes, strict=True)),
        "an index counts from the end",
    )
    sides = [axis for axis, size in enumerate(sizes) if shape[axis] < size]
    match.require(len(sides) <= SIDES, f"the slice is along more than {SIDES} axes")
    result = updates
    for axis in reversed(sides):
        outer = [(other, starts[other], starts[other] + shape[other]) for other in sides if other < axis]
        end = starts[axis] + shape[axis]
        before = [_cut(match, data, [*outer, (axis, 0, starts[axis])])] if starts[axis] else []
        after = [_cut(match, data, [*outer, (axis, end, sizes[axis])])] if end < sizes[axis] else []
        result = match.op("Concat", *before, result, *after, attributes={"axis": axis})
    return result


def _cut(match: Match, value: ir.Value, cuts: list[tuple[int, int, int]]) -> ir.Value:
    """A Slice from a start to an end along some axes."""
    axes, starts, ends = zip(*cuts, strict=True)
    return match.op("Slice", value, attributes={"starts": starts, "ends": ends, "axes": axes})


def _start(match: Match, column: np.ndarray, axis: int, shape: tuple[int, ...]) -> int:
    """The first index of an axis whose indices count up along it by one and are equal along all other ones."""
    match.require(column.shape == shape, "the indices have other dims than the updates")
    few = column[tuple(slice(None, 1 if stride == 0 else None) for stride in column.strides)]
    match.require(few.size <= LONGEST, "the indices are too many to look through")
    first = int(few.flat[0])
    counted = np.arange(first, first + shape[axis]).reshape([-1 if other == axis else 1 for other in range(len(shape))])
    match.require(few.shape[axis] == shape[axis] or shape[axis] == 1, "an index is repeated")
    match.require((few == counted).all(), "the indices are no box in order")
    return first


def _columns(match: Match, indices: ir.Value) -> list[np.ndarray]:
    """The indices of each axis, as an array that repeats along the axes on which they are equal."""
    node = indices.producer()
    if node is not None and node.op_type == "Concat" and nodes.is_standard(node):
        rank = match.rank(indices)
        match.require(
            nodes.int_attribute(node, "axis", 0) % rank == rank - 1, "the indices are joined along another axis"
        )
        return [one for value in node.inputs if value is not None for one in _columns(match, value)]
    grid = _grid(match, indices)
    match.require(grid.ndim > 0, "the indices are a number")
    return [grid[..., number] for number in range(grid.shape[-1])]


def _grid(match: Match, value: ir.Value) -> np.ndarray:
    """The numbers of a value that is constant, or of one with dims that were added and repeated, or of a Range."""
    node = value.producer()
    if node is None or not nodes.is_standard(node):
        return match.array(value)
    if node.op_type == "ConstantOfShape":
        shape = match.static_shape(value)
        return np.broadcast_to(match.array(value).reshape(-1)[:1].reshape([1] * len(shape)), shape)
    if node.op_type in COMPUTED:
        size = math.prod(match.static_shape(value))
        match.require(size <= LONGEST, "the indices are too many to look through")
        given = [None if one is None else _grid(match, one) for one in node.inputs]
        found = evaluate(node, given, match.facts.opset(node))
        match.require(found is not None, "the indices cannot be computed here")
        assert found is not None, "it was required"
        return found[0]
    if node.op_type not in ("Expand", "Unsqueeze"):
        return match.array(value)
    inner = _grid(match, nodes.given_input(node))
    if node.op_type == "Expand":
        return np.broadcast_to(inner, dims.static(match.shape(value)) or inner.shape)
    axes = match.parameter(node, "axes") or ()
    return np.expand_dims(inner, tuple(axes))


RULES: tuple[Rule, ...] = (scatter_to_box,)
