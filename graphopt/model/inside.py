"""Tensors that a model refers to in files beside it, brought into memory."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes


def bring_inside(model: ir.Model, most: int | None = None) -> None:
    """Read external initializers of at most `most` bytes (None: all), and all external tensors of attributes."""
    for graph in nodes.graphs_of(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and (most is None or tensor.nbytes <= most):
                value.const_value = _inside(tensor)
        for node in graph:
            for attribute in list(node.attributes.values()):
                node.attributes[attribute.name] = attribute_inside(attribute)


def attribute_inside(attribute: ir.Attr) -> ir.Attr:
    """The attribute with the data of its tensors in memory."""
    if attribute.is_ref():
        return attribute
    if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.as_tensor(), ir.ExternalTensor):
        return ir.AttrTensor(attribute.name, _inside(attribute.as_tensor()))
    if attribute.type == ir.AttributeType.TENSORS:
        return ir.AttrTensors(attribute.name, [_inside(tensor) for tensor in attribute.as_tensors()])
    return attribute


def _inside(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor with a copy of its data: the file may be replaced, and its map stays as open as it is."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)
