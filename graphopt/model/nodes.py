"""Reading nodes: attributes with their defaults, optional inputs, subgraphs, whether an operator is ours to touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import onnx_ir as ir

from graphopt.errors import NotLowered


def is_standard(node: ir.Node) -> bool:
    """Whether the node is an ai.onnx operator."""
    return node.domain == ""


class ReferenceAttribute(Exception):
    """An attribute's value is only known where the surrounding function is called."""


def attribute_of(node: ir.Node, name: str) -> ir.Attr | None:
    """The attribute, None where it is not given; raises ReferenceAttribute when a function's caller gives it."""
    attribute = node.attributes.get(name)
    if attribute is not None and attribute.is_ref():
        raise ReferenceAttribute(f"attribute '{name}' of {describe(node)} is given by the function's caller")
    return attribute


def has_reference_attributes(node: ir.Node) -> bool:
    """Whether an attribute's value is only known where the surrounding function is called."""
    attributes = node.attributes
    return len(attributes) > 0 and any(attribute.is_ref() for attribute in attributes.values())


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """The value of an int attribute, or the operator's default."""
    attribute = attribute_of(node, name)
    return default if attribute is None else attribute.as_int()


def float_attribute(node: ir.Node, name: str, default: float) -> float:
    """The value of a float attribute, or the operator's default."""
    attribute = attribute_of(node, name)
    return default if attribute is None else attribute.as_float()


def string_attribute(node: ir.Node, name: str, default: str) -> str:
    """The value of a string attribute, or the operator's default."""
    attribute = attribute_of(node, name)
    return default if attribute is None else attribute.as_string()


@overload
def ints_attribute(node: ir.Node, name: str) -> tuple[int, ...] | None: ...
@overload
def ints_attribute(node: ir.Node, name: str, default: Sequence[int]) -> tuple[int, ...]: ...
def ints_attribute(node: ir.Node, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
    """The value of an ints attribute, or `default` where it is not given."""
    attribute = attribute_of(node, name)
    if attribute is not None:
        return tuple(attribute.as_ints())
    return None if default is None else tuple(default)


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """The input at `index`; None where it is absent or empty."""
    return node.inputs[index] if index < len(node.inputs) else None


def given_input(node: ir.Node, index: int = 0) -> ir.Value:
    """An input that every node of its operator has."""
    value = node.inputs[index]
    assert value is not None, f"input {index} of {describe(node)} is given"
    return value


def required_input(node: ir.Node, index: int) -> ir.Value:
    """The input at `index`; raises NotLowered where it is absent or empty."""
    value = input_at(node, index)
    if value is None:
        raise NotLowered(f"{node.op_type} '{node.name}' has no operand {index}.")
    return value


def used_outputs(node: ir.Node) -> tuple[ir.Value, ...]:
    """Outputs that something reads or that the graph returns."""
    return tuple(output for output in node.outputs if is_used(output))


def is_used(value: ir.Value) -> bool:
    """Whether a node reads the value or a graph returns it."""
    return bool(value.uses()) or value.is_graph_output()


def take_out(node: ir.Node) -> None:
    """Take a node that nothing reads out of its graph, and off its operands.

    Not by `Graph.remove`, which makes a set of all outputs each time: a training step has one for each weight, and
    taking nodes out would last for nodes times weights.
    """
    graph = node.graph
    assert graph is not None and not any(is_used(output) for output in node.outputs), "nothing reads the node"
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    node.graph = None
    graph._nodes.remove(node)


def remove_unused(graph: ir.Graph) -> None:
    """Take away nodes whose results nobody reads, and initializers that nobody reads then."""
    for node in reversed(list(graph)):
        if not any(is_used(output) for output in node.outputs):
            take_out(node)
    for name, value in list(graph.initializers.items()):
        if not is_used(value) and not value.is_graph_input():
            del graph.initializers[name]


# Metadata key of a node that computes a value again to save memory; it holds the name of the node that did so first.
RECOMPUTED = "graphopt.recomputed"
# Metadata key of a node that computes a tile of what one node computed; it holds the name of that node.
TILED = "graphopt.tiled"
# Metadata key of a Slice that a program copies although it could be a view: "kept", since what it is cut from goes
# before it does, or "joined", to where the pieces of a tiled value are joined.
COPIED = "graphopt.copied"
# Metadata key of a convolution whose kernel takes the sides of its images from the run, which wants channels together.
OF_ANY_SIDES = "graphopt.of_any_sides"
# Metadata key of a node that makes another wait; it holds the name of the node that waits.
TIED = "graphopt.tied"


def is_kept_apart(node: ir.Node) -> bool:
    """Whether the node computes on purpose what another one may compute too, to save memory."""
    return any(key in node.metadata_props for key in (RECOMPUTED, TILED, TIED))


# The operators of the standard that hold graphs.
WITH_GRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def subgraphs(node: ir.Node) -> Sequence[ir.Graph]:
    """The graphs held in the node's attributes."""
    if node.domain == "" and node.op_type not in WITH_GRAPHS:
        return ()
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


def has_subgraphs(node: ir.Node) -> bool:
    """Whether the node holds a graph."""
    return len(subgraphs(node)) > 0


def graphs_of(model: ir.Model) -> Iterator[ir.Graph]:
    """Every graph of the model, outer before inner: the main graph, function bodies, and what they hold."""
    pending: list[ir.Graph] = [model.graph, *(function.graph for function in model.functions.values())]
    while pending:
        graph = pending.pop(0)
        yield graph
        pending.extend(inner for node in graph for inner in subgraphs(node))


def nodes_of(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Every node in order, each before the nodes of its subgraphs."""
    for node in graph:
        yield node
        for inner in subgraphs(node):
            yield from nodes_of(inner)


def implicit_inputs(node: ir.Node) -> Sequence[ir.Value]:
    """Values of outer scopes that the node's subgraphs read."""
    found: dict[ir.Value, None] = {}
    for graph in subgraphs(node):
        own: set[ir.Value] = set(graph.inputs) | set(graph.initializers.values())
        inner = list(nodes_of(graph))
        for deeper in inner:
            for held in subgraphs(deeper):
                own.update(held.inputs)
                own.update(held.initializers.values())
            own.update(deeper.outputs)
        for deeper in inner:
            for value in deeper.inputs:
                if value is not None and value not in own:
                    found[value] = None
        for value in graph.outputs:
            if value not in own:
                found[value] = None
    return tuple(found)


def describe(node: ir.Node) -> str:
    """How a message names a node."""
    label = node.name or (node.outputs[0].name if node.outputs else "")
    return f"{node.op_type} '{label}'"
