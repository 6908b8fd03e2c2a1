"""The best schedule of a small graph with one worker on each multiprocessor: depth first over all, with bounds.

Blocks are appended in the order of their starts, each to a worker, as early as what it needs allows; some best schedule
comes of that. Of workers that have done nothing one is tried, of a region's blocks that need the same the first.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from scheduler.policies.emit import Plan
from scheduler.policies.placing import Placed
from scheduler.policies.problem import Choice, Problem
from scheduler.policies.selection import room
from scheduler.tasks import Need, needed_blocks

MOST_BLOCKS = 10
MOST_CHOICES = 256
MOST_NODES = 30_000  # of all searches together; beyond, the best so far is no proven optimum and none is given


class TooManyNodes(Exception):
    """The search was given up."""


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
    needs = _needs(problem, choice)
    tail = [0.0] * problem.count
    for region in reversed(problem.order):
        tail[region] = takes[region] + max((tail[other] for other in problem.behind[region]), default=0.0)
    count, workers = len(region_of), device.multiprocessors
    start, worker = [-1.0] * count, [-1] * count
    free = [0.0] * min(workers, count)
    sequence: list[tuple[int, int, float]] = []
    best: list[tuple[float, list[tuple[int, int, float]]]] = []
    shortest = limit

    def work_left() -> float:
        return sum(takes[region_of[block]] for block in range(count) if worker[block] < 0)

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
                begin = max(free[one], *(
                    start[other] + takes[region_of[other]] + (0.0 if worker[other] == one else device.signal_ns)
                    for other in needs[block]
                ), last) if needs[block] else max(free[one], last)  # fmt: skip
                if begin + tail[region] >= shortest:
                    continue
                before = free[one]
                start[block], worker[block], free[one] = begin, one, begin + takes[region]
                sequence.append((block, one, begin))
                descend(begin, max(end, free[one]))
                sequence.pop()
                start[block], worker[block], free[one] = -1.0, -1, before

    descend(0.0, 0.0)
    return best[0] if best else None


def _name(problem: Problem, region: int) -> str:
    return problem.graph.regions[region].name


def _needs(problem: Problem, choice: Choice) -> list[tuple[int, ...]]:
    kernels = problem.kernels(choice)
    first = np.concatenate(([0], np.cumsum([kernel.blocks for kernel in kernels]))).tolist()
    needs: list[set[int]] = [set() for _ in range(first[-1])]
    for source, target, near, halo in zip(problem.source.tolist(), problem.target.tolist(), problem.near.tolist(),
                                          problem.halo.tolist(), strict=True):  # fmt: skip
        need = Need("", "", "near" if near else "all", halo)
        for block in range(kernels[target].blocks):
            some = needed_blocks(need, kernels[source].blocks, kernels[target].blocks, block)
            needs[first[target] + block].update(first[source] + other for other in some)
    return [tuple(sorted(one)) for one in needs]


def _placed(problem: Problem, choice: Choice, sequence: list[tuple[int, int, float]]) -> Placed:
    kernels = problem.kernels(choice)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum([kernel.blocks for kernel in kernels], dtype=np.int64)))
    region_of = np.repeat(np.arange(problem.count), np.diff(first))
    takes = np.array([kernel.time(1) for kernel in kernels]) + problem.device.block_fixed_ns
    order = np.array([block for block, _, _ in sequence], np.int64)
    worker, start = np.zeros(len(order), np.int64), np.zeros(len(order))
    for block, one, begin in sequence:
        worker[block], start[block] = one, begin
    end = start + takes[region_of]
    return Placed(
        tuple(range(problem.count)), first, 1, False, problem.device.multiprocessors, order, worker, start, end,
        float(end.max(initial=0.0)),
    )  # fmt: skip
