"""A model whose short floats are stored in their own type between its operators, as ONNX defines it.

    Add -> Softmax   -->   Add -> SequenceConstruct -> SequenceAt -> Softmax

ONNX Runtime computes float16 in float32 on a processor. It takes away the casts between operators, those of the model
too, so that numbers keep more digits and a greater range than they have in the model. It sees through no sequence.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.short import SHORT

OPSET = 11  # of sequences


def stored_short(model: ir.Model) -> ir.Model | None:
    """The model with these numbers stored; None where it has none, or no sequences."""
    if model.graph.opset_imports.get("", 0) < OPSET:
        return None
    copy = model.clone()
    facts = Facts(copy)
    short = [
        (graph, node, value, kind)
        for graph in nodes.graphs_of(copy) for node in tuple(graph) for value in node.outputs
        if (kind := facts.dtype(value)) in SHORT and not isinstance(value.type, ir.SequenceType) and value.uses()
    ]  # fmt: skip
    first = ir.val("stored:first", const_value=ir.tensor(np.int64(0), name="stored:first"))
    copy.graph.register_initializer(first)
    for graph, node, value, kind in short:
        _store(graph, node, value, ir.TensorType(kind), first)
    return copy if short else None


def _store(graph: ir.Graph, node: ir.Node, value: ir.Value, kind: ir.TensorType, first: ir.Value) -> None:
    """Let all that read the value read the only element of a sequence with it."""
    uses = tuple(value.uses())
    kept = ir.node("SequenceConstruct", [value], name=f"stored:{value.name}:kept")
    given = ir.node("SequenceAt", [kept.outputs[0], first], name=f"stored:{value.name}")
    kept.outputs[0].type, given.outputs[0].type = ir.SequenceType(kind), kind
    for made in (kept, given):
        made.outputs[0].name = made.name
    given.outputs[0].shape = value.shape
    graph.insert_after(node, [kept, given])
    for use in uses:
        use.node.replace_input_with(use.idx, given.outputs[0])
