"""A number that scales one share of a Split moves into the weights above the Split.

GPT-2 computes queries, keys and values in one product and splits it; the queries are then scaled by 1/sqrt(d). The
columns of the weight that make the queries take the number, the others stay. This is no local rule: the scaled node
lies below the Split, the weights above it, and the other shares are read in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.constants import Array
from graphopt.passes.weights.layer import claim, layer_at
from graphopt.passes.weights.numbers import DEEPEST, MOVERS, factor_of
from graphopt.passes.weights.refit import with_outputs
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone
from graphopt.rewrite.rule import Match, Refused, bind

RULE = "number-through-split"


def number_through_split(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Split(x W)[0] * s  -->  Split(x W')[0], with s in the columns of W' that make the first share

    Passes operators that move data between the Split and the factor, and a Reshape above the Split that keeps the last
    axis. Leaves alone a share that something else reads too.
    """
    for node in worklist:
        if node.op_type in ("Mul", "Div") and node.graph is not None and nodes.is_standard(node):
            try:
                _move(editor, node)
            except Refused:
                continue


def why_not_moved(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each Mul and Div: the condition that does not hold."""
    found: dict[ir.Node, LeftAlone] = {}
    for node in listed:
        if node.op_type in ("Mul", "Div") and nodes.is_standard(node):
            try:
                _move(editor, node)
            except Refused as refused:
                found[node] = LeftAlone(str(refused), False)
    return found


def _move(editor: Editor, node: ir.Node) -> None:
    below = Match(node, bind(node), editor.facts)
    below.require(not nodes.has_reference_attributes(node), "it has open attributes")
    below.require(not node.outputs[0].is_graph_output(), "the result has the name of a graph output")
    data, number = factor_of(below, node)
    share = _share(below, data)
    split = share.producer()
    assert split is not None, "a share is computed by a Split"
    end = _end_of_layer(below, split)
    above = Match(end, bind(end), editor.facts)
    try:
        replacement = with_outputs(above, layer_at(above, end), _per_column(above, split, share, number), None)
        if not editor.apply(RULE, above, replacement):
            return
    except Refused:
        editor.discard(above)
        raise
    editor.replace_value(node.outputs[0], data)
    editor.sweep([node])


def _share(match: Match, value: ir.Value) -> ir.Value:
    """The output of a Split that only the chain to the factor reads."""
    user = match.root
    for _ in range(DEEPEST):
        producer = value.producer()
        if producer is not None and producer.op_type == "Split" and nodes.is_standard(producer):
            alone = all(reader is user for reader in value.consumers()) and not value.is_graph_output()
            match.require(alone, "the share is read elsewhere too")
            match.require(not nodes.has_reference_attributes(producer), "the Split has open attributes")
            match.require(producer.graph is match.root.graph, "the Split belongs to an outer graph")
            return value
        node = claim(match, value, user)
        match.require(node.op_type in MOVERS, f"{nodes.describe(node)} is in front, no Split")
        source = nodes.given_input(node)
        value, user = source, node
    match.refuse("no Split within reach")


def _end_of_layer(match: Match, split: ir.Node) -> ir.Node:
    """The last node of the layer whose columns the Split deals out."""
    user, value = split, split.inputs[0]
    assert value is not None, "the data is given"
    rank = match.rank(value)
    axis = nodes.int_attribute(split, "axis", 0)
    match.require(axis in (-1, rank - 1), "the Split is not along the last axis")
    node = claim(match, value, user)
    if node.op_type == "Reshape":
        source = nodes.given_input(node)
        match.require(dims.equal(match.shape(source)[-1], match.shape(value)[-1]), "the Reshape cuts the last axis")
        node = claim(match, source, node)
    return node


def _per_column(match: Match, split: ir.Node, share: ir.Value, number: float) -> Array:
    """One factor per column of the weight: `number` in those of the share, 1 elsewhere."""
    sizes = [match.shape(output)[-1] for output in split.outputs]
    known = [size for size in sizes if isinstance(size, int)]
    assert len(known) == len(sizes), "they are columns of a constant weight"
    layer = layer_at(match, match.root)
    match.require(layer.output_axis == -1 and layer.outputs == sum(known), "the shares are not the weight's columns")
    vector: Array = np.ones(sum(known))
    start = sum(known[: share.index()])
    vector[start : start + known[share.index() or 0]] = number
    return vector
