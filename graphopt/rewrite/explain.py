"""Why a rule did not fire: what its pattern, a condition or its pass says at each place of the finished graph.

Nothing is verified and nothing is changed: the rules are tried with the gate shut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.driver import Pass, build
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.pattern import Miss
from graphopt.rewrite.record import LeftAlone, Rewrite
from graphopt.rewrite.rule import Refused, Rule

QUOTED = re.compile(r"'[^']*'")
NAMES = 2  # different names that a reason for several nodes quotes in one place
FITS = "it fits here, but was not applied: the run was cut short, the rule was left out, or it was taken back"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason, and the nodes at which it was given."""

    text: str  # without the names that differ from node to node
    named: str  # the same with the first of those names
    nodes: tuple[str, ...]  # as "Op 'name'"


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A rule, or a pass that is a function, that found what it looks for and was refused by a condition."""

    name: str
    pass_name: str
    searching: bool  # it has no pattern and searches from single nodes, so that every refusal looks near
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class NearMisses:
    """All near misses of a finished model."""

    found: tuple[NearMiss, ...]
    complete: bool  # False: the tries were used up before every rule had been asked


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
        return _grouped((node, self.reason(rule, node)) for node in where if is_anchored_at(rule, node))

    def left_alone(self, step: Pass, where: Sequence[ir.Node]) -> tuple[Reason, ...]:
        """Why a pass that is a function leaves those of the nodes alone of which it can say so; grouped likewise."""
        return _grouped((node, why.reason) for node, why in self._asked(step, where).items())

    def near_misses(self, steps: Sequence[Pass], level: int, most: int) -> NearMisses:
        """Where a pattern fits, or a pass found what it looks for, and a condition refused; in the passes' order.

        At most `most` times a rule is tried at a node.
        """
        by_type: dict[str, list[ir.Node]] = {}
        for node in self.nodes:
            by_type.setdefault(node.op_type, []).append(node)
        found: list[NearMiss] = []
        for step in steps:
            for rule in step.rules:
                if rule.level > level:
                    continue
                kinds = by_type if "*" in rule.anchors else rule.anchors
                refusals = []
                for node in (node for kind in kinds for node in by_type.get(kind, ())):
                    if most == 0:
                        return NearMisses(tuple(found), False)
                    most -= 1
                    reason = self._refusal(rule, node)
                    if reason is not None:
                        refusals.append((node, reason))
                if refusals:
                    found.append(NearMiss(rule.name, step.name, rule.pattern is None, _grouped(refusals)))
            near = [(node, why.reason) for node, why in self._asked(step, self.nodes).items() if why.near]
            if near:
                found.append(NearMiss(step.name, step.name, False, _grouped(near)))
        return NearMisses(tuple(found), True)

    def _refusal(self, rule: Rule, node: ir.Node) -> str | None:
        """The condition that refuses the rule where its pattern fits."""
        if not nodes.is_standard(node) or nodes.has_reference_attributes(node):
            return None
        try:
            match, replacement = build(self._editor, rule, node)
        except Refused as refusal:
            return str(refusal)
        except Miss:
            return None
        except Exception:  # the run has listed it as rolled back
            return None
        try:
            self._editor.apply(rule.name, match, replacement)
        except Refused as refusal:
            self._editor.discard(match)
            return str(refusal)
        return FITS

    def _asked(self, step: Pass, where: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
        return {} if step.why is None else step.why(self._editor, where)

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


def _grouped(places: Iterable[tuple[ir.Node, str]]) -> tuple[Reason, ...]:
    """Equal reasons in one, most first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for node, text in places:
        found.setdefault(QUOTED.sub("'...'", text), []).append((text, nodes.describe(node)))
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        Reason(
            items[0][0] if len(items) == 1 else text, _with_names([said for said, _ in items]),
            tuple(name for _, name in items),
        ) for text, items in ordered
    )  # fmt: skip


def _with_names(texts: Sequence[str]) -> str:
    """One text for texts that differ in quoted names only; it quotes the first few of each place."""
    listed = []
    for quoted in zip(*map(QUOTED.findall, texts), strict=True):
        different = list(dict.fromkeys(quoted))
        listed.append(", ".join([*different[:NAMES], *(["..."] if len(different) > NAMES else [])]))
    names = iter(listed)
    return QUOTED.sub(lambda _: next(names), texts[0])


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
