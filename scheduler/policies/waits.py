"""The waits that a placement needs: those of the transitive reduction, and no other.

A worker knows of every other one how many runs it has seen finished, through its own waits and through what the workers
that it waited for had seen. A wait for what is known already, or for what another wait of the same block tells, is
left out; so is none that carries no need.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.compiling import compiled
from scheduler.policies.placing import Placed, reads_of
from scheduler.policies.problem import Floats, Ints, Problem

MOST_KNOWN = 100_000_000  # numbers; beyond, what other workers have seen is not kept, and some waits are told twice


def pinned_waits(problem: Problem, placed: Placed) -> tuple[Ints, Ints, Ints]:
    """By block, from `begin[block]` to `begin[block + 1]`, the workers waited for, and how many runs of each."""
    needs = _needs(problem, placed)
    runs = np.zeros(len(placed.order), np.int64)
    counted = np.zeros(placed.workers, np.int64)
    for block in placed.order.tolist():
        worker = placed.worker[block]
        counted[worker] += 1
        runs[block] = counted[worker]
    workers = int(placed.worker.max(initial=0)) + 1
    keep = workers * len(placed.order) <= MOST_KNOWN
    count = np.zeros(len(placed.order) + 1, np.int64)
    who, until = _pinned(placed.first, *needs, placed.order, placed.worker, runs, workers, keep, count)
    return np.cumsum(count), who, until


def ticket_waits(problem: Problem, placed: Placed) -> list[tuple[int, ...]]:
    """By ticket, in the order of `placed`, the earlier tickets that it waits for, ascending; none with one worker."""
    if not placed.worker.any():
        return [()] * len(placed.order)
    first, source, target, near, halo, _ = (placed.first, *_needs(problem, placed))
    ticket = np.empty(len(placed.order), np.int64)
    ticket[placed.order] = np.arange(len(placed.order))
    into: list[list[int]] = [[] for _ in placed.regions]
    for need, region in enumerate(target.tolist()):
        into[region].append(need)
    region_of = np.repeat(np.arange(len(placed.regions)), np.diff(first))
    waits: list[tuple[int, ...]] = []
    reached: list[int] = []  # by ticket a set of bits: those that have finished when it has
    for number, block in enumerate(placed.order.tolist()):
        region = region_of[block]
        direct: set[int] = set()
        for need in into[region]:
            sources = int(first[source[need] + 1] - first[source[need]])
            low, high = 0, sources
            if near[need]:
                targets = int(first[region + 1] - first[region])
                low, high = reads_of(block - int(first[region]), targets, sources, float(halo[need]))
            begin = int(first[source[need]])
            direct.update(ticket[begin + low : begin + high].tolist())
        known, kept = 0, []
        for other in sorted(direct, reverse=True):
            if not known >> other & 1:
                kept.append(other)
                known |= reached[other]
        reached.append(known | 1 << number)
        waits.append(tuple(reversed(kept)))
    return waits


def _needs(problem: Problem, placed: Placed) -> tuple[Ints, Ints, NDArray[np.bool_], Floats, Ints]:
    """Needs between the placed regions, by target: sources, targets, whether near, halos; where each target's begin."""
    inside = np.full(problem.count, -1)
    inside[list(placed.regions)] = np.arange(len(placed.regions))
    kept = (inside[problem.source] >= 0) & (inside[problem.target] >= 0)
    target = inside[problem.target[kept]]
    by = np.argsort(target, kind="stable")
    begins = np.searchsorted(target[by], np.arange(len(placed.regions) + 1))
    return inside[problem.source[kept]][by], target[by], problem.near[kept][by], problem.halo[kept][by], begins


@compiled
def _pinned(
    first: Ints, source: Ints, target: Ints, near: NDArray[np.bool_], halo: Floats, into: Ints, order: Ints,
    worker_of: Ints, runs: Ints, workers: int, keep: bool, count: Ints,
) -> tuple[Ints, Ints]:  # fmt: skip
    regions, blocks = len(first) - 1, len(order)
    region_of = np.empty(blocks, np.int64)
    for region in range(regions):
        region_of[first[region] : first[region + 1]] = region
    block_of = np.zeros((workers, int(runs.max()) + 1 if blocks else 1), np.int64)
    for block in range(blocks):
        block_of[worker_of[block], runs[block]] = block
    last_of = np.full((regions, workers), -1, np.int32)  # the last run of a region on a worker
    for block in range(blocks):
        region = region_of[block]
        last_of[region, worker_of[block]] = max(last_of[region, worker_of[block]], runs[block])
    seen = np.zeros((workers, workers), np.int32)
    then = np.zeros((blocks if keep else 0, workers), np.int32)  # what a worker had seen when a block of its ended
    wanted = np.zeros(workers, np.int64)
    asked = np.empty(workers, np.int64)
    place = np.full(blocks, 0)
    for at in range(blocks):
        place[order[at]] = at
    who_of = np.empty(max(16, 4 * blocks), np.int64)
    until_of = np.empty(max(16, 4 * blocks), np.int64)
    begin_of = np.zeros(blocks, np.int64)
    made = 0
    for at in range(blocks):
        block = order[at]
        worker, region = worker_of[block], region_of[block]
        many = 0
        for need in range(into[region], into[region + 1]):
            other = source[need]
            if near[need]:
                sources, targets = first[other + 1] - first[other], first[region + 1] - first[region]
                low, high = reads_of(block - first[region], targets, sources, halo[need])
                for one in range(first[other] + low, first[other] + high):
                    if runs[one] > seen[worker, worker_of[one]] and worker_of[one] != worker:
                        if wanted[worker_of[one]] == 0:
                            asked[many] = worker_of[one]
                            many += 1
                        wanted[worker_of[one]] = max(wanted[worker_of[one]], runs[one])
            else:
                for one in range(workers):
                    if last_of[other, one] > seen[worker, one] and one != worker:
                        if wanted[one] == 0:
                            asked[many] = one
                            many += 1
                        wanted[one] = max(wanted[one], last_of[other, one])
        begin_of[block] = made
        if made + many > len(who_of):
            who_of = np.concatenate((who_of, np.empty(len(who_of) + many, np.int64)))
            until_of = np.concatenate((until_of, np.empty(len(until_of) + many, np.int64)))
        # The run that began last is told by no other: from it backwards, what is kept tells what it had seen.
        if many > 1:
            keys = np.empty(many, np.int64)
            for one in range(many):
                keys[one] = -place[block_of[asked[one], wanted[asked[one]]]]
            by = np.argsort(keys)
        else:
            by = np.zeros(many, np.int64)
        for one in by:
            other = asked[one]
            if wanted[other] > seen[worker, other]:
                who_of[made], until_of[made] = other, wanted[other]
                made += 1
                count[block + 1] += 1
                if keep:
                    told = then[block_of[other, wanted[other]]]
                    for known in range(workers):
                        seen[worker, known] = max(seen[worker, known], told[known])
                seen[worker, other] = max(seen[worker, other], wanted[other])
            wanted[other] = 0
        seen[worker, worker] = runs[block]
        if keep:
            then[block] = seen[worker]
    # By block instead of by start.
    begins = np.zeros(blocks + 1, np.int64)
    for block in range(blocks):
        begins[block + 1] = begins[block] + count[block + 1]
    who, until = np.empty(made, np.int64), np.empty(made, np.int64)
    for block in range(blocks):
        size = count[block + 1]
        who[begins[block] : begins[block + 1]] = who_of[begin_of[block] : begin_of[block] + size]
        until[begins[block] : begins[block + 1]] = until_of[begin_of[block] : begin_of[block] + size]
    return who, until
