"""States that a Loop or Scan hands on as they are: values of the graph around, which a body reads there.

    Loop(n, c, s, w) { y = MatMul(s, w)  gives y, w }  -->  Loop(n, c, s) { y = MatMul(s, w)  gives y }

Weights that pass through a loop so are constants of its body then.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes


def without_fixed_states(node: ir.Node) -> ir.Node:
    """The Loop or Scan without them; another node where there are any."""
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
