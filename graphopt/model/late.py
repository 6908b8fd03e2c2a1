"""The order in which an engine runs a model's nodes: what follows from constants stands right before its first reader.

ONNX Runtime's own order walks up from the outputs and puts every dequantized weight of a chain of layers before the
first layer, so that all of them are held at once: four times a model of bytes.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.nodes import implicit_inputs


def order_late(graph: ir.Graph) -> None:
    """Move nodes that read nothing but initializers, and what follows from those alone, to their first readers."""
    ordered = list(graph)
    places = {node: place for place, node in enumerate(ordered)}
    constant: set[ir.Value] = set(graph.initializers.values()) - set(graph.inputs)
    late: list[ir.Node] = []
    for node in ordered:
        given = [value for value in node.inputs if value is not None]
        if given and constant.issuperset(given) and not nodes.has_subgraphs(node):
            late.append(node)
            constant.update(node.outputs)
    if not late:
        return
    first: dict[ir.Value, int] = {}  # the earliest place that reads a value
    wanted = set(late)
    for node in reversed(ordered):
        if node in wanted:
            read = [first[value] for value in node.outputs if value in first]
            places[node] = min(read, default=places[node])
        inside = implicit_inputs(node) if nodes.has_subgraphs(node) else ()
        for value in (*node.inputs, *inside):
            if value is not None:
                first[value] = min(first.get(value, places[node]), places[node])
    if all(places[node] == place for place, node in enumerate(ordered)):
        return
    graph.remove(ordered)
    graph.extend(sorted(ordered, key=lambda node: places[node]))
