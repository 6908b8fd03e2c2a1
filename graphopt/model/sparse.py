"""Sparse tensors become dense ones at the door: onnx_ir does not read them, and a dense one means the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx


def without_sparse_tensors(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself where it has no sparse tensor, else a copy with dense initializers and Constants."""
    if not any(_has_sparse(nodes, graph) for nodes, graph in _bodies(proto)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for nodes, graph in _bodies(copy):
        if graph is not None:
            graph.initializer.extend(_dense(sparse, sparse.values.name) for sparse in graph.sparse_initializer)
            graph.ClearField("sparse_initializer")
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                    tensor = _dense(attribute.sparse_tensor, "")
                    attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    return copy


Body = tuple[Iterable[onnx.NodeProto], onnx.GraphProto | None]  # no graph: the body of a function


def _bodies(proto: onnx.ModelProto) -> Iterator[Body]:
    pending: list[Body] = [(proto.graph.node, proto.graph)]
    pending.extend((function.node, None) for function in proto.functions)
    while pending:
        nodes, graph = pending.pop()
        yield nodes, graph
        for node in nodes:
            for attribute in node.attribute:
                inner = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
                pending.extend((held.node, held) for held in inner)


def _has_sparse(nodes: Iterable[onnx.NodeProto], graph: onnx.GraphProto | None) -> bool:
    if graph is not None and graph.sparse_initializer:
        return True
    return any(attribute.type == onnx.AttributeProto.SPARSE_TENSOR for node in nodes for attribute in node.attribute)


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """Indices are linear, or one row per value; `values.name` is the tensor's name."""
    values, indices = onnx.numpy_helper.to_array(sparse.values), onnx.numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return onnx.numpy_helper.from_array(dense, name)
