"""Concats of Concats, and Concats that put back together what a Split has cut."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


def _axis(match: Match, node: ir.Node, default: int) -> int:
    """The axis, non-negative; refuses when it is negative and the rank is not known."""
    axis = nodes.int_attribute(node, "axis", default)
    if axis >= 0:
        return axis
    source = nodes.given_input(node)
    return axis + match.rank(source)


@any_node("Concat", level=1)
def concat_of_concat(match: Match) -> Replacement:
    """Concat(Concat(x, y), z)  -->  Concat(x, y, z)

    on the same axis, for inner Concats that nothing else reads.
    """
    axis = _axis(match, match.root, 1)
    operands: list[ir.Value | None] = []
    for value in match.root.inputs:
        inner = inner_node(match, value, "Concat")
        if inner is not None and _axis(match, inner, 1) == axis:
            match.binding.inner.append(inner)
            operands.extend(inner.inputs)
        else:
            operands.append(value)
    match.require(len(match.binding.inner) > 1, "no operand is a Concat on the same axis that is read here alone")
    return match.op("Concat", *operands, like=match.root)


@any_node("Concat", level=1)
def concat_of_split(match: Match) -> Replacement:
    """Concat(all parts of Split(x), in order)  -->  x

    on the same axis. The parts may have other readers.
    """
    split = inner_node(match, operand(match), "Split", alone=False)
    if split is None:
        match.refuse("the operands are not the parts of a Split")
    match.require(tuple(match.root.inputs) == tuple(split.outputs), "not all parts are put together, or not in order")
    match.require(_axis(match, split, 0) == _axis(match, match.root, 1), "Split and Concat work on different axes")
    source = nodes.given_input(split)
    match.binding.inner.append(split)
    return source


RULES: tuple[Rule, ...] = (concat_of_concat, concat_of_split)
