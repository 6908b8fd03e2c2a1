"""The order in which an engine runs a model's nodes: what is made of constants or inputs is made when it is read.

ONNX Runtime's own order walks up from the outputs and puts every dequantized weight of a chain of layers before the
first layer, so that all of them are held at once: four times a model of bytes. A training step that begins with what
remains of all its averages holds as much as its state once more.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.nodes import implicit_inputs


def order_late(graph: ir.Graph) -> None:
    """Move nodes that read nothing but initializers, and what follows from those alone, to their first readers.

    So are nodes moved that read inputs, or their casts, which are held in any case. What follows from those stays.
    """
    ordered = list(graph)
    places = {node: place for place, node in enumerate(ordered)}
    constant: set[ir.Value] = set(graph.initializers.values()) - set(graph.inputs)
    held = {*graph.initializers.values(), *graph.inputs}
    late: list[ir.Node] = []
    early = set[ir.Node]()  # of those in front of one reader: what is made of inputs
    for node in ordered:
        given = [value for value in node.inputs if value is not None]
        if not given or nodes.has_subgraphs(node):
            continue
        if constant.issuperset(given):
            late.append(node)
            constant.update(node.outputs)
        elif held.issuperset(given):
            late.append(node)
            early.add(node)
            if node.op_type == "Cast" and len(node.outputs[0].uses()) == 1:
                held.add(node.outputs[0])
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
    ranks = {node: 0 if node in early else 1 if node in wanted else 2 for node in ordered}
    graph.extend(sorted(ordered, key=lambda node: (places[node], ranks[node])))
