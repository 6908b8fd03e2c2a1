"""Which runs of a program several workers share, block by block, and which one worker has whole, in chains.

Workers go through one list. Of a run that is shared they claim blocks. A chain is one claim: its worker runs all blocks
of its first run, then of the next, and so on. A chain needs fewer claims and waits, and its worker finds in its cache
what it has just made; blocks that are shared end sooner. A local search decides which runs are shared, and where chains
are cut. Each step joins a run to one that it needs, cuts it off, or has it shared or whole, orders the list anew by the
longest way to the end (Hu, 1961; Graham, 1969), simulates it, and is kept if that is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from scheduler.compiling import compiled, plainly

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NOBODY = -1
FEW = 2  # workers that the order is made for: it serves more of them better than the other way round
PIECES = 4  # of a shared run for each worker are simulated at most
STARTS = (0.0, 16.0, 64.0, 256.0)  # the longest chains that the search begins with, in waits
SWEEPS = 4  # over all runs at most
SMALL = 20_000  # runs times lists of a sweep: where numba takes longer to be imported than the search


@dataclass(frozen=True, slots=True)
class Chain:
    """Runs of which one worker runs all blocks, one after the other; or a single run whose blocks are shared."""

    runs: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """What the runs of a program take, in nanoseconds, and what each needs of the runs before it."""

    blocks: Ints  # where it is shared
    shared: Floats  # of all its blocks, added up
    whole: Floats  # of all of it on one worker
    needs_of: Ints  # of each run the first in `needs`, and the end
    needs: Ints
    saved: Floats  # by need: of `whole`, where its worker has run what is needed just before

    @classmethod
    def of(
        cls, blocks: Sequence[int], shared: Sequence[float], whole: Sequence[float],
        needs: Mapping[int, Sequence[int]], saved: Mapping[tuple[int, int], float],
    ) -> Runs:  # fmt: skip
        """`needs` by run; `saved` by the run that is needed and the one that needs it, 0 where it has none."""
        before = [list(needs[run]) for run in range(len(blocks))]
        pairs = [(one, run) for run, some in enumerate(before) for one in some]
        ends = np.cumsum([0, *map(len, before)])
        return cls(
            np.asarray(blocks, np.int64), np.asarray(shared, np.float64), np.asarray(whole, np.float64),
            np.asarray(ends, np.int64), np.asarray([one for one, _ in pairs], np.int64),
            np.asarray([saved.get(pair, 0.0) for pair in pairs], np.float64),
        )  # fmt: skip


def chained(runs: Runs, workers: int, wait: float, claim: float, evaluations: int) -> tuple[list[Chain], float]:
    """The list, and its simulated time with so many workers.

    `wait` and `claim` in nanoseconds: from the end of a run to another worker that needs it, and of a claim. The search
    stops after `evaluations` simulations: the same runs give the same list.
    """
    count = len(runs.blocks)
    followers_of, followers = _followers(runs)
    heads, whole, successor = np.empty(count, np.int64), np.empty(count, np.bool_), np.empty(count, np.int64)
    tried = len(runs.needs) + int(np.count_nonzero(runs.blocks > 1))
    with plainly() if count * tried < SMALL else nullcontext():
        makespan = _search(
            runs.blocks, runs.shared, runs.whole, runs.needs_of, runs.needs, runs.saved, followers_of, followers,
            workers, wait, claim, wait * np.asarray(STARTS), evaluations, heads, whole, successor,
        )  # fmt: skip
    found = []
    for head in heads[heads != NOBODY].tolist():
        chain = [head]
        while successor[chain[-1]] != NOBODY:
            chain.append(int(successor[chain[-1]]))
        found.append(Chain(tuple(chain), bool(whole[head])))
    return found, float(makespan)


def simulated(runs: Runs, chains: Sequence[Chain], workers: int, wait: float, claim: float) -> float:
    """Nanoseconds of a list, with so many workers; what each run needs stands before it."""
    count = len(runs.blocks)
    successor, predecessor = np.full(count, NOBODY), np.full(count, NOBODY)
    whole = np.zeros(count, np.bool_)
    for chain in chains:
        for one, after in zip(chain.runs, chain.runs[1:], strict=False):
            successor[one], predecessor[after] = after, one
        whole[list(chain.runs)] = chain.whole
    heads = np.asarray([chain.runs[0] for chain in chains], np.int64)
    with plainly():  # one list
        return float(
            _run(
                runs.blocks, runs.shared, runs.whole, runs.needs_of, runs.needs, runs.saved, workers, wait, claim,
                heads, whole, successor, predecessor,
            )
        )  # fmt: skip


def _followers(runs: Runs) -> tuple[Ints, Ints]:
    """By run those that need it, and of each the first, and the end."""
    count = len(runs.blocks)
    who = np.repeat(np.arange(count), np.diff(runs.needs_of))
    order = np.argsort(runs.needs, kind="stable")
    ends = np.cumsum(np.bincount(runs.needs, minlength=count))
    return np.concatenate((np.zeros(1, np.int64), ends)).astype(np.int64), who[order].astype(np.int64)


@compiled
def _search(
    blocks: Ints, shared: Floats, alone: Floats, needs_of: Ints, needs: Ints, saved: Floats, followers_of: Ints,
    followers: Ints, workers: int, wait: float, claim: float, longest: Floats, evaluations: int, heads: Ints,
    whole: Bools, successor: Ints,
) -> float:  # fmt: skip
    """Fill in the best list found: its heads in order, which runs are whole, and what follows each in its chain."""
    count = len(blocks)
    predecessor, order = np.empty(count, np.int64), np.empty(count, np.int64)
    tried, after, before = np.empty(count, np.bool_), np.empty(count, np.int64), np.empty(count, np.int64)
    best, left = np.inf, evaluations - len(longest)
    for start in longest:
        _begin(blocks, alone, needs_of, needs, followers_of, start, tried, after, before)
        made = _made(
            blocks, shared, alone, needs_of, needs, saved, followers_of, followers, workers, wait, claim, tried, after,
            before, order,
        )  # fmt: skip
        if made < best:
            best = made
            heads[:], whole[:], successor[:], predecessor[:] = order, tried, after, before
    for _ in range(SWEEPS):
        last = best
        for run in range(count):
            for at in range(needs_of[run] - 1, needs_of[run + 1]):
                if left <= 0:
                    return best
                tried[:], after[:], before[:] = whole, successor, predecessor
                if at >= needs_of[run]:
                    _join(needs[at], run, tried, after, before)
                elif blocks[run] > 1:
                    _turn(run, tried, after, before)
                else:
                    continue
                left -= 1
                made = _made(
                    blocks, shared, alone, needs_of, needs, saved, followers_of, followers, workers, wait, claim,
                    tried, after, before, order,
                )  # fmt: skip
                if made < best:
                    best = made
                    heads[:], whole[:], successor[:], predecessor[:] = order, tried, after, before
        if best == last:
            break
    return best


@compiled
def _begin(
    blocks: Ints, alone: Floats, needs_of: Ints, needs: Ints, followers_of: Ints, longest: float, whole: Bools,
    after: Ints, before: Ints,
) -> None:  # fmt: skip
    """Runs that are no longer are whole, and in chains that are no longer; the last one needed goes before."""
    length = alone.copy()
    for run in range(len(blocks)):
        whole[run] = blocks[run] == 1 or alone[run] <= longest
        after[run] = before[run] = NOBODY
        if not whole[run]:
            continue
        for at in range(needs_of[run + 1] - 1, needs_of[run] - 1, -1):
            one = needs[at]
            single = followers_of[one + 1] - followers_of[one] == 1
            if single and whole[one] and after[one] == NOBODY and length[one] + alone[run] <= longest:
                after[one], before[run] = run, one
                length[run] += length[one]
                break


@compiled
def _join(one: int, run: int, whole: Bools, after: Ints, before: Ints) -> None:
    """Have a run follow one that it needs, whoever followed or was followed before; or no more, where it does."""
    if before[run] == one:
        after[one] = before[run] = NOBODY
        return
    if after[one] != NOBODY:
        before[after[one]] = NOBODY
    if before[run] != NOBODY:
        after[before[run]] = NOBODY
    after[one], before[run] = run, one
    whole[one] = whole[run] = True


@compiled
def _turn(run: int, whole: Bools, after: Ints, before: Ints) -> None:
    """Have a run shared that was whole, which cuts its chain, or whole that was shared."""
    whole[run] = not whole[run]
    if after[run] != NOBODY:
        before[after[run]] = NOBODY
    if before[run] != NOBODY:
        after[before[run]] = NOBODY
    after[run] = before[run] = NOBODY


@compiled
def _made(
    blocks: Ints, shared: Floats, alone: Floats, needs_of: Ints, needs: Ints, saved: Floats, followers_of: Ints,
    followers: Ints, workers: int, wait: float, claim: float, whole: Bools, after: Ints, before: Ints, order: Ints,
) -> float:  # fmt: skip
    """Fill in the order of the heads, and simulate it; infinite where chains need one another."""
    if not _order(
        blocks, shared, alone, needs_of, needs, saved, followers_of, followers, wait, claim, whole, after, before, order
    ):
        return np.inf
    return _run(
        blocks, shared, alone, needs_of, needs, saved, workers, wait, claim, order, whole, after, before
    )  # fmt: skip


@compiled
def _order(
    blocks: Ints, shared: Floats, alone: Floats, needs_of: Ints, needs: Ints, saved: Floats, followers_of: Ints,
    followers: Ints, wait: float, claim: float, whole: Bools, after: Ints, before: Ints, order: Ints,
) -> bool:  # fmt: skip
    """The order in which two workers begin the chains, the one with the longest way to the end first.

    False where chains need one another.
    """
    count = len(blocks)
    head, missing = np.empty(count, np.int64), np.zeros(count, np.int64)
    takes, length = np.empty(count), np.zeros(count)
    for run in range(count):
        takes[run] = alone[run] if whole[run] else shared[run] / blocks[run]
        for at in range(needs_of[run], needs_of[run + 1]):
            if needs[at] == before[run]:
                takes[run] -= saved[at]
    if not _lengths(takes, needs_of, needs, followers_of, followers, wait, after, before, head, missing, length):
        return False
    ready = [(0.0, 0) for _ in range(0)]
    waiting = [(0.0, 0) for _ in range(0)]
    for first in range(count):
        if before[first] == NOBODY and missing[first] == 0:
            heappush(ready, (-length[first], first))
    free, ended, soonest = [0.0 for _ in range(FEW)], np.zeros(count), np.zeros(count)
    now, placed = 0.0, 0
    while len(ready) > 0 or len(waiting) > 0:
        while len(waiting) > 0 and (waiting[0][0] <= now or len(ready) == 0):
            now = max(now, waiting[0][0])
            first = heappop(waiting)[1]
            heappush(ready, (-length[first], first))
        first = heappop(ready)[1]
        order[placed] = first
        placed += 1
        worker, take, last = 0, 0.0 if whole[first] else float(takes[first]), 0.0
        for _ in range(1 if whole[first] else blocks[first]):
            worker = 0
            for other in range(1, FEW):
                if free[other] < free[worker]:
                    worker = other
            free[worker] = max(free[worker], now) + claim + take
            last = free[worker]
        ended[first] = last
        run = first
        while run != NOBODY:
            if whole[run]:
                for at in range(needs_of[run], needs_of[run + 1]):
                    if head[needs[at]] != first:
                        free[worker] = max(free[worker], ended[needs[at]] + wait)
                free[worker] += takes[run]
                ended[run] = free[worker]
            for at in range(followers_of[run], followers_of[run + 1]):
                other = int(head[followers[at]])
                if other != first:
                    soonest[other] = max(soonest[other], ended[run] + wait)
                    missing[other] -= 1
                    if missing[other] == 0:
                        heappush(waiting, (soonest[other], other))
            run = after[run]
        earliest = free[0]
        for other in range(1, FEW):
            earliest = min(earliest, free[other])
        now = max(now, earliest)
    order[placed:] = NOBODY
    return True


@compiled
def _lengths(
    takes: Floats, needs_of: Ints, needs: Ints, followers_of: Ints, followers: Ints, wait: float, after: Ints,
    before: Ints, head: Ints, missing: Ints, length: Floats,
) -> bool:  # fmt: skip
    """Fill in the head of each run's chain, how many needs a head's chain has outside, and each run's way to the end.

    False where chains need one another.
    """
    count, chains = len(takes), 0
    for first in range(count):
        if before[first] == NOBODY:
            chains += 1
            run = first
            while run != NOBODY:
                head[run] = first
                run = after[run]
    for run in range(count):
        for at in range(needs_of[run], needs_of[run + 1]):
            if head[needs[at]] != head[run]:
                missing[head[run]] += 1
    sorted_, left = np.empty(chains, np.int64), missing.copy()  # each chain after those that it needs
    done, found = 0, 0
    for first in range(count):
        if before[first] == NOBODY and left[first] == 0:
            sorted_[found] = first
            found += 1
    while done < found:
        run = sorted_[done]
        done += 1
        while run != NOBODY:
            for at in range(followers_of[run], followers_of[run + 1]):
                other = head[followers[at]]
                if other != head[run]:
                    left[other] -= 1
                    if left[other] == 0:
                        sorted_[found] = other
                        found += 1
            run = after[run]
    for place in range(found - 1, -1, -1):
        run = sorted_[place]
        while after[run] != NOBODY:
            run = after[run]
        while run != NOBODY:
            for at in range(followers_of[run], followers_of[run + 1]):
                here = wait if followers[at] != after[run] else 0.0
                length[run] = max(length[run], here + length[followers[at]])
            length[run] += takes[run]
            run = before[run]
    return found == chains


@compiled
def _run(
    blocks: Ints, shared: Floats, alone: Floats, needs_of: Ints, needs: Ints, saved: Floats, workers: int,
    wait: float, claim: float, heads: Ints, whole: Bools, after: Ints, before: Ints,
) -> float:  # fmt: skip
    """Nanoseconds of workers that go through the list. Whoever ran all of what it needs sees it at once."""
    count = len(blocks)
    free, ended, by = [0.0 for _ in range(workers)], np.zeros(count), np.full(count, NOBODY)
    for first in heads:
        if first == NOBODY:
            break
        if not whole[first]:
            pieces, last = min(blocks[first], PIECES * workers), 0.0
            take = float(shared[first] / max(pieces, 1))
            for _ in range(pieces):
                worker = 0
                for other in range(1, workers):
                    if free[other] < free[worker]:
                        worker = other
                start = free[worker] + claim
                for at in range(needs_of[first], needs_of[first + 1]):
                    one = needs[at]
                    start = max(start, float(ended[one]) + (0.0 if by[one] == worker else wait))
                free[worker] = start + take
                last = max(last, free[worker])
            ended[first] = last
            continue
        worker = 0
        for other in range(1, workers):
            if free[other] < free[worker]:
                worker = other
        now = free[worker] + claim
        run = first
        while run != NOBODY:
            for at in range(needs_of[run], needs_of[run + 1]):
                one = needs[at]
                now = max(now, ended[one] + (0.0 if by[one] == worker else wait))
                if one == before[run]:
                    now -= saved[at]
            now += alone[run]
            ended[run], by[run] = now, worker
            run = after[run]
        free[worker] = float(now)
    return ended.max() if count else 0.0
