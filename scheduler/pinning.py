"""Which worker of a pinned program runs each block: greedily, run by run, the workers that are free first.

Workers are numbered by multiprocessors: the first worker of each, then the second of each, and so on. Of those that are
free when a run can begin, the ones whose multiprocessor has nothing else to do come first, since two workers of one
share what it has. It is list scheduling (Graham, 1969) with the multiprocessor as a tie-break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Workers = npt.NDArray[np.int32]


def pinned_workers(
    blocks: Sequence[int], times: Sequence[float], needs: Mapping[int, Sequence[int]], order: Sequence[int],
    multiprocessors: int, slots: int, wait: float,
) -> tuple[list[Workers], float]:  # fmt: skip
    """By run the worker of each block, and when everything has ended by these times.

    `times` in nanoseconds: of one block of each run. `needs` by run, in an `order` that keeps them; `wait`: from the
    end of a run to who needs it.
    """
    count = multiprocessors * slots
    free = np.zeros(count)
    begin = np.zeros(count)  # of the worker's last block
    numbers = np.arange(count)
    ended = np.zeros(len(blocks))
    found: list[Workers] = [np.zeros(0, np.int32)] * len(blocks)
    for run in order:
        ready = max((ended[one] + wait for one in needs[run]), default=0.0)
        chosen = np.empty(blocks[run], np.int32)
        for first in range(0, blocks[run], count):
            some = min(count, blocks[run] - first)
            start = np.maximum(free, ready)
            by_slot = free.reshape(slots, multiprocessors)
            load = np.maximum(by_slot - ready, 0.0).sum(axis=0)  # what the multiprocessor has still to do by then
            taken = np.lexsort((numbers, np.tile(load, slots), start))[:some]
            chosen[first : first + some] = taken
            begin[taken] = start[taken]
            free[taken] = start[taken] + times[run]
        ended[run] = free[chosen].max() if blocks[run] else ready
        found[run] = chosen
    return found, float(free.max(initial=0.0))
