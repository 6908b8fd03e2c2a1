"""A computation as memory sees it: values with sizes, operators that read and make them, and what orders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memplan.problem import InvalidProblem

Kind = Literal["temporary", "input", "output", "constant"]
KINDS: tuple[Kind, ...] = ("temporary", "input", "output", "constant")


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor. An input is there from the start to its last use, an output stays to the end, a constant always."""

    name: str
    size: int  # bytes
    kind: Kind = "temporary"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InvalidProblem(f"value '{self.name}' has {self.size} bytes; a size is not negative.")
        if self.kind not in KINDS:
            raise InvalidProblem(f"value '{self.name}': there is no kind '{self.kind}', only {', '.join(KINDS)}.")


@dataclass(frozen=True, slots=True)
class Share:
    """The value `value` may lie in the bytes of `of`, its operator's operand or (a slice of a concatenation) result."""

    value: str
    of: str
    at: int = 0  # bytes
    overwrites: bool = False  # in place: only where `of` is needed by nobody later


@dataclass(frozen=True, slots=True)
class Operator:
    """One computation: reads values, makes values."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    time: float = 0.0  # nanoseconds, of computing (what reading and writing takes, tiers add)
    workspace: int = 0  # bytes needed while it runs
    recomputable: bool = True  # False: random numbers, side effects
    after: tuple[str, ...] = ()  # operators that come first although nothing is read from them
    reused: int = 0  # bytes of its results that take the place of operands, where these end with it
    changes: bool = False  # whether it changes what those of `after` read: none of them runs again behind it

    def __post_init__(self) -> None:
        if self.workspace < 0:
            raise InvalidProblem(f"operator '{self.name}' has a workspace of {self.workspace} bytes.")
        if self.reused < 0:
            raise InvalidProblem(f"operator '{self.name}' reuses {self.reused} bytes.")
        if not self.time >= 0:
            raise InvalidProblem(f"operator '{self.name}' takes {self.time} ns; a time is not negative.")


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators in an order that can be executed (the given order), and the values between them."""

    values: tuple[Value, ...]
    operators: tuple[Operator, ...]
    shares: tuple[Share, ...] = ()

    def __post_init__(self) -> None:
        kinds: dict[str, Kind] = {}
        for value in self.values:
            if value.name in kinds:
                raise InvalidProblem(f"two values are named '{value.name}'.")
            kinds[value.name] = value.kind
        made = {name for name, kind in kinds.items() if kind in ("input", "constant")}
        makers = {name for operator in self.operators for name in operator.outputs}
        done: set[str] = set()
        names = {operator.name for operator in self.operators}
        for operator in self.operators:
            if operator.name in done:
                raise InvalidProblem(f"two operators are named '{operator.name}'.")
            for name in (*operator.inputs, *operator.outputs):
                if name not in kinds:
                    raise InvalidProblem(f"operator '{operator.name}' uses the value '{name}', which is not there.")
            for name in operator.inputs:
                if name not in made:
                    why = "is made later: the graph has a cycle or its order is wrong" if name in makers else "is never"
                    raise InvalidProblem(f"operator '{operator.name}' reads '{name}', which {why}.")
            for name in operator.after:
                if name not in done:
                    why = "comes later" if name in names else "is not there"
                    raise InvalidProblem(f"operator '{operator.name}' runs after '{name}', which {why}.")
            for name in operator.outputs:
                if name in made:
                    raise InvalidProblem(f"operator '{operator.name}' makes '{name}', which is there already.")
                made.add(name)
            done.add(operator.name)
        for value in self.values:
            if value.name not in made:
                raise InvalidProblem(f"value '{value.name}' is made by no operator.")
        for share in self.shares:
            for name in (share.value, share.of):
                if name not in kinds:
                    raise InvalidProblem(f"the value '{name}' of a shared place is not there.")

    def in_order(self, order: Sequence[str]) -> Graph:
        """The same graph with its operators in another order; raises InvalidProblem where it cannot be executed."""
        by_name = {operator.name: operator for operator in self.operators}
        if len(order) != len(by_name) or set(order) != set(by_name):
            raise InvalidProblem("an order names every operator of the graph once.")
        return Graph(self.values, tuple(by_name[name] for name in order), self.shares)
