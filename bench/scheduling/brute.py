"""What small programs really do, found by trying: a closure of what comes before what, and executions step by step.

Written apart from the verifiers, against which it is held. Programs come as the arrays of `scheduler.verify.bulk`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from scheduler.verify.bulk import Batch

Bytes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

IN_ORDER, REVERSED, RANDOM = range(3)
ENDED, HUNG, EARLY = range(3)  # how an execution goes; EARLY: a task starts before one that it needs has ended
NOBODY = -1


def by_closure(batch: Batch) -> tuple[Bytes, Bytes]:
    """By program: free of deadlock with every worker resident, by T2 or T4; and every need a path."""
    free, covered = (np.empty(len(batch.workers), np.int8) for _ in range(2))
    _closures(
        batch.ticketed, batch.workers, batch.tasks, batch.length, batch.other, batch.value, batch.tickets, batch.needs,
        free, covered,
    )  # fmt: skip
    return free, covered


def executed(batch: Batch, dispatch: int, seed: int, slots: Bytes | None = None, delay: bool = False) -> Bytes:
    """By program how two executions go, counters not cleared in between: ENDED, HUNG or EARLY.

    Workers get slots in the order of `dispatch`; which of those that can move does so next is drawn. `delay`: a task
    that another one needs without a path is left unfinished as long as anything else can move.
    """
    how = np.empty(len(batch.workers), np.int8)
    _executions(
        batch.ticketed, batch.workers, batch.slots if slots is None else slots, batch.tasks, batch.length, batch.other,
        batch.value, batch.tickets, batch.needs, dispatch, seed, delay, how,
    )  # fmt: skip
    return how


@njit(cache=True)
def _paths(
    ticketed: int, workers: int, tasks: int, length: Bytes, other: Bytes, value: Bytes, tickets: Bits, to: Bits
) -> bool:
    """Fill in, by task, the tasks that come after it, as bits; whether all waits exist (tickets: are earlier)."""
    one = np.uint64(1)
    to[:] = 0
    good = True
    if ticketed:
        for late in range(length[0]):
            for early in range(length[0]):
                if (tickets[late] >> np.uint64(early)) & one:
                    good &= early < late
                    to[value[0, early]] |= one << np.uint64(value[0, late])
                elif workers == 1 and early < late:
                    to[value[0, early]] |= one << np.uint64(value[0, late])
    else:
        for worker in range(workers):
            for at in range(length[worker]):
                if other[worker, at] < 0:
                    continue
                # The run that is waited for, and the first one after the wait.
                source, run = NOBODY, 0
                for place in range(length[other[worker, at]]):
                    if other[other[worker, at], place] < 0:
                        run += 1
                        if run == value[worker, at]:
                            source = value[other[worker, at], place]
                good &= 0 <= value[worker, at] <= run
                for place in range(at + 1, length[worker]):
                    if other[worker, place] < 0:
                        if source != NOBODY:
                            to[source] |= one << np.uint64(value[worker, place])
                        break
            last = NOBODY
            for at in range(length[worker]):
                if other[worker, at] < 0:
                    if last != NOBODY:
                        to[last] |= one << np.uint64(value[worker, at])
                    last = value[worker, at]
    for middle in range(tasks):  # Warshall
        for task in range(tasks):
            if (to[task] >> np.uint64(middle)) & one:
                to[task] |= to[middle]
    return good


@njit(cache=True)
def _closures(
    ticketed: Bytes, workers: Bytes, tasks: Bytes, length: Bytes, other: Bytes, value: Bytes, tickets: Bits,
    needs: Bits, free: Bytes, covered: Bytes,
) -> None:  # fmt: skip
    one = np.uint64(1)
    to = np.zeros(64, np.uint64)
    for number in range(len(free)):
        free[number] = _paths(
            ticketed[number], workers[number], tasks[number], length[number], other[number], value[number],
            tickets[number], to,
        )  # fmt: skip
        covered[number] = True
        for task in range(tasks[number]):
            free[number] &= (to[task] >> np.uint64(task)) & one == 0
            for source in range(tasks[number]):
                if (needs[number, task] >> np.uint64(source)) & one:
                    covered[number] &= (to[source] >> np.uint64(task)) & one != 0


@njit(cache=True)
def _executions(
    ticketed: Bytes, workers: Bytes, slots: Bytes, tasks: Bytes, length: Bytes, other: Bytes, value: Bytes,
    tickets: Bits, needs: Bits, dispatch: int, seed: int, delay: bool, how: Bytes,
) -> None:  # fmt: skip
    np.random.seed(seed)
    one = np.uint64(1)
    to = np.zeros(64, np.uint64)
    for number in range(len(how)):
        late = np.uint64(0)
        if delay:
            _paths(
                ticketed[number], workers[number], tasks[number], length[number], other[number], value[number],
                tickets[number], to,
            )  # fmt: skip
            for task in range(tasks[number]):
                for source in range(tasks[number]):
                    needed = (needs[number, task] >> np.uint64(source)) & one != 0
                    if late == 0 and needed and (to[source] >> np.uint64(task)) & one == 0:
                        late = one << np.uint64(source)
        count = workers[number]
        if delay and ticketed[number] and count > 1:
            count = length[number, 0]  # a ticketed program is right for any number of workers, or it is not
        order = np.arange(count)
        if dispatch == REVERSED:
            order = order[::-1].copy()
        elif dispatch == RANDOM:
            np.random.shuffle(order)
        room = max(slots[number], count) if delay else slots[number]
        how[number] = _execute(
            ticketed[number], order, room, length[number], other[number], value[number], tickets[number],
            needs[number], late,
        )  # fmt: skip


@njit(cache=True)
def _execute(
    ticketed: int, order: Ints, slots: int, length: Bytes, other: Bytes, value: Bytes, tickets: Bits, needs: Bits,
    late: int,
) -> int:  # fmt: skip
    """Two executions. A worker moves by one step: past a wait, into a task, out of a task, or to its end."""
    one = np.uint64(1)
    count = len(order)
    counter, base = np.zeros(count, np.int64), np.zeros(count, np.int64)
    early = False
    for _ in range(2):
        base[:] = counter
        at, inside = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        held = np.full(count, NOBODY)
        resident = np.zeros(count, np.bool_)
        gone, came, claimed = 0, 0, 0
        ended, tickets_ended = np.uint64(0), np.uint64(0)
        while gone < count:
            while came < count and came - gone < slots:
                resident[order[came]] = True
                came += 1
            moved = False
            for attempt in range(2):  # only then what shall be late
                first = np.random.randint(count)
                for step in range(count):
                    worker = (first + step) % count
                    if not resident[worker]:
                        continue
                    row = 0 if ticketed else worker
                    if inside[worker]:
                        place = held[worker] if ticketed else at[worker]
                        task = np.uint64(value[row, place])
                        if attempt == 0 and (late >> task) & one:
                            continue
                        ended |= one << task
                        tickets_ended |= one << np.uint64(place)
                        inside[worker] = False
                        counter[worker] += 1
                        at[worker] += 1
                        held[worker] = NOBODY
                    elif ticketed and held[worker] == NOBODY:
                        if claimed == length[0]:
                            resident[worker] = False
                            gone += 1
                        else:
                            held[worker] = claimed
                            claimed += 1
                    elif not ticketed and at[worker] == length[worker]:
                        resident[worker] = False
                        gone += 1
                    elif not ticketed and other[worker, at[worker]] >= 0:
                        source = other[worker, at[worker]]
                        if counter[source] < base[source] + value[worker, at[worker]]:
                            continue
                        at[worker] += 1
                    else:
                        place = held[worker] if ticketed else at[worker]
                        if ticketed and tickets[place] & ~tickets_ended:
                            continue
                        early |= needs[value[row, place]] & ~ended != 0
                        inside[worker] = True
                    moved = True
                    break
                if moved:
                    break
            if not moved:
                return HUNG
    return EARLY if early else ENDED
