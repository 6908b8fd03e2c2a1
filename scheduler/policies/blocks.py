"""One launch of everything: blocks by list scheduling, kernels and workers per multiprocessor by local search."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.policies.emit import Plan
from scheduler.policies.parts import parts
from scheduler.policies.problem import Problem
from scheduler.policies.search import LEAST_TRY, WEIGHTS, Found, as_good, first_tries, improved
from scheduler.policies.selection import MOST_PER_MULTIPROCESSOR, upward_ranks

MOST_SEARCHES, TRIES_EACH = 6, 150  # at most so many from one start, and of so many tries at least
KEPT = 3  # of all numbers of workers and ways to place that are searched on after the first tries
IN_PARTS = 0.3  # of all tries, on single parts of the graph


def blocks(problem: Problem, tries: int, weights: Sequence[float] | None = None) -> Plan | None:
    """The whole graph as one program; None where no kernels of all regions are resident together.

    `tries` counts blocks placed by the search; 0 takes the best of the first tries. `weights` of work beside time alone
    may be given instead of the usual ones, as (0.0,) for the kernels that are fastest alone.
    """
    found = search(problem, range(problem.count), tries, weights)
    return None if found is None else Plan("blocks", found.choice, (found.placed,))


def search(
    problem: Problem, regions: Sequence[int], tries: int, weights: Sequence[float] | None = None
) -> Found | None:
    """The best placement of some regions, for any number of workers."""
    first = []
    for per_multiprocessor in range(1, MOST_PER_MULTIPROCESSOR + 1):
        for packed in (False, True)[:per_multiprocessor]:
            found = first_tries(problem, regions, per_multiprocessor, weights or WEIGHTS, packed)
            if found is not None:
                first.append(found)
    if not first:
        return None
    first.sort(key=lambda found: found.makespan)
    if not tries:
        return first[0]
    own = set(regions)
    narrow = [kept for part in parts(problem) if len(kept := [region for region in part if region in own]) > 1]
    made: list[Found] = []
    for found in first[:KEPT]:
        better = found
        if len(narrow) > 1:
            better = _by_parts(problem, found, narrow, int(IN_PARTS * tries / KEPT))
        share = tries * (1 - IN_PARTS) if len(narrow) > 1 else tries
        # Of small problems several searches are made, each of which may get stuck elsewhere.
        each = int(share / KEPT)
        times = max(1, min(MOST_SEARCHES, each // (TRIES_EACH * max(LEAST_TRY, len(found.placed.order)))))
        made.extend(improved(problem, better, each // times, seed) for seed in range(times))
    return min(made, key=lambda found: found.makespan)


def _by_parts(problem: Problem, found: Found, narrow: list[list[int]], tries: int) -> Found:
    """Kernels as they are best for each narrow part of the graph by itself, if that is better for the whole."""
    per = found.placed.per_multiprocessor
    choice = list(found.choice)
    for part in narrow:
        start = first_tries(problem, part, per, packed=found.placed.packed)
        if start is None:
            continue
        better = improved(problem, start, tries // len(narrow))
        for region in part:
            choice[region] = better.choice[region]
    chosen = tuple(choice)
    single = upward_ranks(problem, chosen, per, alone=False)
    return as_good(problem, found, choice, (found.ranks, single, upward_ranks(problem, chosen, per)))
