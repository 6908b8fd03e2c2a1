"""A schedule looked through from scratch, and the least schedule by trying everything; no code of the solvers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

Before = Sequence[Sequence[int]]


def faults(
    times: Sequence[float],
    before: Before,
    workers: int,
    start: Sequence[float],
    worker: Sequence[int],
    delay: float = 0,
) -> list[str]:
    """What is wrong with a schedule, in words; nothing if it can be run."""
    found = []
    for one, reads in enumerate(before):
        if not 0 <= worker[one] < workers:
            found.append(f"task {one} is on worker {worker[one]}")
        if start[one] < 0:
            found.append(f"task {one} starts at {start[one]}")
        for other in reads:
            seen = start[other] + times[other] + (delay if worker[one] != worker[other] else 0)
            if start[one] < seen:
                found.append(f"task {one} starts at {start[one]}, {other} is seen at {seen}")
    for here in range(workers):
        runs = sorted((start[one], start[one] + times[one], one) for one in range(len(times)) if worker[one] == here)
        for (_, end, first), (begin, _, second) in pairwise(runs):
            if begin < end:
                found.append(f"tasks {first} and {second} overlap on worker {here}")
    return found


def least(times: Sequence[float], before: Before, workers: int) -> float:
    """The least makespan: every order in which tasks can start, each as soon as it can behind the one before."""
    return min(_length(order, times, before, workers) for order in _orders(before, ()))


def _orders(before: Before, done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(done) == len(before):
        yield done
    for one, reads in enumerate(before):
        if one not in done and all(other in done for other in reads):
            yield from _orders(before, (*done, one))


def _length(order: tuple[int, ...], times: Sequence[float], before: Before, workers: int) -> float:
    free = [0.0] * workers
    ends: dict[int, float] = {}
    last = 0.0
    for one in order:
        last = max([last, min(free), *(ends[other] for other in before[one])])
        ends[one] = last + times[one]
        free[free.index(min(free))] = ends[one]
    return max(ends.values(), default=0.0)
