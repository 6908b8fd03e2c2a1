"""A range of a node's result: from which ranges of its operands it follows, and what changes in the node then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge

Shape = tuple[int, ...]
AttributeValue = tuple[int, ...] | int | str


class Range(NamedTuple):
    """Positions `low` to `high` (exclusive) along an axis."""

    axis: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Part:
    """How a node computes a range of its result: from which ranges, with what changed."""

    inputs: tuple[Range | None, ...]  # None: all of the operand
    made: tuple[int, int]  # what it then makes: the wanted range, or one around it of which only the wanted is right
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)  # operands that say sizes, by position


@dataclass(frozen=True, slots=True)
class Wanted:
    """A node all of whose sizes are known, and the range of its first result that is asked for."""

    facts: Knowledge
    node: ir.Node
    shapes: tuple[Shape, ...]  # of the inputs, () where one is left out
    result: Shape
    range: Range

    @property
    def axis(self) -> int:
        """The result's axis."""
        return self.range.axis

    def first(self, range: Range, *, attributes: Mapping[str, AttributeValue] | None = None) -> Part:
        """A range of the first operand, all of the others."""
        others = (None,) * (len(self.shapes) - 1)
        return Part((range, *others), self.range[1:], attributes or {})

    def same(self) -> Part:
        """The same range of the first operand, all of the others."""
        return self.first(self.range)

    def ints(self, position: int) -> tuple[int, ...] | None:
        """The numbers of a constant operand."""
        return self.facts.ints(nodes.input_at(self.node, position))

    def broadcast(self, shape: Shape) -> Range | None:
        """The range of an operand that is broadcast to the result, None where it has one position there."""
        axis = self.axis - (len(self.result) - len(shape))
        if axis < 0 or shape[axis] != self.result[self.axis] or shape[axis] == 1:
            return None
        return Range(axis, *self.range[1:])


PartRule = Callable[[Wanted], Part | None]
