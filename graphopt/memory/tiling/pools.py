"""Reductions over several axes in two steps, so that a region in tiles may end in a global pool.

    GlobalAveragePool(x)       -->  GlobalAveragePool(ReduceMean(x, last axis))
    ReduceMean(x, axes [2, 3]) -->  ReduceMean(ReduceMean(x, axis 3), axes [2, 3])

The first step has a result for each row: tiles of rows compute it, and what they join is small. Sums are in another
order, so that this is for programs, whose results are compared within a tolerance. Left alone: reductions over one axis
or over axes of one element, which have nothing to gain, and those whose sizes or axes are not known.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.operators.axes import Axes
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.table import operator_of
from memplan.lifetimes import free_name

REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
FIRST_STEPS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"} | {one: one for one in REDUCTIONS}
AXES_AS_OPERAND = {"ReduceSum": 13}  # the opset from which on a reduction reads its axes
USUAL_AXES_AS_OPERAND = 18


def with_pools_in_steps(model: ir.Model) -> ir.Model:
    """A copy of the model with such reductions in two steps; the same model where it has none."""
    facts = Facts(model)
    if all(_row_axis(facts, node) is None for node in model.graph):
        return model
    copy = model.clone()
    graph, facts = copy.graph, Facts(copy)
    names = {value.name or "" for node in graph for value in node.outputs} | set(graph.initializers)
    names.update(value.name or "" for value in graph.inputs)
    for node in tuple(graph):
        axis = _row_axis(facts, node)
        if axis is None:
            continue
        x = node.inputs[0]
        assert x is not None, "a reduction has an operand"
        shape = facts.static_shape(x)
        assert shape is not None, "it was looked at"
        operator = FIRST_STEPS[node.op_type]
        operands, attributes = [x], [ir.AttrInt64("keepdims", 1)]
        name = free_name(f"{node.outputs[0].name}_rows", names)
        names.add(name)
        if facts.opset(node) >= AXES_AS_OPERAND.get(operator, USUAL_AXES_AS_OPERAND):
            axes = free_name(f"{name}_axes", names)
            names.add(axes)
            held = ir.Tensor(np.array([axis], np.int64), name=axes)
            operands.append(ir.Value(name=axes, shape=ir.Shape([1]), type=ir.TensorType(held.dtype), const_value=held))
            graph.register_initializer(operands[1])
        else:
            attributes.append(ir.AttrInt64s("axes", [axis]))
        rows = ir.Node("", operator, operands, attributes, name=name)
        rows.outputs[0].name, rows.outputs[0].type = name, x.type
        rows.outputs[0].shape = ir.Shape([1 if at == axis else size for at, size in enumerate(shape)])
        graph.insert_before(node, rows)
        node.replace_input_with(0, rows.outputs[0])
    return copy


def _row_axis(facts: Facts, node: ir.Node) -> int | None:
    """The last of several axes that a node reduces over; None where it is no such reduction."""
    if node.domain or node.op_type not in FIRST_STEPS or node.inputs[0] is None:
        return None
    operator, shape = operator_of(node), facts.static_shape(node.inputs[0])
    if operator is None or shape is None or operator.axes is None or isinstance(operator.axes, str):
        return None
    try:
        axes: Axes = operator.axes(node, facts)
    except Unclear:
        return None
    bound = sorted(axis for axis in axes.bound if shape[axis] > 1)
    return bound[-1] if len(bound) > 1 else None
