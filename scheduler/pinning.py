"""Which worker of a pinned program runs each block: greedily, block by block, the one that would end it first.

Workers are numbered by multiprocessors: the first worker of each, then the second of each, and so on. Those of one
multiprocessor share what it has: a block keeps it busy for some time, and waits besides, while others work. So a block
ends when it has had both, and when its multiprocessor has done all work that it was given. It is list scheduling
(Graham, 1969) with such times.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Workers = npt.NDArray[np.int32]


def pinned_workers(
    blocks: Sequence[int], times: Sequence[tuple[float, float]], needs: Mapping[int, Sequence[int]],
    order: Sequence[int], multiprocessors: int, slots: int, wait: float,
) -> tuple[list[Workers], float]:  # fmt: skip
    """By run the worker of each block, and when everything has ended by these times.

    `times` in nanoseconds: for which one block of each run keeps its multiprocessor busy, and for which it waits
    besides. `needs` by run, in an `order` that keeps them; `wait`: from the end of a run to who needs it.
    """
    free = [[0.0] * slots for _ in range(multiprocessors)]  # by worker, when its last block has ended
    done = [0.0] * multiprocessors  # when all work that a multiprocessor was given is done
    ended = [0.0] * len(blocks)
    found: list[Workers] = [np.zeros(0, np.int32)] * len(blocks)

    def end_on(place: int, ready: float, busy: float, waiting: float) -> tuple[float, float, int]:
        start = max(min(free[place]), ready)
        return max(start + busy + waiting, max(done[place], start) + busy), done[place], place

    for run in order:
        ready = max((ended[one] + wait for one in needs[run]), default=0.0)
        busy, waiting = times[run]
        chosen, last = np.empty(blocks[run], np.int32), ready
        ends = [end_on(place, ready, busy, waiting) for place in range(multiprocessors)] if blocks[run] else []
        heapq.heapify(ends)
        for block in range(blocks[run]):
            end, _, place = ends[0]
            slot = min(range(slots), key=free[place].__getitem__)
            chosen[block] = slot * multiprocessors + place
            done[place] = max(done[place], free[place][slot], ready) + busy
            free[place][slot], last = end, max(last, end)
            heapq.heapreplace(ends, end_on(place, ready, busy, waiting))
        ended[run], found[run] = last, chosen
    return found, max((max(some) for some in free), default=0.0)
