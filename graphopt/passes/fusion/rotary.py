"""Rotary positions that are spelled out become the operator RotaryEmbedding of opset 23.

The elements of a head are turned in pairs by angles that grow with the position. A pair is an element of the first
half and one of the second, or (interleaved) two neighbors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, dims, nodes
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

SINCE = 23  # opset
TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})  # what ONNX Runtime has the operator for
LARGEST = 1 << 24  # elements of a table of angles that is looked at
DEEPEST = 8
Halves = tuple[ir.Value, ir.Value, ir.Value, tuple[ir.Node, ...]]  # the whole, its two halves, the nodes that cut it
Finder = Callable[[Match, ir.Value, ir.Value], Halves | None]


@any_node("Add", level=2)
def rotary_embedding(match: Match) -> Replacement:
    """x * cos + Concat(-second half of x, first half of x) * sin  -->  RotaryEmbedding(x, cos, sin)      (opset 23 on)

    Leaves alone tables whose two halves are not known to be equal, and those of one sample beside several samples of
    which the number is not known.
    """
    match.require(match.opset >= SINCE, f"RotaryEmbedding came with opset {SINCE}")
    products = [made_by(operand, "Mul") for operand in match.root.inputs]
    for plain, turned in (products, products[::-1]):
        if plain is None or turned is None:
            continue
        for swapped, sine in _either_way(turned):
            concat = made_by(swapped, "Concat")
            found = None if concat is None else _turned(match, concat)
            if concat is None or found is None:
                continue
            x, group = found
            cosine = next((other for one, other in _either_way(plain) if one is x), None)
            match.require(cosine is not None, "what is turned is not what is multiplied with the cosine")
            assert cosine is not None, "required just now"
            batch, _, length, size = _heads(match, x)
            match.require(match.shape(match.output) == match.shape(x), "a table widens the tensor")
            require_private(match, [plain, turned, concat, *group])
            wanted = (batch, length, size)
            tables = [_table(match, value, wanted) for value in (cosine, sine)]
            return match.op("RotaryEmbedding", x, *tables)
    match.refuse("no operand is the tensor with its halves swapped")


@any_node("Concat", level=2)
def rotary_embedding_of_halves(match: Match) -> Replacement:
    """Concat(a * cos - b * sin, b * cos + a * sin), a and b the halves of x  -->  RotaryEmbedding(x, cos, sin)"""
    match.require(match.opset >= SINCE, f"RotaryEmbedding came with opset {SINCE}")
    match.require(len(match.root.inputs) == 2 and _axis_is_last(match, match.root), "it does not join two halves")
    return _rotated(match, match.root.inputs[0], match.root.inputs[1], _halves, ())


@any_node("Reshape", level=2)
def rotary_embedding_of_neighbors(match: Match) -> Replacement:
    """Reshape(Concat(Unsqueeze(a * cos - b * sin), Unsqueeze(b * cos + a * sin)))  -->  RotaryEmbedding(x, cos, sin)

    interleaved: a are the elements of x in even places, b those in odd places.
    """
    match.require(match.opset >= SINCE, f"RotaryEmbedding came with opset {SINCE}")
    concat = made_by(match.root.inputs[0], "Concat")
    if concat is None or len(concat.inputs) != 2 or not _axis_is_last(match, concat):
        match.refuse("it does not lay two tensors into each other")
    parts = [made_by(value, "Unsqueeze") for value in concat.inputs]
    rank = match.rank(concat.outputs[0])
    group = [concat]
    for part in parts:
        axes = None if part is None else match.facts.ints(nodes.input_at(part, 1))
        if part is None or axes is None or len(axes) != 1 or axes[0] % rank != rank - 1:
            match.refuse("the two tensors do not lie side by side")
        group.append(part)
    found = _rotated(match, group[1].inputs[0], group[2].inputs[0], _neighbors, tuple(group))
    match.require(match.shape(found) == match.shape(match.output), "the Reshape does more than join neighbors")
    return found


def _rotated(
    match: Match, first: ir.Value | None, second: ir.Value | None, find: Finder, around: tuple[ir.Node, ...]
) -> ir.Value:
    """The operator for a * cos - b * sin and b * cos + a * sin, a and b as `find` finds them in one tensor."""
    difference, total = made_by(first, "Sub"), made_by(second, "Add")
    if difference is None or total is None:
        match.refuse("it does not join a difference and a sum")
    parts = [made_by(value, "Mul") for node in (difference, total) for value in node.inputs]
    match.require(all(part is not None for part in parts), "they are not of products")
    products = [part for part in parts if part is not None]
    for a, cosine in _either_way(products[0]):
        for b, sine in _either_way(products[1]):
            found = find(match, a, b)
            if found is None:
                continue
            sums = [{operand for operand in node.inputs if operand is not None} for node in products[2:]]
            match.require({b, cosine} in sums and {a, sine} in sums, "the sum is of other products")
            x, _, _, group = found
            batch, _, length, size = _heads(match, x)
            widened = any(match.shape(value) != match.shape(a) for value in (first, second) if value is not None)
            match.require(not widened, "a table widens the tensor")
            half = (batch, length, dims.quotient(size, 2) or 0)
            require_private(match, [*around, difference, total, *products, *group])
            tables = [_flat(match, table, half) for table in (cosine, sine)]
            return match.op("RotaryEmbedding", x, *tables, attributes={"interleaved": 1 if around else None})
    match.refuse("they are not of the two parts of one tensor")


def _either_way(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    left, right = node.inputs[0], node.inputs[1]
    assert left is not None and right is not None, "a product has two operands"
    return [(left, right), (right, left)]


def _heads(match: Match, x: ir.Value) -> dims.Dims:
    shape = match.shape(x)
    match.require(len(shape) == 4, "heads, places and elements are not on axes of their own")
    assert isinstance(shape[3], int) and shape[3] % 2 == 0, "two halves of the same known size were found"
    match.require(match.dtype(x) in TYPES, "only float and float16 have the operator in runtimes")
    return shape


def _axis_is_last(match: Match, node: ir.Node) -> bool:
    return nodes.int_attribute(node, "axis", 0) in (-1, match.rank(node.outputs[0]) - 1)


def _turned(match: Match, concat: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """x of Concat(-second half of x, first half of x)."""
    if len(concat.inputs) != 2 or not _axis_is_last(match, concat):
        return None
    negative, first = made_by(concat.inputs[0], "Neg"), concat.inputs[1]
    if negative is None or negative.inputs[0] is None or first is None:
        return None
    found = _halves(match, first, negative.inputs[0])
    return None if found is None else (found[0], (negative, *found[3]))


def _halves(match: Match, first: ir.Value, second: ir.Value) -> Halves | None:
    """The tensor of which the two values are the first and the second half along the last axis."""
    split = made_by(first, "Split")
    if split is not None and split is second.producer() and (first.index(), second.index()) == (0, 1):
        x = split.inputs[0]
        shapes = [match.facts.shape(value) for value in (first, second)]
        if x is None or len(split.outputs) != 2 or shapes[0] is None or shapes[0] != shapes[1]:
            return None
        last = nodes.int_attribute(split, "axis", 0) in (-1, len(shapes[0]) - 1)
        return (x, first, second, (split,)) if last else None
    cut = _slices_of_one(match, first, second)
    if cut is None:
        return None
    x, one, other, size = cut
    if _bounds(match, one, size) == (0, size // 2) and _bounds(match, other, size) == (size // 2, size):
        return x, first, second, (one, other)
    return None


def _slices_of_one(match: Match, first: ir.Value, second: ir.Value) -> tuple[ir.Value, ir.Node, ir.Node, int] | None:
    """The tensor that two Slices are of, the Slices, and its last dim, which is even."""
    one, other = made_by(first, "Slice"), made_by(second, "Slice")
    if one is None or other is None or one.inputs[0] is not other.inputs[0] or one.inputs[0] is None:
        return None
    shape = match.facts.shape(one.inputs[0])
    if not shape or not isinstance(shape[-1], int) or shape[-1] % 2:
        return None
    return one.inputs[0], one, other, shape[-1]


def _neighbors(match: Match, first: ir.Value, second: ir.Value) -> Halves | None:
    """The tensor of which the two values are the elements in even and in odd places along the last axis."""
    cut = _slices_of_one(match, first, second)
    if cut is None:
        return None
    x, one, other, size = cut
    if _bounds(match, one, size, 2) in ((0, size), (0, size - 1)) and _bounds(match, other, size, 2) == (1, size):
        return x, first, second, (one, other)
    return None


def _bounds(match: Match, node: ir.Node, size: int, step: int = 1) -> tuple[int, int] | None:
    """Where a Slice of the last axis alone, with that step, begins and ends."""
    given = [match.facts.ints(nodes.input_at(node, index)) for index in range(1, 5)]
    starts, ends, axes, steps = given
    rank = match.rank(node.outputs[0])
    if starts is None or ends is None or axes is None or len(axes) != 1 or axes[0] % rank != rank - 1:
        return None
    if (steps if nodes.input_at(node, 4) is not None else (1,)) != (step,):
        return None
    begin, end, _ = slice(starts[0], ends[0]).indices(size)
    return begin, end


# -- the tables of cosines and sines ----------------------------------------------------------------------------------


def _table(match: Match, value: ir.Value, wanted: dims.Dims) -> ir.Value:
    """The first half [batch, length, size / 2] of a table whose two halves are equal."""
    batch, length, size = wanted
    assert isinstance(size, int), "the size of a head was looked at"
    half = (batch, length, size // 2)
    if match.facts.is_constant(value):
        return _constant_table(match, value, half)
    passed: list[ir.Node] = []
    current: ir.Value | None = value
    for _ in range(DEEPEST):
        node = made_by(current, "Unsqueeze", "Cos", "Sin", "Cast", "Mul", "Concat")
        if node is None:
            break
        if node.op_type == "Concat":
            match.require(_axis_is_last(match, node) and len(node.inputs) == 2, "the table is joined otherwise")
            match.require(node.inputs[0] is node.inputs[1], "the halves of the table are not equal")
            source = nodes.given_input(node)
            for step in reversed(passed):
                source = _repeat(match, step, source)
            return _flat(match, source, half)
        if node.op_type == "Mul" and match.facts.scalar(node.inputs[1]) is None:
            break
        passed.append(node)
        current = node.inputs[0]
    match.refuse("the halves of the table are not known to be equal")


def _repeat(match: Match, step: ir.Node, source: ir.Value) -> ir.Value:
    """An operator of the table on half of its elements; what adds axes is left to the reader."""
    if step.op_type == "Unsqueeze":
        return source
    return match.op(step.op_type, source, *step.inputs[1:], like=step)


def _constant_table(match: Match, value: ir.Value, half: dims.Dims) -> ir.Value:
    batch, length, size = half
    match.require(isinstance(batch, int) and isinstance(length, int), "the number of samples or places is not known")
    assert isinstance(batch, int) and isinstance(length, int) and isinstance(size, int), "required just now"
    tensor = match.facts.tensor(value)
    match.require(tensor is None or tensor.size <= LARGEST, "the table is large")
    array = match.array(value)
    match.require(not constants.is_splat(array), "the table is of one number")
    match.require(array.ndim >= 2 and array.shape[-2:] == (length, 2 * size), "the table has another shape")
    lead = array.shape[:-2]
    match.require(array.size in (length * 2 * size, batch * length * 2 * size), "it differs from head to head")
    match.require(not lead or lead[-1] == 1 or len(lead) == 1, "it differs from head to head")
    table = array.reshape(-1, length, 2 * size)
    match.require(len(lead) != 1 or lead[0] == 1, "it differs from head to head")
    match.require(np.array_equal(table[..., :size], table[..., size:]), "the halves of the table are not equal")
    full = np.broadcast_to(table[..., :size], (batch, length, size))
    return match.constant(np.ascontiguousarray(full), match.dtype(value))


def _flat(match: Match, value: ir.Value, half: dims.Dims) -> ir.Value:
    """The table as [batch, length, size / 2], without an axis for the heads."""
    unsqueeze = made_by(value, "Unsqueeze")
    if (
        unsqueeze is not None
        and unsqueeze.inputs[0] is not None
        and match.facts.ints(unsqueeze.inputs[1])
        in (
            (1,),
            (-3,),
        )
    ):
        value = unsqueeze.inputs[0]
    shape = match.shape(value)
    if len(shape) == 4:
        match.require(shape[1] == 1, "the table differs from head to head")
        value = match.op("Squeeze", value, match.ints_constant(1))
        shape = (shape[0], *shape[2:])
    match.require(len(shape) == 3 and shape[1:] == half[1:], "the table has another shape")
    if shape[0] == half[0]:
        return value
    match.require(shape[0] == 1 and isinstance(half[0], int), "the table is not of as many samples")
    assert isinstance(half[0], int), "required just now"
    return match.op("Expand", value, match.ints_constant(half[0], 1, 1))


RULES: tuple[Rule, ...] = (rotary_embedding, rotary_embedding_of_halves, rotary_embedding_of_neighbors)
