"""The best schedule of a small graph with one worker on each multiprocessor: depth first over all, with bounds.

Blocks are appended in the order of their starts, each to a worker, as early as its waits allow; some best schedule
comes of that. The needs are those of counters, the waits those for counters that a worker does not know. Of workers
that have done nothing one is tried, of a region's blocks that need the same the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from scheduler.policies.counters import Counters, counters_of, stripes_read, usual_stripes
from scheduler.policies.emit import Plan
from scheduler.policies.placing import Placed
from scheduler.policies.problem import Choice, Problem
from scheduler.policies.selection import room

MOST_BLOCKS = 10
MOST_CHOICES = 256
MOST_NODES = 30_000  # of all searches together; beyond, the best so far is no proven optimum and none is given


class TooManyNodes(Exception):
    """The search was given up."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A need of one block: counters of its source, all of it or stripes, and the regions that any block of it tells."""

    source: int
    whole: bool
    counters: range
    implied: frozenset[int]


@dataclass(frozen=True, slots=True)
class Known:
    """What a worker knows: regions that have ended, and counters that it has waited for."""

    whole: frozenset[int] = frozenset()
    heard: frozenset[int] = frozenset()


def exact(problem: Problem, nodes: int = MOST_NODES) -> Plan | None:
    """The fastest program of one pinned launch; None for graphs that are not small, or where it takes too long.

    Small: every choice of kernels has at most 10 blocks in all, and there are at most 256 choices.
    """
    if prod(map(len, problem.fitting)) > MOST_CHOICES:
        return None
    best: tuple[float, Choice, list[tuple[int, int, float]]] | None = None
    left = [nodes]
    for choice in product(*problem.fitting):
        if sum(kernel.blocks for kernel in problem.kernels(choice)) > MOST_BLOCKS:
            return None
        if not room(problem, choice, range(problem.count)):
            continue
        try:
            found = _search(problem, choice, best[0] if best else float("inf"), left)
        except TooManyNodes:
            return None
        if found is not None:
            best = (found[0], choice, found[1])
    if best is None:
        return None
    return Plan("exact", best[1], (_placed(problem, best[1], best[2]),))


def _search(
    problem: Problem, choice: Choice, limit: float, left: list[int]
) -> tuple[float, list[tuple[int, int, float]]] | None:
    """The best schedule shorter than `limit`: its makespan and, as they start, blocks with worker and start."""
    kernels = problem.kernels(choice)
    device = problem.device
    takes = [kernel.time(1) + device.block_fixed_ns for kernel in kernels]
    region_of = [region for region, kernel in enumerate(kernels) for _ in range(kernel.blocks)]
    counters = _counters(problem, choice)
    asks, members = _asks(counters, region_of)
    needs = [
        tuple(sorted({block for ask in mine for counter in ask.counters for block in members[counter]}))
        for mine in asks
    ]  # fmt: skip
    tail = [0.0] * problem.count
    for region in reversed(problem.order):
        tail[region] = takes[region] + max((tail[other] for other in problem.behind[region]), default=0.0)
    count, workers = len(region_of), device.multiprocessors
    end_of, worker = [-1.0] * count, [-1] * count
    knows = [Known()] * min(workers, count)
    free = [0.0] * min(workers, count)
    sequence: list[tuple[int, int, float]] = []
    best: list[tuple[float, list[tuple[int, int, float]]]] = []
    shortest = limit

    def work_left() -> float:
        return sum(takes[region_of[block]] for block in range(count) if worker[block] < 0)

    def waited(block: int, one: int) -> tuple[float, Known]:
        """When a worker is past the waits of a block, and what it knows then."""
        whole, heard = set(knows[one].whole), set(knows[one].heard)
        seen = []
        for ask in asks[block]:
            if ask.source in whole:
                continue
            if ask.whole:
                whole.add(ask.source)
            for counter in ask.counters:
                if counter not in heard and any(worker[other] != one for other in members[counter]):
                    heard.add(counter)
                    whole |= ask.implied
                    seen.append(max(
                        end_of[other] + (0.0 if worker[other] == one else device.signal_ns)
                        for other in members[counter]
                    ))  # fmt: skip
        past = free[one]
        for time in sorted(seen):
            past = max(past, time) + device.wait_ns
        return past, Known(frozenset(whole), frozenset(heard))

    def descend(last: float, end: float) -> None:
        nonlocal shortest
        left[0] -= 1
        if left[0] < 0:
            raise TooManyNodes
        if len(sequence) == count:
            if end < shortest:
                shortest = end
                best[:] = [(end, list(sequence))]
            return
        if (sum(max(last, one) for one in free) + work_left()) / len(free) >= shortest:
            return
        tried: set[tuple[int, tuple[int, ...]]] = set()
        for block in range(count):
            if worker[block] >= 0 or any(worker[other] < 0 for other in needs[block]):
                continue
            region = region_of[block]
            alike = (region, needs[block])
            if alike in tried:
                continue
            # Blocks of a region that need the same may be needed by different ones: then they are not alike.
            if all(need.pattern == "all" for need in problem.graph.needs if need.source == _name(problem, region)):
                tried.add(alike)
            fresh = False
            for one in range(len(free)):
                if free[one] == 0.0 and not any(used == one for _, used, _ in sequence):
                    if fresh:
                        continue
                    fresh = True
                past, then = waited(block, one)
                begin = max(past, last)
                if begin + tail[region] >= shortest:
                    continue
                before, knew = free[one], knows[one]
                end_of[block] = free[one] = begin + takes[region]
                worker[block], knows[one] = one, then
                sequence.append((block, one, begin))
                descend(begin, max(end, free[one]))
                sequence.pop()
                worker[block], free[one], knows[one] = -1, before, knew

    descend(0.0, 0.0)
    return best[0] if best else None


def _name(problem: Problem, region: int) -> str:
    return problem.graph.regions[region].name


def _counters(problem: Problem, choice: Choice) -> Counters:
    blocks = np.array([kernel.blocks for kernel in problem.kernels(choice)], np.int64)
    return counters_of(problem, range(problem.count), blocks, usual_stripes(problem))


def _asks(counters: Counters, region_of: Sequence[int]) -> tuple[list[tuple[Ask, ...]], list[range]]:
    """By block what it needs; by counter its blocks."""
    first = counters.first.tolist()
    asks = []
    for block, region in enumerate(region_of):
        mine = []
        for need in range(counters.into[region], counters.into[region + 1]):
            source, halo = int(counters.source[need]), float(counters.halo[need])
            implied = frozenset(
                other
                for other in range(len(first) - 1)
                if int(counters.implied[source, other >> 6]) >> (other & 63) & 1
            )
            low, high = int(counters.whole[source]), int(counters.whole[source]) + 1
            if counters.near[need]:
                sources, targets = first[source + 1] - first[source], first[region + 1] - first[region]
                read = stripes_read(block - first[region], targets, sources, halo, int(counters.length[source]))
                low, high = (int(counters.stripes[source]) + one for one in read)
            mine.append(Ask(source, not counters.near[need], range(low, high), implied))
        asks.append(tuple(mine))
    return asks, [range(*ends) for ends in zip(counters.begin.tolist(), counters.end.tolist(), strict=True)]


def _placed(problem: Problem, choice: Choice, sequence: list[tuple[int, int, float]]) -> Placed:
    kernels = problem.kernels(choice)
    counters = _counters(problem, choice)
    region_of = np.repeat(np.arange(problem.count), np.diff(counters.first))
    takes = np.array([kernel.time(1) for kernel in kernels]) + problem.device.block_fixed_ns
    order = np.array([block for block, _, _ in sequence], np.int64)
    worker, start = np.zeros(len(order), np.int64), np.zeros(len(order))
    for block, one, begin in sequence:
        worker[block], start[block] = one, begin
    end = start + takes[region_of]
    return Placed(
        tuple(range(problem.count)), counters, 1, False, usual_stripes(problem), problem.device.multiprocessors, order,
        worker, start, end,
        float(end.max(initial=0.0)),
    )  # fmt: skip
