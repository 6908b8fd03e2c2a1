"""Bytes that a result can do without when it would be larger than its original: what is said of nodes, long names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx_ir as ir

from graphopt.model.census import file_bytes
from graphopt.model.nodes import graphs_of
from graphopt.rewrite.provenance import PROVENANCE, SEPARATOR


def lighten(model: ir.Model, original: ir.Model, most: int) -> bool:
    """Bring the model's file down to `most` bytes; True where it is no larger then.

    First go the lines that say which nodes a new one stands for, then the long names of values; what `original` has of
    either stays, so that a second run has nothing to win by it. A model that is small enough is left as it is.
    """
    if file_bytes(model) <= most:
        return True
    old = {line for graph in graphs_of(original) for node in graph for line in _lines(node)}
    for graph in graphs_of(model):
        for node in graph:
            kept = [line for line in _lines(node) if line in old]
            node.metadata_props.pop(PROVENANCE, None)
            if kept:
                node.metadata_props[PROVENANCE] = SEPARATOR.join(kept)
    if file_bytes(model) <= most:
        return True
    _shorten(model, original)
    return file_bytes(model) <= most


def _lines(node: ir.Node) -> list[str]:
    line = node.metadata_props.get(PROVENANCE)
    return [] if line is None else line.split(SEPARATOR)


def _shorten(model: ir.Model, original: ir.Model) -> None:
    """Give values that are new the shortest names that are free, where these are shorter."""
    own = {value.name for value in _values(original)}
    taken = own | {value.name for value in _values(model)}
    free = (name for number in itertools.count() if (name := str(number)) not in taken)
    functions = {id(graph) for function in model.functions.values() for graph in (function.graph,)}
    for graph in graphs_of(model):
        if id(graph) in functions:
            continue
        results = [output for node in graph for output in node.outputs]
        for value in (*graph.initializers.values(), *results):
            if value.name is None or value.name in own or value.is_graph_input() or value.is_graph_output():
                continue
            short = next(free)
            if len(short) < len(value.name):
                _rename(graph, value, short)


def _rename(graph: ir.Graph, value: ir.Value, name: str) -> None:
    if value.is_initializer():
        graph.initializers.pop(value.name or "")
        value.name = name
        graph.register_initializer(value)
    else:
        value.name = name


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in graphs_of(model):
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs
