"""Slices of slices, and elements taken from what was just put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.movement import FAR, slice_bounds
from graphopt.model.operators.parameters import Unclear
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@dataclass(frozen=True, slots=True)
class Cut:
    """What a Slice does on one axis."""

    axis: int
    start: int
    end: int
    step: int


def _cuts(match: Match, node: ir.Node) -> list[Cut]:
    """The bounds of a Slice, one for each axis, axes non-negative; refuses when they are not constants."""
    source = nodes.given_input(node)
    try:
        starts, ends, axes, steps = slice_bounds(match.facts, node)
    except Unclear as unclear:
        match.refuse(str(unclear))
    if any(axis < 0 for axis in axes):
        rank = match.rank(source)
        axes = tuple(axis % rank for axis in axes)
    match.require(len(set(axes)) == len(axes), "an axis is sliced twice")
    return [Cut(*item) for item in zip(axes, starts, ends, steps, strict=True)]


def _absolute(cut: Cut, size: object) -> Cut:
    """The cut with bounds counted from the start, where the length of the axis is known."""
    if not isinstance(size, int):
        return cut
    start, end = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (cut.start, cut.end))
    return Cut(cut.axis, start, end, cut.step)


def _merged(match: Match, first: Cut, second: Cut) -> Cut:
    """Two cuts of one axis, the second counted within the first."""
    match.require(first.step == 1 and second.step == 1, "a step is not 1")
    match.require(first.start >= 0 and second.start >= 0, "a start counts from an end that is not known")
    start = min(first.start + second.start, FAR)
    if second.end >= FAR:
        return Cut(first.axis, start, first.end, 1)
    match.require(second.end >= 0 and first.end >= 0, "an end counts from an end that is not known")
    return Cut(first.axis, start, min(first.start + second.end, first.end), 1)


@any_node("Slice", level=1)
def slice_of_slice(match: Match) -> Replacement:
    """Slice(Slice(x, a, axis 1), b, axis 2)  -->  Slice(x, a and b, axes 1 and 2)

    On the same axis the bounds are added, for steps of 1. Readers of the inner Slice may be several, but Slices all: it
    goes when the last of them reads x. Leaves alone negative bounds of an axis of unknown length.
    """
    inner = inner_node(match, operand(match), "Slice", alone=False)
    if inner is None:
        match.refuse("the operand is not a Slice")
    match.require(not inner.outputs[0].is_graph_output(), "the inner Slice is an output of the graph")
    uses = inner.outputs[0].uses()
    slices = all(node.op_type == "Slice" and nodes.is_standard(node) and at == 0 for node, at in uses)
    match.require(slices, "the inner Slice has readers that are no Slices")
    source = nodes.given_input(inner)
    outer_cuts = {cut.axis: cut for cut in _cuts(match, match.root)}
    merged: list[Cut] = []
    for cut in _cuts(match, inner):
        after = outer_cuts.pop(cut.axis, None)
        if after is not None:
            whole, part = match.facts.shape(source), match.facts.shape(inner.outputs[0])
            first = cut if whole is None or cut.step != 1 else _absolute(cut, whole[cut.axis])
            second = after if part is None or after.step != 1 else _absolute(after, part[cut.axis])
            cut = _merged(match, first, second)
        merged.append(cut)
    merged.extend(outer_cuts.values())
    merged.sort(key=lambda cut: cut.axis)
    match.binding.inner.append(inner)
    steps = tuple(cut.step for cut in merged)
    attributes = {
        "starts": tuple(cut.start for cut in merged),
        "ends": tuple(cut.end for cut in merged),
        "axes": tuple(cut.axis for cut in merged),
        "steps": None if set(steps) <= {1} else steps,
    }
    return match.op("Slice", source, attributes=attributes)


@any_node("Gather", level=1)
def gather_of_unsqueeze(match: Match) -> Replacement:
    """Gather(Unsqueeze(x, [a]), 0, axis=a)  -->  x"""
    inner = inner_node(match, operand(match), "Unsqueeze", alone=False)
    if inner is None:
        match.refuse("the operand is not an Unsqueeze")
    index = operand(match, 1)
    match.require(match.facts.scalar(index) in (0, -1), "the index is not the number 0")
    match.require(match.rank(index) == 0, "the index is a vector, which keeps the dimension")
    axes = match.parameter(inner, "axes") or ()
    rank = match.rank(inner.outputs[0])
    axis = nodes.int_attribute(match.root, "axis", 0) % rank
    match.require([a % rank for a in axes] == [axis], "another axis is added than the one gathered from")
    source = nodes.given_input(inner)
    match.binding.inner.append(inner)
    return source


@any_node("Gather", level=1)
def gather_of_concat(match: Match) -> Replacement:
    """Gather(Concat(x, y), i, axis)  -->  Gather(y, i - length of x, axis)

    for a constant number i and operands of known length on the axis, up to the one it falls into.
    """
    inner = inner_node(match, operand(match), "Concat", alone=False)
    if inner is None:
        match.refuse("the operand is not a Concat")
    index = operand(match, 1)
    place = match.facts.scalar(index)
    match.require(isinstance(place, int) and match.rank(index) == 0, "the index is not one constant number")
    assert isinstance(place, int)
    rank = match.rank(inner.outputs[0])
    axis = nodes.int_attribute(match.root, "axis", 0) % rank
    match.require(nodes.int_attribute(inner, "axis", 0) % rank == axis, "Gather and Concat work on different axes")
    if place < 0:
        total = match.shape(inner.outputs[0])[axis]
        match.require(isinstance(total, int), "the index counts from an end that is not known")
        assert isinstance(total, int)
        place += total
    for value in inner.inputs:
        assert value is not None, "the operands of Concat are present"
        length = match.shape(value)[axis]
        match.require(isinstance(length, int), "the length of an operand is not known")
        assert isinstance(length, int)
        if 0 <= place < length:
            match.binding.inner.append(inner)
            kind = match.dtype(index)
            return match.op("Gather", value, match.constant(_number(place, kind), kind), like=match.root)
        place -= length
    match.refuse("the index lies outside")


def _number(place: int, kind: ir.DataType) -> np.ndarray:
    return np.array(place, dtype=kind.numpy())


@any_node("Concat", level=1)
def concat_of_slices(match: Match) -> Replacement:
    """Concat(x[0:2], x[2:5], x[5:])  -->  x, or the Slice of x that they make up

    for neighboring cuts of step 1 along the axis of the Concat, which alone is cut. The Slices may have other readers.
    """
    rank = match.rank(match.output)
    axis = nodes.int_attribute(match.root, "axis", 1) % max(rank, 1)
    match.require(len(match.root.inputs) > 1, "there is one piece only")
    whole: ir.Value | None = None
    reached: int | None = None
    first = 0
    for value in match.root.inputs:
        node = inner_node(match, value, "Slice", alone=False)
        if node is None or node.inputs[0] is None:
            match.refuse("a piece is no Slice")
        source = node.inputs[0]
        match.require(whole is None or whole is source, "the pieces are of different tensors")
        cuts = _cuts(match, node)
        match.require(len(cuts) == 1 and cuts[0].axis == axis and cuts[0].step == 1, "a piece is cut in another way")
        size = match.shape(source)[axis]
        match.require(isinstance(size, int), "the length of the axis is not known")
        cut = _absolute(cuts[0], size)
        match.require(reached is None or reached == cut.start, "the pieces are no neighbors")
        first = cut.start if reached is None else first
        whole, reached = source, cut.end
        match.binding.inner.append(node)
    assert whole is not None and reached is not None, "there are pieces"
    if (first, reached) == (0, match.shape(whole)[axis]):
        return whole
    return match.op("Slice", whole, attributes={"starts": (first,), "ends": (reached,), "axes": (axis,)})


RULES: tuple[Rule, ...] = (slice_of_slice, gather_of_unsqueeze, gather_of_concat, concat_of_slices)
