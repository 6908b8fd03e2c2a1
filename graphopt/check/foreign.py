"""Comparing around operators that no engine here can run.

A model with unknown custom operators is cut at them: what they read becomes an output, what they give becomes an input.
The optimizer keeps such operators as they are, so both models are cut at the same places and the rest can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir
import onnxruntime as ort

from graphopt.model import nodes


@dataclass(frozen=True, slots=True)
class Cut:
    """A model without its unknown operators, and what they were."""

    model: ir.Model
    operators: tuple[str, ...]  # "domain::Op 'name'", in order


def cut(model: ir.Model) -> Cut | None:
    """The model cut at its unknown operators; None when it has none, or has some inside a subgraph or function."""
    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()}
    known |= {(schema.domain, schema.name) for schema in ort.capi.onnxruntime_pybind11_state.get_all_operator_schema()}
    copy = model.clone()

    def is_unknown(node: ir.Node) -> bool:
        return node.op_identifier() not in copy.functions and (node.domain, node.op_type) not in known

    everywhere = [node for graph in nodes.graphs_of(copy) for node in graph if is_unknown(node)]
    if not everywhere or any(node.graph is not copy.graph for node in everywhere):
        return None
    names = tuple(f"{node.domain}::{nodes.describe(node)}" for node in everywhere)
    for node in everywhere:
        _cut_at(copy.graph, node)
    return Cut(copy, names)


def _cut_at(graph: ir.Graph, node: ir.Node) -> None:
    label = node.outputs[0].name or node.name or node.op_type
    for index, value in enumerate(node.inputs):
        if value is None or value.is_initializer():
            continue
        watch = ir.Node("", "Identity", [value], num_outputs=1)
        watch.outputs[0].name = f"{label}/input {index}"
        watch.outputs[0].type, watch.outputs[0].shape = value.type, value.shape
        graph.insert_before(node, watch)
        graph.outputs.append(watch.outputs[0])
    like = next((value for value in node.inputs if value is not None), None)
    for output in node.outputs:
        # Where the file does not say what the operator gives, it is taken to be like its first input: only the two
        # models' answers to the same numbers are compared.
        kind = output.type or (like.type if like is not None else None) or ir.TensorType(ir.DataType.FLOAT)
        shape = output.shape if output.shape is not None else (like.shape if like is not None else None)
        stand_in = ir.Value(name=f"{output.name}/given", type=kind, shape=shape)
        if output.is_graph_output():
            passed = ir.Node("", "Identity", [stand_in], num_outputs=1)
            passed.outputs[0].type, passed.outputs[0].shape = output.type, output.shape
            name, output.name = output.name, None
            passed.outputs[0].name = name
            graph.insert_before(node, passed)
            output.replace_all_uses_with(passed.outputs[0], replace_graph_outputs=True)
        else:
            output.replace_all_uses_with(stand_in)
        graph.inputs.append(stand_in)
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    graph.remove(node)
