"""Batch normalisations as a product and a sum, which join whatever is beside them.

BatchNormalization(x, scale, bias, mean, variance)   -->   x * a + b
a = scale / sqrt(variance + epsilon), b = bias - mean * a, both of dims (channels, 1, ...)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import float_attribute, int_attribute, is_used, required_input


def without_batch_norm(model: ir.Model) -> ir.Model:
    """A model without those whose statistics are constants; the others have a kernel of their own."""
    if not any(_is_one(node) for node in model.graph):
        return model
    copy = model.clone()
    facts = Facts(copy)
    for node in tuple(copy.graph):
        if _is_one(node):
            _replace(copy.graph, facts, node)
    return copy


def _is_one(node: ir.Node) -> bool:
    return node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx")


def _replace(graph: ir.Graph, facts: Facts, node: ir.Node) -> None:
    name = node.name or node.outputs[0].name
    arrays = [facts.array(required_input(node, position)) for position in range(1, 5)]
    source, rank = required_input(node, 0), facts.rank(required_input(node, 0))
    kind = facts.dtype(source)
    trains = int_attribute(node, "training_mode", 0) or any(map(is_used, node.outputs[1:]))
    if trains or rank is None or kind is None or any(array is None for array in arrays):
        return
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + float_attribute(node, "epsilon", 1e-5))
    dims = (-1,) + (1,) * (rank - 2)
    constants = []
    for part, numbers in (("factor", factor), ("summand", bias - mean * factor)):
        array = numbers.reshape(dims).astype(kind.numpy())
        tensor = ir.tensor(array, name=f"{node.outputs[0].name}:{part}")
        value = ir.Value(name=tensor.name, type=ir.TensorType(kind), shape=ir.Shape(array.shape), const_value=tensor)
        graph.register_initializer(value)
        constants.append(value)
    product = ir.node("Mul", [source, constants[0]], name=f"{name}:product")
    total = ir.node("Add", [product.outputs[0], constants[1]], name=name)
    product.outputs[0].name = f"{node.outputs[0].name}:product"
    old, new = node.outputs[0], total.outputs[0]
    new.name, new.type, new.shape = old.name, old.type, old.shape
    graph.insert_before(node, [product, total])
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
    graph.remove(node, safe=True)
