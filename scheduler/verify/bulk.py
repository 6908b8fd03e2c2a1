"""The verdict of `verify` on millions of small programs, given as arrays: for measuring how safe the rules are.

A small program is one launch with at most 8 workers, 64 tasks and 32 counters; tasks are bits of a word, and a counter
is the set of tasks that it counts. It shares no code with `verify.program`, whose answer it has to give.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.compiling import compiled

Bytes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint64]

MOST_WORKERS = 8
MOST_TASKS = 64
MOST_COUNTERS = 32
SAFE, MALFORMED, NOT_RESIDENT, NEVER, CIRCLE, LATE, UNCOVERED = range(7)
NAMES = ("safe", "malformed", "not resident", "waits for ever", "circle", "waits for later tickets", "uncovered")
NO_TASK = -1


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Programs by number; what is beyond a program's length is not read.

    Instruction i of worker w waits for `counter` to stand at `value`, or, where `counter` is -1, runs task `value`. A
    ticketed program is the list of worker 0: each ticket its waits and then its run. Every task runs once.
    """

    ticketed: Bytes  # by program: whether
    workers: Bytes
    slots: Bytes  # that are resident on the device
    tasks: Bytes
    region: Bytes  # by program and task: tasks of one region follow each other
    length: Bytes  # by program and worker
    counter: Bytes  # by program, worker and instruction
    value: Bytes
    counts: Bits  # by program and counter, the tasks it counts, all of one region
    needs: Bits  # by program and task, the tasks it needs

    @classmethod
    def empty(cls, count: int, instructions: int) -> Batch:
        """Room for `count` programs of at most so many instructions a worker."""
        ticketed, workers, slots, tasks = (np.zeros(count, np.int8) for _ in range(4))
        region, length = np.zeros((count, MOST_TASKS), np.int8), np.zeros((count, MOST_WORKERS), np.int8)
        counter, value = (np.zeros((count, MOST_WORKERS, instructions), np.int8) for _ in range(2))
        counts, needs = (np.zeros((count, most), np.uint64) for most in (MOST_COUNTERS, MOST_TASKS))
        return cls(ticketed, workers, slots, tasks, region, length, counter, value, counts, needs)


def verdicts(batch: Batch) -> Bytes:
    """By program SAFE, or why it is refused: the first reason in the order of NAMES."""
    found = np.empty(len(batch.workers), np.int8)
    _decide(
        batch.ticketed, batch.workers, batch.slots, batch.tasks, batch.length, batch.counter, batch.value, batch.counts,
        batch.needs, found,
    )  # fmt: skip
    return found


@compiled
def _decide(
    ticketed: Bytes, workers: Bytes, slots: Bytes, tasks: Bytes, length: Bytes, counter: Bytes, value: Bytes,
    counts: Bits, needs: Bits, found: Bytes,
) -> None:  # fmt: skip
    # Lists that are gone through in order: workers, or tickets. By list its row, and where it begins and ends there.
    row, begin, end = np.zeros(MOST_TASKS, np.int64), np.zeros(MOST_TASKS, np.int64), np.zeros(MOST_TASKS, np.int64)
    for one in range(len(found)):
        lists = workers[one]
        if ticketed[one] and workers[one] > 1:
            lists = 0
            for place in range(length[one, 0]):
                if counter[one, 0, place] < 0:
                    row[lists], end[lists] = 0, place + 1
                    begin[lists] = 0 if lists == 0 else end[lists - 1]
                    lists += 1
        else:
            lists = 1 if ticketed[one] else lists
            for worker in range(lists):
                row[worker], begin[worker], end[worker] = worker, 0, length[one, worker]
        rows = 1 if ticketed[one] else workers[one]
        found[one] = _waits(ticketed[one], rows, workers[one] > slots[one], length[one], counter[one], value[one],
                            counts[one])  # fmt: skip
        if found[one] == SAFE:
            found[one] = _order(
                tasks[one], row[:lists], begin[:lists], end[:lists], counter[one], value[one], counts[one], needs[one]
            )


@compiled
def _waits(ticketed: int, rows: int, crowded: bool, length: Bytes, counter: Bytes, value: Bytes, counts: Bits) -> int:
    """Whether each wait alone can be fulfilled."""
    early = np.uint64(0)  # tasks of earlier tickets
    never, late = False, False
    for row in range(rows):
        for place in range(length[row]):
            number = value[row, place]
            if counter[row, place] < 0:
                early |= np.uint64(1) << np.uint64(number)
                continue
            if number < 0:
                return MALFORMED
            never |= number > _many(counts[counter[row, place]])
            late |= number > _many(counts[counter[row, place]] & early)
    if ticketed:
        return LATE if late else SAFE
    if crowded:
        return NOT_RESIDENT
    return NEVER if never else SAFE


@compiled
def _order(
    tasks: int, row: npt.NDArray[np.int64], begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64], counter: Bytes,
    value: Bytes, counts: Bits, needs: Bits,
) -> int:  # fmt: skip
    """Run until nothing moves, as it is and with each task never ending that another one needs."""
    one = np.uint64(1)
    needed = np.uint64(0)
    for task in range(tasks):
        needed |= needs[task]
    at = np.empty(len(row), np.int64)
    _started(NO_TASK, row, begin, end, counter, value, counts, at)
    for place in range(len(row)):
        if at[place] < end[place]:
            return CIRCLE
    for source in range(tasks):
        if (needed >> np.uint64(source)) & one:
            started = _started(source, row, begin, end, counter, value, counts, at)
            for task in range(tasks):
                if (started >> np.uint64(task)) & one and (needs[task] >> np.uint64(source)) & one:
                    return UNCOVERED
    return SAFE


@compiled
def _started(
    without: int, row: npt.NDArray[np.int64], begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64], counter: Bytes,
    value: Bytes, counts: Bits, at: npt.NDArray[np.int64],
) -> np.uint64:  # fmt: skip
    """The tasks that start, as bits, if `without` never ends; leaves `at` where each list stands."""
    one = np.uint64(1)
    started, ended = np.uint64(0), np.uint64(0)
    at[:] = begin
    moved = True
    while moved:
        moved = False
        for place in range(len(row)):
            while at[place] < end[place]:
                which, number = counter[row[place], at[place]], value[row[place], at[place]]
                if which < 0:
                    started |= one << np.uint64(number)
                    if number == without:
                        break
                    ended |= one << np.uint64(number)
                elif _many(counts[which] & ended) < number:
                    break
                at[place] += 1
                moved = True
    return started


@compiled
def _many(tasks: np.uint64) -> int:
    """How many bits are set."""
    count = 0
    while tasks != 0:
        tasks &= tasks - np.uint64(1)
        count += 1
    return count
