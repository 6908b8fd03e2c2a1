"""What a fusion may take away: nodes whose results nothing outside the fused group reads."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.rule import Match


def require_private(match: Match, group: Iterable[ir.Node]) -> None:
    """Refuse unless every result of the group, but for the root's, is read within it; then claim its nodes."""
    members = dict.fromkeys([match.root, *group])
    for node in members:
        if node is match.root:
            continue
        match.require(node.graph is match.root.graph, f"{nodes.describe(node)} belongs to an outer graph")
        match.require(not nodes.has_reference_attributes(node), f"{nodes.describe(node)} has open attributes")
        for output in node.outputs:
            read_elsewhere = output.is_graph_output() or any(user not in members for user in output.consumers())
            match.require(not read_elsewhere, f"the result of {nodes.describe(node)} is read elsewhere too")
    for node in members:
        if node not in match.binding.inner:
            match.binding.inner.append(node)


def made_by(value: ir.Value | None, *kinds: str) -> ir.Node | None:
    """The node that computes the value, when it is a standard operator of one of the kinds."""
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type not in kinds or not nodes.is_standard(producer):
        return None
    return producer
