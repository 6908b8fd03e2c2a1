"""Outputs that no two runs share, because they depend on an operator that draws numbers."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.nodes import nodes_of, subgraphs

NOT_REPEATABLE = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


def random_outputs(model: ir.Model) -> frozenset[str]:
    """The outputs that depend on an operator whose result no two runs share."""
    drawn = {
        identifier
        for identifier, function in model.functions.items()
        if any(node.op_type in NOT_REPEATABLE for node in nodes_of(function.graph))
    }
    tainted: set[ir.Value] = set()
    for node in nodes_of(model.graph):
        inner = [deeper for graph in subgraphs(node) for deeper in nodes_of(graph)]
        own = [node, *inner]
        random = any(item.op_type in NOT_REPEATABLE or item.op_identifier() in drawn for item in own)
        random = random or any(_trains(item) for item in own)
        random = random or any(v in tainted for item in own for v in item.inputs if v is not None)
        if random:
            tainted.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in tainted)


def _trains(node: ir.Node) -> bool:
    """Whether a Dropout draws its mask: it has a training flag that is not a plain false."""
    if node.op_type != "Dropout" or len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    flag = node.inputs[2].const_value
    return flag is None or node.inputs[2].is_graph_input() or bool(flag.numpy().any())
