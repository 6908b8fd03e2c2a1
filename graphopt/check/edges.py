"""A model in float64 whose large inputs and outputs stay float32: they are cast where they are read and made.

The weights and the state of a training step would else be held twice as large, all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.model import dims

LARGE = 1 << 20  # bytes of an input or output that is worth a cast
FROM = 64 << 20  # bytes of all of them, from which on they are cast


def cast_edges(wide: ir.Model, kinds: Mapping[str, ir.DataType]) -> frozenset[str]:
    """Put casts behind inputs and in front of outputs that were float32 by `kinds`; gives the inputs' names.

    Inputs that nothing reads stay float32 too.
    """
    graph = wide.graph
    inputs = [value for value in graph.inputs if _is_large(value, kinds) and _is_read_here(graph, value)]
    outputs = [value for value in graph.outputs if _is_large(value, kinds) and value.producer() is not None]
    if sum(_bytes(value) for value in (*inputs, *outputs)) < FROM:
        return frozenset()
    places = {node: place for place, node in enumerate(graph)}
    unread = [value for value in graph.inputs if _is_large(value, kinds) and not value.uses()]
    for value in unread:
        value.type = ir.TensorType(ir.DataType.FLOAT)
    for value in inputs:
        first = min((use.node for use in value.uses()), key=lambda node: places[node])
        cast = _cast(value, f"{value.name}:wide", ir.DataType.DOUBLE)
        value.replace_all_uses_with(cast.outputs[0])
        cast.replace_input_with(0, value)
        value.type = ir.TensorType(ir.DataType.FLOAT)
        graph.insert_before(first, cast)
    for value in outputs:
        producer, name = value.producer(), value.name
        assert producer is not None, "looked up"
        cast = _cast(value, name or "", ir.DataType.FLOAT)
        graph.outputs[graph.outputs.index(value)] = cast.outputs[0]
        value.name = f"{name}:wide"
        graph.insert_after(producer, cast)
    return frozenset(value.name or "" for value in (*inputs, *unread))


def _is_large(value: ir.Value, kinds: Mapping[str, ir.DataType]) -> bool:
    return kinds.get(value.name or "") is ir.DataType.FLOAT and _bytes(value) >= LARGE


def _bytes(value: ir.Value) -> int:
    """Of a value in float32; 0 where its dims are not all known."""
    found = dims.declared(value)
    size = 4
    for dim in found or (0,):
        size *= dim if isinstance(dim, int) else 0
    return size


def _is_read_here(graph: ir.Graph, value: ir.Value) -> bool:
    """Whether nodes of the main graph alone read it."""
    uses = value.uses()
    is_free = not value.is_graph_output() and value.name not in graph.initializers
    return bool(uses) and is_free and all(use.node.graph is graph for use in uses)


def _cast(value: ir.Value, name: str, kind: ir.DataType) -> ir.Node:
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(kind))], num_outputs=1)
    found = cast.outputs[0]
    found.name, found.type, found.shape = name, ir.TensorType(kind), value.shape
    return cast
