"""What a model consists of: nodes by type, parameters, and the bytes it takes as a file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphopt.model.nodes import graphs_of
from graphopt.model.save import to_proto, weight_bytes

SERIALIZED = 1 << 26  # bytes of weights up to which a model is serialized to be measured
SMALL = 1024  # bytes; smaller tensors are serialized in any case


@dataclass(frozen=True, slots=True)
class Census:
    """What a model consists of."""

    nodes: int  # subgraphs and functions included
    bytes: int  # of the file and of its tensors outside, without the padding between these
    parameters: int  # elements of all initializers
    by_type: tuple[tuple[str, int], ...]  # operator and count, the most frequent first


def census(model: ir.Model, size: int | None = None) -> Census:
    """Count nodes, parameters and bytes (`size` where they are known already); no weight is read from disk."""
    types = Counter(node.op_type for graph in graphs_of(model) for node in graph)
    parameters = sum(
        value.const_value.size
        for graph in graphs_of(model)
        for value in graph.initializers.values()
        if value.const_value is not None
    )
    ordered = tuple(sorted(types.items(), key=lambda item: (-item[1], item[0])))
    return Census(sum(types.values()), file_bytes(model) if size is None else size, parameters, ordered)


def file_bytes(model: ir.Model) -> int:
    """The size of the file with its data file; exact but for a few bytes of length prefixes in models above 64 MB."""
    large = weight_bytes(model) > SERIALIZED
    measured = model.clone() if large else model
    beside = 0
    for graph in graphs_of(measured):
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                beside += tensor.nbytes
            elif large and tensor is not None and tensor.nbytes > SMALL and tensor.dtype != ir.DataType.STRING:
                beside += _entry_bytes(tensor)
                graph.initializers.pop(name)
    return int(to_proto(measured).ByteSize()) + beside


def _entry_bytes(tensor: ir.TensorProtocol) -> int:
    """The bytes of an initializer's entry: its description and raw data, each with tag and length."""
    head = onnx.TensorProto(name=tensor.name or "", data_type=int(tensor.dtype), dims=tensor.shape.numpy())
    inside = int(head.ByteSize()) + 1 + _varint_bytes(tensor.nbytes) + tensor.nbytes
    return 1 + _varint_bytes(inside) + inside


def _varint_bytes(number: int) -> int:
    return max((number.bit_length() + 6) // 7, 1)
