"""Attention over heads that were cut from one axis and are joined again: the operator cuts and joins them itself."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.passes.algebra.reshape import reshape_target
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.rewrite.rule import Match, Refused, Replacement, Rule, any_node

HEADS_FIRST = (0, 2, 1, 3)
PACKED = (2, 0, 3, 1, 4)  # queries, keys and values first, then the heads


@any_node("Reshape", level=2)
def attention_of_three_axes(match: Match) -> Replacement:
    """Reshape(Transpose(Attention(q4, k4, v4))), q4 = Transpose(Reshape(q))  -->  Attention(q, k, v, q_num_heads=h)

    Queries, keys and values alike; a Reshape of the result stays where it does more than join the heads. Leaves alone
    heads that come from elsewhere (a cache), and results of which more than the first is read.
    """
    node, transpose = _attention(match)
    outputs = node.outputs
    match.require(len(outputs) == 1, "more than its first result is asked for")
    match.require(not any(name in node.attributes for name in ("q_num_heads", "kv_num_heads")), "it has three axes")
    operands = [node.inputs[index] for index in range(3)]
    require_private(match, [node] if transpose is None else [node, transpose])
    batch, heads, length, size = match.shape(outputs[0])
    match.require(isinstance(heads, int) and isinstance(size, int), "the number and size of the heads are not known")
    flat = [_flat(match, value) for value in operands]
    kv_heads = match.shape(operands[1])[1] if operands[1] is not None else 0
    match.require(isinstance(kv_heads, int), "the number of heads is not known")
    assert isinstance(heads, int) and isinstance(kv_heads, int), "required just now"
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    joined = match.op("Attention", *flat, *node.inputs[3:], like=node, attributes=attributes)
    result = match.shape(match.output)
    if result == (batch, length, dims.product((heads, size))):
        return joined
    target = match.facts.ints(match.root.inputs[1])
    if target is not None and 0 in target:  # which copies from a tensor of four axes
        return match.op("Reshape", joined, match.ints_constant(*reshape_target(match, joined, result)))
    return match.op("Reshape", joined, match.root.inputs[1], like=match.root)


@any_node("Attention", level=2)
def cached_attention_of_three_axes(match: Match) -> Replacement:
    """Attention(q4, k4, v4, m, past_k, past_v), q4 = Transpose(Reshape(q))

    -->  Transpose(Reshape(Attention(q, k, v, m, past_k, past_v, q_num_heads=h)))

    Where the heads of the result are joined again, which then cancels. The cache keeps its four axes.
    """
    root = match.root
    match.require(len(root.outputs) == 3 and len(root.inputs) == 6, "it keeps no cache")
    match.require("q_num_heads" not in root.attributes, "it has three axes")
    y = root.outputs[0]
    readers = y.consumers()
    _, heads, length, size = match.shape(y)
    match.require(len(readers) == 1 and not y.is_graph_output(), "its result is not read once")
    reader = readers[0]
    joined = reader.op_type == "Transpose" and permutation(match, reader) == HEADS_FIRST
    match.require(joined or (length == 1 and reader.op_type == "Reshape"), "the heads are not joined again")
    kv_heads = match.shape(root.outputs[1])[1]
    match.require(all(isinstance(dim, int) for dim in (heads, kv_heads, size)), "the number of heads is not known")
    assert isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(size, int), "required just now"
    flat = [_flat(match, root.inputs[index]) for index in range(3)]
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    made = match.node_of("Attention", *flat, *root.inputs[3:], outputs=3, like=root, attributes=attributes)
    result = made.outputs[0]
    if length == 1:
        result = match.op("Reshape", result, match.ints_constant(*reshape_target(match, result, match.shape(y))))
    else:
        result = match.op("Reshape", result, match.ints_constant(0, 0, heads, size))
        result = match.op("Transpose", result, attributes={"perm": HEADS_FIRST})
    return (result, made.outputs[1], made.outputs[2])


def _attention(match: Match) -> tuple[ir.Node, ir.Node | None]:
    """The Attention under the Reshape, and the Transpose between, which one query needs not."""
    value = match.root.inputs[0]
    transpose = made_by(value, "Transpose")
    if transpose is not None:
        match.require(permutation(match, transpose) == HEADS_FIRST, "the heads are not moved beside their elements")
        value = transpose.inputs[0]
    node = made_by(value, "Attention")
    if node is None:
        match.refuse("it does not join the heads of an Attention")
    if transpose is None:
        match.require(match.shape(node.outputs[0])[2] == 1, "the heads are not moved beside their elements")
    return node, transpose


def _flat(match: Match, value: ir.Value | None) -> ir.Value:
    """x [b, n, h d] of Transpose(Reshape(x, [b, n, h, d]), 0 2 1 3), also below a RotaryEmbedding."""
    assert value is not None, "queries, keys and values are given"
    batch, heads, length, size = match.shape(value)
    whole = (batch, length, dims.product((heads, size)))
    rotary = made_by(value, "RotaryEmbedding")
    if rotary is not None and len(value.uses()) == 1 and not value.is_graph_output():
        match.require(isinstance(heads, int), "the number of heads is not known")
        assert isinstance(heads, int), "required just now"
        inner = _flat(match, rotary.inputs[0])
        return match.op("RotaryEmbedding", inner, *rotary.inputs[1:], like=rotary, attributes={"num_heads": heads})
    packed = _from_pack(match, value, whole)
    if packed is not None:
        return packed
    transpose = made_by(value, "Transpose")
    reshape = made_by(value, "Reshape")
    if transpose is not None and permutation(match, transpose) == HEADS_FIRST:
        cut = transpose.inputs[0]
        reshape = made_by(cut, "Reshape")
    elif reshape is not None and length == 1:  # of one token there is nothing to move
        cut = value
    else:
        match.refuse(f"the heads of '{value.name}' are not cut from one axis")
    assert cut is not None, "a Transpose has an input"
    source = None if reshape is None else reshape.inputs[0]
    if source is not None and match.facts.shape(source) == whole:
        return source
    if source is not None:
        try:
            return match.op("Reshape", source, match.ints_constant(*reshape_target(match, source, whole)))
        except Refused:
            pass
    width = whole[2]
    match.require(isinstance(width, int) and cut is not value, f"the size of '{value.name}' is not known")
    assert isinstance(width, int), "required just now"
    return match.op("Reshape", cut, match.ints_constant(0, 0, width))


def _from_pack(match: Match, value: ir.Value, whole: dims.Dims) -> ir.Value | None:
    """A third of x [b, n, 3 h d], of Transpose(Reshape(x, [b, n, 3, h, d]), 2 0 3 1 4) with queries, keys, values."""
    node = made_by(value, "Squeeze", "Gather")
    if node is None:
        return None
    if node.op_type == "Squeeze":
        split = made_by(node.inputs[0], "Split")
        axes = match.facts.ints(nodes.input_at(node, 1))
        if split is None or node.inputs[0] is None or axes != (0,) or nodes.int_attribute(split, "axis", 0) != 0:
            return None
        place, stack = node.inputs[0].index(), split.inputs[0]
        if any((match.facts.shape(part) or (0,))[0] != 1 for part in split.outputs):
            return None
    else:
        number = match.facts.scalar(node.inputs[1])
        if number is None or nodes.int_attribute(node, "axis", 0) != 0:
            return None
        place, stack = int(number), node.inputs[0]
    transpose = made_by(stack, "Transpose")
    if transpose is None or permutation(match, transpose) != PACKED:
        return None
    reshape = made_by(transpose.inputs[0], "Reshape")
    cut = match.facts.shape(transpose.inputs[0]) if transpose.inputs[0] is not None else None
    source = None if reshape is None else reshape.inputs[0]
    if source is None or cut is None or not isinstance(cut[2], int) or place is None:
        return None
    count = cut[2]
    if match.facts.shape(source) != (*whole[:2], dims.product(cut[2:])) or not -count <= place < count:
        return None
    parts = match.node_of("Split", source, attributes={"axis": -1, "num_outputs": count}, outputs=count)
    return parts.outputs[place % count]


RULES: tuple[Rule, ...] = (attention_of_three_axes, cached_attention_of_three_axes)
