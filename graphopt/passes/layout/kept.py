"""Which Transposes a graph still has, and what keeps each of them."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.table import images_of
from graphopt.passes.layout.channels import DOMAIN
from graphopt.passes.layout.flip import permutation
from graphopt.passes.layout.region import Form, Region, explore
from graphopt.passes.layout.table import standard

MOST = 2  # neighbours that a line names


def kept_transposes(model: ir.Model) -> tuple[str, ...]:
    """One line for each Transpose of the main graph: between what it stands, and why that stays as it is."""
    facts = Facts(model)
    return tuple(
        _line(facts, model.graph, node)
        for node in model.graph
        if node.op_type == "Transpose" and nodes.is_standard(node)
    )


def _line(facts: Facts, graph: ir.Graph, node: ir.Node) -> str:
    return f"'{node.outputs[0].name}': {what_keeps(facts, graph, node)}"


def what_keeps(facts: Facts, graph: ir.Graph, node: ir.Node) -> str:
    """Why a Transpose is still there."""
    source = nodes.input_at(node, 0)
    perm = permutation(facts, node)
    if source is None or perm is None or facts.rank(source) != len(perm):
        return "the rank of its operand is not known"
    region = explore(facts, graph, source, Form(perm, 0), standard)
    above, below = _fixed(region, 0), _fixed(region, 1)
    if above and below:
        return f"between {_joined(above)} and {_joined(below)}"
    return "without it another Transpose would be needed"


def _fixed(region: Region, side: int) -> list[str]:
    """Who holds the region's tensors to this form, the nearest first."""
    found: dict[str, None] = {}
    for value, form in region.forms.items():
        if form.side != side:
            continue
        producer = value.producer()
        if producer is None:
            found[f"input '{value.name}'"] = None
        elif producer not in region.flips and producer not in region.ties:
            found[_said(region, producer)] = None
        for reader, _ in value.uses():
            if reader not in region.flips and reader not in region.ties:
                found[_said(region, reader)] = None
        if value.is_graph_output():
            found[f"output '{value.name}'"] = None
    return list(found)


def _said(region: Region, node: ir.Node) -> str:
    reason = region.refusals.get(node)
    if images_of(node):
        reason = "it is defined for channels first"
    elif node.domain == DOMAIN:
        reason = "it is a function for channels last"
    return nodes.describe(node) + (f" ({reason})" if reason else "")


def _joined(names: list[str]) -> str:
    rest = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {rest} more" if rest > 0 else "")
