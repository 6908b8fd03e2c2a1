"""Graphs in networkx's node-link JSON: a node is an operator with one result, `cost_cpu` its time, `cost_ram` bytes.

Nodes stand in an order in which they can run: that of their ids where all are whole numbers, else that of the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from memplan.graph import Graph, Operator, Value
from memplan.problem import InvalidProblem


@dataclass(frozen=True, slots=True)
class GraphFile:
    """The graph, and for each of its operators the id that the node has in the file."""

    graph: Graph
    ids: Mapping[str, Any]

    @property
    def order(self) -> tuple[str, ...]:
        """The given order."""
        return tuple(operator.name for operator in self.graph.operators)


def read_graph(path: Path) -> GraphFile:
    """Read a file. Raises InvalidProblem naming what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidProblem(f"'{path}' cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidProblem(f"'{path}' is not JSON: {error}.") from error
    return graph_of(content)


def graph_of(content: Any) -> GraphFile:
    """The graph of a node-link object, as json.loads gives it."""
    if not isinstance(content, dict) or not isinstance(content.get("nodes"), list):
        raise InvalidProblem("a node-link graph is an object with a list of 'nodes' and one of 'links' or 'edges'.")
    if content.get("directed") is False:
        raise InvalidProblem("the graph is not directed: nobody can tell what runs first.")
    links = content.get("links", content.get("edges"))
    if not isinstance(links, list):
        raise InvalidProblem("the graph has neither 'links' nor 'edges'.")
    nodes: dict[str, dict[str, Any]] = {}
    for node in content["nodes"]:
        if not isinstance(node, dict) or isinstance(node.get("id"), list | dict) or node.get("id") is None:
            raise InvalidProblem("a node of the graph has no 'id'.")
        if _name(node["id"]) in nodes:
            raise InvalidProblem(f"two nodes have the id {_name(node['id'])}.")
        nodes[_name(node["id"])] = node
    if all(type(node["id"]) is int for node in nodes.values()):
        nodes = dict(sorted(nodes.items(), key=lambda item: item[1]["id"]))
    operands = _operands(nodes, links)
    return GraphFile(
        Graph(
            tuple(Value(name, _bytes(node)) for name, node in nodes.items()),
            tuple(Operator(name, operands[name], (name,), _time(node)) for name, node in nodes.items()),
        ),
        {name: node["id"] for name, node in nodes.items()},
    )


def _operands(nodes: Mapping[str, Any], links: list[Any]) -> dict[str, tuple[str, ...]]:
    position = {name: place for place, name in enumerate(nodes)}
    operands: dict[str, dict[str, None]] = {name: {} for name in nodes}
    for link in links:
        if not isinstance(link, dict) or "source" not in link or "target" not in link:
            raise InvalidProblem("a link of the graph lacks 'source' or 'target'.")
        source, target = _name(link["source"]), _name(link["target"])
        for end in (source, target):
            if end not in nodes:
                raise InvalidProblem(f"a link leads from {source} to {target}, but there is no node {end}.")
        operands[target][source] = None
    try:
        TopologicalSorter(operands).prepare()
    except CycleError as error:
        raise InvalidProblem(f"the graph has a cycle: {' -> '.join(error.args[1])}.") from error
    for target, sources in operands.items():
        for source in sources:
            if position[source] > position[target]:
                raise InvalidProblem(
                    f"node {target} reads {source}, which comes later: the nodes are not in topological order."
                )
    return {name: tuple(sorted(sources, key=position.__getitem__)) for name, sources in operands.items()}


def _name(one: Any) -> str:
    return json.dumps(one)  # 1 and "1" are two nodes


def _number(node: Mapping[str, Any], key: str) -> float:
    cost = node.get(key)
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        raise InvalidProblem(f"node {_name(node['id'])} has no number '{key}'.")
    if not math.isfinite(cost) or cost < 0:
        raise InvalidProblem(f"node {_name(node['id'])} has a '{key}' of {cost}: it is neither negative nor infinite.")
    return cost


def _bytes(node: Mapping[str, Any]) -> int:
    cost = _number(node, "cost_ram")
    if cost != int(cost):
        raise InvalidProblem(f"node {_name(node['id'])} has a 'cost_ram' of {cost}: bytes are whole.")
    return int(cost)


def _time(node: Mapping[str, Any]) -> float:
    return float(_number(node, "cost_cpu"))
