"""Sequences of tensors whose members are known: built only to be taken apart again, they become tensors."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Refused, Replacement, Rule, any_node, bind

RULE = "split-into-tensors"
MOST_PARTS = 64  # a Split with more outputs, of which most may be unread, is no simplification


@any_node("SequenceAt", level=1)
def member_of_construct(match: Match) -> Replacement:
    """SequenceAt(SequenceConstruct(x, y, z), 1)  -->  y    (also for SequenceInsert at the end of a construct)"""
    construct = inner_node(match, operand(match), "SequenceConstruct", alone=False)
    if construct is None:
        match.refuse("the sequence is not constructed here")
    place = match.facts.scalar(operand(match, 1))
    match.require(isinstance(place, int), "the position is not a constant")
    assert isinstance(place, int)
    members = construct.inputs
    match.require(-len(members) <= place < len(members), "the position lies outside")
    member = members[place]
    if member is None:
        match.refuse("the member is absent")
    return member


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
            try:
                _split(editor, node)
            except Refused:
                continue


def _split(editor: Editor, node: ir.Node) -> None:
    match = Match(node, bind(node), editor.facts)
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
    before = [nodes.describe(node), *(nodes.describe(reader) for reader in readers)]
    after = ["Split"] if keep else ["Gather"] * len(readers)
    if not editor.accept(RULE, sequence, before, after):
        return
    graph = node.graph
    assert graph is not None, "the node is in a graph"
    made: list[ir.Value]
    if keep:
        attributes = {"axis": axis, "split": sizes if match.opset < 13 else None}
        operands = [source] if match.opset < 13 else [source, match.ints_constant(*sizes)]
        made = list(match.node_of("Split", *operands, attributes=attributes, outputs=count).outputs)
        results = [made[place] for place in places]
    else:
        results = [
            match.op("Gather", source, match.constant(np.array(place % count)), attributes={"axis": axis})
            for place in places
        ]
    editor.insert(match)
    for reader, result in zip(readers, results, strict=True):
        editor.replace_value(reader.outputs[0], result)
    editor.sweep(readers)


def _place(match: Match, reader: ir.Node) -> int:
    """The constant position that a SequenceAt in the same graph takes."""
    match.require(reader.op_type == "SequenceAt" and nodes.is_standard(reader), "something else reads the sequence")
    match.require(reader.graph is match.root.graph, "an inner graph reads the sequence")
    place = match.facts.scalar(nodes.input_at(reader, 1))
    match.require(isinstance(place, int), "a position is not a constant")
    assert isinstance(place, int)
    return place
