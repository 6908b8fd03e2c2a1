"""What it takes for one node to work on permuted operands, and the question that its operator answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.movement import permutation as permutation_of
from graphopt.passes.layout.permute import Perm, is_identity
from graphopt.rewrite.rule import Match, Refused


@dataclass(frozen=True, slots=True)
class Flat:
    """How the columns of a flattened value stand in its other form: they were `dims`, and these are permuted."""

    dims: tuple[int, ...]
    perm: Perm


Label: TypeAlias = "Perm | Flat"
Build: TypeAlias = Callable[[Match, Sequence[ir.Value | None]], ir.Node]


@dataclass(frozen=True, slots=True)
class Flip:
    """The other way for a node to work. A value that is not listed is read, or given, as it was."""

    inputs: dict[int, Label]
    outputs: dict[int, Label]
    build: Build  # the new node, from the operands in the wanted form
    added: int = 0  # nodes beside the new one
    turns: bool = False  # whether the operator comes to work in the layout that the caller asked for


@dataclass(frozen=True, slots=True)
class Question:
    """Can the node work when one of its values comes in the form `label`? Answered with a Flip, or Refused."""

    facts: Facts
    node: ir.Node
    label: Label
    back: bool  # the value is an output of the node

    @property
    def opset(self) -> int:
        """The version of the standard operators here."""
        return self.facts.opset(self.node)

    @property
    def perm(self) -> Perm:
        """The permutation that is asked about."""
        if isinstance(self.label, Flat):
            self.refuse("it reads the columns of a flattened tensor in their order")
        return self.label

    def require(self, condition: object, reason: str) -> None:
        """Refuse unless the condition holds."""
        if not condition:
            raise Refused(reason)

    def refuse(self, reason: str) -> NoReturn:
        """Refuse."""
        raise Refused(reason)

    def operand(self, index: int = 0) -> ir.Value:
        """An input; refuses when it is absent."""
        value = nodes.input_at(self.node, index)
        if value is None:
            self.refuse("an operand is absent")
        return value

    def rank(self, value: ir.Value) -> int:
        """The rank of a value; refuses when it is not known."""
        rank = self.facts.rank(value)
        if rank is None:
            self.refuse(f"the rank of '{value.name}' is not known")
        return rank

    def full(self, value: ir.Value) -> Perm:
        """The permutation, which must be of the value's rank."""
        self.require(len(self.perm) == self.rank(value), "its operands are of different rank")
        return self.perm

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """The numbers of a constant integer input."""
        found = self.facts.ints(self.operand(index))
        if found is None:
            self.refuse(f"{what} is not constant")
        return found


def copied(question: Question, attributes: dict[str, ir.Attr | int | Sequence[int]] | None = None) -> Build:
    """The same node on other operands, with some attributes changed."""
    node = question.node

    def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
        return match.node_of(
            node.op_type, *inputs, attributes=attributes, outputs=len(node.outputs), like=node, domain=node.domain
        )

    return build


def with_ints(question: Question, index: int, numbers: Sequence[int], kind: ir.DataType = ir.DataType.INT64) -> Build:
    """The same node with other integers as input `index`; absent inputs before it stay absent."""
    node = question.node
    array = np.array(numbers, kind.numpy())

    def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
        changed = [*inputs, *[None] * (index + 1 - len(inputs))]
        changed[index] = match.constant(array, kind)
        return match.node_of(node.op_type, *changed, outputs=len(node.outputs), like=node)

    return build


def labelled(places: dict[int, Perm]) -> dict[int, Label]:
    """Without the values that are the same in both forms."""
    return {place: perm for place, perm in places.items() if not is_identity(perm)}


def permutation(facts: Facts, node: ir.Node) -> Perm | None:
    """The permutation of a Transpose; None where it is not known, or for any other node."""
    if node.op_type != "Transpose" or not nodes.is_standard(node) or nodes.has_reference_attributes(node):
        return None
    return permutation_of(node, None if node.inputs[0] is None else facts.rank(node.inputs[0]))
