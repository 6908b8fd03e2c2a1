"""Leading axes that are merged for a Transpose of the others and parted again behind it."""

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


RULES: tuple[Rule, ...] = (transpose_of_merged_axes,)
