"""The graph around a rewrite, small enough to draw: the changed nodes, what they read and what reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.record import Dot, Sketch

CHANGED = 14  # changed nodes drawn
NEIGHBOURS = 5  # nodes above, and nodes below, that are drawn
SCANNED = 64  # readers of one value that are looked at; some values are read by thousands


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stood around the nodes of a change before it happened."""

    before: Sketch
    matched: tuple[ir.Node, ...]
    above: tuple[ir.Node, ...]
    below: tuple[ir.Node, ...]
    entries: tuple[tuple[ir.Node, int], ...]  # readers of the matched nodes' values, and at which input


def surroundings(matched: Sequence[ir.Node]) -> Surroundings:
    """The nodes of a change, before it, with one level above and below."""
    inside = dict.fromkeys(matched)
    above = dict.fromkeys(node for item in inside for node in _producers(item) if node not in inside)
    entries = [use for item in inside for use in _uses(item) if use[0] not in inside]
    below = dict.fromkeys(node for node, _ in entries if node not in above)
    before = _sketch(list(inside), list(above), list(below))
    return Surroundings(before, tuple(inside), tuple(above), tuple(below), tuple(entries))


def draw(around: Surroundings, new: Iterable[ir.Node]) -> Sketch:
    """The same place after the change: the new nodes, those of the old ones that stay, and the same neighbours."""
    given = [(value, node) for node, index in around.entries if (value := _still_read(node, index)) is not None]
    replaced = [value.producer() for value, _ in given]
    core = dict.fromkeys(node for node in new if node.graph is not None)
    core.update(dict.fromkeys(node for node in around.matched if node.graph is not None))
    neighbours = dict.fromkeys(node for node in (*around.above, *replaced) if node is not None and node not in core)
    above = [node for node in neighbours if node.graph is not None and node not in around.below]
    below = [node for node in around.below if node.graph is not None and node not in core]
    return _sketch(list(core), above, below, given)


def _still_read(node: ir.Node, index: int) -> ir.Value | None:
    """What a reader takes in the place of a value that the change has computed anew."""
    return None if node.graph is None else nodes.input_at(node, index)


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is not None:
            yield producer


def _uses(node: ir.Node) -> Iterator[tuple[ir.Node, int]]:
    for output in node.outputs:
        for use in list(output.uses())[:SCANNED]:
            yield use.node, use.idx


def _sketch(
    changed: Sequence[ir.Node],
    above: Sequence[ir.Node],
    below: Sequence[ir.Node],
    given: Sequence[tuple[ir.Value, ir.Node]] = (),
) -> Sketch:
    """`given` are values, without a node that computes them, that readers below take now."""
    shown = [*changed[:CHANGED], *above[:NEIGHBOURS], *below[:NEIGHBOURS]]
    places = {node: place for place, node in enumerate(shown)}
    dots = [
        Dot(node.op_type, node.name or node.outputs[0].name or "" if node.outputs else node.name or "", node in changed)
        for node in shown
    ]
    arrows: dict[tuple[int, int], None] = {}
    for node, place in places.items():
        for value in (*node.inputs, *(nodes.implicit_inputs(node) if nodes.has_subgraphs(node) else ())):
            source = None if value is None else value.producer()
            if source in places:
                arrows[places[source], place] = None
            elif value is not None and source is None and node in changed:
                _add_leaf(dots, arrows, value, place, False)
    for value, reader in given:
        if value.producer() is None and reader in places:
            _add_leaf(dots, arrows, value, places[reader], True)
    for node in changed[:CHANGED]:
        for output in node.outputs:
            if output.is_graph_output():
                dots.append(Dot("output", output.name or "", False))
                arrows[places[node], len(dots) - 1] = None
    joined = {place for arrow in arrows for place in arrow}
    kept = [
        place for place, dot in enumerate(dots) if dot.changed or place in joined
    ]  # the others are no neighbors now
    number = {place: position for position, place in enumerate(kept)}
    left_out = len(changed) + len(above) + len(below) - len(shown)
    return Sketch(
        tuple(dots[place] for place in kept), tuple((number[one], number[two]) for one, two in arrows), left_out
    )


def _add_leaf(
    dots: list[Dot], arrows: dict[tuple[int, int], None], value: ir.Value, reader: int, changed: bool
) -> None:
    """An input of the graph or a constant; the same one is drawn once."""
    leaf = Dot("constant" if value.const_value is not None else "input", value.name or "", changed)
    if leaf not in dots:
        dots.append(leaf)
    arrows[dots.index(leaf), reader] = None
