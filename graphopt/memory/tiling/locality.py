"""What of its operands a node needs for a range of its result along one axis.

An elementwise operator needs the same range, a convolution a range with a halo, a matrix product the rows of its first
operand and all of the second: the records of model/operators say so. An operator that needs all of every operand for
any element, or that treats the axis as more than positions side by side, has no part.
"""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.axes import Axes
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.parts import Part, Range, Wanted
from graphopt.model.operators.table import operator_of


class SteadyFacts(Facts):
    """The knowledge about a model that stays as it is: parts of its nodes and numbers of its dims are found once."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model)
        self.parts: dict[tuple[ir.Node, Range], Part | None] = {}
        self._shapes: dict[ir.Value, tuple[int, ...] | None] = {}

    def static_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The dims as integers, None unless all are known."""
        if value not in self._shapes:
            self._shapes[value] = super().static_shape(value)
        return self._shapes[value]


def part(facts: Facts, node: ir.Node, reach: Range) -> Part | None:
    """The part of `node` that makes the range of its outputs; None where there is none, or sizes are unknown.

    Axes are counted from 0. All outputs that are used have the range along the same axis.
    """
    if not isinstance(facts, SteadyFacts):
        return _part(facts, node, reach)
    if (node, reach) not in facts.parts:
        facts.parts[node, reach] = _part(facts, node, reach)
    return facts.parts[node, reach]


def _part(facts: Facts, node: ir.Node, reach: Range) -> Part | None:
    operator = operator_of(node)
    if operator is None or operator.domain or nodes.has_reference_attributes(node) or not facts.is_pure(node):
        return None
    used = nodes.used_outputs(node)
    if not used or (operator.storage != "pieces" and any(value is not node.outputs[0] for value in used)):
        return None
    shapes = [None if value is None else facts.static_shape(value) for value in node.inputs]
    result = facts.static_shape(used[0])
    known = all(shape is not None for value, shape in zip(node.inputs, shapes, strict=True) if value is not None)
    if result is None or not known or reach.axis >= len(result):
        return None
    wanted = Wanted(facts, node, tuple(shape or () for shape in shapes), result, reach)
    if operator.part is not None:
        return operator.part(wanted)
    if operator.axes is None or operator.axes == "symmetric":
        return None
    if isinstance(operator.axes, str):
        return Part(tuple(wanted.broadcast(shape) for shape in wanted.shapes), reach[1:])
    if _least_results(node.op_type, facts.opset(node)) > len(used):
        return None  # a tile has no other results than those that are read
    try:
        return _along(wanted, operator.axes(node, facts))
    except Unclear:
        return None


@cache
def _least_results(operator: str, opset: int) -> int:
    """How many results an operator has at least; asking ONNX takes longer than all else here."""
    return onnx.defs.get_schema(operator, opset).min_output


def _along(wanted: Wanted, axes: Axes) -> Part | None:
    """The same range of every operand that has the axes, all of the others; None along a bound axis."""
    left = [axis for axis in range(axes.rank) if not (axes.gone and axis in axes.bound)]
    if len(left) != len(wanted.result) or left[wanted.axis] in axes.bound:
        return None
    alike, result = wanted.shapes[: axes.operands], wanted.result[wanted.axis]
    if any(len(shape) != axes.rank or shape[left[wanted.axis]] != result for shape in alike):
        return None  # as the indices of a GatherElements, which may be fewer than the data
    source = Range(left[wanted.axis], *wanted.range[1:])
    return Part((source,) * len(alike) + (None,) * (len(wanted.shapes) - len(alike)), wanted.range[1:])
