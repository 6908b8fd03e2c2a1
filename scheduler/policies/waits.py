"""The waits of a placement: of each block those for counters that its worker does not know yet.

Of a ticketed program nobody knows which worker claims what, so there a ticket waits for all counters that it needs, but
for those that another of its waits tells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.compiling import compiled
from scheduler.policies.counters import SEVERAL, Words, unknown
from scheduler.policies.placing import Placed, seen_by_worker
from scheduler.policies.problem import Floats, Ints, Problem


def waits_of(problem: Problem, placed: Placed, ticketed: bool) -> tuple[Ints, Ints]:
    """By block, from `begin[block]` to `begin[block + 1]`, the counters that are waited for, in that order."""
    counters = placed.counters
    forgets = ticketed and bool(placed.worker.any())
    block, counter = _waits(
        counters.first, counters.into, counters.source, counters.near, counters.halo, counters.whole, counters.length,
        counters.stripes, counters.begin, counters.end, counters.implied, placed.order, placed.worker, placed.end,
        problem.device.signal_ns, forgets,
    )  # fmt: skip
    by = np.argsort(block, kind="stable")
    return np.searchsorted(block[by], np.arange(len(placed.order) + 1)), counter[by]


@compiled
def _waits(
    first: Ints, into: Ints, source: Ints, near: NDArray[np.bool_], halo: Floats, whole: Ints, length: Ints,
    stripes: Ints, begin: Ints, end: Ints, implied: Words, order: Ints, worker_of: Ints, ended: Floats, signal: float,
    forgets: bool,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Blocks and counters, one pair for each wait. `forgets`: what one block has waited for no other one knows."""
    blocks, many = len(order), len(begin)
    region_of = np.empty(blocks, np.int64)
    for region in range(len(first) - 1):
        region_of[first[region] : first[region + 1]] = region
    made, made_other = np.full(many, -np.inf), np.full(many, -np.inf)
    made_by, ran = np.full(many, -1), np.full(many, SEVERAL)
    for counter in range(many):
        last = begin[counter]
        for block in range(begin[counter], end[counter]):
            if ended[block] > ended[last]:
                last = block
        made[counter], made_by[counter] = ended[last], worker_of[last]
        for block in range(begin[counter], end[counter]):
            if worker_of[block] != worker_of[last]:
                made_other[counter] = max(made_other[counter], ended[block])
        if made_other[counter] == -np.inf and not forgets:
            ran[counter] = made_by[counter]
    knowers = 1 if forgets else int(worker_of.max()) + 1 if blocks else 0
    heard, known = np.zeros((knowers, many), np.bool_), np.zeros((knowers, implied.shape[1]), np.uint64)
    asked = np.empty(many, np.int64)
    of_block, of_counter = [0], [0]
    of_block.clear()
    of_counter.clear()
    for block in order:
        worker = 0 if forgets else worker_of[block]
        count = unknown(
            block, region_of[block], worker, first, into, source, near, halo, whole, length, stripes, implied, ran,
            heard, known, asked,
        )  # fmt: skip
        times = np.empty(count)
        for one in range(count):
            times[one] = seen_by_worker(asked[one], worker_of[block], made, made_other, made_by, signal)
        for one in np.argsort(times, kind="mergesort"):
            of_block.append(block)
            of_counter.append(asked[one])
        if forgets:
            heard[0] = False
            known[0] = 0
    return np.array(of_block, np.int64), np.array(of_counter, np.int64)
