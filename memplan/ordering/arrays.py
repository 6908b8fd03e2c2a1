"""A graph in numbers: operators and values by position, who reads and makes what, for loops that have to be fast.

Constants take no bytes of the program's own and are left out; so are inputs that nobody reads, but for their bytes.
Positions of operators are those of the given order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memplan.graph import Graph

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Lists of positions, one after the other: row i is items[start[i] : start[i + 1]]."""

    start: Ints
    items: Ints

    def __getitem__(self, row: int) -> Ints:
        return self.items[self.start[row] : self.start[row + 1]]

    @staticmethod
    def of(lists: Sequence[Sequence[int]]) -> Rows:
        """From a list of lists."""
        start = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(one) for one in lists], out=start[1:])
        return Rows(start, np.array([item for one in lists for item in one], np.int64))


@dataclass(frozen=True, slots=True)
class Arrays:
    """The graph; n operators, m values that are not constants."""

    names: tuple[str, ...]  # of operators
    values: tuple[str, ...]
    reads: Rows  # operator -> values, each once
    makes: Rows  # operator -> values
    users: Rows  # value -> operators that read it, in the given order
    before: Rows  # operator -> operators that have to come first
    behind: Rows  # operator -> operators that have to come later
    maker: Ints  # value -> operator, -1 for an input
    size: Ints  # bytes of each value
    kept: NDArray[np.bool_]  # value -> whether it stays to the end
    workspace: Ints  # bytes, of operators
    reused: Ints  # bytes of results that take the place of operands which end with the operator
    time: NDArray[np.float64]  # nanoseconds
    again: NDArray[np.bool_]  # operator -> whether it may run more than once
    unread: int  # bytes of inputs that nobody reads: there while the first operator runs

    @property
    def count(self) -> int:
        """How many operators there are."""
        return len(self.names)

    def inputs_size(self) -> int:
        """Bytes that are there before anything runs."""
        return int(self.size[self.maker < 0].sum()) + self.unread


def arrays_of(graph: Graph) -> Arrays:
    """The numbers of a graph."""
    wanted = {name for operator in graph.operators for name in operator.inputs}
    unread = {value.name: value.size for value in graph.values if value.kind == "input" and value.name not in wanted}
    values = [value for value in graph.values if value.kind != "constant" and value.name not in unread]
    number = {value.name: position for position, value in enumerate(values)}
    operators = {operator.name: position for position, operator in enumerate(graph.operators)}
    reads = [sorted({number[name] for name in one.inputs if name in number}) for one in graph.operators]
    makes = [[number[name] for name in one.outputs] for one in graph.operators]
    maker = np.full(len(values), -1, np.int64)
    users: list[list[int]] = [[] for _ in values]
    before: list[set[int]] = [{operators[name] for name in one.after} for one in graph.operators]
    behind: list[set[int]] = [set() for _ in graph.operators]
    for operator, made in enumerate(makes):
        maker[made] = operator
    for operator, read in enumerate(reads):
        for value in read:
            users[value].append(operator)
            if maker[value] >= 0:
                before[operator].add(int(maker[value]))
        for first in before[operator]:
            behind[first].add(operator)
    return Arrays(
        tuple(operators), tuple(number), Rows.of(reads), Rows.of(makes), Rows.of(users),
        Rows.of([sorted(one) for one in before]), Rows.of([sorted(one) for one in behind]), maker,
        np.array([value.size for value in values], np.int64),
        np.array([value.kind == "output" for value in values], np.bool_),
        np.array([one.workspace for one in graph.operators], np.int64),
        np.array([one.reused for one in graph.operators], np.int64),
        np.array([one.time for one in graph.operators], np.float64),
        np.array([one.recomputable for one in graph.operators], np.bool_),
        sum(unread.values()),
    )  # fmt: skip
