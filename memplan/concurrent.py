"""Lifetimes in a program with concurrency, such that intervals that do not meet mean that one happens before the other.

Items are numbered as they stand. A buffer begins with its first writer; it ends with the first number t such that every
item from t on happens after all accesses of the buffer. So where two intervals do not meet, every access of one happens
before every write of the other, and any packer of intervals will do. What is lost: a buffer that could follow another,
but whose writer stands before an unrelated item, is kept apart from it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memplan.accesses import Accesses
from memplan.problem import Buffer, InvalidProblem, MemoryProblem


def concurrent_problem(
    sizes: Mapping[str, int], accesses: Accesses, *, kept: frozenset[str] = frozenset(), alignment: int = 64
) -> MemoryProblem:
    """Buffers of `sizes` (bytes) with these lifetimes; those in `kept` live to the end.

    Raises InvalidProblem for a buffer that nobody writes, and for items that stand after what they happen before.
    """
    number = {item: position for position, item in enumerate(accesses.items)}
    after = _happening_after(accesses, number)
    count = len(accesses.items)
    users: dict[str, list[int]] = {name: [] for name in sizes}
    first: dict[str, int] = {}
    for item, position in number.items():
        for name in accesses.writes.get(item, ()):
            first.setdefault(name, position)
            users.setdefault(name, []).append(position)
        for name in accesses.reads.get(item, ()):
            users.setdefault(name, []).append(position)
    buffers = []
    for name, size in sizes.items():
        if name not in first:
            raise InvalidProblem(f"nothing writes the buffer '{name}'.")
        # Items that happen after every access; an access itself does not.
        free = np.logical_and.reduce([after[:, user] for user in users[name]])
        others = np.flatnonzero(~free)
        end = count if name in kept else int(others[-1]) + 1 if len(others) else 0
        buffers.append(Buffer(name, size, first[name], max(end, first[name] + 1)))
    return MemoryProblem(tuple(buffers), alignment)


def _happening_after(accesses: Accesses, number: Mapping[str, int]) -> np.ndarray:
    """[late, early]: whether item `late` is known to happen after item `early`."""
    count = len(accesses.items)
    after = np.zeros((count, count), bool)
    earlier: list[list[int]] = [[] for _ in range(count)]
    for one, other in accesses.before:
        if number[one] >= number[other]:
            raise InvalidProblem(f"item '{one}' happens before '{other}', but does not stand before it.")
        earlier[number[other]].append(number[one])
    for late in range(count):
        for early in earlier[late]:
            after[late] |= after[early]
            after[late, early] = True
    return after
