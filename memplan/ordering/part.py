"""A part of a graph whose operators run together: what goes before has run, what comes behind has not.

Any run of consecutive steps of an order is such a part, and can be ordered again by itself. Sets of its operators are
bits in words of 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memplan.ordering.arrays import Arrays, Ints, Rows

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Part:
    """Operators by position in `operators`; `freeable` values are those that a step of the part may drop."""

    operators: Ints  # positions in the graph, in an order that can be executed
    live: int  # bytes before the part
    grows: Ints  # operator -> bytes it makes
    workspace: Ints
    reused: Ints  # bytes of results that take the place of operands which end with the operator
    fades: Ints  # operator -> bytes of results that nobody reads
    before: Words  # operator x words: what has to come first
    behind: Rows  # operator -> operators of the part that wait for it
    users: Words  # freeable value x words: who reads it
    size: Ints  # freeable value -> bytes
    reads: Rows  # operator -> freeable values

    floor: int  # bytes: a bound from below of the part's peak

    @property
    def count(self) -> int:
        """How many operators there are."""
        return len(self.operators)


def part_of(arrays: Arrays, operators: Ints, ran: NDArray[np.bool_], live: int) -> Part:
    """The part of `operators` (in an order that can be executed) after those that `ran`, with `live` bytes there."""
    local = _local(operators)
    words = max(1, -(-len(local) // 64))
    before = np.zeros((len(local), words), np.uint64)
    behind: list[list[int]] = []
    fades = np.zeros(len(local), np.int64)
    for position, one in enumerate(operators):
        for other in arrays.before[one]:
            if int(other) in local:
                _set(before[position], local[int(other)])
        behind.append([local[int(other)] for other in arrays.behind[one] if int(other) in local])
        for value in arrays.makes[one]:
            if not len(arrays.users[value]) and not arrays.kept[value]:
                fades[position] += arrays.size[value]
    freeable, users, reads = _freeable(arrays, operators, ran, local)
    masks = np.zeros((max(1, len(users)), words), np.uint64)
    for value, inside in enumerate(users):
        for user in inside:
            _set(masks[value], user)
    return Part(
        operators, live, _grows(arrays, operators), arrays.workspace[operators], arrays.reused[operators], fades,
        before, Rows.of(behind), masks, arrays.size[list(freeable)] if freeable else np.zeros(0, np.int64),
        Rows.of(reads), _floor(arrays, operators, local, freeable, live),
    )  # fmt: skip


def floor_of(arrays: Arrays, operators: Ints, ran: NDArray[np.bool_], live: int) -> int:
    """The floor of a part without its sets, whose words grow with the square of the operators."""
    local = _local(operators)
    freeable, _, _ = _freeable(arrays, operators, ran, local)
    return _floor(arrays, operators, local, freeable, live)


def _local(operators: Ints) -> dict[int, int]:
    """The position in the part by that in the graph."""
    return {one: position for position, one in enumerate(operators.tolist())}


def _grows(arrays: Arrays, operators: Ints) -> Ints:
    return np.array([arrays.size[arrays.makes[one]].sum() for one in operators], np.int64)


def _freeable(
    arrays: Arrays, operators: Ints, ran: NDArray[np.bool_], local: Mapping[int, int]
) -> tuple[dict[int, int], list[list[int]], list[list[int]]]:
    """The values that a step of the part may drop, numbered; who reads each; and by operator which ones it reads."""
    freeable: dict[int, int] = {}
    users: list[list[int]] = []
    reads: list[list[int]] = []
    for one in operators:
        mine = []
        for value in map(int, arrays.reads[one]):
            if value not in freeable and not arrays.kept[value]:
                inside = [local.get(int(user), -1) for user in arrays.users[value] if not ran[user]]
                if -1 not in inside:
                    freeable[value] = len(users)
                    users.append(inside)
            if value in freeable:
                mine.append(freeable[value])
        reads.append(mine)
    return freeable, users, reads


def _floor(arrays: Arrays, operators: Ints, local: Mapping[int, int], freeable: Mapping[int, int], live: int) -> int:
    """What is there before the part and stays, and what an operator reads beside it, makes and works in."""
    held = live - sum(int(arrays.size[value]) for value in freeable if int(arrays.maker[value]) not in local)
    needs = [
        sum(int(arrays.size[v]) for v in arrays.reads[one] if int(v) in freeable or int(arrays.maker[v]) in local)
        for one in operators
    ]
    spared = [min(int(arrays.reused[one]), int(arrays.size[arrays.reads[one]].sum())) for one in operators]
    most = np.array(needs) - np.array(spared) + _grows(arrays, operators) + arrays.workspace[operators]
    return max(live, held + int(most.max(initial=0)))


def _set(words: Words, bit: int) -> None:
    words[bit >> 6] |= np.uint64(1 << (bit & 63))
