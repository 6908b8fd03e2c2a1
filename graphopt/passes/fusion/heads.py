"""Heads of keys and values that several heads of queries share: written out by Expand, or by repetition."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.fusion.private import made_by
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

SWAPPED = (0, 1, 2, 4, 3)
SWAPPED_FOUR = (0, 1, 3, 2)


@any_node("Attention", level=2)
def attention_with_shared_heads(match: Match) -> Replacement:
    """Attention(q, Reshape(Expand(Unsqueeze(k))), Reshape(Expand(Unsqueeze(v))))  -->  Attention(q, k, v)

    where each head of keys and values is repeated for the same number of heads of queries in a row.
    """
    root = match.root
    q, k, v = root.inputs[:3]
    assert q is not None and k is not None and v is not None, "queries, keys and values are given"
    match.require(len(root.outputs) == 1 and nodes.input_at(root, 4) is None, "it keeps a cache")
    match.require(match.rank(q) == 4, "it cuts the heads itself")
    single_k, single_v = _single(match, k), _single(match, v)
    if single_k is None or single_v is None:
        match.refuse("the heads of keys and values are not both repeated")
    match.require(single_k[1] == single_v[1], "keys and values are not repeated equally often")
    return match.op("Attention", q, single_k[0], single_v[0], *root.inputs[3:], like=root)


def _single(match: Match, value: ir.Value) -> tuple[ir.Value, int] | None:
    """x [b, g, n, d] of Reshape(Expand(x [b, g, 1, n, d] to [b, g, t, n, d]), [b, g t, n, d]), and t."""
    swapped = made_by(value, "Transpose")
    if swapped is not None and permutation(match, swapped) == SWAPPED_FOUR:
        # The keys' transpose was moved above the repetition.
        inner = None if swapped.inputs[0] is None else _single(match, swapped.inputs[0])
        return None if inner is None else (_unswapped(match, inner[0]), inner[1])
    reshape = made_by(value, "Reshape")
    expand = None if reshape is None else made_by(reshape.inputs[0], "Expand")
    if reshape is None or expand is None or expand.inputs[0] is None:
        return None
    wide, narrow = match.facts.shape(expand.outputs[0]), match.facts.shape(expand.inputs[0])
    result = match.facts.shape(value)
    if wide is None or narrow is None or result is None or len(wide) != 5 or len(narrow) != 5 or len(result) != 4:
        return None
    batch, groups, times, length, size = wide
    if narrow[2] != 1 or not isinstance(times, int) or not isinstance(groups, int) or times < 2:
        return None
    if (narrow[0], narrow[1], narrow[3], narrow[4]) != (batch, groups, length, size):
        return None
    if result != (batch, groups * times, length, size):
        return None
    return _without_axis(match, expand.inputs[0]), times


def _without_axis(match: Match, value: ir.Value) -> ir.Value:
    """x of Unsqueeze(x, 2), also below a Transpose of the last two axes."""
    unsqueeze = made_by(value, "Unsqueeze")
    below = None if unsqueeze is None else unsqueeze.inputs[0]
    if unsqueeze is not None and below is not None and match.facts.ints(unsqueeze.inputs[1]) in ((2,), (-3,)):
        return below
    transpose = made_by(value, "Transpose")
    if transpose is not None and transpose.inputs[0] is not None and permutation(match, transpose) == SWAPPED:
        inner = _without_axis(match, transpose.inputs[0])
        return match.op("Transpose", inner, attributes={"perm": SWAPPED_FOUR})
    return match.op("Squeeze", value, match.ints_constant(2))


def _unswapped(match: Match, value: ir.Value) -> ir.Value:
    node = made_by(value, "Transpose")
    if node is not None and node.inputs[0] is not None and permutation(match, node) == SWAPPED_FOUR:
        return node.inputs[0]
    return match.op("Transpose", value, attributes={"perm": SWAPPED_FOUR})


RULES: tuple[Rule, ...] = (attention_with_shared_heads,)
