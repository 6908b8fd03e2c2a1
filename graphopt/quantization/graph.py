"""What a model offers to be quantized, read from its ModelProto, which ONNX Runtime's quantizers take."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphopt.quantization.formats import Candidate, FormatName

BLOCK = 32  # elements of weights that share a scale in MatMulNBits
BOUNDS = ("Relu", "Clip")
PRODUCTS = ("MatMul", "Gemm")
RANK = {"Conv": (3, 4, 5), "MatMul": (2,), "Gemm": (2,)}  # of the weights
# Operators that ONNX Runtime computes in bytes between quantized neighbours.
CARRIERS = (
    "Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "MaxPool", "Mul", "Relu", "Reshape",
    "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip


class Graph:
    """The nodes of a model's main graph by what they read and give."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.weights = {one.name: one for one in proto.graph.initializer}
        self.outputs = {one.name for one in proto.graph.output}
        self.producer = {name: node for node in proto.graph.node for name in node.output if name}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
        inside = (value for node in proto.graph.node for value in _read_inside(node))
        self.kept = self.outputs | set(inside)  # tensors that somebody else reads

    def candidates(self, formats: Sequence[FormatName]) -> tuple[Candidate, ...]:
        """Products and convolutions in float32 with constant weights, each with the formats that it may have."""
        found = []
        for node in self.proto.graph.node:
            weights = self.weights.get(node.input[1]) if node.op_type in RANK and len(node.input) > 1 else None
            if node.domain or weights is None or weights.data_type != TensorProto.FLOAT:
                continue
            if len(weights.dims) not in RANK[node.op_type] or not _is_plain(node):
                continue
            may = tuple(one for one in formats if one == "static" or node.op_type in PRODUCTS)
            if any(name and name not in self.weights for name in node.input[1:]):
                continue
            tail = self._tail(node)
            last = node if tail is None else tail
            found.append(
                Candidate(node.name, node.op_type, node.input[0], weights.name, last.output[0], tail and tail.name, may)
            )
        return tuple(one for one in found if one.formats)

    def _tail(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The Relu or Clip with constant bounds that alone reads a node's result."""
        readers = self.readers.get(node.output[0], [])
        if len(readers) != 1 or node.output[0] in self.kept or readers[0].op_type not in BOUNDS:
            return None
        bounds = readers[0].input[1:]
        return readers[0] if all(not name or name in self.weights for name in bounds) else None

    def carriers(self, candidates: Sequence[Candidate]) -> frozenset[str]:
        """Nodes that may compute in bytes because all around them do: `candidates` are those that are quantized."""
        tails = {one.tail for one in candidates}
        names = {one.name for one in candidates} | tails
        open_ones = {
            node.name: node
            for node in self.proto.graph.node
            if node.op_type in CARRIERS and not node.domain and node.name not in names
        }
        while True:
            inside = names | set(open_ones)
            outside = [name for name, node in open_ones.items() if not self._is_within(node, inside)]
            if not outside:
                return frozenset(open_ones)
            for name in outside:
                del open_ones[name]

    def _is_within(self, node: onnx.NodeProto, inside: Collection[str | None]) -> bool:
        first, *others = node.input
        read = self.producer.get(first)
        if read is None or read.name not in inside:
            return False
        for name in others:
            producer = self.producer.get(name)
            if name and name not in self.weights and (producer is None or producer.name not in inside):
                return False
        readers = [one for name in node.output for one in self.readers.get(name, [])]
        return bool(readers) and all(one.name in inside for one in readers) and not self.kept & set(node.output)


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether a Gemm only multiplies and adds, with a first operand that lies in rows."""
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    return all(helper.get_attribute_value(one) == plain[one.name] for one in node.attribute if one.name in plain)


def _read_inside(node: onnx.NodeProto) -> set[str]:
    """Names that subgraphs of a node read, their own among them."""
    graphs = [one.g for one in node.attribute if one.type == onnx.AttributeProto.GRAPH]
    graphs += [graph for one in node.attribute for graph in one.graphs]
    found: set[str] = set()
    for graph in graphs:
        found |= {one.name for one in graph.output}
        for inner in graph.node:
            found |= set(inner.input) | _read_inside(inner)
    return found


def named(proto: onnx.ModelProto) -> None:
    """Give every node of the main graph a name of its own."""
    seen: set[str] = set()
    for number, node in enumerate(proto.graph.node):
        name = node.name or f"{node.op_type}_{number}"
        while name in seen:
            name += "_"
        node.name = name
        seen.add(name)


def array_of(tensor: TensorProto) -> np.ndarray:
    """A tensor's elements."""
    return np.asarray(numpy_helper.to_array(tensor))


def output_axis(graph: Graph, candidate: Candidate) -> int:
    """The axis of the weights that counts the results."""
    node = next(one for one in graph.readers[candidate.weights] if one.name == candidate.name)
    turned = any(one.name == "transB" and one.i for one in node.attribute)
    return 0 if candidate.op_type == "Conv" or turned else 1
