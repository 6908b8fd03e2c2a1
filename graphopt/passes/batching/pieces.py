"""The same operator on every piece of a Split is done once, before the Split."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.table import ARITHMETIC, UNARY
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Refused, bind

RULE = "batch-pieces"
CUTS = frozenset({"Slice", "Split"})  # along another axis
PIECE, OTHER = "piece", "other"
Signature = tuple[object, ...]


def batch_pieces(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Split(x) -> Relu, Relu, Relu  -->  Relu(x) -> Split

    for operators that treat every element alike: of one tensor, with a constant that is the same for every piece, or of
    the pieces of two Splits of equal sizes, place by place; and for a Slice or Split along another axis. Leaves alone
    what would not become fewer nodes.
    """
    above = [value.producer() for node in worklist for value in node.inputs if value is not None]
    pending = deque(dict.fromkeys(node for node in (*worklist, *above) if node is not None and node.op_type == "Split"))
    while pending and not editor.finished:
        split = pending.popleft()
        if split.graph is None or not nodes.is_standard(split) or nodes.has_reference_attributes(split):
            continue
        for signature in _signatures(editor, split):
            made = _attempt(editor, split, signature)
            if made:
                pending.extend((split, *made))
                break


def _signatures(editor: Editor, split: ir.Node) -> list[Signature]:
    """What exactly one reader of the first piece is: the candidates for being on every piece."""
    found: dict[Signature, int] = {}
    for reader in dict.fromkeys(split.outputs[0].consumers()):
        signature = _signature(editor, reader, split.outputs[0])
        if signature is not None:
            found[signature] = found.get(signature, 0) + 1
    return [signature for signature, count in found.items() if count == 1]


def _signature(editor: Editor, node: ir.Node, piece: ir.Value) -> Signature | None:
    """Equal for operators that do the same to their pieces; None for operators that are not batched."""
    if not nodes.is_standard(node) or node.op_type not in UNARY | ARITHMETIC | CUTS:
        return None
    roles: list[object] = []
    for value in node.inputs:
        if value is piece:
            roles.append(PIECE)
        elif value is None or editor.facts.is_constant(value):
            roles.append(None if value is None else id(value))
        else:
            roles.append(OTHER)
    attributes = tuple((name, repr(item.value)) for name, item in sorted(node.attributes.items()))
    return (node.op_type, len(node.outputs), attributes, *roles)


def _attempt(editor: Editor, split: ir.Node, signature: Signature) -> list[ir.Node]:
    """Batch the readers of that signature; the new Splits, none where it is refused."""
    match = Match(split, bind(split), editor.facts)
    try:
        return _batch(editor, match, split, signature)
    except Refused:
        editor.discard(match)
        return []


def _batch(editor: Editor, match: Match, split: ir.Node, signature: Signature) -> list[ir.Node]:
    graph, source = split.graph, split.inputs[0]
    readers = _readers(editor, match, split, signature)
    first = readers[0]
    match.require(not editor.is_blocked(RULE, first.outputs[0].name or ""), "it was taken back before")
    match.require(len(readers) > len(first.outputs) + 1, "there would be no fewer nodes")
    assert isinstance(graph, ir.Graph) and source is not None, "its readers are in its graph, and it has an operand"
    axis = nodes.int_attribute(split, "axis", 0) % match.rank(source)
    if first.op_type in CUTS:
        _require_other_axis(match, first, axis)
    columns = [[reader.inputs[place] for reader in readers] for place in range(len(first.inputs))]
    operands = [_whole(match, split, axis, source, column, first.op_type in CUTS) for column in columns]
    batched = match.node_of(first.op_type, *operands, like=first, outputs=len(first.outputs))
    if first.op_type not in CUTS:
        match.require(match.shape(batched.outputs[0]) == match.shape(source), "an operand widens the pieces")
    again = [
        match.node_of("Split", result, *split.inputs[1:], like=split, outputs=len(split.outputs))
        for result in batched.outputs
    ]
    if not editor.accept(RULE, first.outputs[0], readers, match.new_nodes):
        editor.discard(match)
        return []
    there = Match(first, bind(first), editor.facts)
    there.new_nodes, there.new_constants = match.new_nodes, match.new_constants
    editor.insert(there, RULE, readers)
    for place, reader in enumerate(readers):
        for output, dealt in zip(reader.outputs, again, strict=True):
            editor.replace_value(output, dealt.outputs[place])
    editor.touched.extend(match.new_nodes)
    editor.sweep(readers)
    graph.sort()  # an operand may stand behind the first reader
    return again


def _readers(editor: Editor, match: Match, split: ir.Node, signature: Signature) -> list[ir.Node]:
    """The one reader of each piece that has the signature."""
    match.require(match.opset >= 7, "before opset 7 operands are aligned by attributes")
    readers: list[ir.Node] = []
    for piece in split.outputs:
        found = [node for node in dict.fromkeys(piece.consumers()) if _signature(editor, node, piece) == signature]
        match.require(len(found) == 1, "not every piece is read by one such operator")
        match.require(found[0].graph is split.graph, "a reader belongs to another graph")
        match.require(not nodes.has_reference_attributes(found[0]), "a reader has open attributes")
        readers.append(found[0])
    return readers  # different ones: where a node reads two pieces, it reads each at another place


def _require_other_axis(match: Match, node: ir.Node, axis: int) -> None:
    """Refuse unless a Slice or Split cuts along known axes, and not along `axis`."""
    rank = match.rank(node.inputs[0]) if node.inputs[0] is not None else 0
    if node.op_type == "Split":
        axes: tuple[int, ...] = (nodes.int_attribute(node, "axis", 0),)
    else:
        axes = match.parameter(node, "axes") or tuple(range(rank))
    match.require(all(other % rank != axis for other in axes), "it cuts along the axis of the pieces")


def _whole(
    match: Match, split: ir.Node, axis: int, source: ir.Value, column: Sequence[ir.Value | None], parameter: bool
) -> ir.Value | None:
    """The operand of the batched operator for what its copies read at one place; refuses where there is none."""
    if list(column) == list(split.outputs):
        return source
    first = column[0]
    if all(value is first for value in column):
        if first is None or parameter:
            return first
        match.require(match.facts.is_constant(first), "the operand that all share is computed")
        shape = match.static_shape(first)
        along = axis - match.rank(source)
        match.require(len(shape) < -along or shape[along] == 1, "the operand differs along the Split's axis")
        return first
    other = None if first is None else first.producer()
    if other is None or other.op_type != "Split" or not nodes.is_standard(other) or list(column) != list(other.outputs):
        match.refuse("the other operands are no pieces of one tensor")
    whole = other.inputs[0]
    if whole is None or match.shape(whole) != match.shape(source):
        match.refuse("the tensors differ in shape")
    match.require(not nodes.has_reference_attributes(other), "the other Split has open attributes")
    match.require(nodes.int_attribute(other, "axis", 0) % match.rank(whole) == axis, "the Splits are along other axes")
    sizes = [[match.shape(piece) for piece in node.outputs] for node in (split, other)]
    match.require(sizes[0] == sizes[1], "the pieces differ in size")
    return whole
