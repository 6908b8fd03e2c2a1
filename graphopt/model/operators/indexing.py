"""Operators that read or write where indices say: Gather, Scatter and their kind."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators import arrays
from graphopt.model.operators.arrays import Arrays
from graphopt.model.operators.axes import Axes, counted, named_axis, rank_of
from graphopt.model.operators.gradients import indexing as gradients
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.parts import Part, Range, Wanted
from graphopt.model.operators.record import Operator, mover, no_flops
from graphopt.model.operators.shapes import same_as_first


def _gathered_axes(node: ir.Node, facts: Knowledge) -> Axes:
    """Gather<axis>(x, indices), the indices a number or a vector."""
    rank, indices = rank_of(facts, node), rank_of(facts, node, 1)
    if indices > 1:
        raise Unclear("its indices have several axes")
    names = counted([nodes.int_attribute(node, "axis", 0)], rank)
    return Axes(rank, frozenset(names), names, "axis", gone=indices == 0)


def _gather(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    data, indices = arrays.present(*inputs)
    axis = nodes.int_attribute(node, "axis", 0)
    indices = indices.astype(np.int64)
    if indices.size and (indices.max() >= data.shape[axis] or indices.min() < -data.shape[axis]):
        return None
    if indices.size * data.size > arrays.MOST * data.shape[axis] and indices.size > data.shape[axis]:
        return None
    return np.asarray(np.take(data, indices, axis=axis), data.dtype)


def _gathered_part(wanted: Wanted) -> Part | None:
    """A range of the indices, of all the data."""
    axis = nodes.int_attribute(wanted.node, "axis", 0) % len(wanted.shapes[0])
    at = wanted.axis - axis
    if not 0 <= at < len(wanted.shapes[1]):
        return None
    return Part((None, Range(at, *wanted.range[1:])), wanted.range[1:])


OPERATORS = (
    mover(
        name="Gather", evaluate=_gather, content=_gather, reads="selected", axes=_gathered_axes,
        part=_gathered_part, gradient=gradients.gathered,
    ),
    mover(
        name="GatherElements", reads="selected", axes=named_axis(0, operands=2), gradient=gradients.gathered_elements,
    ),
    mover(name="GatherND", reads="selected", gradient=gradients.gathered_slices),
    Operator(
        name="ScatterElements", shape=same_as_first, flops=no_flops, axes=named_axis(0, operands=3),
        gradient=gradients.scattered_elements,
    ),
    Operator(name="ScatterND", shape=same_as_first, flops=no_flops, gradient=gradients.scattered_slices),
    Operator(name="Scatter", shape=same_as_first, flops=no_flops),
    Operator(name="OneHot", flops=no_flops, gradient=gradients.one_hot),
    Operator(name="TensorScatter", flops=no_flops, gradient=gradients.cached),
)  # fmt: skip
