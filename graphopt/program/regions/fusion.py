"""Which elementwise nodes are computed together, and behind which anchor.

An anchor is an operator with a template: a product, a softmax, a normalisation, a reduction. An elementwise node
belongs to the *root* that all readers of its result belong to, as long as dims stay the same; a node whose result is
read by different roots, by other operators, or by the caller is a root itself. One root is one expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model.nodes import is_used
from graphopt.model.operators.table import formula_of, operator_of

Shape = Callable[[ir.Value], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Tree:
    """A root, the elementwise nodes that belong to it, and the anchor whose result they work on, if any."""

    root: ir.Node | None  # None: no node of the graph, a copy that lowering needs
    nodes: frozenset[ir.Node]
    anchor: ir.Node | None

    @property
    def in_order(self) -> tuple[ir.Node, ...]:
        """The nodes in an order that does not depend on anything but their names."""
        return tuple(sorted(self.nodes, key=lambda node: node.outputs[0].name or ""))

    def holds(self, value: ir.Value) -> bool:
        """Whether the value is computed inside this tree and nowhere else."""
        producer = value.producer()
        return producer is not None and (producer in self.nodes or producer is self.anchor)


def root_of(tree: Tree) -> ir.Node:
    """The root of a tree of the graph."""
    assert tree.root is not None, "trees of the graph have a root"
    return tree.root


def is_elementwise(node: ir.Node) -> bool:
    """Whether a node's result is an expression of its operands' elements."""
    return formula_of(node) is not None


def is_anchor(node: ir.Node) -> bool:
    """Whether a node has a template that takes an epilogue."""
    operator = operator_of(node)
    return operator is not None and operator.epilogue


def trees(nodes: Iterable[ir.Node], shape: Shape) -> list[Tree]:
    """One tree for each root, in the order of the roots; anchors that end nowhere else are roots alone."""
    order = [node for node in nodes if is_elementwise(node) or is_anchor(node)]
    roots: dict[ir.Node, ir.Node] = {}
    for node in reversed(order):
        roots[node] = _root(node, roots, shape)
    members: dict[ir.Node, list[ir.Node]] = {}
    for node in order:
        members.setdefault(roots[node], []).append(node)
    position = {node: number for number, node in enumerate(order)}
    found = []
    for root, group in members.items():
        anchors = [node for node in group if is_anchor(node)]
        chosen = anchors[-1] if anchors else None
        found += [Tree(anchor, frozenset(), anchor) for anchor in anchors[:-1]]
        inside = frozenset(node for node in group if is_elementwise(node))
        found.append(Tree(root, inside, chosen))
    return sorted(found, key=lambda tree: -1 if tree.root is None else position[tree.root])


def _root(node: ir.Node, roots: Mapping[ir.Node, ir.Node], shape: Shape) -> ir.Node:
    value = node.outputs[0]
    readers = {use.node for use in value.uses()}
    if (
        value.is_graph_output()
        or any(map(is_used, node.outputs[1:]))  # they are read before the tree's root may come
        or not readers
        or not all(reader in roots and is_elementwise(reader) for reader in readers)
    ):
        return node  # readers without a root are in a subgraph, or are not lowered here
    found = {roots[reader] for reader in readers}
    (root,) = found if len(found) == 1 else (node,)
    return root if shape(root.outputs[0]) == shape(value) else node
