"""Attention that appends keys and values to a cache: the operator does so itself."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.fusion.private import made_by
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Refused, bind

RULE = "attention-with-cache"
KEYS, VALUES, MASK, PAST = 1, 2, 3, 4  # positions of the operator's inputs


def attention_with_cache(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Attention(q, Concat(past_k, k), Concat(past_v, v))  -->  Attention(q, k, v, , past_k, past_v)

    Its other two results are the Concats, which the graph may return. Leaves alone a cache that other operators read,
    and a causal mask, which begins behind the past where there is one.
    """
    for node in worklist:
        if node.op_type != "Attention" or not nodes.is_standard(node) or node.graph is None:
            continue
        match = Match(node, bind(node), editor.facts)
        try:
            _append(editor, match)
        except (Refused, nodes.ReferenceAttribute):
            editor.discard(match)


def _append(editor: Editor, match: Match) -> None:
    root = match.root
    match.require(len(root.outputs) == 1 and nodes.input_at(root, PAST) is None, "it keeps a cache already")
    match.require(len(root.inputs) <= PAST, "it is told how many keys count")
    match.require(match.rank(root.inputs[0] or root.outputs[0]) == 4, "it cuts the heads itself")
    match.require(not nodes.int_attribute(root, "is_causal", 0), "its causal mask begins at the first key")
    joins = [_join(match, index) for index in (KEYS, VALUES)]
    name = root.outputs[0].name or ""
    match.require(not editor.is_blocked(RULE, name), "it was taken back before")
    appended = [join.inputs[1] for join in joins]
    past = [join.inputs[0] for join in joins]
    made = match.node_of(
        "Attention", root.inputs[0], *appended, nodes.input_at(root, MASK), *past, outputs=3, like=root
    )
    if not editor.accept(RULE, name, [root, *joins], [made]):
        editor.discard(match)
        return
    editor.insert(match, RULE, [root, *joins])
    old = [root.outputs[0], *(join.outputs[0] for join in joins)]
    for before, after in zip(old, made.outputs, strict=True):
        editor.replace_value(before, after)
    editor.touched.append(made)
    editor.sweep([root, *joins])


def _join(match: Match, index: int) -> ir.Node:
    """The Concat of a past and what is appended to it, along the keys."""
    value = match.root.inputs[index]
    join = made_by(value, "Concat")
    if join is None or value is None or len(join.inputs) != 2:
        match.refuse("keys and values are not appended to a past")
    match.require(join.graph is match.root.graph, "the Concat belongs to an outer graph")
    match.require(not nodes.has_reference_attributes(join), "it has open attributes")
    match.require(nodes.int_attribute(join, "axis", 0) in (2, -2), "they are not appended along the keys")
    match.require(value.consumers() == (match.root,) or set(value.consumers()) == {match.root}, "others read the cache")
    past, new = (match.shape(part) for part in join.inputs if part is not None)
    query = match.shape(match.root.inputs[0] or value)
    fits = all(past[axis] == new[axis] for axis in (0, 1, 3)) and past[0] == query[0]
    match.require(fits, "the past is of another batch, or has other heads")
    counted = not isinstance(new[2], int) and any(str(one).startswith("?") for one in new[2].free_symbols)
    match.require(not counted, "data decide how many keys are appended, and there may be none")
    return join
