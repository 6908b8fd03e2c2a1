"""Leading axes that are merged for a Transpose of the others and parted again behind it."""

from __future__ import annotations

from graphopt.model import dims
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.operands import inner_node
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@any_node("Reshape", level=1)
def transpose_of_merged_axes(match: Match) -> Replacement:
    """Reshape(Transpose(Reshape(x, [b h, n, d]), 0 2 1), [b, h, d, n])  -->  Transpose(x, 0 1 3 2)

    For any number of axes that are merged and that stay in front. Leaves alone axes that come back in other lengths.
    """
    transpose = inner_node(match, match.root.inputs[0], "Transpose")
    first = None if transpose is None else inner_node(match, transpose.inputs[0], "Reshape", alone=False)
    if transpose is None or first is None or first.inputs[0] is None:
        match.refuse("no Transpose of a Reshape stands above that it alone reads")
    x = first.inputs[0]
    perm = permutation(match, transpose)
    source, merged, result = match.shape(x), match.shape(first.outputs[0]), match.shape(match.output)
    match.require(perm[0] == 0, "the first axis is moved")
    lead = len(source) - len(merged) + 1
    match.require(lead >= 2, "no leading axes are merged")
    match.require(
        merged == (dims.product(source[:lead]), *source[lead:]), "the Reshape does more than merge leading axes"
    )
    order = (*range(lead), *(axis + lead - 1 for axis in perm[1:]))
    match.require(result == tuple(source[axis] for axis in order), "the axes come back in other lengths")
    return match.op("Transpose", x, attributes={"perm": order})


RULES: tuple[Rule, ...] = (transpose_of_merged_axes,)
