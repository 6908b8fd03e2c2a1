"""Data movement that moves nothing: Transpose in order, Reshape to the same shape, Slice of everything."""

from __future__ import annotations

from graphopt.model import dims, nodes
from graphopt.model.operators.table import BROADCASTING
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.operands import operand
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@any_node("Transpose", level=0)
def transpose_in_order(match: Match) -> Replacement:
    """Transpose(x, perm=[0, 1, 2])  -->  x

    Leaves alone a Transpose that moves dimensions of 1 only: it is a Reshape, no better by itself.
    """
    value = operand(match)
    perm = permutation(match, match.root)
    match.require(perm == tuple(range(len(perm))), "the order of the dimensions changes")
    return value


@any_node("Reshape", "Flatten", level=0)
def reshape_to_own_shape(match: Match) -> Replacement:
    """Reshape(x, shape of x)  -->  x,  Flatten(x of rank 2)  -->  x

    The shapes may hold symbols, the target may be computed or hold 0 and -1. Leaves alone what is not known to be
    equal.
    """
    value = operand(match)
    match.require(match.root.op_type == "Flatten" or match.opset >= 5, "before opset 5 Reshape has no shape input")
    match.require(match.shape(value) == match.shape(match.output), "the shape may change")
    return value


@any_node("Squeeze", level=0)
def squeeze_of_nothing(match: Match) -> Replacement:
    """Squeeze(x) of an x without dimensions of 1  -->  x"""
    value = operand(match)
    # Runtimes read an empty list of axes as "all that are 1".
    match.require(not match.parameter(match.root, "axes", "the axes"), "dimensions are removed")
    match.require(all(dim != 1 for dim in match.static_shape(value)), "there is a dimension of 1")
    return value


@any_node("Unsqueeze", level=0)
def unsqueeze_of_nothing(match: Match) -> Replacement:
    """Unsqueeze(x, axes=[])  -->  x"""
    match.require(match.parameter(match.root, "axes") == (), "dimensions are added")
    return operand(match)


@any_node("Slice", level=0)
def slice_of_everything(match: Match) -> Replacement:
    """Slice(x, starts=[0], ends=[all], steps=[1])  -->  x

    With step 1, a slice of full length is the whole; the bounds may be symbols. Leaves alone steps other than 1:
    they reverse or thin out.
    """
    value = operand(match)
    given = nodes.input_at(match.root, 4) if match.opset >= 10 else None
    if given is not None:
        match.require(all(step == 1 for step in match.ints(given, "the step")), "a step is not 1")
    match.require(match.shape(value) == match.shape(match.output), "the slice may leave something out")
    return value


@any_node("Expand", level=0)
def expand_to_own_shape(match: Match) -> Replacement:
    """Expand(x, shape that x has)  -->  x"""
    value = operand(match)
    match.require(match.shape(value) == match.shape(match.output), "the shape may change")
    return value


@any_node(*BROADCASTING, level=0, near=("Expand",))
def expand_before_broadcast(match: Match) -> Replacement:
    """Add(Expand(x, shape), y)  -->  Add(x, y)

    where y and the other operands have the dimensions of the result already. The Expand may have other readers.
    """
    match.require(match.opset >= BROADCASTING[match.root.op_type], "the operator did not broadcast yet")
    operands = [nodes.given_input(match.root, index) for index in range(len(match.root.inputs))]
    result = match.facts.shape(match.output)
    match.require(result is not None, "the shape of the result is not known")
    for index, value in enumerate(operands):
        expand = value.producer()
        if expand is None or expand.op_type != "Expand" or not nodes.is_standard(expand):
            continue
        source = nodes.input_at(expand, 0)
        if source is None:
            continue
        others = [*operands[:index], source, *operands[index + 1 :]]
        if dims.broadcast(*(match.facts.shape(other) for other in others)) == result:
            match.binding.inner.append(expand)
            return match.op(match.root.op_type, *others, like=match.root)
    match.refuse("no operand is an Expand that the other operands make needless")


@any_node("Concat", level=0)
def concat_of_one(match: Match) -> Replacement:
    """Concat(x)  -->  x"""
    match.require(len(match.root.inputs) == 1, "there is more than one operand")
    return operand(match)


@any_node("Concat", level=0)
def concat_with_nothing(match: Match) -> Replacement:
    """Concat(x, empty, y)  -->  Concat(x, y)

    Leaves alone operands whose length on the axis is not the number 0.
    """
    match.require("axis" in match.root.attributes, "Concat lacks its axis")
    operands = [value for value in match.root.inputs if value is not None]
    axis = nodes.int_attribute(match.root, "axis", 1)
    kept = []
    for value in operands:
        shape = match.facts.shape(value)
        empty = shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 0
        if not empty:
            kept.append(value)
    match.require(len(kept) < len(operands), "no operand is known to be empty")
    kept = kept or operands[:1]
    return kept[0] if len(kept) == 1 else match.op("Concat", *kept, like=match.root)


@any_node("Split", level=0)
def split_into_one(match: Match) -> Replacement:
    """Split(x) with one output  -->  x"""
    match.require(len(match.root.outputs) == 1, "there is more than one output")
    return operand(match)


@any_node("Tile", level=0)
def tile_once(match: Match) -> Replacement:
    """Tile(x, repeats=[1, 1, ...])  -->  x"""
    match.require(match.opset >= 6, "before opset 6 Tile is another operator")
    repeats = match.ints(nodes.input_at(match.root, 1), "the number of repeats")
    match.require(all(times == 1 for times in repeats), "something is repeated")
    return operand(match)


@any_node("ScatterND", "ScatterElements", "Scatter", level=0)
def scatter_of_nothing(match: Match) -> Replacement:
    """ScatterND(x, indices, updates without elements)  -->  x"""
    match.require(any(dim == 0 for dim in match.shape(operand(match, 2))), "the updates may hold elements")
    return operand(match)


RULES: tuple[Rule, ...] = (
    transpose_in_order,
    reshape_to_own_shape,
    squeeze_of_nothing,
    unsqueeze_of_nothing,
    slice_of_everything,
    expand_to_own_shape,
    expand_before_broadcast,
    concat_of_one,
    concat_with_nothing,
    split_into_one,
    tile_once,
    scatter_of_nothing,
)
