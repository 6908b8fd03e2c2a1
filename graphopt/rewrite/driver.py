"""The driver: passes in order, each over what changed, until nothing changes.

Every pass keeps its place in the editor's log of touched nodes. Its first turn sees all nodes in topological order;
later turns see only the neighbourhood of changes, so a run is linear in the size of the graph plus its rewrites.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from graphopt.errors import GraphoptError
from graphopt.model import nodes
from graphopt.model.text import Progress
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.pattern import Miss, match
from graphopt.rewrite.record import LeftAlone, PassRecord
from graphopt.rewrite.rule import Match, Refused, Rule, bind

MAX_ROUNDS = 20


class BrokenRewrite(Exception):
    """A rule failed with an error of its own; the run must be repeated without it."""

    def __init__(self, rule: str, site: str, reason: str) -> None:
        super().__init__(f"{rule} at '{site}': {reason}")
        self.rule, self.site, self.reason = rule, site, reason


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the pipeline: local rules, or a function over the nodes that changed (all, the first time)."""

    name: str
    level: int
    rules: tuple[Rule, ...] = ()
    run: Callable[[Editor, Sequence[ir.Node]], None] | None = None
    # Why the function leaves nodes alone, as `graphopt explain` asks of a finished model; a rule says so by itself.
    why: Callable[[Editor, Sequence[ir.Node]], Mapping[ir.Node, LeftAlone]] | None = None


@dataclass(slots=True)
class _Place:
    """How far a pass has read the log of touched nodes, and what it has done so far."""

    position: int | None = None
    rewrites: int = 0
    removed: int = 0
    seconds: float = 0.0
    nodes_before: int = 0
    nodes_after: int = 0
    by_type: dict[str, list[Rule]] = field(default_factory=dict)


def run_passes(editor: Editor, passes: Sequence[Pass], progress: Progress | None = None) -> tuple[PassRecord, ...]:
    """Run the passes in rounds until a whole round changes nothing; returns one record per pass."""
    places = [_Place() for _ in passes]
    for _ in range(MAX_ROUNDS):
        changed = False
        for step, place in zip(passes, places, strict=True):
            if editor.finished:
                break
            worklist = _worklist(editor, place)
            if not worklist:
                continue
            if progress is not None:
                progress(step.name)
            editor.pass_name = step.name
            count = len(editor.log)
            started = time.perf_counter()
            first = place.nodes_before == 0
            if first:
                place.nodes_before = editor.count_nodes()
            if step.run is not None:
                _run_function(editor, step, worklist)
            else:
                run_rules(editor, step.rules, worklist)
            editor.journal.settle()
            place.seconds += time.perf_counter() - started
            done = len(editor.log) - count
            place.rewrites += done
            if done or first:
                place.nodes_after = editor.count_nodes()
            changed = changed or done > 0
        if not changed:
            break
    return tuple(
        PassRecord(step.name, place.rewrites, place.nodes_before, place.nodes_after, place.seconds)
        for step, place in zip(passes, places, strict=True)
    )


def _run_function(editor: Editor, step: Pass, worklist: Sequence[ir.Node]) -> None:
    """Run a pass that is a function; one that fails is left out as a whole when the run is repeated."""
    assert step.run is not None, "the caller has looked"
    if editor.is_blocked(step.name, "*"):
        return
    try:
        step.run(editor, worklist)
    except GraphoptError:  # a request that cannot be served, for the user to read
        raise
    except Exception as error:  # a pass's own fault must not cost the user the others
        raise BrokenRewrite(step.name, "*", f"{type(error).__name__}: {error}") from error


def _worklist(editor: Editor, place: _Place) -> list[ir.Node]:
    """All nodes in topological order the first time, then the touched ones that are still there."""
    if place.position is None:
        found = [node for graph in editor.graphs() for node in graph]
    else:
        fresh = dict.fromkeys(editor.touched[place.position :])
        found = [node for node in fresh if node.graph is not None]
    place.position = len(editor.touched)
    return found


def run_rules(editor: Editor, rules: Sequence[Rule], worklist: Iterable[ir.Node]) -> None:
    """Try the rules at each node of the worklist, and again around every change, until none fires."""
    by_type: dict[str, list[Rule]] = {}
    for rule in rules:
        for anchor in rule.anchors:
            by_type.setdefault(anchor, []).append(rule)
    anywhere = by_type.get("*", [])
    pending = deque(worklist)
    queued = set(pending)
    in_functions = bool(editor.model.functions)
    while pending and not editor.finished:
        node = pending.popleft()
        queued.discard(node)
        candidates = by_type.get(node.op_type)
        if (candidates is None and not anywhere) or node.graph is None:
            continue
        if not nodes.is_standard(node) or (in_functions and nodes.has_reference_attributes(node)):
            continue
        for rule in candidates if candidates is not None and not anywhere else (*(candidates or ()), *anywhere):
            position = len(editor.touched)
            if attempt(editor, rule, node):
                for other in editor.touched[position:]:
                    if other.graph is not None and other not in queued:
                        queued.add(other)
                        pending.append(other)
                if _is_gone(node):
                    break


def _is_gone(node: ir.Node) -> bool:
    return node.graph is None


def attempt(editor: Editor, rule: Rule, node: ir.Node) -> bool:
    """Try one rule at one node; True when it changed the graph."""
    if not rule.may_fit(node) or (editor.blocked and editor.is_blocked(rule.name, _site(node))):
        return False
    try:
        candidate, replacement = build(editor, rule, node)
        try:
            return editor.apply(rule.name, candidate, replacement)
        except Refused:
            editor.discard(candidate)
            return False
    except (Miss, Refused):
        return False
    except Exception as error:  # a rule's own fault must not cost the user the other rules
        raise BrokenRewrite(rule.name, _site(node), f"{type(error).__name__}: {error}") from error


def _site(node: ir.Node) -> str:
    return node.outputs[0].name or "" if node.outputs else ""


def build(
    editor: Editor, rule: Rule, node: ir.Node, *, explain: bool = False
) -> tuple[Match, ir.Value | Sequence[ir.Value | None]]:
    """The match of a rule at a node and what it would put there; raises Miss or Refused with the reason."""
    binding = bind(node) if rule.pattern is None else match(rule.pattern, node, editor.facts, explain=explain)
    candidate = Match(node, binding, editor.facts)
    try:
        return candidate, rule.apply(candidate)
    except nodes.ReferenceAttribute as unknown:
        editor.discard(candidate)
        raise Refused(str(unknown)) from unknown
    except Refused:
        editor.discard(candidate)
        raise
