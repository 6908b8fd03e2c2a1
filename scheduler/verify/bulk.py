"""The verdict of `verify` on millions of small programs, given as arrays: for measuring how safe the rules are.

A small program is one launch with at most 8 workers and 64 tasks, each task a region of one block; tasks and tickets
are bits of a word. It shares no code with `verify.program`, whose answer it has to give.
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
SAFE, MALFORMED, NOT_RESIDENT, NEVER, CIRCLE, LATE, UNCOVERED = range(7)
NAMES = ("safe", "malformed", "not resident", "waits for ever", "circle", "waits for a later ticket", "uncovered")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Programs by number; what is beyond a program's length is not read.

    Instruction i of worker w waits for `value` runs of worker `other`, or, where `other` is -1, runs task `value`.
    A ticketed program is the list of worker 0, all runs, with `tickets` as waits. Every task runs once.
    """

    ticketed: Bytes  # by program: whether
    workers: Bytes
    slots: Bytes  # that are resident on the device
    tasks: Bytes
    length: Bytes  # by program and worker
    other: Bytes  # by program, worker and instruction
    value: Bytes
    tickets: Bits  # by program and ticket, the tickets it waits for
    needs: Bits  # by program and task, the tasks it needs

    @classmethod
    def empty(cls, count: int, instructions: int) -> Batch:
        """Room for `count` programs of at most so many instructions a worker."""
        ticketed, workers, slots, tasks = (np.zeros(count, np.int8) for _ in range(4))
        length = np.zeros((count, MOST_WORKERS), np.int8)
        other, value = (np.zeros((count, MOST_WORKERS, instructions), np.int8) for _ in range(2))
        tickets, needs = (np.zeros((count, MOST_TASKS), np.uint64) for _ in range(2))
        return cls(ticketed, workers, slots, tasks, length, other, value, tickets, needs)


def verdicts(batch: Batch) -> Bytes:
    """By program SAFE, or why it is refused: the first reason in the order of NAMES."""
    found = np.empty(len(batch.workers), np.int8)
    _decide(
        batch.ticketed, batch.workers, batch.slots, batch.length, batch.other, batch.value, batch.tickets, batch.needs,
        found,
    )  # fmt: skip
    return found


@compiled
def _decide(
    ticketed: Bytes, workers: Bytes, slots: Bytes, length: Bytes, other: Bytes, value: Bytes, tickets: Bits,
    needs: Bits, found: Bytes,
) -> None:  # fmt: skip
    for one in range(len(found)):
        if ticketed[one]:
            found[one] = _tickets(length[one, 0], workers[one], slots[one], value[one, 0], tickets[one], needs[one])
        else:
            found[one] = _workers(workers[one], slots[one], length[one], other[one], value[one], needs[one])


@compiled
def _tickets(count: int, workers: int, slots: int, task: Bytes, waits: Bits, needs: Bits) -> int:
    """Which tasks come before each ticket, as bits, ticket by ticket."""
    if slots < 1:
        return NOT_RESIDENT
    one = np.uint64(1)
    for ticket in range(count):
        if waits[ticket] >> np.uint64(ticket) != 0:
            return LATE
    before = np.zeros(count, np.uint64)
    for ticket in range(count):
        for earlier in range(ticket):
            if workers == 1 or (waits[ticket] >> np.uint64(earlier)) & one:
                before[ticket] |= before[earlier] | (one << np.uint64(task[earlier]))
        if needs[task[ticket]] & ~before[ticket]:
            return UNCOVERED
    return SAFE


@compiled
def _workers(count: int, slots: int, length: Bytes, other: Bytes, value: Bytes, needs: Bits) -> int:
    """Run abstractly in turns until nothing moves; by worker the tasks that are finished for certain, as bits."""
    one = np.uint64(1)
    has = np.zeros(count, np.int64)
    for worker in range(count):
        for place in range(length[worker]):
            has[worker] += other[worker, place] < 0
    never = False
    for worker in range(count):
        for place in range(length[worker]):
            if other[worker, place] >= 0:
                if value[worker, place] < 0:
                    return MALFORMED
                never |= value[worker, place] > has[other[worker, place]]
    if count > slots:
        return NOT_RESIDENT
    if never:
        return NEVER
    known = np.zeros(count, np.uint64)  # by worker
    after = np.zeros((count, MOST_TASKS), np.uint64)  # by worker and run: what was known at its end
    at, done = np.zeros(count, np.int64), np.zeros(count, np.int64)
    covered, moved = True, True
    while moved:
        moved = False
        for worker in range(count):
            while at[worker] < length[worker]:
                source, number = other[worker, at[worker]], value[worker, at[worker]]
                if source < 0:
                    covered &= needs[number] & ~known[worker] == 0
                    known[worker] |= one << np.uint64(number)
                    after[worker, done[worker]] = known[worker]
                    done[worker] += 1
                elif number > done[source]:
                    break
                elif number > 0:
                    known[worker] |= after[source, number - 1]
                at[worker] += 1
                moved = True
    for worker in range(count):
        if at[worker] < length[worker]:
            return CIRCLE
    return SAFE if covered else UNCOVERED
