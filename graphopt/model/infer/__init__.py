"""Shape inference of one node: our own for what computes with symbolic dims, the ONNX schemas' for the rest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from graphopt.model import content, nodes
from graphopt.model.infer import schema, symbolic
from graphopt.model.infer.known import Known

if TYPE_CHECKING:
    from graphopt.model.facts import Facts


def infer_node(node: ir.Node, facts: Facts) -> tuple[Known, ...]:
    """What follows for each output of `node` from what is known of its inputs."""
    if not nodes.is_standard(node) or node.op_identifier() in facts.functions:
        if (node.domain, node.op_type) in schema.ELEMENTWISE_LIKE:
            return tuple(facts.known(node.inputs[0]) for _ in node.outputs)  # type: ignore[arg-type]
        return tuple(facts.declared(output) for output in node.outputs)
    results = None
    reads_attributes = not nodes.has_reference_attributes(node)
    if reads_attributes:
        results = symbolic.infer(node, facts)
    if results is None:
        results = schema.infer(node, facts)
    if reads_attributes and _may_hold_dims(results[0]):
        opset = facts.opset(node)
        operands = [None if value is None else facts.content(value) for value in node.inputs]
        if node.op_type in ("Shape", "Size"):
            held = symbolic.shape_content(node, facts, opset)
        elif node.op_type in ("Constant", "ConstantOfShape"):
            held = _constant_content(node, facts)
        else:
            held = content.propagate(node, operands, opset)
        if held is not None:
            first = results[0]
            shape = first.shape if first.shape is not None else held.shape
            results = (Known(first.type, shape, held), *results[1:])
    return results


def _constant_content(node: ir.Node, facts: Facts) -> content.Content | None:
    if node.op_type == "Constant":
        tensor = facts.tensor(node.outputs[0])
        return None if tensor is None or tensor.size > content.MAX_ELEMENTS else content.of_array(tensor.numpy())
    shape = None if node.inputs[0] is None else facts.ints(node.inputs[0])
    if shape is None or math.prod(shape) > content.MAX_ELEMENTS:
        return None
    return content.of_array(np.full(shape, node.attributes["value"].as_tensor().numpy().item()))


def _may_hold_dims(first: Known) -> bool:
    if first.dtype not in content.INTEGER_TYPES:
        return False
    return first.shape is None or len(first.shape) <= 2
