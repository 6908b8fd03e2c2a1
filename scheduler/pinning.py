"""Which worker of a pinned program runs each block, and in which order: list scheduling by events.

Whenever a worker is free it takes a block of the most urgent run whose needs have ended; it is idle only where no run
is ready (Graham, 1969). Workers are numbered by multiprocessors: the first worker of each, then the second of each, and
so on. Those of one multiprocessor share what it has: a block keeps it busy for some time, and waits besides, while
others work. So a block ends when it has had both, and when its multiprocessor has done all work that it was given;
among free workers it takes one whose multiprocessor is done first, and there the one that has been free for longest,
which has had time to prepare what a block needs of constants.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

Lists = Sequence[Sequence[tuple[int, int]]]  # by worker its blocks in their order, each a run and a number


@dataclass(frozen=True, slots=True)
class Pinning:
    """By worker its blocks; by run when the first of its blocks begins, and when all have ended; in nanoseconds."""

    lists: Lists
    begins: Sequence[float]
    ends: Sequence[float]

    @property
    def end(self) -> float:
        """When everything has ended."""
        return max(self.ends, default=0.0)


def pinned(
    blocks: Sequence[int], times: Sequence[tuple[float, float]], needs: Mapping[int, Sequence[int]],
    order: Sequence[int], multiprocessors: int, slots: int, wait: float,
) -> Pinning:  # fmt: skip
    """Place the blocks of all runs.

    `times` in nanoseconds: for which one block of each run keeps its multiprocessor busy, and for which it waits
    besides. `needs` by run; `order`: the runs, the most urgent first; `wait`: from the end of a run to who needs it.
    """
    return _Placing(blocks, times, needs, order, (multiprocessors, slots), wait).pinning()


class _Placing:
    def __init__(
        self, blocks: Sequence[int], times: Sequence[tuple[float, float]], needs: Mapping[int, Sequence[int]],
        order: Sequence[int], shape: tuple[int, int], wait: float,
    ) -> None:  # fmt: skip
        self._blocks, self._times, self._wait = blocks, times, wait
        self._multiprocessors, slots = shape
        self._rank = {run: rank for rank, run in enumerate(order)}
        self._missing = [len(set(needs.get(run, ()))) for run in range(len(blocks))]
        self._followers: list[list[int]] = [[] for _ in blocks]
        for run, some in needs.items():
            for one in set(some):
                self._followers[one].append(run)
        self._lists: list[list[tuple[int, int]]] = [[] for _ in range(self._multiprocessors * slots)]
        self._begins, self._ends, self._readies = ([0.0] * len(blocks) for _ in range(3))
        self._slots = [deque(range(slots)) for _ in range(self._multiprocessors)]  # that are free, the longest first
        self._done = [0.0] * self._multiprocessors  # when all work that a multiprocessor was given is done
        self._free = [(0.0, place) for place in range(self._multiprocessors)]  # of those with a free slot, by done
        self._busy: list[tuple[float, int, int]] = []  # when a slot of a multiprocessor is free again
        self._soon: list[tuple[float, int, int]] = []  # when runs are ready that are not yet: with rank and run
        self._ready: list[tuple[int, int]] = []  # by rank

    def pinning(self) -> Pinning:
        for run in self._rank:
            if not self._missing[run]:
                heapq.heappush(self._soon, (0.0, self._rank[run], run))
        placed = [0] * len(self._blocks)
        while self._soon or self._ready:
            now = min(self._soon[0][0] if self._soon else inf, self._busy[0][0] if self._ready else inf)
            self._advance(now)
            while self._ready and (place := self._free_place()) is not None:
                run = self._ready[0][1]
                self._put(run, placed[run], place, now)
                placed[run] += 1
                if placed[run] == self._blocks[run]:
                    heapq.heappop(self._ready)
                    self._hand_on(run)
        return Pinning(self._lists, self._begins, self._ends)

    def _advance(self, now: float) -> None:
        """What has happened up to a time: slots are free, runs are ready."""
        while self._busy and self._busy[0][0] <= now:
            _, place, slot = heapq.heappop(self._busy)
            self._slots[place].append(slot)
            heapq.heappush(self._free, (self._done[place], place))
        while self._soon and self._soon[0][0] <= now:
            ready, rank, run = heapq.heappop(self._soon)
            self._begins[run] = self._ends[run] = self._readies[run] = ready
            if self._blocks[run]:
                heapq.heappush(self._ready, (rank, run))
            else:
                self._hand_on(run)

    def _free_place(self) -> int | None:
        """The multiprocessor with a free slot that is done first; entries that are out of date are dropped."""
        while self._free:
            done, place = self._free[0]
            if self._slots[place] and done == self._done[place]:
                return place
            heapq.heappop(self._free)
        return None

    def _put(self, run: int, block: int, place: int, now: float) -> None:
        busy, waiting = self._times[run]
        slot = self._slots[place].popleft()
        self._done[place] = max(self._done[place], now) + busy
        end = max(now + busy + waiting, self._done[place])
        self._lists[slot * self._multiprocessors + place].append((run, block))
        heapq.heappush(self._busy, (end, place, slot))
        if self._slots[place]:
            heapq.heappush(self._free, (self._done[place], place))
        if not block:
            self._begins[run] = now
        self._ends[run] = max(self._ends[run], end)

    def _hand_on(self, run: int) -> None:
        """All blocks of a run have a place: those that need it know when it has ended."""
        for one in self._followers[run]:
            self._missing[one] -= 1
            self._readies[one] = max(self._readies[one], self._ends[run] + self._wait)
            if not self._missing[one]:
                heapq.heappush(self._soon, (self._readies[one], self._rank[one], one))
