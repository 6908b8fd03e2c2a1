"""Wave by wave: the regions that depend on each other by no path run side by side, then everything waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.policies.emit import Plan
from scheduler.policies.placing import Placed, place
from scheduler.policies.problem import Choice, Problem
from scheduler.policies.selection import MOST_PER_MULTIPROCESSOR, allowed_for, room, weighted

EFFICIENT = 1e6  # a weight of work beside which time alone does not count


def waves(problem: Problem) -> Plan:
    """One launch for each level of the graph, the barrier between launches.

    Of each level the blocks are dealt to as many workers as do it fastest, with the kernels that are fastest alone or
    those that make least work.
    """
    choice = [numbers[0] for numbers in problem.fitting]
    placed = []
    for regions in levels(problem):
        best, kernels = best_wave(problem, regions)
        placed.extend(best)
        for region in regions:
            choice[region] = kernels[region]
    return Plan("waves", tuple(choice), tuple(placed))


def levels(problem: Problem) -> list[list[int]]:
    """The regions by level, each in the order of the graph."""
    found: list[list[int]] = [[] for _ in range(max(problem.level, default=-1) + 1)]
    for region in problem.order:
        found[problem.level[region]].append(region)
    return found


def best_wave(problem: Problem, regions: Sequence[int]) -> tuple[list[Placed | int], Choice]:
    """The fastest placement of regions that do not depend on each other; those with no room together follow alone."""
    best: Placed | None = None
    best_choice: Choice = ()
    tried: set[tuple[int, ...]] = set()
    for per_multiprocessor in range(1, MOST_PER_MULTIPROCESSOR + 1):
        allowed = allowed_for(problem, per_multiprocessor, regions)
        if allowed is None:
            break
        for weight in (0.0, EFFICIENT):
            choice = weighted(problem, weight, per_multiprocessor, allowed, regions)
            key = (per_multiprocessor, *(choice[region] for region in regions))
            if key in tried or room(problem, choice, regions) < per_multiprocessor:
                continue
            tried.add(key)
            ranks = np.zeros(problem.count)
            for region in regions:  # the longest first
                ranks[region] = problem.kernel(region, choice[region]).time(per_multiprocessor)
            placed = place(problem, choice, regions, per_multiprocessor, ranks)
            if best is None or placed.makespan < best.makespan:
                best, best_choice = placed, choice
    if best is None:
        return list(regions), weighted(problem, 0.0, 1, problem.fitting)
    return [best], best_choice
