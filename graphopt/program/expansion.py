"""Operators without kernels of their own, as the operators that ONNX defines them by.

    SwiGLU(x)  -->  Split, Sigmoid, Mul, Mul

What has a template, a formula or a definition as loops stays: its kernel is faster than those of a body. A body may
hold operators that have bodies themselves.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from graphopt.model import nodes
from graphopt.model.bodies import body_of
from graphopt.model.facts import Facts
from graphopt.program.regions.lower import has_lowering

_DOMAIN = "graphopt.body"


def expanded(model: ir.Model) -> ir.Model:
    """A model in which bodies stand in the place of such nodes; the same one where there are none."""
    if not _wanting(model):
        return model
    work = model.clone()
    while _put_bodies(work):
        pass
    return work


def _wanting(model: ir.Model) -> list[ir.Node]:
    """Nodes that no kernel computes."""
    calls = model.functions
    graphs = list(nodes.graphs_of(model))
    every = (node for graph in graphs for node in graph)
    return [one for one in every if one.op_identifier() not in calls and not nodes.has_subgraphs(one)
            and one.op_type != "Constant" and not has_lowering(one)]  # fmt: skip


def _put_bodies(model: ir.Model) -> bool:
    """Put the bodies of such nodes in their places, where they have one; whether there was any."""
    facts = Facts(model)
    found = [(node, body) for node in _wanting(model) if (body := body_of(node, facts)) is not None]
    for number, (node, body) in enumerate(found):
        name = f"{node.op_type}_{number}"
        body.domain, body.name, body.overload = _DOMAIN, name, ""
        body.opset_imports.clear()
        body.opset_imports.update({domain: facts.opset(node, domain) for domain in ("", node.domain)})
        node.domain, node.op_type = _DOMAIN, name
        model.functions[body.identifier()] = body
    if found:
        InlinePass(lambda function: function.domain == _DOMAIN)(model)
        model.graph.opset_imports.pop(_DOMAIN, None)
    return bool(found)
