"""The node that a gradient rule is asked about.

A rule gets a `Backward` and gives one term for each operand of the node: the vector-Jacobian product of the operator
with the gradients of its results. None says that no gradient flows into the operand: it holds integers, or the result
is flat in it. A term may have the shape to which operands were broadcast; its reader sums it to the operand's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators.gradients.terms import Maker, NoGradient, Term
from graphopt.model.operators.parameters import Parameter, Unclear, parameter

# The gradients of values that a body reads: from the body, its inputs, the gradients of its outputs, and those values.
Through = Callable[[ir.Graph, Sequence[Term], Sequence[Term | None], Sequence[ir.Value]], Sequence[Term | None]]


@dataclass(frozen=True, eq=False)
class Backward:
    """A node whose operands' gradients are asked for."""

    maker: Maker
    node: ir.Node
    incoming: tuple[Term | None, ...]  # by result; None: no gradient reaches it
    wanted: tuple[bool, ...]  # by operand, and behind them by value that its graphs read from around
    through: Through

    @property
    def facts(self) -> Knowledge:
        """What is known of the model's values."""
        return self.maker.facts

    @property
    def dy(self) -> Term:
        """The gradient of the first result; raises NoGradient where only others have one."""
        found = self.incoming[0]
        if found is None:
            raise NoGradient("a gradient reaches only further results of it")
        return found

    def x(self, position: int = 0) -> Term:
        """An operand; raises NoGradient where it is absent."""
        found = self.optional(position)
        if found is None:
            raise NoGradient(f"operand {position} is absent")
        return found

    def optional(self, position: int) -> Term | None:
        """An operand; None where it is left out."""
        value = nodes.input_at(self.node, position)
        return None if value is None else Term(self.maker, value)

    def y(self, position: int = 0) -> Term:
        """A result; the node gets it where it was left out."""
        return Term(self.maker, self.maker.result(self.node, position))

    def wants(self, position: int) -> bool:
        """Whether the gradient of an operand is asked for."""
        return position < len(self.wanted) and self.wanted[position]

    def only(self, *positions: int) -> None:
        """Raise NoGradient where a gradient of another operand than these is asked for."""
        for position, wanted in enumerate(self.wanted):
            if wanted and position not in positions:
                raise NoGradient(f"there is no rule for its operand {position}")

    def integer(self, name: str, otherwise: int) -> int:
        """An attribute that is an integer."""
        return nodes.int_attribute(self.node, name, otherwise)

    def real(self, name: str, otherwise: float) -> float:
        """An attribute that is a number."""
        return nodes.float_attribute(self.node, name, otherwise)

    def text(self, name: str, otherwise: str) -> str:
        """An attribute that is a text."""
        return nodes.string_attribute(self.node, name, otherwise)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of integers."""
        return nodes.ints_attribute(self.node, name)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """An attribute that is a list of texts."""
        attribute = nodes.attribute_of(self.node, name)
        return None if attribute is None else tuple(attribute.as_strings())

    def parameter(self, name: str, place: Parameter, meaning: str) -> tuple[int, ...] | None:
        """The numbers of an attribute that may have become an input; raises NoGradient where only a run tells them."""
        try:
            return parameter(self.facts, self.node, name, place, meaning)
        except Unclear as unclear:
            raise NoGradient(str(unclear)) from None


Gradients = Sequence[Term | None]  # by operand; fewer than there are: None for the rest
GradientRule = Callable[[Backward], Gradients]
