"""Kernels that are measured on other machines of this one's kind: what is sent there, and who measures what.

A machine makes the same program out of the same model, and measures some of its kernels where they lie in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graphopt.check.feeds import Contents
from graphopt.memory.share import Budget
from graphopt.program.costs import Costs
from graphopt.program.regions.precision import Precision
from kernels.target import Target
from kernels.tune import Choice


@dataclass(frozen=True, slots=True)
class Job:
    """A program to be made: the model as it is lowered, and what `make` is told beside it."""

    model: bytes  # a ModelProto
    target: Target
    name: str
    exact: bool
    memory_budget: Budget | None
    threads: int
    costs: Costs
    contents: Contents
    ram: Budget | None
    precision: Precision


# The choices that machines find for the kernels of some keys, which take so long; others are known.
Elsewhere = Callable[[Job, Mapping[str, float], Mapping[str, Choice], float], Mapping[str, Choice]]


def shares(taken: Mapping[str, float], count: int) -> tuple[frozenset[str], ...]:
    """Kernels divided among so many machines, or fewer: each to the one that has least of the time, the longest first.

    That is at most a third above the best division: Graham, Bounds on multiprocessing timing anomalies (1969).
    """
    parts: list[list[str]] = [[] for _ in range(min(count, len(taken)))]
    least = [(0.0, number) for number in range(len(parts))]
    for key in sorted(taken, key=lambda one: (-taken[one], one)):
        time, number = heapq.heappop(least)
        parts[number].append(key)
        heapq.heappush(least, (time + taken[key], number))
    return tuple(map(frozenset, parts))
