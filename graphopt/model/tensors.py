"""Every tensor that a model stores, in initializers and attributes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from graphopt.model import nodes


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
                    yield attribute.as_tensor()
                elif attribute.type == ir.AttributeType.TENSORS:
                    yield from attribute.as_tensors()
