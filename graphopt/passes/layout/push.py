"""Transposes that channel-last exporters write around every operator, pushed and cancelled over the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.layout import assign, rebuild
from graphopt.passes.layout.flip import permutation
from graphopt.passes.layout.kept import what_keeps
from graphopt.passes.layout.permute import is_identity
from graphopt.passes.layout.region import Answer, Form, Region, explore
from graphopt.passes.layout.table import standard
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone
from graphopt.rewrite.rule import Refused

RULE = "push-transposes"
Settle: TypeAlias = Callable[[Sequence[ir.Node]], None]  # told of new nodes before they join the graph
LOOKS = 2  # how often, on average, a node may be looked at from different Transposes in one turn
LARGE = 2048  # nodes; a smaller graph is taken for one of this size


def push_transposes(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Transpose(Concat(Transpose(Conv(x)), Transpose(Conv(y)) + c))  -->  Concat(Conv(x), Conv(y) + c transposed)

    Operators between Transposes work on the other form where that leaves fewer Transposes (or as many that move less),
    over any number of operators. Leaves alone operators whose axes have fixed meanings, and regions without gain.
    """
    push(editor, worklist, RULE, standard)


def why_not_pushed(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each Transpose that stays: between what it stands."""
    return {
        node: LeftAlone(what_keeps(editor.facts, node.graph, node), True)
        for node in listed
        if node.op_type == "Transpose" and nodes.is_standard(node) and isinstance(node.graph, ir.Graph)
    }


def push(editor: Editor, worklist: Sequence[ir.Node], rule: str, answer: Answer, settle: Settle | None = None) -> None:
    """Solve the regions around all Transposes. With `settle`, operators are wanted in another layout."""
    if not worklist:
        return
    fresh = set(worklist)
    for graph in editor.graphs():
        seeds = [node for node in graph if node.op_type == "Transpose"]
        if not seeds:
            continue
        place = _places(graph)
        left = LOOKS * max(len(place), LARGE)
        seen: set[ir.Node] = set()
        for seed in seeds:
            if editor.finished:
                return
            if seed in seen or seed.graph is not graph or left < 0:
                continue
            region = _region(editor, seed, answer)
            if region is None:
                continue
            seen.update(region.ties)
            if fresh.isdisjoint(region.flips) and fresh.isdisjoint(region.ties):
                continue  # nothing in it has changed since it was looked at
            left -= len(region.flips) + len(region.ties)
            if any(node not in place for node in _around(region, graph)):
                place = _places(graph)  # an earlier change has put new nodes there
            _improve(editor, region, seed, rule, place, settle)


def _places(graph: ir.Graph) -> dict[ir.Node, int]:
    return {node: index for index, node in enumerate(graph)}


def _around(region: Region, graph: ir.Graph) -> Iterator[ir.Node]:
    """The region's nodes and those of this graph that read its values."""
    yield from region.flips
    yield from region.ties
    for value in region.forms:
        yield from (node for node in value.consumers() if node.graph is graph)


def _region(editor: Editor, seed: ir.Node, answer: Answer) -> Region | None:
    source = nodes.input_at(seed, 0)
    perm = permutation(editor.facts, seed)
    if source is None or seed.graph is None or perm is None or is_identity(perm) or not nodes.is_standard(seed):
        return None
    if editor.facts.is_constant(source) or editor.facts.rank(source) != len(perm):
        return None
    return explore(editor.facts, seed.graph, source, Form(perm, 0), answer)


def _improve(
    editor: Editor, region: Region, seed: ir.Node, rule: str, place: Mapping[ir.Node, int], settle: Settle | None
) -> None:
    """Change the region when that leaves fewer Transposes, or as many that move fewer elements."""
    if not region.flips and len(region.ties) < 2:
        return
    site = seed.outputs[0]
    if editor.is_blocked(rule, site.name or ""):
        return
    found = assign.tensors(editor.facts, region)
    before = assign.now(editor.facts, region)
    for count_first in (False, True):
        chosen = assign.solve(region, found, count_first=count_first, turning=settle is not None)
        if chosen is None:
            continue
        better = chosen.cost < before
        turned = settle is not None and chosen.turned and chosen.cost.nodes <= before.nodes
        if (better or turned) and _change(editor, region, found, chosen, site, rule, place, settle):
            return


def _change(
    editor: Editor, region: Region, found: list[assign.Tensor], chosen: assign.Assignment, site: ir.Value, rule: str,
    place: Mapping[ir.Node, int], settle: Settle | None,
) -> bool:  # fmt: skip
    try:
        made = rebuild.draft(editor, region, {tensor.root: tensor for tensor in found}, chosen.states, place)
    except Refused:
        return False
    gone = len(region.ties) + len(made.copies)
    passed = any(node.op_type == "Identity" for node in made.made)  # an output under another name
    pays = chosen.turned or not passed or len(made.made) < gone
    if not pays or not editor.accept(rule, site, [*region.ties, *made.copies], made.made):
        made.discard()
        return False
    if settle is not None:
        settle(made.made)
    rebuild.apply(made)
    return True
