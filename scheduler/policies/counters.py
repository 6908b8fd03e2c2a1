"""Which counters a placement has, and which of them a block has to wait for.

A region that is needed whole has one counter. A region of which neighbours need a part has stripes besides, about as
long as what a block reads, so that a need is one wait or two; where two of them would be all of the region, or the
region has few blocks, which end at about the same time, it is needed whole.

A worker knows a counter that it has waited for, one whose blocks it ran itself, and what these tell: where every block
of B comes after all of A, whoever has seen one block of B knows all of A. No worker waits for what it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.compiling import compiled
from scheduler.policies.problem import Floats, Ints, Problem

EXACT = 1e-9  # as for the blocks that a need names
NO_COUNTER = -1
SEVERAL = -2  # workers ran a counter's blocks
Words = NDArray[np.uint64]


def usual_stripes(problem: Problem) -> float:
    """From how many blocks on regions have stripes where nothing else is tried."""
    return problem.device.multiprocessors / 2


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """The needs inside some regions, and the counters for them. Regions and blocks are numbered among these."""

    first: Ints  # by region its first block; one more entry for the end
    into: Ints  # by region the first need that it is the target of; one more entry for the end
    source: Ints  # by need; of a region's needs those from later regions come first
    target: Ints
    near: NDArray[np.bool_]  # whether the need is for stripes
    halo: Floats
    whole: Ints  # by region the counter of all its blocks, or NO_COUNTER
    length: Ints  # by region, of its stripes, in blocks; 0: it has none
    stripes: Ints  # by region the counter of its first stripe
    begin: Ints  # by counter its first block, and the end
    end: Ints
    implied: Words  # by region, as bits, the regions that have ended when any block of it has


def counters_of(problem: Problem, regions: Sequence[int], blocks: Ints, striped: float) -> Counters:
    """The counters for `regions`, of as many blocks each; those of at least `striped` blocks may have stripes."""
    inside = np.full(problem.count, -1)
    inside[list(regions)] = np.arange(len(regions))
    kept = (inside[problem.source] >= 0) & (inside[problem.target] >= 0)
    source, target = inside[problem.source[kept]], inside[problem.target[kept]]
    levels = np.asarray(problem.level, np.int64)[list(regions)]
    by = np.lexsort((-levels[source], target))
    source, target, halo = source[by], target[by], problem.halo[kept][by]
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(blocks, dtype=np.int64)))
    into = np.searchsorted(target, np.arange(len(regions) + 1))
    near, whole, length, stripes, begin, end = _counters(first, source, target, problem.near[kept][by], halo, striped)
    implied = _implied(np.argsort(levels, kind="stable"), into, source, near)
    return Counters(first, into, source, target, near, halo, whole, length, stripes, begin, end, implied)


@compiled
def reads_of(block: int, targets: int, sources: int, halo: float) -> tuple[int, int]:
    """The source's blocks that a block of the target reads when it needs those near: begin and end."""
    begin = max(0, int(np.floor((block / targets - halo) * sources + EXACT)))
    end = min(sources, max(begin + 1, int(np.ceil(((block + 1) / targets + halo) * sources - EXACT))))
    return min(begin, sources - 1), end


@compiled
def stripes_read(block: int, targets: int, sources: int, halo: float, length: int) -> tuple[int, int]:
    """The stripes of those blocks, from 0 on: begin and end."""
    begin, end = reads_of(block, targets, sources, halo)
    return begin // length, (end - 1) // length + 1


@compiled
def readers_of(stripe: int, sources: int, targets: int, halo: float, length: int) -> tuple[int, int]:
    """The target's blocks that read of a stripe: what they read moves on with them, so it is a range."""
    low, high = 0, targets
    while low < high:
        middle = (low + high) // 2
        if stripes_read(middle, targets, sources, halo, length)[1] > stripe:
            high = middle
        else:
            low = middle + 1
    begin, high = low, targets
    while low < high:
        middle = (low + high) // 2
        if stripes_read(middle, targets, sources, halo, length)[0] > stripe:
            high = middle
        else:
            low = middle + 1
    return begin, low


@compiled
def _counters(
    first: Ints, source: Ints, target: Ints, asked_near: NDArray[np.bool_], halo: Floats, striped: float
) -> tuple[NDArray[np.bool_], Ints, Ints, Ints, Ints, Ints]:
    """Which needs are for stripes, and by region and by counter what Counters holds of them."""
    regions = len(first) - 1
    near = asked_near.copy()
    whole, length, stripes = np.full(regions, NO_COUNTER), np.zeros(regions, np.int64), np.zeros(regions, np.int64)
    for need in range(len(source)):
        if near[need]:
            sources = first[source[need] + 1] - first[source[need]]
            targets = first[target[need] + 1] - first[target[need]]
            longest = 1
            for block in range(targets):
                begin, end = reads_of(block, targets, sources, halo[need])
                longest = max(longest, end - begin - 1)
            if 2 * longest >= sources or sources < striped:
                near[need] = False
            else:
                length[source[need]] = max(length[source[need]], longest)
    count = 0
    for need in range(len(source)):
        if not near[need] and whole[source[need]] == NO_COUNTER:
            whole[source[need]] = count
            count += 1
    for region in range(regions):
        stripes[region] = count
        if length[region] > 0:
            count += -(-(first[region + 1] - first[region]) // length[region])
    begins, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for region in range(regions):
        if whole[region] != NO_COUNTER:
            begins[whole[region]], ends[whole[region]] = first[region], first[region + 1]
        if length[region] > 0:
            counter = stripes[region]
            for begin in range(first[region], first[region + 1], length[region]):
                begins[counter], ends[counter] = begin, min(begin + length[region], first[region + 1])
                counter += 1
    return near, whole, length, stripes, begins, ends


@compiled
def _implied(order: Ints, into: Ints, source: Ints, near: NDArray[np.bool_]) -> Words:
    """By region what any of its blocks comes after, all of it; `order` has each region after what it needs."""
    implied = np.zeros((len(order), len(order) // 64 + 1), np.uint64)
    for region in order:
        for need in range(into[region], into[region + 1]):
            other = source[need]
            implied[region] |= implied[other]
            if not near[need]:
                implied[region, other >> 6] |= np.uint64(1) << np.uint64(other & 63)
    return implied


@compiled
def unknown(
    block: int, region: int, worker: int, first: Ints, into: Ints, source: Ints, near: NDArray[np.bool_], halo: Floats,
    whole: Ints, length: Ints, stripes: Ints, implied: Words, ran: Ints, heard: NDArray[np.bool_], known: Words,
    asked: Ints,
) -> int:  # fmt: skip
    """The counters that `block` needs and that its worker does not know, into `asked`; how many. It knows them then.

    `ran` has by counter the worker that ran all its blocks. `heard` and `known` are what workers know, of counters and,
    as bits, of whole regions.
    """
    many = 0
    for need in range(into[region], into[region + 1]):
        other = source[need]
        if (known[worker, other >> 6] >> np.uint64(other & 63)) & np.uint64(1):
            continue
        if near[need]:
            sources, targets = first[other + 1] - first[other], first[region + 1] - first[region]
            low, high = stripes_read(block - first[region], targets, sources, halo[need], length[other])
            low, high = stripes[other] + low, stripes[other] + high
        else:
            low, high = whole[other], whole[other] + 1
            known[worker, other >> 6] |= np.uint64(1) << np.uint64(other & 63)
        for counter in range(low, high):
            if ran[counter] != worker and not heard[worker, counter]:
                heard[worker, counter] = True
                known[worker] |= implied[other]
                asked[many] = counter
                many += 1
    return many
