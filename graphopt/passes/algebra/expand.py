"""Elementwise work on an expanded tensor is done before it is expanded."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.table import ARITHMETIC, UNARY
from graphopt.passes.operands import inner_node
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@any_node(*sorted(UNARY), *sorted(ARITHMETIC), level=1)
def expand_after_elementwise(match: Match) -> Replacement:
    """Cast(Expand(x, shape))  -->  Expand(Cast(x), shape),  Expand(x, shape) - 0.5  -->  Expand(x - 0.5, shape)

    for an Expand that nothing else reads: there are fewer elements to compute, and below an Expand may meet an operator
    that broadcasts by itself. Leaves alone other operands than one number.
    """
    root = match.root
    place, expand = _expanded(match)
    source, shape = nodes.given_input(expand), nodes.given_input(expand, 1)
    match.require(match.shape(source) != match.shape(expand.outputs[0]), "the Expand does nothing")
    twins = [reader for reader in source.consumers() if reader.op_type == "Expand" and reader is not expand]
    match.require(not twins, f"'{source.name}' is expanded elsewhere too, maybe to the same shape")
    for index, other in enumerate(root.inputs):
        if index != place and other is not None and root.op_type in ARITHMETIC:
            match.require(match.facts.scalar(other) is not None, f"'{other.name}' is not one number")
            match.require(match.rank(other) <= match.rank(source), f"'{other.name}' has more dims")
    match.binding.inner.append(expand)
    operands = [source if index == place else other for index, other in enumerate(root.inputs)]
    return match.op("Expand", match.op(root.op_type, *operands, like=root), shape)


def _expanded(match: Match) -> tuple[int, ir.Node]:
    """Which operand is computed by an Expand, and that Expand."""
    match.require(match.opset >= 8, "Expand came with opset 8")
    places = range(len(match.root.inputs)) if match.root.op_type in ARITHMETIC else range(1)
    match.require(len(places) <= 2, "there are more than two operands")
    for place in places:
        expand = inner_node(match, nodes.input_at(match.root, place), "Expand")
        if expand is not None:
            return place, expand
    match.refuse("no operand is an Expand read here alone")


RULES: tuple[Rule, ...] = (expand_after_elementwise,)
