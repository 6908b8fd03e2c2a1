"""Pinned launches: no circle of waits (theorem T2), and every need inside the launch covered by what happens before.

Of each worker the sweep keeps a vector clock: of every worker the number of runs that are finished for certain. A
counter gathers the clocks at the ends of the blocks it counts, and a wait for all of them joins what it has gathered. A
need is covered if the clock of the target's worker, when it starts, has passed the source. Clocks of counters are kept
only as long as someone waits for them. A launch with waits for parts of counters is decided by `withheld` instead.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler.compiling import compiled
from scheduler.errors import UnsafeProgram
from scheduler.verify.form import Blocks, Ints, Lists
from scheduler.verify.needs import Needs
from scheduler.verify.withheld import early_start

COVERED = -1
SHOWN = 8  # of a circle, in an error


def check_pinned(number: int, flat: Lists, blocks: Blocks, needs: Needs) -> None:
    """Raises UnsafeProgram naming the wait that nothing satisfies, the circle, or the need that is not covered."""
    waits = np.flatnonzero(flat.counter >= 0)
    counts = flat.counts[flat.counter[waits]]
    never = waits[flat.value[waits] > counts]
    if len(never):
        wait = int(never[0])
        worker, counter = int(np.searchsorted(flat.of, wait, side="right")) - 1, int(flat.counter[wait])
        raise UnsafeProgram(
            f"launch {number}: worker {worker} waits for {flat.value[wait]} blocks of {flat.names[counter]}, of which "
            f"the launch runs {flat.counts[counter]}: it waits for ever."
        )
    in_part = bool(((flat.value[waits] > 0) & (flat.value[waits] < counts)).any())
    ends_of, ends_worker, ends_position, ends_block = _last_of_regions(number, blocks)
    missing = np.full(2, COVERED)
    at = flat.of[:-1].copy()
    _sweep(
        number, flat.of, flat.block, flat.counter, flat.value, flat.counts, flat.counters_of, flat.counters,
        blocks.region, blocks.first, blocks.launch, blocks.worker, blocks.position, needs.of, needs.source,
        needs.bounds, needs.low, needs.high, ends_of, ends_worker, ends_position, ends_block, at, missing,
    )  # fmt: skip
    if (at < flat.of[1:]).any():
        raise UnsafeProgram(f"launch {number} hangs, because each waits for the next: {_circle(flat, blocks, at)}.")
    lost = None if missing[0] == COVERED else (int(missing[0]), int(missing[1]))
    if in_part:
        lost = early_start(number, flat, blocks, needs)
    if lost is not None:
        source, target = lost
        raise UnsafeProgram(
            f"launch {number}: nothing makes {blocks.named(target)} on worker {blocks.worker[target]} come after "
            f"{blocks.named(source)} on worker {blocks.worker[source]}, which it needs: the edge "
            f"{blocks.named(source)} -> {blocks.named(target)} is missing."
        )


def _last_of_regions(number: int, blocks: Blocks) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each region the workers that run blocks of it in this launch, each with its last position and block."""
    here = np.flatnonzero(blocks.launch == number)
    region, worker, position = blocks.region[here], blocks.worker[here], blocks.position[here]
    by = np.lexsort((position, worker, region))
    region, worker, position, here = region[by], worker[by], position[by], here[by]
    last = np.ones(len(here), np.bool_)
    last[:-1] = (region[1:] != region[:-1]) | (worker[1:] != worker[:-1])
    of = np.searchsorted(region[last], np.arange(len(blocks.regions) + 1))
    return of, worker[last], position[last], here[last]


def _circle(flat: Lists, blocks: Blocks, at: Ints) -> str:
    """From one worker that is stuck on to one whose block it waits for, until one comes again."""
    stuck = np.flatnonzero(at < flat.of[1:]).tolist()
    left: dict[int, int] = {}  # by counter a block that it lacks
    for worker in stuck:
        for block in flat.block[at[worker] : flat.of[worker + 1]]:
            if block >= 0:
                for counter in flat.counters[flat.counters_of[block] : flat.counters_of[block + 1]]:
                    left.setdefault(int(counter), int(block))
    worker = stuck[0]
    seen: list[int] = []
    while worker not in seen:
        seen.append(worker)
        worker = int(blocks.worker[left[int(flat.counter[at[worker]])]])
    circle = []
    for one in seen[seen.index(worker) :]:
        block = left[int(flat.counter[at[one]])]
        circle.append(f"worker {blocks.worker[block]} run {blocks.position[block] + 1}")
    middle = circle[:-1]
    if len(circle) > SHOWN:
        middle = [*circle[: SHOWN - 2], f"({len(circle) - SHOWN + 1} more)"]
    return " -> ".join((circle[-1], *middle, circle[-1]))


@compiled
def _sweep(
    number: int, of: Ints, block_of: Ints, counter_of: Ints, value_of: Ints, counts: Ints, counters_of: Ints,
    counters: Ints, region: Ints, first: Ints, launch: Ints, worker_of: Ints, position: Ints, needs_of: Ints,
    source: Ints, bounds: Ints, low: Ints, high: Ints, ends_of: Ints, ends_worker: Ints, ends_position: Ints,
    ends_block: Ints, at: Ints, missing: Ints,
) -> None:  # fmt: skip
    """Execute abstractly, a worker as far as it comes; leaves `at` where a worker is stuck.

    Which order is taken does not matter: counters only grow, so all orders end in the same state (theorem T1).
    """
    workers = len(at)
    wanted = np.zeros(len(counts), np.int64)  # by counter, how many waits for all of it are still to come
    for instruction in range(len(block_of)):
        if block_of[instruction] < 0 and 0 < value_of[instruction] == counts[counter_of[instruction]]:
            wanted[counter_of[instruction]] += 1
    row_of = np.full(len(counts), -1)
    rows = np.zeros((max(16, workers), workers), np.int32)  # what counters have gathered
    free = np.arange(len(rows))
    frees = len(rows)
    clock = np.zeros((workers, workers), np.int32)
    stands = np.zeros(len(counts), np.int64)
    waiter, following = np.full(len(counts), -1), np.full(workers, -1)  # first waiter for, next waiter after
    turns = np.arange(workers)  # a ring: each worker is in it at most once
    head, length = 0, workers
    while length > 0:
        worker = turns[head]
        head = (head + 1) % workers
        length -= 1
        while at[worker] < of[worker + 1]:
            target = block_of[at[worker]]
            if target < 0:
                counter, value = counter_of[at[worker]], value_of[at[worker]]
                if value > stands[counter]:
                    following[worker] = waiter[counter]
                    waiter[counter] = worker
                    break
                if 0 < value == counts[counter]:
                    row = row_of[counter]
                    for one in range(workers):
                        if rows[row, one] > clock[worker, one]:
                            clock[worker, one] = rows[row, one]
                    wanted[counter] -= 1
                    if wanted[counter] == 0:
                        free[frees] = row
                        frees += 1
                at[worker] += 1
                continue
            if missing[0] < 0:
                lost = _uncovered(
                    target, worker, number, clock, region, first, launch, worker_of, position, needs_of, source, bounds,
                    low, high, ends_of, ends_worker, ends_position, ends_block,
                )  # fmt: skip
                if lost >= 0:
                    missing[0], missing[1] = lost, target
            at[worker] += 1
            clock[worker, worker] += 1
            for counter in counters[counters_of[target] : counters_of[target + 1]]:
                stands[counter] += 1
                if wanted[counter] > 0:
                    if row_of[counter] < 0:
                        if frees == 0:
                            count = len(rows)
                            larger = np.zeros((2 * count, workers), np.int32)
                            larger[:count] = rows
                            rows = larger
                            free = np.arange(count, 3 * count)
                            frees = count
                        frees -= 1
                        row_of[counter] = free[frees]
                        rows[row_of[counter]] = 0
                    row = row_of[counter]
                    for one in range(workers):
                        if clock[worker, one] > rows[row, one]:
                            rows[row, one] = clock[worker, one]
                before, one = -1, waiter[counter]
                while one >= 0:
                    after = following[one]
                    if value_of[at[one]] <= stands[counter]:
                        if before < 0:
                            waiter[counter] = after
                        else:
                            following[before] = after
                        turns[(head + length) % workers] = one
                        length += 1
                    else:
                        before = one
                    one = after


@compiled
def _uncovered(
    target: int, worker: int, number: int, clock: npt.NDArray[np.int32], region: Ints, first: Ints, launch: Ints,
    worker_of: Ints, position: Ints, needs_of: Ints, source: Ints, bounds: Ints, low: Ints, high: Ints, ends_of: Ints,
    ends_worker: Ints, ends_position: Ints, ends_block: Ints,
) -> int:  # fmt: skip
    """A block of this launch that `target` needs and that is not finished for certain when it starts; or -1."""
    mine = region[target]
    for need in range(needs_of[mine], needs_of[mine + 1]):
        slot = bounds[need] + target - first[mine]
        begin, end = low[slot], high[slot]
        from_region = source[need]
        if begin == first[from_region] and end == first[from_region + 1]:
            for entry in range(ends_of[from_region], ends_of[from_region + 1]):
                if clock[worker, ends_worker[entry]] <= ends_position[entry]:
                    return int(ends_block[entry])
        else:
            for one in range(begin, end):
                if launch[one] == number and clock[worker, worker_of[one]] <= position[one]:
                    return int(one)
    return -1
