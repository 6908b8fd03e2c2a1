"""Lookups by constant indices: those that name everything in order, and those that bring new dims along."""

from __future__ import annotations

import math

import numpy as np

from graphopt.model import constants, dims, nodes
from graphopt.passes.layout.flip import permutation
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

LONGEST = 1 << 16  # indices; more are not looked through
SHARED = 64  # bytes; indices that others read too are made again where they are as few as this


@any_node("Gather", "GatherND", level=1)
def lookup_of_everything(match: Match) -> Replacement:
    """Gather(x, [0, 1, 2])  -->  x,  GatherND(x, [[[0, 0], [0, 1]]])  -->  Reshape(x, shape of the result)

    where the constant indices name all elements of the dims that they count in, in order.
    """
    match.require(match.opset >= 5, "before opset 5 Reshape has no shape input")
    source, indices = operand(match), operand(match, 1)
    match.require(match.facts.is_constant(indices), "the indices are not constant")
    shape, count = match.shape(source), match.static_shape(indices)
    if match.root.op_type == "Gather":
        axis = nodes.int_attribute(match.root, "axis", 0) % max(len(shape), 1)
        counted = dims.static(shape[axis : axis + 1])
    else:
        match.require(nodes.int_attribute(match.root, "batch_dims", 0) == 0, "there are batches")
        counted = dims.static(shape[: count[-1]]) if count else None
        count = count[:-1]
    if not counted:
        match.refuse("the dims that are counted in are not known")
    match.require(count, "one index alone")
    match.require(math.prod(count) == math.prod(counted) <= LONGEST, "the indices are not as many as the elements")
    tuples = match.array(indices).reshape(-1, len(counted))
    ordered = np.indices(counted).reshape(len(counted), -1).T
    match.require((np.where(tuples < 0, tuples + counted, tuples) == ordered).all(), "the indices are not in order")
    if match.shape(match.output) == shape:
        return source
    return match.op("Reshape", source, match.ints_constant(*match.static_shape(match.output)))


@any_node("Unsqueeze", level=1)
def unsqueeze_of_lookup(match: Match) -> Replacement:
    """Unsqueeze(Transpose(Gather(x, indices)))  -->  Transpose(Gather(x, indices with the new dims))

    for constant indices. Without a Transpose between, leaves alone new dims that do not stand beside those of the
    indices.
    """
    turn = inner_node(match, operand(match), "Transpose")
    lookup = inner_node(match, operand(match) if turn is None else nodes.input_at(turn, 0), "Gather")
    if lookup is None:
        match.refuse("no Gather that is read here alone stands above")
    match.binding.inner.extend(node for node in (lookup, turn) if node is not None)
    table, indices = lookup.inputs[0], lookup.inputs[1]
    assert table is not None and indices is not None, "a Gather has two inputs"
    array = match.array(indices)
    match.require(not constants.is_splat(array), "the indices are one repeated number")
    match.require(len(indices.uses()) == 1 or array.nbytes <= SHARED, "the indices have other readers")
    rank = match.rank(match.output)
    axes = nodes.ints_attribute(match.root, "axes") if match.opset < 13 else match.facts.ints(operand(match, 1))
    assert axes is not None, "the rank of the result is known, so the axes are"
    added = sorted(axis % rank for axis in axes)
    first = nodes.int_attribute(lookup, "axis", 0) % match.rank(table)  # of the result's dims that the indices bring
    if turn is None:
        beside = all(first <= axis < first + array.ndim + len(added) for axis in added)
        match.require(beside, "the new dims do not stand beside those of the indices")
        wider = np.expand_dims(array, tuple(axis - first for axis in added))
        return match.op("Gather", table, match.constant(wider, match.dtype(indices)), like=lookup)
    order = permutation(match.facts, turn)
    assert order is not None, "the rank of the result is known, so that of the Transpose is"
    wider = np.expand_dims(array, tuple(range(len(added))))
    gathered = match.op("Gather", table, match.constant(wider, match.dtype(indices)), like=lookup)
    # The new dims come in front of those of the indices; what stands from there on moves back.
    new, old = iter(range(first, rank)), iter(order)
    perm = [
        next(new) if axis in added else (place if (place := next(old)) < first else place + len(added))
        for axis in range(rank)
    ]
    return match.op("Transpose", gathered, attributes={"perm": perm})


RULES: tuple[Rule, ...] = (lookup_of_everything, unsqueeze_of_lookup)
