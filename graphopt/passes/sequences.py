"""Sequences of tensors whose members are known: built only to be taken apart again, they become tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone
from graphopt.rewrite.rule import Match, Refused, Replacement, Rule, any_node, bind

RULE = "split-into-tensors"
MOST_PARTS = 64  # a Split with more outputs, of which most may be unread, is no simplification


@any_node("SequenceAt", level=1)
def member_of_construct(match: Match) -> Replacement:
    """SequenceAt(SequenceConstruct(x, y, z), 1)  -->  y"""
    construct = inner_node(match, operand(match), "SequenceConstruct", alone=False)
    if construct is None:
        match.refuse("the sequence is not constructed here")
    place = match.facts.scalar(operand(match, 1))
    match.require(isinstance(place, int), "the position is not a constant")
    assert isinstance(place, int)
    members = construct.inputs
    match.require(-len(members) <= place < len(members), "the position lies outside")
    return nodes.given_input(construct, place)


@any_node("ConcatFromSequence", level=1)
def concat_of_construct(match: Match) -> Replacement:
    """ConcatFromSequence(SequenceConstruct(x, y, z))  -->  Concat(x, y, z)

    Leaves alone new_axis=1, which would take an Unsqueeze of each.
    """
    construct = inner_node(match, operand(match), "SequenceConstruct")
    if construct is None:
        match.refuse("the sequence is not constructed here, or is read elsewhere too")
    match.require(not nodes.int_attribute(match.root, "new_axis", 0), "the tensors are stacked, not joined")
    match.binding.inner.append(construct)
    return match.op("Concat", *construct.inputs, attributes={"axis": nodes.int_attribute(match.root, "axis", 0)})


RULES: tuple[Rule, ...] = (member_of_construct, concat_of_construct)


def split_into_tensors(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """SequenceAt(SplitToSequence(x, sizes), i), for all its readers  -->  output i of Split(x, sizes)

    Without sizes and with keepdims=0 each becomes Gather(x, i). Leaves alone a sequence that something else reads, a
    position that is not constant, and an axis of unknown length that is cut in pieces of one size.
    """
    # A SequenceAt is in the worklist when its position has become known, the SplitToSequence when its axis has.
    found: dict[ir.Node, None] = {}
    for node in worklist:
        if node.op_type == "SequenceAt" and node.inputs and node.inputs[0] is not None:
            producer = node.inputs[0].producer()
            if producer is not None:
                found[producer] = None
        else:
            found[node] = None
    for node in found:
        if node.op_type == "SplitToSequence" and nodes.is_standard(node) and node.graph is not None:
            match = Match(node, bind(node), editor.facts)
            try:
                _split(editor, match)
            except Refused:
                editor.discard(match)


def why_not_split(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each SplitToSequence: the condition that does not hold."""
    found: dict[ir.Node, LeftAlone] = {}
    for node in listed:
        if node.op_type == "SplitToSequence" and nodes.is_standard(node):
            match = Match(node, bind(node), editor.facts)
            try:
                _split(editor, match)
            except Refused as refused:
                editor.discard(match)
                found[node] = LeftAlone(str(refused), True)
    return found


def _split(editor: Editor, match: Match) -> None:
    node = match.root
    match.require(not nodes.has_reference_attributes(node), "an attribute is given by the function's caller")
    sequence, source = node.outputs[0], operand(match)
    readers = sequence.consumers()
    match.require(readers and not sequence.is_graph_output(), "the sequence is a result")
    places = [_place(match, reader) for reader in readers]
    rank = match.rank(source)
    axis = nodes.int_attribute(node, "axis", 0)
    match.require(-rank <= axis < rank, "the axis lies outside the rank")
    length = match.shape(source)[axis]
    given = nodes.input_at(node, 1)
    if given is None:
        keep = bool(nodes.int_attribute(node, "keepdims", 1))
        sizes: tuple[int, ...] = (1,) * length if isinstance(length, int) else ()
    else:
        keep = True
        sizes = _sizes(match, given, length)
    count = len(sizes)
    match.require(0 < count <= MOST_PARTS, "the number of parts is not known, or very large")
    match.require(all(-count <= place < count for place in places), "a position lies outside")
    results = [reader.outputs[0] for reader in readers if reader.outputs[0].is_graph_output()]
    named = [place % count for place, reader in zip(places, readers, strict=True) if reader.outputs[0] in results]
    match.require(len(set(named)) == len(named), "one part is returned under two names")
    parts = _parts(match, source, axis, sizes) if keep else _members(match, source, axis, places, count)
    before = [node, *dict.fromkeys(readers)]
    if not editor.accept(RULE, sequence, before, match.new_nodes):
        editor.discard(match)
        return
    editor.insert(match, RULE, before)
    for place, reader in zip(places, readers, strict=True):
        editor.replace_value(reader.outputs[0], parts[place % count])
    editor.sweep(readers)
    editor.touched.extend(match.new_nodes)


def _parts(match: Match, source: ir.Value, axis: int, sizes: tuple[int, ...]) -> dict[int, ir.Value]:
    """All parts, as the outputs of one Split."""
    split = match.node_of("Split", source, attributes={"axis": axis, "split": sizes}, outputs=len(sizes))
    return dict(enumerate(split.outputs))


def _members(match: Match, source: ir.Value, axis: int, places: Sequence[int], count: int) -> dict[int, ir.Value]:
    """The parts of length 1 that are read, without the axis."""
    wanted = sorted({place % count for place in places})
    return {
        place: match.op("Gather", source, match.constant(np.array(place, np.int64)), attributes={"axis": axis})
        for place in wanted
    }


def _sizes(match: Match, given: ir.Value, length: dims.Dim) -> tuple[int, ...]:
    """The lengths of the parts: as listed, or of one size with the rest as the last."""
    numbers = match.ints(given, "the list of sizes")
    if match.rank(given) == 1:
        match.require(all(size >= 0 for size in numbers), "a size is negative")
        return numbers
    size = numbers[0]
    if not isinstance(length, int) or size < 1:
        match.refuse("the length of the axis, or of the parts, is not known")
    full, rest = divmod(length, size)
    return (size,) * full + ((rest,) if rest else ())


def _place(match: Match, reader: ir.Node) -> int:
    """The constant position that a SequenceAt in the same graph takes."""
    match.require(reader.op_type == "SequenceAt" and nodes.is_standard(reader), "something else reads the sequence")
    match.require(reader.graph is match.root.graph, "an inner graph reads the sequence")
    place = match.facts.scalar(nodes.input_at(reader, 1))
    match.require(isinstance(place, int), "a position is not a constant")
    assert isinstance(place, int)
    return place
