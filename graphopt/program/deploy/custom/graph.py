"""The ONNX file of custom operators: a node in the place of all nodes that a program computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.errors import BundleError
from graphopt.model.self_contained import self_contained
from graphopt.program.deploy.custom.calls import PROGRAM, WORKERS
from graphopt.program.deploy.custom.library import domain_of
from graphopt.version import VERSION

OPERATOR_VERSION = 1
LIBRARY_KEY = "graphopt.library"  # of the file's metadata: the name of the library beside it
_MOST_BYTES = 1_900_000_000  # of a file: a protobuf message cannot pass 2 GB


@dataclass(frozen=True, slots=True)
class Placed:
    """An operator and what it computes, by the names of values."""

    name: str  # of the operator
    digest: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def whole_file(model: ir.Model, placed: Placed, library: str, threads: int) -> bytes:
    """A file with the inputs and outputs of a model, and one node; `library` is its name. Raises BundleError."""
    inputs = {value.name: _copy(value) for value in model.graph.inputs}
    outputs = {value.name: _copy(value) for value in model.graph.outputs}
    given = [inputs[name] for name in placed.inputs]
    node = _node(placed, library, given, [outputs[name] for name in placed.outputs], threads)
    graph = ir.Graph(
        given, list(outputs.values()), nodes=[node], name=model.graph.name, opset_imports=dict(model.opset_imports)
    )
    return _written(ir.Model(graph, ir_version=model.ir_version), library)


def parted_file(
    model: ir.Model, parts: Sequence[tuple[Placed, Sequence[ir.Node]]], library: str, threads: int
) -> bytes:
    """A model's file in which nodes take the place of others; what is left runs in ONNX Runtime. Raises BundleError."""
    copy = model.clone()
    graph = copy.graph
    made = {value.name: node for node in graph for value in node.outputs if value.name}
    known = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    known |= {name: value for name, node in made.items() for value in node.outputs if value.name == name}
    for placed, nodes in parts:
        old = list(dict.fromkeys(made[value.name] for node in nodes for value in node.outputs if value.name))
        before = [known[name] for name in placed.outputs]
        after = [ir.Value() for _ in before]
        node = _node(placed, library, [known[name] for name in placed.inputs], after, threads)
        ir.convenience.replace_nodes_and_values(graph, old[-1], old, [node], before, after)
        known |= dict(zip(placed.outputs, after, strict=True))
    graph.sort()
    for name, value in list(graph.initializers.items()):
        if value in graph.inputs:  # an input with a default: a constant of the programs, and so of the file
            graph.inputs.remove(value)
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
    return _written(copy, library)


def _copy(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, shape=value.shape, type=value.type)


def _node(
    placed: Placed, library: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], threads: int
) -> ir.Node:
    attributes = (ir.AttrString(PROGRAM, placed.digest), ir.AttrInt64(WORKERS, threads))
    return ir.Node(domain_of(library), placed.name, inputs, attributes, outputs=outputs, name=placed.name)


def _written(model: ir.Model, library: str) -> bytes:
    model.graph.opset_imports[domain_of(library)] = OPERATOR_VERSION
    model.producer_name, model.producer_version = "graphopt", VERSION
    model.metadata_props[LIBRARY_KEY] = f"lib{library}.so"
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    if size > _MOST_BYTES:
        raise BundleError(f"what is left to ONNX Runtime has {size:,} bytes of weights; a file holds 2 GB.")
    written: bytes = self_contained(model).proto.SerializeToString(deterministic=True)
    return written
