"""Names of a model that is taken apart, and new ones beside them."""

from __future__ import annotations

import onnx_ir as ir

from memplan.lifetimes import free_name


def names_of(model: ir.Model) -> set[str]:
    """The names of all values and nodes of the graph."""
    graph = model.graph
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return {one.name or "" for one in (*values, *graph)} | set(graph.initializers)


def new_name(name: str, names: set[str]) -> str:
    """A name that none has, which is one of `names` from now on."""
    found = free_name(name, names)
    names.add(found)
    return found
