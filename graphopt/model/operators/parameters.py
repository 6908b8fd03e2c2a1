"""Integers that were attributes of an operator and became inputs: axes, bounds, pads, sizes of parts."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge


@dataclass(frozen=True, slots=True)
class Parameter:
    """Where an operator has a parameter."""

    since: int  # the opset from which it is an input
    position: int
    scalar: bool = False  # one number of rank 0, not a vector

    def is_input(self, opset: int) -> bool:
        """Whether the parameter is an input, not an attribute."""
        return opset >= self.since


AXES = Parameter(13, 1)  # of Squeeze, Unsqueeze and ReduceSum
REDUCED = Parameter(18, 1)  # of the other reductions
SLICE = {"starts": Parameter(10, 1), "ends": Parameter(10, 2), "axes": Parameter(10, 3), "steps": Parameter(10, 4)}


class Unclear(Exception):
    """Something about a node cannot be told; the text says what."""


def clear_input(node: ir.Node, position: int) -> ir.Value:
    """An operand; raises Unclear where it is absent."""
    value = nodes.input_at(node, position)
    if value is None:
        raise Unclear("an operand is absent")
    return value


def numbers_at(facts: Knowledge, node: ir.Node, position: int, meaning: str) -> tuple[int, ...]:
    """The integers of an operand; raises Unclear, calling them `meaning`, where it is absent or not constant."""
    numbers = facts.ints(clear_input(node, position))
    if numbers is None:
        raise Unclear(f"{meaning} is not constant")
    return numbers


def parameter(
    facts: Knowledge, node: ir.Node, name: str, place: Parameter, meaning: str = "the list of axes"
) -> tuple[int, ...] | None:
    """The parameter's numbers, None where the node does not say them; raises Unclear where only a run can tell them."""
    if not place.is_input(facts.opset(node)):
        attribute = nodes.attribute_of(node, name)
        if attribute is not None and place.scalar:
            return (attribute.as_int(),)
        return nodes.ints_attribute(node, name)
    absent = nodes.input_at(node, place.position) is None
    return None if absent else numbers_at(facts, node, place.position, meaning)
