"""Operators of which data decides how much they give: NonZero, Compress, Unique, NonMaxSuppression."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.known import Knowledge, Known
from graphopt.model.operators.gradients.indexing import selected
from graphopt.model.operators.record import Counting, Operator, no_flops
from graphopt.model.operators.shapes import Result, source_shape

_INTEGERS = ir.TensorType(ir.DataType.INT64)


def _non_zero_dims(node: ir.Node, facts: Knowledge) -> Result:
    source = source_shape(node, facts)
    return None if source is None else (Known(_INTEGERS, (max(len(source), 1), facts.fresh()), None),)


def _non_zero(node: ir.Node, facts: Knowledge) -> tuple[Counting, ...]:
    source = source_shape(node, facts)
    return () if source is None else (Counting((1,), dims.product(source)),)


def _axis(node: ir.Node, source: dims.Dims) -> int | None:
    """The axis of Compress or Unique; None where elements are counted, not slices."""
    return nodes.int_attribute(node, "axis", 0) % max(len(source), 1) if "axis" in node.attributes else None


def _first_dims(node: ir.Node, source: dims.Dims, count: dims.Dim) -> dims.Dims:
    axis = _axis(node, source)
    return (count,) if axis is None else (*source[:axis], count, *source[axis + 1 :])


def _compressed_dims(node: ir.Node, facts: Knowledge) -> Result:
    source = source_shape(node, facts)
    if source is None or node.inputs[0] is None:
        return None
    return (Known(facts.known(node.inputs[0]).type, _first_dims(node, source, facts.fresh()), None),)


def _along(node: ir.Node, source: dims.Dims) -> dims.Dim:
    """How many elements or slices there are."""
    axis = _axis(node, source)
    return dims.product(source) if axis is None else source[axis]


def _compressed(node: ir.Node, facts: Knowledge) -> tuple[Counting, ...]:
    source = source_shape(node, facts)
    return () if source is None else (Counting((_axis(node, source) or 0,), _along(node, source)),)


def _unique_dims(node: ir.Node, facts: Knowledge) -> Result:
    source = source_shape(node, facts)
    if source is None or node.inputs[0] is None:
        return None
    count = facts.fresh()
    known = Known(facts.known(node.inputs[0]).type, _first_dims(node, source, count), None)
    others = ((count,), (_along(node, source),), (count,))
    return (known, *(Known(_INTEGERS, shape, None) for shape in others[: len(node.outputs) - 1]))


def _unique(node: ir.Node, facts: Knowledge) -> tuple[Counting, ...]:
    source = source_shape(node, facts)
    if source is None:
        return ()
    return (Counting((_axis(node, source) or 0, 0, None, 0)[: len(node.outputs)], _along(node, source)),)


def _suppressed_dims(node: ir.Node, facts: Knowledge) -> Result:
    return (Known(_INTEGERS, (facts.fresh(), 3), None),)


def _suppressed(node: ir.Node, facts: Knowledge) -> tuple[Counting, ...]:
    """Of each class at most all boxes, or as many as are wanted."""
    scores = None if node.inputs[1] is None else facts.shape(node.inputs[1])
    if scores is None or len(scores) != 3:
        return ()
    wanted = facts.ints(nodes.input_at(node, 2))
    each = scores[2]
    if wanted and isinstance(each, int):
        each = min(each, max(wanted[0], 0))
    return (Counting((0,), dims.product((scores[0], scores[1], each))),)


def true_ones(node: ir.Node, facts: Knowledge) -> dims.Dim | None:
    """How many elements of a mask are true, as a sum of all of them gives: what NonZero of the mask finds.

    ReduceSum(Cast(mask)), NonZero(mask) [2, n]   -->   n
    """
    cast = node.inputs[0].producer() if node.inputs[0] is not None else None
    if cast is None or cast.op_type != "Cast" or cast.domain or not _sums_all(node, facts):
        return None
    mask = cast.inputs[0]
    if mask is None or facts.dtype(mask) is not ir.DataType.BOOL:
        return None
    while (shown := mask.producer()) is not None and shown.op_type in _SAME_ELEMENTS and not shown.domain:
        if shown.inputs[0] is None:
            return None
        mask = shown.inputs[0]
    for user in mask.consumers():
        found = facts.shape(user.outputs[0]) if user.op_type == "NonZero" and not user.domain else None
        if found is not None:
            return found[1]
    return None


def _sums_all(node: ir.Node, facts: Knowledge) -> bool:
    """Whether a ReduceSum has no axes left."""
    axes = nodes.input_at(node, 1)
    shape = facts.shape(node.inputs[0]) if node.inputs[0] is not None else None
    rank = len(shape or ())
    asked = facts.ints(axes) if axes is not None else nodes.ints_attribute(node, "axes", ())
    if asked:
        return rank > 0 and len({axis % rank for axis in asked}) == rank
    return asked is not None and not nodes.int_attribute(node, "noop_with_empty_axes", 0)


_SAME_ELEMENTS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
OPERATORS = (
    Operator(name="NonZero", shape=_non_zero_dims, counted=_non_zero, flops=no_flops),
    Operator(name="Compress", shape=_compressed_dims, counted=_compressed, flops=no_flops, gradient=selected),
    Operator(name="Unique", shape=_unique_dims, counted=_unique, flops=no_flops),
    Operator(name="NonMaxSuppression", shape=_suppressed_dims, counted=_suppressed),
)  # fmt: skip
