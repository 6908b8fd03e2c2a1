"""Why a rule did not fire: what its pattern or a condition says at each place of the finished graph.

Nothing is verified and nothing is changed: the rules are tried with the gate shut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.driver import build
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.pattern import Miss
from graphopt.rewrite.record import Rewrite
from graphopt.rewrite.rule import Refused, Rule

QUOTED = re.compile(r"'[^']*'")
FITS = "it fits here, but was not applied: the run was cut short, the rule was left out, or it was taken back"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason, and the nodes at which it was given."""

    text: str
    nodes: tuple[str, ...]  # as "Op 'name'"


class Explainer:
    """Tries rules on a finished model without changing it."""

    def __init__(self, model: ir.Model) -> None:
        self._editor = Editor(model, stop_after=0)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """Every node of the model, subgraphs and functions included."""
        return tuple(node for graph in self._editor.graphs() for node in graph)

    def reasons(self, rule: Rule, where: Iterable[ir.Node]) -> tuple[Reason, ...]:
        """Why the rule does not fire at those of the nodes that are of its types; equal reasons in one, most first.

        Reasons are equal when they differ only in the names they quote.
        """
        found: dict[str, list[tuple[str, str]]] = {}
        for node in where:
            if is_anchored_at(rule, node):
                text = self.reason(rule, node)
                found.setdefault(QUOTED.sub("'...'", text), []).append((text, nodes.describe(node)))
        ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        return tuple(
            Reason(places[0][0] if len(places) == 1 else text, tuple(name for _, name in places))
            for text, places in ordered
        )

    def reason(self, rule: Rule, node: ir.Node) -> str:
        """Why the rule does not fire at this node."""
        if not nodes.is_standard(node):
            return f"the operator belongs to the domain '{node.domain}', which rules leave alone"
        if nodes.has_reference_attributes(node):
            return "an attribute is a parameter of the surrounding function"
        try:
            match, replacement = build(self._editor, rule, node, explain=True)
        except (Miss, Refused) as refusal:
            return str(refusal)
        except Exception as error:  # the run has listed it as rolled back; here it is a reason like others
            return f"the rule failed with an error of its own ({type(error).__name__}: {error})"
        try:
            self._editor.apply(rule.name, match, replacement)  # the gate is shut, so this only looks and takes apart
        except Refused as refusal:
            self._editor.discard(match)
            return str(refusal)
        return FITS


def is_anchored_at(rule: Rule, node: ir.Node) -> bool:
    """Whether the rule is tried at nodes of this type."""
    return "*" in rule.anchors or node.op_type in rule.anchors


def fired(log: Sequence[Rewrite], name: str) -> tuple[Rewrite, ...]:
    """The rewrites of a rule, or of a pass."""
    return tuple(rewrite for rewrite in log if name in (rewrite.rule, rewrite.pass_name))


def touching(log: Sequence[Rewrite], node: ir.Node) -> tuple[Rewrite, ...]:
    """The rewrites that matched the node, replaced it, or carry its name on."""
    names = {output.name for output in node.outputs if output.name}
    labels = {name for name in (node.name, *names) if name}
    return tuple(
        rewrite
        for rewrite in log
        if rewrite.site in names or any(f"'{label}'" in text for label in labels for text in rewrite.before)
    )


def find_node(where: Iterable[ir.Node], name: str) -> ir.Node | None:
    """The node of that name, else the one that computes the value of that name."""
    listed = list(where)
    for node in listed:
        if node.name == name:
            return node
    return next((node for node in listed if any(output.name == name for output in node.outputs)), None)
