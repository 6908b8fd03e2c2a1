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
from scheduler.policies.counters import (
    NO_COUNTER,
    SEVERAL,
    Counters,
    Words,
    counters_of,
    readers_of,
    stripes_read,
    unknown,
    usual_stripes,
)
from scheduler.policies.problem import Choice, Floats, Ints, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Blocks of some regions with worker and times; the blocks of a region stand one after the other."""

    regions: tuple[int, ...]  # in the order in which their blocks stand
    counters: Counters
    per_multiprocessor: int
    packed: bool
    striped: float  # blocks of a region that may have stripes, at least
    workers: int
    order: Ints  # blocks as they start
    worker: Ints
    start: Floats
    end: Floats
    makespan: float

    @property
    def first(self) -> Ints:
        """By region of these the number of its first block; one more entry for the end."""
        return self.counters.first


def place(
    problem: Problem,
    choice: Choice,
    regions: Sequence[int],
    per_multiprocessor: int,
    ranks: Floats,
    packed: bool = False,
    striped: float | None = None,
) -> Placed:
    """Schedule the blocks of `regions`; of ready blocks the one whose region has the largest rank goes first.

    A block goes where fewest are; or, `packed`, of the places where it takes least to the fullest, so that room is left
    for those that suffer from others. Regions of at least `striped` blocks may have stripes; None: half as many as
    there are multiprocessors.
    """
    device = problem.device
    own, tables = np.array(regions, np.int64), problem.tables
    rows = tables.first[own] + np.array(choice, np.int64)[own]
    times = np.take(tables.times[:, : tables.residents[rows].max()], rows, axis=0)
    striped = usual_stripes(problem) if striped is None else striped
    counters = counters_of(problem, regions, tables.blocks[rows], striped)
    by = np.argsort(counters.source, kind="stable")
    from_of = np.searchsorted(counters.source[by], np.arange(len(regions) + 1))
    rank = np.empty(len(regions), np.int64)
    rank[np.lexsort((np.arange(len(regions)), -ranks[own]))] = np.arange(len(regions))
    workers = per_multiprocessor * device.multiprocessors
    order, worker, start, end = _place(
        counters.first, times, counters.into, counters.source, counters.target, counters.near, counters.halo,
        counters.whole, counters.length, counters.stripes, counters.begin, counters.end, counters.implied, by, from_of,
        rank, workers, device.multiprocessors, device.signal_ns, device.wait_ns, packed,
    )  # fmt: skip
    return Placed(
        tuple(regions),
        counters,
        per_multiprocessor,
        packed,
        striped,
        workers,
        order,
        worker,
        start,
        end,
        float(end.max(initial=0.0)),
    )


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
    first: Ints, times: Floats, into: Ints, source: Ints, target: Ints, near: NDArray[np.bool_], halo: Floats,
    whole_of: Ints, length: Ints, stripes: Ints, counter_begin: Ints, counter_end: Ints, implied: Words,
    by_source: Ints, from_of: Ints, rank: Ints, workers: int, multiprocessors: int, signal: float, wait: float,
    packed: bool,
) -> tuple[Ints, Ints, Floats, Floats]:  # fmt: skip
    regions, blocks = len(first) - 1, first[-1]
    region_of = np.empty(blocks, np.int64)
    for region in range(regions):
        region_of[first[region] : first[region + 1]] = region
    worker_of, order = np.full(blocks, -1), np.empty(blocks, np.int64)
    start, end = np.zeros(blocks), np.zeros(blocks)
    # What a region's blocks wait for together, and what one block waits for besides: counters.
    whole, single = np.zeros(regions, np.int64), np.zeros(blocks, np.int64)
    most = 0
    for region in range(regions):
        asks = 0
        for need in range(into[region], into[region + 1]):
            if near[need]:
                other = source[need]
                sources, targets = first[other + 1] - first[other], first[region + 1] - first[region]
                widest = 0
                for one in range(targets):
                    low, high = stripes_read(one, targets, sources, halo[need], length[other])
                    single[first[region] + one] += high - low
                    widest = max(widest, high - low)
                asks += widest
            else:
                whole[region] += 1
                asks += 1
        most = max(most, asks)
    left = counter_end - counter_begin
    made, made_other = np.full(len(left), -np.inf), np.full(len(left), -np.inf)
    made_by, ran = np.full(len(left), -1), np.full(len(left), SEVERAL)
    heard, known = np.zeros((workers, len(left)), np.bool_), np.zeros((workers, implied.shape[1]), np.uint64)
    asked = np.empty(most, np.int64)
    seen, seen_other, seen_by = np.full(regions, -np.inf), np.full(regions, -np.inf), np.full(regions, -1)
    near_seen, near_other, near_by = np.full(blocks, -np.inf), np.full(blocks, -np.inf), np.full(blocks, -1)
    ready = [np.int64(0)]
    ready.clear()
    early = [(np.int64(0), np.int64(0))]  # a block that only one worker may begin, and that worker
    early.clear()
    taken, active = np.zeros(multiprocessors, np.int64), np.zeros(multiprocessors, np.int64)
    busy, since = np.zeros(workers, np.bool_), np.zeros(workers)
    per = workers // multiprocessors
    given, starters = np.empty(workers, np.int64), np.empty(workers, np.int64)
    idle = workers
    # Events: a block ends (its number), is ready for all (+ blocks), for one worker (+ 2 blocks), starts (+ 3 blocks).
    events = [(0.0, np.int64(0))]
    events.clear()
    for region in range(regions):
        if whole[region] == 0:
            for block in range(first[region], first[region + 1]):
                if single[block] == 0:
                    heappush(ready, rank[region] * blocks + block)
    placed, now = 0, 0.0
    starting = 0
    opened = np.empty(blocks, np.int64)
    while True:
        giving = 0
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
            given[giving] = block
            giving += 1
            taken[worker % multiprocessors] += 1
        while len(early) > kept:
            early.pop()
        while idle > 0 and len(ready) > 0:
            block = heappop(ready) % blocks
            if worker_of[block] >= 0:
                continue
            spot, least = 0, np.inf
            for one in range(multiprocessors):
                if taken[one] < per:
                    if packed:
                        takes = times[region_of[block], min(taken[one], times.shape[1] - 1)]
                    else:
                        takes = float(taken[one])
                    if takes < least or (takes == least and taken[one] > taken[spot]):
                        spot, least = one, takes
            worker = int(spot)
            while busy[worker]:
                worker += multiprocessors
            busy[worker] = True
            idle -= 1
            worker_of[block] = worker
            given[giving] = block
            giving += 1
            taken[spot] += 1
        for one in range(giving):
            block = given[one]
            worker = int(worker_of[block])
            many = unknown(
                block, region_of[block], worker, first, into, source, near, halo, whole_of, length, stripes, implied,
                ran, heard, known, asked,
            )  # fmt: skip
            begins = _waited(asked[:many], worker, since[worker], made, made_other, made_by, signal, wait)
            if begins > now:
                heappush(events, (begins, np.int64(3 * blocks + block)))
            else:
                starters[starting] = block
                starting += 1
        for one in range(starting):
            active[worker_of[starters[one]] % multiprocessors] += 1
        for one in range(starting):
            block = starters[one]
            worker = int(worker_of[block])
            takes = times[region_of[block], min(active[worker % multiprocessors], times.shape[1]) - 1]
            start[block], end[block] = now, now + takes
            order[placed] = block
            placed += 1
            heappush(events, (now + takes, np.int64(block)))
        starting = 0
        if len(events) == 0:
            break
        now = events[0][0]
        open_blocks = 0
        while len(events) > 0 and events[0][0] <= now:
            code = heappop(events)[1]
            if code >= 3 * blocks:
                starters[starting] = code - 3 * blocks
                starting += 1
                continue
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
            busy[worker], since[worker] = False, now
            idle += 1
            taken[worker % multiprocessors] -= 1
            active[worker % multiprocessors] -= 1
            region = region_of[code]
            counter = whole_of[region]
            if counter != NO_COUNTER:
                left[counter] -= 1
                _later(made, made_other, made_by, counter, now, worker)
                if left[counter] == 0:
                    ran[counter] = made_by[counter] if made_other[counter] == -np.inf else SEVERAL
                    for at in range(from_of[region], from_of[region + 1]):
                        need = by_source[at]
                        other = target[need]
                        if near[need]:
                            continue
                        _hears(seen, seen_other, seen_by, other, made, made_other, made_by, counter)
                        whole[other] -= 1
                        if whole[other] == 0:
                            for block in range(first[other], first[other + 1]):
                                if single[block] == 0:
                                    opened[open_blocks] = block
                                    open_blocks += 1
            if length[region] > 0:
                stripe = (code - first[region]) // length[region]
                counter = stripes[region] + stripe
                left[counter] -= 1
                _later(made, made_other, made_by, counter, now, worker)
                if left[counter] == 0:
                    ran[counter] = made_by[counter] if made_other[counter] == -np.inf else SEVERAL
                    for at in range(from_of[region], from_of[region + 1]):
                        need = by_source[at]
                        other = target[need]
                        if not near[need]:
                            continue
                        sources, targets = first[region + 1] - first[region], first[other + 1] - first[other]
                        low, high = readers_of(stripe, sources, targets, halo[need], length[region])
                        for block in range(first[other] + low, first[other] + high):
                            _hears(near_seen, near_other, near_by, block, made, made_other, made_by, counter)
                            single[block] -= 1
                            if single[block] == 0 and whole[other] == 0:
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
def _hears(
    latest: Floats, other: Floats, who: Ints, at: int, made: Floats, made_other: Floats, made_by: Ints, counter: int
) -> None:
    """Who waits at `at` waits for this counter too."""
    _later(latest, other, who, at, made[counter], made_by[counter])
    if made_other[counter] > -np.inf:
        # Who made it does not matter but that it was another: the maker of the latest is told apart.
        _later(latest, other, who, at, made_other[counter], SEVERAL)


@compiled
def _waited(
    asked: Ints, worker: int, since: float, made: Floats, made_other: Floats, made_by: Ints, signal: float, wait: float
) -> float:
    """When a worker that has been free `since` then is past its waits, those first that are fulfilled first."""
    for one in range(1, len(asked)):
        counter = asked[one]
        at = one
        while at > 0 and seen_by_worker(asked[at - 1], worker, made, made_other, made_by, signal) > seen_by_worker(
            counter, worker, made, made_other, made_by, signal
        ):
            asked[at] = asked[at - 1]
            at -= 1
        asked[at] = counter
    past = since
    for counter in asked:
        past = max(past, seen_by_worker(counter, worker, made, made_other, made_by, signal)) + wait
    return past


@compiled
def seen_by_worker(counter: int, worker: int, made: Floats, made_other: Floats, made_by: Ints, signal: float) -> float:
    """When a worker sees that all blocks of a counter have ended: its own at once, others' after a signal."""
    if made_by[counter] == worker:
        return float(max(made[counter], made_other[counter] + signal))
    return float(made[counter] + signal)


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
