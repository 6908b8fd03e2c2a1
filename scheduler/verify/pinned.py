"""Pinned launches: no circle of waits (theorem T2), and every need inside the launch covered by what happens before.

Of each worker the sweep keeps a vector clock: of every worker the number of runs that are finished for certain. A wait
joins the clock that the other had at the end of the run waited for. A need is covered if the clock of the target's
worker, when it starts, has passed the source. Clocks are kept only as long as someone waits for them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler.compiling import compiled
from scheduler.errors import UnsafeProgram
from scheduler.verify.form import Blocks, Ints, Workers
from scheduler.verify.needs import Needs

COVERED = -1
SHOWN = 8  # of a circle, in an error


def check_pinned(number: int, flat: Workers, blocks: Blocks, needs: Needs) -> None:
    """Raises UnsafeProgram naming the wait that nothing satisfies, the circle, or the need that is not covered."""
    waits = np.flatnonzero(flat.other >= 0)
    never = waits[flat.runs[waits] > flat.has[flat.other[waits]]]
    if len(never):
        wait = int(never[0])
        worker, other = int(np.searchsorted(flat.of, wait, side="right")) - 1, int(flat.other[wait])
        raise UnsafeProgram(
            f"launch {number}: worker {worker} waits for run {flat.runs[wait]} of worker {other}, which has "
            f"{flat.has[other]} runs: it waits for ever."
        )
    ends_of, ends_worker, ends_position, ends_block = _last_of_regions(number, blocks)
    missing = np.full(2, COVERED)
    at = flat.of[:-1].copy()
    done = np.zeros(len(flat.has), np.int64)
    _sweep(
        number, flat.of, flat.block, flat.other, flat.runs, flat.has, blocks.region, blocks.first, blocks.launch,
        blocks.worker, blocks.position, needs.of, needs.source, needs.bounds, needs.low, needs.high, ends_of,
        ends_worker, ends_position, ends_block, at, done, missing,
    )  # fmt: skip
    if (at < flat.of[1:]).any():
        raise UnsafeProgram(f"launch {number} hangs, because each waits for the next: {_circle(flat, at)}.")
    if missing[0] != COVERED:
        source, target = map(int, missing)
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


def _circle(flat: Workers, at: Ints) -> str:
    """From one worker that is stuck on to the one it waits for, until one comes again."""
    worker = int(np.argmax(at < flat.of[1:]))
    seen: list[int] = []
    while worker not in seen:
        seen.append(worker)
        worker = int(flat.other[at[worker]])
    circle = [f"worker {flat.other[at[one]]} run {flat.runs[at[one]]}" for one in seen[seen.index(worker) :]]
    middle = circle[:-1]
    if len(circle) > SHOWN:
        middle = [*circle[: SHOWN - 2], f"({len(circle) - SHOWN + 1} more)"]
    return " -> ".join((circle[-1], *middle, circle[-1]))


@compiled
def _sweep(
    number: int, of: Ints, block_of: Ints, other_of: Ints, runs_of: Ints, has: Ints, region: Ints, first: Ints,
    launch: Ints, worker_of: Ints, position: Ints, needs_of: Ints, source: Ints, bounds: Ints, low: Ints, high: Ints,
    ends_of: Ints, ends_worker: Ints, ends_position: Ints, ends_block: Ints, at: Ints, done: Ints, missing: Ints,
) -> None:  # fmt: skip
    """Execute abstractly, one run of a worker at a time; leaves `at` where a worker is stuck.

    Which order is taken does not matter: counters only grow, so all orders end in the same state (theorem T1).
    """
    workers = len(has)
    first_run = np.zeros(workers + 1, np.int64)
    for worker in range(workers):
        first_run[worker + 1] = first_run[worker] + has[worker]
    wanted = np.zeros(first_run[workers], np.int64)  # by run, how many waits for it are still to come
    for instruction in range(len(block_of)):
        if block_of[instruction] < 0 and runs_of[instruction] > 0:
            wanted[first_run[other_of[instruction]] + runs_of[instruction] - 1] += 1
    row_of = np.full(first_run[workers], -1)
    rows = np.empty((max(16, workers), workers), np.int32)
    free = np.arange(len(rows))
    frees = len(rows)
    clock = np.zeros((workers, workers), np.int32)
    waiter, following = np.full(workers, -1), np.full(workers, -1)  # first waiter for, next waiter after
    turns = np.arange(workers)  # a ring: each worker is in it at most once
    head, length = 0, workers
    while length > 0:
        worker = turns[head]
        head = (head + 1) % workers
        length -= 1
        stuck = False
        while at[worker] < of[worker + 1] and block_of[at[worker]] < 0:
            other, runs = other_of[at[worker]], runs_of[at[worker]]
            if runs > done[other]:
                if other != worker:
                    following[worker] = waiter[other]
                    waiter[other] = worker
                stuck = True
                break
            if runs > 0:
                run = first_run[other] + runs - 1
                row = row_of[run]
                if clock[worker, other] < runs:
                    for one in range(workers):
                        if rows[row, one] > clock[worker, one]:
                            clock[worker, one] = rows[row, one]
                wanted[run] -= 1
                if wanted[run] == 0:
                    free[frees] = row
                    frees += 1
            at[worker] += 1
        if stuck or at[worker] == of[worker + 1]:
            continue
        target = block_of[at[worker]]
        if missing[0] < 0:
            lost = _uncovered(
                target, worker, number, clock, region, first, launch, worker_of, position, needs_of, source, bounds,
                low, high, ends_of, ends_worker, ends_position, ends_block,
            )  # fmt: skip
            if lost >= 0:
                missing[0], missing[1] = lost, target
        at[worker] += 1
        done[worker] += 1
        clock[worker, worker] = done[worker]
        run = first_run[worker] + done[worker] - 1
        if wanted[run] > 0:
            if frees == 0:
                count = len(rows)
                larger = np.empty((2 * count, workers), np.int32)
                larger[:count] = rows
                rows = larger
                free = np.arange(count, 3 * count)
                frees = count
            frees -= 1
            row_of[run] = free[frees]
            rows[free[frees]] = clock[worker]
        before, one = -1, waiter[worker]
        while one >= 0:
            after = following[one]
            if runs_of[at[one]] <= done[worker]:
                if before < 0:
                    waiter[worker] = after
                else:
                    following[before] = after
                turns[(head + length) % workers] = one
                length += 1
            else:
                before = one
            one = after
        turns[(head + length) % workers] = worker
        length += 1


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
