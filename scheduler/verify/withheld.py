"""What a wait for a part of a counter orders: decided by withholding each block that something needs.

Such a wait does not say which blocks have ended. But counters only grow, so with one block that never ends there is one
state in which nothing moves any more, whatever the order. What has started by then may start before that block has
ended, and nothing else may. That is exact; it takes a run of the launch for each block that is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler.compiling import compiled
from scheduler.verify.form import Blocks, Ints, Lists
from scheduler.verify.needs import Needs


def early_start(number: int, flat: Lists, blocks: Blocks, needs: Needs) -> tuple[int, int] | None:
    """A block of this launch, and one that needs it and may start before it has ended; None where there are none."""
    missing = np.full(2, -1)
    _withhold(
        number, flat.of, flat.block, flat.counter, flat.value, flat.counts, flat.counters_of, flat.counters,
        blocks.region, blocks.first, blocks.launch, needs.of, needs.source, needs.bounds, needs.low, needs.high,
        missing,
    )  # fmt: skip
    return None if missing[0] < 0 else (int(missing[0]), int(missing[1]))


@compiled
def _withhold(
    number: int, of: Ints, block_of: Ints, counter_of: Ints, value_of: Ints, counts: Ints, counters_of: Ints,
    counters: Ints, region: Ints, first: Ints, launch: Ints, needs_of: Ints, source: Ints, bounds: Ints, low: Ints,
    high: Ints, missing: Ints,
) -> None:  # fmt: skip
    """Fill in the first need that is not covered, if there is one: a source and a target block."""
    started = np.zeros(len(region), np.bool_)
    for instruction in range(len(block_of)):
        without = block_of[instruction]
        if without < 0:
            continue
        _run(of, block_of, counter_of, value_of, counts, counters_of, counters, without, started)
        for place in range(len(block_of)):
            target = block_of[place]
            if target < 0 or not started[target]:
                continue
            mine = region[target]
            for need in range(needs_of[mine], needs_of[mine + 1]):
                slot = bounds[need] + target - first[mine]
                if source[need] == region[without] and low[slot] <= without < high[slot] and launch[without] == number:
                    missing[0], missing[1] = without, target
                    return


@compiled
def _run(
    of: Ints, block_of: Ints, counter_of: Ints, value_of: Ints, counts: Ints, counters_of: Ints, counters: Ints,
    without: int, started: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Execute until nothing moves, block `without` never ending; fill in which blocks have started."""
    started[:] = False
    stands = np.zeros(len(counts), np.int64)
    at = of[:-1].copy()
    moved = True
    while moved:
        moved = False
        for one in range(len(at)):
            while at[one] < of[one + 1]:
                block = block_of[at[one]]
                if block < 0:
                    if value_of[at[one]] > stands[counter_of[at[one]]]:
                        break
                else:
                    started[block] = True
                    if block == without:
                        break
                    for counter in counters[counters_of[block] : counters_of[block + 1]]:
                        stands[counter] += 1
                at[one] += 1
                moved = True
