"""List scheduling of blocks on workers: whenever a worker is free, it takes the ready block that goes first.

The clock moves from event to event, so that the number of blocks beside each other on a multiprocessor is known when a
block starts, and with it what the block takes. A block is ready for the worker that made what it needs last before it
is for the others, by a signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from scheduler.compiling import compiled
from scheduler.policies.problem import Choice, Floats, Ints, Problem

EXACT = 1e-9  # as for the blocks that a need names


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Blocks of some regions with worker and times; the blocks of a region stand one after the other."""

    regions: tuple[int, ...]  # in the order in which their blocks stand
    first: Ints  # by region of these the number of its first block; one more entry for the end
    per_multiprocessor: int
    packed: bool
    workers: int
    order: Ints  # blocks as they start
    worker: Ints
    start: Floats
    end: Floats
    makespan: float


def place(
    problem: Problem,
    choice: Choice,
    regions: Sequence[int],
    per_multiprocessor: int,
    ranks: Floats,
    packed: bool = False,
) -> Placed:
    """Schedule the blocks of `regions`; of ready blocks the one whose region has the largest rank goes first.

    A block goes where fewest are; or, `packed`, of the places where it takes least to the fullest, so that room is left
    for those that suffer from others.
    """
    device = problem.device
    inside = np.full(problem.count, -1)
    inside[list(regions)] = np.arange(len(regions))
    kernels = [problem.kernel(region, choice[region]) for region in regions]
    counts = np.array([kernel.blocks for kernel in kernels], np.int64)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    most = max(len(kernel.times) for kernel in kernels)
    times = np.array([[kernel.time(count + 1) for count in range(most)] for kernel in kernels]) + device.block_fixed_ns
    kept = (inside[problem.source] >= 0) & (inside[problem.target] >= 0)
    source, target = inside[problem.source[kept]], inside[problem.target[kept]]
    by = np.argsort(source, kind="stable")
    needs_of = np.searchsorted(source[by], np.arange(len(regions) + 1))
    rank = np.empty(len(regions), np.int64)
    rank[np.lexsort((np.arange(len(regions)), -ranks[list(regions)]))] = np.arange(len(regions))
    workers = per_multiprocessor * device.multiprocessors
    order, worker, start, end = _place(
        first, times, source[by], target[by], problem.near[kept][by], problem.halo[kept][by], needs_of, rank, workers,
        device.multiprocessors, device.signal_ns, packed,
    )  # fmt: skip
    return Placed(
        tuple(regions),
        first,
        per_multiprocessor,
        packed,
        workers,
        order,
        worker,
        start,
        end,
        float(end.max(initial=0.0)),
    )


@compiled
def reads_of(block: int, targets: int, sources: int, halo: float) -> tuple[int, int]:
    """The source's blocks that a block of the target reads when it needs those near: begin and end."""
    begin = max(0, int(np.floor((block / targets - halo) * sources + EXACT)))
    end = min(sources, max(begin + 1, int(np.ceil(((block + 1) / targets + halo) * sources - EXACT))))
    return min(begin, sources - 1), end


@compiled
def readers_of(block: int, sources: int, targets: int, halo: float) -> tuple[int, int]:
    """The target's blocks that read a block of the source: what they read moves on with them, so it is a range."""
    low, high = 0, targets
    while low < high:
        middle = (low + high) // 2
        if reads_of(middle, targets, sources, halo)[1] > block:
            high = middle
        else:
            low = middle + 1
    begin, high = low, targets
    while low < high:
        middle = (low + high) // 2
        if reads_of(middle, targets, sources, halo)[0] > block:
            high = middle
        else:
            low = middle + 1
    return begin, low


@compiled
def _later(latest: Floats, other: Floats, who: Ints, at: int, end: float, worker: int) -> None:
    """Keep the latest end with its worker, and the latest of any other worker."""
    if who[at] == worker:
        latest[at] = max(latest[at], end)
    elif end > latest[at]:
        other[at] = latest[at]
        latest[at], who[at] = end, worker
    else:
        other[at] = max(other[at], end)


@compiled
def _place(
    first: Ints, times: Floats, source: Ints, target: Ints, near: NDArray[np.bool_], halo: Floats, needs_of: Ints,
    rank: Ints, workers: int, multiprocessors: int, signal: float, packed: bool,
) -> tuple[Ints, Ints, Floats, Floats]:  # fmt: skip
    regions, blocks = len(first) - 1, first[-1]
    region_of = np.empty(blocks, np.int64)
    for region in range(regions):
        region_of[first[region] : first[region + 1]] = region
    worker_of, order = np.full(blocks, -1), np.empty(blocks, np.int64)
    start, end = np.zeros(blocks), np.zeros(blocks)
    # What a region's blocks wait for together, and what one block waits for besides.
    whole, single = np.zeros(regions, np.int64), np.zeros(blocks, np.int64)
    for need in range(len(source)):
        if near[need]:
            sources = first[source[need] + 1] - first[source[need]]
            targets = first[target[need] + 1] - first[target[need]]
            for one in range(targets):
                low, high = reads_of(one, targets, sources, halo[need])
                single[first[target[need]] + one] += high - low
        else:
            whole[target[need]] += 1
    left = first[1:] - first[:-1]
    made, made_other, made_by = np.full(regions, -np.inf), np.full(regions, -np.inf), np.full(regions, -1)
    seen, seen_other, seen_by = np.full(regions, -np.inf), np.full(regions, -np.inf), np.full(regions, -1)
    near_seen, near_other, near_by = np.full(blocks, -np.inf), np.full(blocks, -np.inf), np.full(blocks, -1)
    ready = [np.int64(0)]
    ready.clear()
    early = [(np.int64(0), np.int64(0))]  # a block that only one worker may begin, and that worker
    early.clear()
    active = np.zeros(multiprocessors, np.int64)
    busy = np.zeros(workers, np.bool_)
    per = workers // multiprocessors
    starters = np.empty(workers, np.int64)
    running = np.empty(workers, np.int64)
    idle = workers
    # Events: a block ends (its number), is ready for all (+ blocks), is ready for one worker (+ 2 blocks).
    events = [(0.0, np.int64(0))]
    events.clear()
    for region in range(regions):
        if whole[region] == 0:
            for block in range(first[region], first[region + 1]):
                if single[block] == 0:
                    heappush(ready, rank[region] * blocks + block)
    placed, now = 0, 0.0
    opened = np.empty(blocks, np.int64)
    while True:
        starting = 0
        kept = 0
        for one in range(len(early)):
            block, worker = int(early[one][0]), int(early[one][1])
            if worker_of[block] >= 0:
                continue
            if busy[worker] or (len(ready) > 0 and ready[0] < rank[region_of[block]] * blocks + block):
                early[kept] = early[one]
                kept += 1
                continue
            busy[worker] = True
            idle -= 1
            worker_of[block] = worker
            starters[starting] = block
            starting += 1
            active[worker % multiprocessors] += 1
        while len(early) > kept:
            early.pop()
        while idle > 0 and len(ready) > 0:
            block = heappop(ready) % blocks
            if worker_of[block] >= 0:
                continue
            spot, least = 0, np.inf
            for one in range(multiprocessors):
                if active[one] < per:
                    if packed:
                        takes = times[region_of[block], min(active[one], times.shape[1] - 1)]
                    else:
                        takes = float(active[one])
                    if takes < least or (takes == least and active[one] > active[spot]):
                        spot, least = one, takes
            worker = int(spot)
            while busy[worker]:
                worker += multiprocessors
            busy[worker] = True
            idle -= 1
            worker_of[block] = worker
            starters[starting] = block
            starting += 1
            active[spot] += 1
        for one in range(starting):
            block = starters[one]
            worker = int(worker_of[block])
            takes = times[region_of[block], min(active[worker % multiprocessors], times.shape[1]) - 1]
            start[block], end[block] = now, now + takes
            order[placed] = block
            placed += 1
            running[worker] = block
            heappush(events, (now + takes, np.int64(block)))
        if len(events) == 0:
            break
        now = events[0][0]
        open_blocks = 0
        while len(events) > 0 and events[0][0] <= now:
            code = heappop(events)[1]
            if code >= 2 * blocks:
                block = code - 2 * blocks
                by, _, _ = _seen(block, region_of, seen, seen_other, seen_by, near_seen, near_other, near_by)
                if worker_of[block] < 0 and by >= 0:
                    early.append((np.int64(block), np.int64(by)))
                continue
            if code >= blocks:
                block = code - blocks
                if worker_of[block] < 0:
                    heappush(ready, rank[region_of[block]] * blocks + block)
                continue
            worker = int(worker_of[code])
            busy[worker] = False
            idle += 1
            active[worker % multiprocessors] -= 1
            region = region_of[code]
            left[region] -= 1
            _later(made, made_other, made_by, region, now, worker)
            for need in range(needs_of[region], needs_of[region + 1]):
                other = target[need]
                if near[need]:
                    sources, targets = first[region + 1] - first[region], first[other + 1] - first[other]
                    low, high = readers_of(code - first[region], sources, targets, halo[need])
                    for block in range(first[other] + low, first[other] + high):
                        _later(near_seen, near_other, near_by, block, now, worker)
                        single[block] -= 1
                        if single[block] == 0 and whole[other] == 0:
                            opened[open_blocks] = block
                            open_blocks += 1
                elif left[region] == 0:
                    _later(seen, seen_other, seen_by, other, made[region], made_by[region])
                    if made_other[region] > -np.inf:
                        # Who made it does not matter but that it was another: the maker of the latest is told apart.
                        _later(seen, seen_other, seen_by, other, made_other[region], -2)
                    whole[other] -= 1
                    if whole[other] == 0:
                        for block in range(first[other], first[other + 1]):
                            if single[block] == 0:
                                opened[open_blocks] = block
                                open_blocks += 1
        for one in range(open_blocks):
            block = opened[one]
            by, latest, other_end = _seen(
                block, region_of, seen, seen_other, seen_by, near_seen, near_other, near_by
            )  # fmt: skip
            general, alone = latest + signal, max(latest, other_end + signal)
            if general <= now:
                heappush(ready, rank[region_of[block]] * blocks + block)
                continue
            heappush(events, (general, np.int64(blocks + block)))
            if by >= 0 and alone < general:
                heappush(events, (max(now, alone), np.int64(2 * blocks + block)))
    return order, worker_of, start, end


@compiled
def _seen(
    block: int, region_of: Ints, seen: Floats, seen_other: Floats, seen_by: Ints, near_seen: Floats,
    near_other: Floats, near_by: Ints,
) -> tuple[int, float, float]:  # fmt: skip
    """The worker that made what a block needs last, when, and when any other had made the rest."""
    region = region_of[block]
    if seen_by[region] == near_by[block]:
        latest, by = max(seen[region], near_seen[block]), seen_by[region]
        return by, latest, max(seen_other[region], near_other[block])
    if seen[region] >= near_seen[block]:
        return seen_by[region], seen[region], max(seen_other[region], near_seen[block])
    return near_by[block], near_seen[block], max(near_other[block], seen[region])
