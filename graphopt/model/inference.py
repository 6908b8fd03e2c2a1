"""Inference of one node: by the rule of its operator for what computes with symbolic dims, else by its ONNX schema."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.model import content, nodes, schema
from graphopt.model.known import Knowledge, Known
from graphopt.model.operators.counting import true_ones
from graphopt.model.operators.record import Operator
from graphopt.model.operators.sources import described, filler
from graphopt.model.operators.table import operator_of


def infer_node(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """What follows for each output of `node` from what is known of its inputs."""
    operator = operator_of(node)
    foreign = not nodes.is_standard(node) or node.op_identifier() in facts.functions
    rule = None if operator is None or (foreign and not operator.domain) else operator.shape
    reads_attributes = not nodes.has_reference_attributes(node)
    results = rule(node, facts) if rule is not None and (reads_attributes or foreign) else None
    if results is None:
        if foreign:
            return _of_foreign(node, facts)
        results = schema.infer(node, facts)
    if not foreign and reads_attributes and operator is not None and _may_hold_dims(results[0], node, facts):
        shape = results[0].shape
        held = _content(operator, node, facts, None if shape is None else len(shape))
        if held is not None:
            first = results[0]
            shape = first.shape if first.shape is not None else held.shape
            results = (Known(first.type, shape, held), *results[1:])
        if operator.storage == "pieces":
            results = _pieces(node, results, facts)
    return results


def _of_foreign(node: ir.Node, facts: Knowledge) -> tuple[Known, ...]:
    """By the schema where ONNX has one for the operator (ai.onnx.ml), else what the file declares."""
    declared = tuple(facts.declared(output) for output in node.outputs)
    if node.op_identifier() in facts.functions or not onnx.defs.has(node.op_type, node.domain):
        return declared
    found = schema.infer(node, facts)
    pairs = zip(found, declared, strict=True)
    return tuple(one if one.shape is not None or other.type is None else other for one, other in pairs)


def _pieces(node: ir.Node, results: tuple[Known, ...], facts: Knowledge) -> tuple[Known, ...]:
    """The results of a Split with the parts of its operand's content, where that and all sizes are known."""
    first = nodes.input_at(node, 0)
    held = None if first is None else facts.content(first)
    axis = nodes.int_attribute(node, "axis", 0)
    if held is None or not -held.ndim <= axis < held.ndim:
        return results
    sizes = [None if known.shape is None else known.shape[axis] for known in results]
    ends = [sum(size for size in sizes[: end + 1] if isinstance(size, int)) for end in range(len(sizes))]
    if not all(isinstance(size, int) for size in sizes) or ends[-1] != held.shape[axis]:
        return results
    parts = np.split(held, ends[:-1], axis)
    return tuple(Known(known.type, known.shape, part) for known, part in zip(results, parts, strict=True))


def _may_hold_dims(first: Known, node: ir.Node, facts: Knowledge) -> bool:
    if first.dtype in content.REAL_TYPES:  # those that are computed from dims alone
        source = nodes.input_at(node, 0)
        if source is None or facts.content(source) is None:
            return False
    elif first.dtype not in content.INTEGER_TYPES:
        return False
    return first.shape is None or len(first.shape) <= content.MAX_RANK


def _content(operator: Operator, node: ir.Node, facts: Knowledge, rank: int | None) -> content.Content | None:
    """What the first output, which has this rank, holds, None when that is not known."""
    if node.op_type == "Constant":
        tensor = facts.tensor(node.outputs[0])
        return None if tensor is None or tensor.size > content.MAX_ELEMENTS else content.of_array(tensor.numpy())
    first = nodes.input_at(node, 0)
    if node.op_type == "ConstantOfShape":
        shape = facts.ints(first)
        if shape is None or math.prod(shape) > content.MAX_ELEMENTS:
            return None
        return content.of_array(np.full(shape, filler(node).item()))
    if operator.storage == "dims":
        known = None if first is None else facts.shape(first)
        return None if known is None else described(node, known)
    if node.op_type == "ReduceSum" and rank is not None:
        count = true_ones(node, facts)
        return None if count is None else content.of_dims((count,)).reshape((1,) * rank)
    if operator.content is None:
        return None
    operands = [None if value is None else facts.held(value) for value in node.inputs]
    if any(value is not None and held is None for value, held in zip(node.inputs, operands, strict=True)):
        return None
    try:
        result = operator.content(node, operands, facts.opset(node))
    except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None  # an element that this algebra cannot express; the operator itself is not at fault
    if result is None or result.size > content.MAX_ELEMENTS or result.ndim > content.MAX_RANK:
        return None
    return result
