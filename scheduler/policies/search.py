"""Local search over the kernels and ranks of regions, each try a list schedule of all blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from scheduler.policies.placing import Placed, place
from scheduler.policies.problem import Choice, Floats, Problem
from scheduler.policies.selection import allowed_for, room, upward_ranks, weighted

WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0, 16.0)  # of work beside time alone, for the first tries
SHAKE = 0.1  # of a region's rank
LEAST_TRY = 256  # blocks that a try counts for at least: something is done besides placing them
HOT, COLD = 0.004, 0.0002  # of the makespan: what a try may be longer by, at the start and at the end


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Kernels for the regions of `placed` (other regions' numbers mean nothing), and their placement."""

    choice: Choice
    ranks: Floats
    placed: Placed

    @property
    def makespan(self) -> float:
        """Nanoseconds, launch not included."""
        return self.placed.makespan


def first_tries(
    problem: Problem,
    regions: Sequence[int],
    per_multiprocessor: int,
    weights: Sequence[float] = WEIGHTS,
    packed: bool = False,
) -> Found | None:
    """The best of a few weights of work, all kernels chosen by the same; None where the workers have no room.

    The best is tried with stripes of all regions and of none, too.
    """
    allowed = allowed_for(problem, per_multiprocessor, regions)
    if allowed is None:
        return None
    best: Found | None = None
    tried: set[tuple[int, ...]] = set()
    for weight in weights:
        choice = weighted(problem, weight, per_multiprocessor, allowed, regions)
        key = tuple(choice[region] for region in regions)
        if key in tried or room(problem, choice, regions) < per_multiprocessor:
            continue
        tried.add(key)
        ranks = upward_ranks(problem, choice, per_multiprocessor, alone=False)
        placed = place(problem, choice, regions, per_multiprocessor, ranks, packed)
        if best is None or placed.makespan < best.makespan:
            best = Found(choice, ranks, placed)
    if best is None:
        return None
    for striped in (0.0, inf) if problem.near.any() else ():
        placed = place(problem, best.choice, regions, per_multiprocessor, best.ranks, packed, striped)
        if placed.makespan < best.makespan:
            best = Found(best.choice, best.ranks, placed)
    return as_good(problem, best, best.choice, (upward_ranks(problem, best.choice, per_multiprocessor),))


def improved(problem: Problem, start: Found, blocks: int, seed: int = 0) -> Found:
    """Better kernels and ranks, found by tries that place `blocks` blocks in all.

    Tries change the kernel of all regions of one kind, then of single ones; or a rank. Regions that the makespan hangs
    on come up more often. Simulated annealing; the best is kept.
    """
    regions, per = start.placed.regions, start.placed.per_multiprocessor
    allowed = allowed_for(problem, per, regions)
    if allowed is None or not regions:
        return start
    random_numbers = random.Random(seed)
    kinds: dict[int, list[int]] = {}
    for region in regions:
        kinds.setdefault(problem.kind[region], []).append(region)
    groups = [tuple(kind) for kind in kinds.values()]
    best = now = start
    hanging = _hanging(problem, now)
    left = blocks
    kind_moves = [
        (group, number) for group in groups if len(group) > 1 for number in allowed[group[0]]
        if number != start.choice[group[0]]
    ]  # fmt: skip
    random_numbers.shuffle(kind_moves)
    while left > 0:
        choice, ranks = list(now.choice), now.ranks
        if kind_moves and left > blocks // 2:
            group, number = kind_moves.pop()
            for region in group:
                choice[region] = number
        elif random_numbers.random() < 0.2:
            ranks = ranks.copy()
            region = random_numbers.choice(hanging if random_numbers.random() < 0.5 else regions)
            ranks[region] *= 1 + SHAKE * random_numbers.uniform(-1, 1)
        else:
            region = random_numbers.choice(hanging if random_numbers.random() < 0.6 else regions)
            some = [number for number in allowed[region] if number != choice[region]]
            left -= 1
            if not some:
                continue
            # Neighbours in the order from fastest to most efficient, mostly.
            some.sort(key=lambda number: (abs(number - choice[region]), number))
            choice[region] = some[min(len(some) - 1, int(random_numbers.expovariate(0.8)))]
        placed = place(problem, tuple(choice), regions, per, ranks, start.placed.packed, start.placed.striped)
        left -= max(LEAST_TRY, len(placed.order))
        # Annealing: what is longer is gone on from with odds that fall with the length and with time.
        heat = start.makespan * HOT * (COLD / HOT) ** (1 - max(left, 0) / blocks)
        if placed.makespan <= now.makespan + heat * random_numbers.expovariate(1.0):
            now = Found(tuple(choice), ranks, placed)
            hanging = _hanging(problem, now)
        if now.makespan < best.makespan:
            best = now
    return best


def as_good(problem: Problem, found: Found, choice: Sequence[int], ranks: Sequence[Floats]) -> Found:
    """`found`, or the placement of its regions with other kernels and some of the ranks if that is shorter."""
    placed = found.placed
    allowed = allowed_for(problem, placed.per_multiprocessor, placed.regions)
    if allowed is None:
        return found
    mixed = tuple(
        number if number in allowed[region] else found.choice[region] for region, number in enumerate(choice)
    )  # fmt: skip
    best = found
    for some in ranks:
        other = place(problem, mixed, placed.regions, placed.per_multiprocessor, some, placed.packed, placed.striped)
        if other.makespan < best.makespan:
            best = Found(mixed, some, other)
    return best


def _hanging(problem: Problem, found: Found) -> list[int]:
    """Regions that the makespan hangs on: from the last block back, always what ended last before a block began."""
    placed = found.placed
    if not len(placed.order):
        return list(placed.regions)
    region_of = np.repeat(np.arange(len(placed.regions)), np.diff(placed.first))
    by_end = np.argsort(placed.end, kind="stable")
    ended = np.searchsorted(placed.end[by_end], placed.start, side="right") - 1  # by block: the last one before it
    block = int(by_end[-1])
    path: list[int] = []
    while True:
        region = placed.regions[region_of[block]]
        if not path or path[-1] != region:
            path.append(region)
        at = ended[block]
        if at < 0 or placed.end[by_end[at]] >= placed.end[block]:
            return sorted(set(path))
        block = int(by_end[at])
