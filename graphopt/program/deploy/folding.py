"""Constants of a program, computed once: nodes that read nothing but constants are gone before a model is cut.

    Transpose(weights) -> MatMul(x, .)      -->   MatMul(x, constant)
    DequantizeLinear(table) -> Gather(., i) -->   Gather(constant, i)

The passes leave such nodes where a file would grow; a program would compute them in every call. What stays: nodes that
draw numbers, nodes with subgraphs, results far larger than what they are made of, and for a program of parts the
weights of a product whose activations are dequantized too, which ONNX Runtime computes in integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.evaluate import evaluate
from graphopt.model.facts import Facts
from graphopt.model.purity import is_pure
from graphopt.model.short import SHORT, WidenedTensor

GROWTH = 8  # times the bytes that are read: weights of 4 bits become f32
SMALL = 1 << 20  # bytes that a result may always have
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})


def fold_constants(model: ir.Model, *, whole: bool) -> ir.Model:
    """A model without them, which shares its other tensors with `model`; the same one where there are none.

    `whole`: kernels shall compute all of it, and none of its products in integers.
    """
    facts = Facts(model)
    if not any(_folds(facts, model, node, whole=whole) for node in model.graph):
        return model
    copy = model.clone()
    facts = Facts(copy)
    nodes_now = tuple(copy.graph)
    folded = [one for one in nodes_now if _folds(facts, copy, one, whole=whole) and _fold(copy.graph, facts, one)]
    return copy if folded else model


def reads_only_constants(facts: Facts, node: ir.Node) -> bool:
    """Whether a node has operands, and all of them are constants."""
    given = [value for value in node.inputs if value is not None]
    return bool(given) and all(facts.is_constant(value) for value in given) and not nodes.subgraphs(node)


def _folds(facts: Facts, model: ir.Model, node: ir.Node, *, whole: bool) -> bool:
    if not reads_only_constants(facts, node) or nodes.has_reference_attributes(node):
        return False
    if not is_pure(node, model.functions, facts.opset(node)) or node.op_identifier() in model.functions:
        return False
    if all(facts.array(value) is not None for value in node.outputs):
        return False  # a splat, which takes no memory as it is
    readers = [use.node for value in node.outputs for use in value.uses()]
    in_integers = node.op_type == "DequantizeLinear" and any(_computes_in_integers(facts, one) for one in readers)
    if in_integers and not whole:
        return False
    return _bytes(facts, node.outputs) <= max(SMALL, GROWTH * _bytes(facts, node.inputs))


def _computes_in_integers(facts: Facts, node: ir.Node) -> bool:
    """Whether a product has another operand that is dequantized as well, and no constant."""
    if node.op_type not in PRODUCTS:
        return False
    producers = [value.producer() for value in node.inputs if value is not None and not facts.is_constant(value)]
    return any(
        one is not None and one.op_type == "DequantizeLinear" and not reads_only_constants(facts, one)
        for one in producers
    )


def _bytes(facts: Facts, values: Iterable[ir.Value | None]) -> float:
    """Of all tensors together; infinite where a size is not known."""
    total = 0.0
    for value in values:
        if value is None or not value.name:
            continue
        shape, kind = facts.static_shape(value), facts.dtype(value)
        if shape is None or kind is None:
            return float("inf")
        total += prod(shape) * kind.itemsize
    return total


def _fold(graph: ir.Graph, facts: Facts, node: ir.Node) -> bool:
    """Put initializers in the place of a node's results; it stays, and that is false, where nothing can compute it."""
    widened = _widened(facts, node)
    if widened is not None:
        _replace(graph, node.outputs[0], widened)
        _remove(graph, node)
        return True
    operands = [None if value is None else facts.array(value) for value in node.inputs]
    results = evaluate(node, operands, facts.opset(node))
    if results is None:
        return False
    for old, array in zip(node.outputs, results, strict=True):
        if not nodes.is_used(old):
            continue
        kind = facts.dtype(old)
        assert kind is not None, "its bytes have been counted"
        _replace(graph, old, ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=kind, name=old.name))
    _remove(graph, node)
    return True


def _remove(graph: ir.Graph, node: ir.Node) -> None:
    """Take a node out, and initializers that it alone has read."""
    given = [value for value in node.inputs if value is not None]
    graph.remove(node, safe=True)
    for value in given:
        is_free = not value.uses() and not value.is_graph_input() and not value.is_graph_output()
        if is_free and graph.initializers.get(value.name or "") is value:
            del graph.initializers[value.name or ""]


def _widened(facts: Facts, node: ir.Node) -> ir.TensorProtocol | None:
    """The result of a cast of short floats to float32, which remembers them."""
    if node.op_type != "Cast" or not nodes.is_standard(node) or node.inputs[0] is None:
        return None
    tensor = facts.tensor(node.inputs[0])
    if tensor is None or tensor.dtype not in SHORT or facts.dtype(node.outputs[0]) is not ir.DataType.FLOAT:
        return None
    return WidenedTensor(tensor, node.outputs[0].name)


def _replace(graph: ir.Graph, old: ir.Value, tensor: ir.TensorProtocol) -> None:
    """An initializer in the place of a value."""
    shape = ir.Shape(tensor.shape.numpy())
    new = ir.Value(name=old.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    old.name = f"{old.name}:computed"
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
    graph.register_initializer(new)
