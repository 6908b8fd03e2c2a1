"""Reductions over axes, ArgMax, TopK, running sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes
from graphopt.model.known import Knowledge, Known
from graphopt.model.operators import arrays
from graphopt.model.operators.arrays import Arrays
from graphopt.model.operators.axes import Axes, counted, named_axis, rank_of
from graphopt.model.operators.gradients import elementwise
from graphopt.model.operators.gradients import reductions as gradients
from graphopt.model.operators.gradients.backward import GradientRule
from graphopt.model.operators.parameters import AXES, REDUCED, Parameter, numbers_at, parameter
from graphopt.model.operators.record import Operator, per_operand_element
from graphopt.model.operators.shapes import Result, first_type, same_as_first, source_shape


def _axes_of(kind: str) -> Parameter:
    return AXES if kind == "ReduceSum" else REDUCED


def _reduced_axes(node: ir.Node, facts: Knowledge) -> Axes:
    rank = rank_of(facts, node)
    place = _axes_of(node.op_type)
    listed = parameter(facts, node, "axes", place)
    gone = not nodes.int_attribute(node, "keepdims", 1)
    if listed:
        names = counted(listed, rank)
        return Axes(rank, frozenset(names), names, "axes", gone=gone)
    if place.is_input(facts.opset(node)) and nodes.int_attribute(node, "noop_with_empty_axes", 0):
        return Axes(rank, frozenset())
    return Axes(rank, frozenset(range(rank)), gone=gone)


def _extreme_axes(node: ir.Node, facts: Knowledge) -> Axes:
    """ArgMax<axis, keepdims>(x)"""
    rank = rank_of(facts, node)
    names = counted([nodes.int_attribute(node, "axis", 0)], rank)
    return Axes(rank, frozenset(names), names, "axis", gone=not nodes.int_attribute(node, "keepdims", 1))


def _running_axes(node: ir.Node, facts: Knowledge) -> Axes:
    """CumSum(x, axis)"""
    rank = rank_of(facts, node)
    names = counted(numbers_at(facts, node, 1, "the axis")[:1], rank)
    return Axes(rank, frozenset(names), names, "axis")


def _of_dims(fold: Callable[[list[dims.Dim]], dims.Dim]) -> arrays.Evaluator:
    """A reduction of a vector of dims to one."""

    def reduced(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
        if inputs[0] is None or inputs[0].ndim != 1 or arrays.axes(node, inputs, opset, 18) not in (None, (0,), (-1,)):
            return None
        result = np.empty((1,) if nodes.int_attribute(node, "keepdims", 1) else (), dtype=object)
        result[...] = fold(inputs[0].tolist())
        return result

    return reduced


def _top_dims(node: ir.Node, facts: Knowledge) -> Result:
    """k elements along the axis, and their places."""
    source = source_shape(node, facts)
    count = nodes.input_at(node, 1)  # absent in an old form, whose count is an attribute
    if source is None or len(node.outputs) != 2 or count is None:
        return None
    held = facts.content(count)
    axis, shape = nodes.int_attribute(node, "axis", -1), list(source)
    if held is None or held.size != 1 or not -len(shape) <= axis < len(shape):
        return None
    shape[axis] = held.reshape(-1)[0]
    places = Known(ir.TensorType(ir.DataType.INT64), tuple(shape), None)
    return (Known(first_type(node, facts), tuple(shape), None), places)


def _reduction(
    name: str, gradient: GradientRule, content: arrays.Evaluator | None = None, *, not_negative: bool = False
) -> Operator:
    return Operator(
        name=name, flops=per_operand_element, axes=_reduced_axes, parameters={"axes": _axes_of(name)}, content=content,
        epilogue=True, not_negative=not_negative, gradient=gradient,
    )  # fmt: skip


REDUCTIONS = (
    _reduction("ReduceSum", gradients.total),
    _reduction("ReduceMean", gradients.average),
    _reduction("ReduceMax", gradients.extreme, _of_dims(lambda items: dims.normal(sympy.Max(*items)))),
    _reduction("ReduceMin", gradients.extreme, _of_dims(lambda items: dims.normal(sympy.Min(*items)))),
    _reduction("ReduceProd", gradients.product, _of_dims(dims.product)),
    _reduction("ReduceL1", gradients.absolute, not_negative=True),
    _reduction("ReduceL2", gradients.length, not_negative=True),
    _reduction("ReduceLogSum", gradients.log_sum),
    _reduction("ReduceLogSumExp", gradients.log_sum_exp),
    _reduction("ReduceSumSquare", gradients.sum_of_squares, not_negative=True),
)
OPERATORS = (
    *REDUCTIONS,
    Operator(
        name="ArgMax", flops=per_operand_element, axes=_extreme_axes, epilogue=True, gradient=elementwise.nothing
    ),
    Operator(
        name="ArgMin", flops=per_operand_element, axes=_extreme_axes, epilogue=True, gradient=elementwise.nothing
    ),
    Operator(name="TopK", shape=_top_dims, flops=per_operand_element, axes=named_axis(-1), gradient=gradients.largest),
    Operator(
        name="CumSum", shape=same_as_first, flops=per_operand_element, axes=_running_axes,
        parameters={"axis": Parameter(11, 1, scalar=True)}, gradient=gradients.running_sum,
    ),
    Operator(
        name="CumProd", shape=same_as_first, flops=per_operand_element,
        parameters={"axis": Parameter(26, 1, scalar=True)}, gradient=gradients.running_product,
    ),
)  # fmt: skip
