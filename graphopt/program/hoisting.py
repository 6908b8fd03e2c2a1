"""What does not change from one iteration to the next one, taken out of the body of a Loop or Scan.

    Loop(n, c, w, s) { y = MatMul(s, Transpose(w))  gives w, y }  -->  t = Transpose(w), Loop(n, c, s) { MatMul(s, t) }

A state that a body hands on as it is, is a value of the graph around; and a node that reads only such values stands
before the loop.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts


def take_out(facts: Facts, node: ir.Node) -> ir.Node:
    """The Loop or Scan without what stays the same; a node of its own where its states are fewer."""
    node = _without_fixed_states(node)
    _hoist(facts, node)
    return node


def _without_fixed_states(node: ir.Node) -> ir.Node:
    body = node.attributes["body"].as_graph()
    before, after = (2, 1) if node.op_type == "Loop" else (0, 0)  # what stands before states in inputs and outputs
    states = len(node.inputs) - before - nodes.int_attribute(node, "num_scan_inputs", 0)
    fixed = [place for place in range(states) if _is_handed_on(body.outputs[after + place], body.inputs[before + place])
             and node.inputs[before + place] is not None]  # fmt: skip
    if not fixed or node.graph is None:
        return node
    inputs, outputs = list(node.inputs), list(node.outputs)
    for place in reversed(fixed):
        outside = inputs.pop(before + place)
        assert outside is not None, "it was looked at"
        body.outputs.pop(after + place)
        entry = body.inputs.pop(before + place)
        _keep_results(body, entry)
        entry.replace_all_uses_with(outside)
        if place < len(outputs):
            _let_be(node, outputs.pop(place), outside)
    attributes = list(node.attributes.values())
    node.attributes.clear()
    new = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(outputs), name=node.name)
    for old, made in zip(outputs, new.outputs, strict=True):
        made.type, made.shape, made.name = old.type, old.shape, old.name
        old.name = None
        old.replace_all_uses_with(made, replace_graph_outputs=True)
    node.graph.insert_before(node, new)
    node.graph.remove(node, safe=True)
    return new


def _keep_results(body: ir.Graph, entry: ir.Value) -> None:
    """Let results that are an entry be computed: a graph gives only what is its own."""
    for place, value in enumerate(body.outputs):
        if value is entry:
            copy = ir.node("Identity", [entry])
            copy.outputs[0].name, copy.outputs[0].type, copy.outputs[0].shape = (
                f"{entry.name}:{place}",
                entry.type,
                entry.shape,
            )
            body.append(copy)
            body.outputs[place] = copy.outputs[0]


def _is_handed_on(result: ir.Value, entry: ir.Value) -> bool:
    """Whether a body gives an entry as it is."""
    value: ir.Value | None = result
    while value is not None and value is not entry:
        producer = value.producer()
        known = producer is not None and producer.op_type == "Identity" and nodes.is_standard(producer)
        value = producer.inputs[0] if producer is not None and known else None
    return value is not None


def _let_be(node: ir.Node, output: ir.Value, outside: ir.Value) -> None:
    """Let who reads a result read a value that is there before."""
    if output.is_graph_output():
        copy = ir.node("Identity", [outside])
        copy.outputs[0].type, copy.outputs[0].shape = output.type, output.shape
        copy.outputs[0].name, output.name = output.name, None
        node.graph.insert_before(node, copy)  # type: ignore[union-attr]  # the caller has looked
        outside = copy.outputs[0]
    output.replace_all_uses_with(outside, replace_graph_outputs=True)


def _hoist(facts: Facts, node: ir.Node) -> None:
    """Put the body's nodes that read only what is outside before the loop; what only constants make is folded."""
    body, graph = node.attributes["body"].as_graph(), node.graph
    if graph is None:
        return
    inside: set[ir.Value] = {*body.inputs, *body.initializers.values()}
    for one in list(body):
        given = [value for value in one.inputs if value is not None]
        moves = (
            not all(map(facts.is_constant, given)) and inside.isdisjoint(given) and not nodes.has_subgraphs(one) and facts.is_pure(one)
            and inside.isdisjoint(one.outputs) and not any(value.is_graph_output() for value in one.outputs)
        )  # fmt: skip
        if not moves:
            inside.update(one.outputs)
            continue
        body.remove(one)
        graph.insert_before(node, one)
