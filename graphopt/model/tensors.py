"""Every tensor that a model stores, in initializers and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from graphopt.model import nodes

Replacement = Callable[[ir.ExternalTensor], ir.TensorProtocol]


def tensors_of(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The tensors of all graphs and functions; none is read from disk."""
    for graph in nodes.graphs_of(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    yield tensor_of(attribute)
                elif attribute.type == ir.AttributeType.TENSORS:
                    yield from attribute.as_tensors()


def tensor_of(attribute: ir.Attr) -> ir.TensorProtocol:
    """The tensor of an attribute; what has a tensor's type is not looked through for each name of one, as usual."""
    found: ir.TensorProtocol = attribute.value if attribute.type == ir.AttributeType.TENSOR else attribute.as_tensor()
    return found


def replace_external(model: ir.Model, initializer: Replacement, constant: Replacement) -> None:
    """Put others in place of external tensors, of initializers by `initializer`, of attributes by `constant`."""
    for graph in nodes.graphs_of(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = initializer(value.const_value)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                replaced = with_external_replaced(attribute, constant)
                if replaced is not attribute:
                    node.attributes[name] = replaced


def with_external_replaced(attribute: ir.Attr, constant: Replacement) -> ir.Attr:
    """The attribute with others in place of its external tensors; itself when it has none."""
    if attribute.is_ref():
        return attribute
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = tensor_of(attribute)
        if isinstance(tensor, ir.ExternalTensor):
            return ir.AttrTensor(attribute.name, constant(tensor))
    elif attribute.type == ir.AttributeType.TENSORS:
        tensors = attribute.as_tensors()
        if any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors):
            made = [constant(one) if isinstance(one, ir.ExternalTensor) else one for one in tensors]
            return ir.AttrTensors(attribute.name, made)
    return attribute
