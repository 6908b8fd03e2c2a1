"""Leading axes that are merged for a Transpose, a product or a Softmax of the others and parted again behind it."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.passes.algebra.reshape import reshape_target
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.operands import inner_node
from graphopt.rewrite.rule import Match, Refused, Replacement, Rule, any_node


@any_node("Reshape", level=1)
def transpose_of_merged_axes(match: Match) -> Replacement:
    """Reshape(Transpose(Reshape(x, [b h, n, d]), 0 2 1), [b, h, d, n])  -->  Transpose(x, 0 1 3 2)

    For any number of axes that are merged and that stay in front; where they come back in other lengths, a Reshape
    stands above the Transpose. Leaves alone what more than one reads.
    """
    transpose = inner_node(match, match.root.inputs[0], "Transpose")
    first = None if transpose is None else inner_node(match, transpose.inputs[0], "Reshape", alone=False)
    if transpose is None or first is None or first.inputs[0] is None:
        match.refuse("no Transpose of a Reshape stands above that it alone reads")
    x = first.inputs[0]
    perm = permutation(match, transpose)
    source, merged, result = match.shape(x), match.shape(first.outputs[0]), match.shape(match.output)
    match.require(perm[0] == 0, "the first axis is moved")
    lead = len(result) - len(merged) + 1
    match.require(lead >= 2, "the first axis is not parted again")
    match.require(
        dims.product(result[:lead]) == merged[0] and len(source) >= len(merged), "more than the first axis is parted"
    )
    rest = len(merged) - 1
    match.require(source[len(source) - rest :] == merged[1:], "the Reshape does more than merge leading axes")
    order = (*range(lead), *(axis + lead - 1 for axis in perm[1:]))
    wanted = (*result[:lead], *merged[1:])
    match.require(result == tuple(wanted[axis] for axis in order), "the axes come back in other lengths")
    return match.op(
        "Transpose", x if source == wanted else _parted(match, x, wanted, order), attributes={"perm": order}
    )


def _parted(match: Match, x: ir.Value, wanted: dims.Dims, order: tuple[int, ...]) -> ir.Value:
    """x with other leading axes, reshaped as somebody else does it where a new constant cannot say how."""
    for reader in x.consumers():
        if reader.op_type == "Reshape" and nodes.is_standard(reader) and reader.inputs[0] is x:
            size = reader.inputs[1] if len(reader.inputs) > 1 else None
            if size is not None and match.facts.is_constant(size) and match.facts.shape(reader.outputs[0]) == wanted:
                return match.op("Reshape", x, size, like=reader)
    try:
        return match.op("Reshape", x, match.ints_constant(*reshape_target(match, x, wanted)))
    except Refused:
        pass  # then what says the dims of the result says them in another order too
    size = match.root.inputs[1]
    said = None if size is None else match.facts.content(size)
    match.require(
        said is not None and tuple(said.tolist()) == match.shape(match.output), "the dims are not all written"
    )
    places = [order.index(axis) for axis in range(len(order))]
    return match.op("Reshape", x, match.op("Gather", size, match.ints_constant(*places)))


@any_node("MatMul", level=1)
def product_of_merged_axes(match: Match) -> Replacement:
    """MatMul(Reshape(x, [b h, n, d]), Reshape(y, [b h, d, m]))  -->  Reshape(MatMul(x, y), [b h, n, m])

    where both merge the same leading axes; an operand may be transposed below its Reshape.
    """
    pairs = [_before_merging(match, value) for value in match.root.inputs]
    left, right = pairs[0], pairs[1]
    if left is None or right is None:
        match.refuse("leading axes of both operands are not merged")
    lead = left[1][:-2]
    match.require(lead == right[1][:-2], "other axes are merged")
    operands = [_last_swapped(match, value, shape) if turned else value for value, shape, turned in (left, right)]
    product = match.op("MatMul", *operands)
    return match.op("Reshape", product, match.ints_constant(*reshape_target(match, product, match.shape(match.output))))


Merged = tuple[ir.Value, dims.Dims, bool]  # what was merged, its dims, and whether its last axes change places


def _before_merging(match: Match, value: ir.Value | None) -> Merged | None:
    """x [b, h, n, d] of Reshape(x, [b h, n, d]), also below a Transpose of the last two axes."""
    reshape, turned = inner_node(match, value, "Reshape"), False
    transpose = inner_node(match, value, "Transpose")
    if transpose is not None:
        if permutation(match, transpose) != (0, 2, 1):
            return None
        reshape, turned = inner_node(match, transpose.inputs[0], "Reshape"), True
    source = None if reshape is None else reshape.inputs[0]
    if reshape is None or source is None:
        return None
    shape, merged = match.facts.shape(source), match.facts.shape(reshape.outputs[0])
    if shape is None or merged is None or len(merged) != 3 or len(shape) < 4:
        return None
    if merged != (dims.product(shape[:-2]), *shape[-2:]):
        return None
    return source, shape, turned


def _last_swapped(match: Match, value: ir.Value, shape: dims.Dims) -> ir.Value:
    last = len(shape) - 1
    return match.op("Transpose", value, attributes={"perm": (*range(last - 1), last, last - 1)})


@any_node("Softmax", level=1)
def softmax_of_merged_axes(match: Match) -> Replacement:
    """Reshape(Softmax(Reshape(x, [b h, n, m])), [b, h, n, m])  -->  Softmax(x)      on the way: Reshape(Softmax(x))

    over the last axis, from opset 13 on. Leaves alone what no Reshape or product follows.
    """
    match.require(match.opset >= 13, "before opset 13 it runs over several axes")
    reshape = inner_node(match, match.root.inputs[0], "Reshape")
    x = None if reshape is None else reshape.inputs[0]
    if reshape is None or x is None:
        match.refuse("no axes are merged above")
    shape, merged = match.shape(x), match.shape(match.output)
    match.require(len(shape) > len(merged) >= 2 and shape[-1] == merged[-1], "the last axis is another one")
    match.require(nodes.int_attribute(match.root, "axis", -1) in (-1, len(merged) - 1), "it is over another axis")
    readers = match.output.consumers()
    match.require(
        len(readers) == 1 and readers[0].op_type in ("Reshape", "MatMul"), "the axes are not parted again behind it"
    )
    result = match.op("Softmax", x, attributes={"axis": -1}, like=match.root)
    return match.op("Reshape", result, match.ints_constant(*reshape_target(match, result, merged)))


RULES: tuple[Rule, ...] = (transpose_of_merged_axes, product_of_merged_axes, softmax_of_merged_axes)
