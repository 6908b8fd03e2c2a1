"""What small programs really do, found by trying: what each task keeps from starting, and executions step by step.

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
MOST_INSTRUCTIONS = 64  # of a list


def by_closure(batch: Batch) -> tuple[Bytes, Bytes]:
    """By program: free of deadlock with every worker resident, by T2 or T4; and every need kept."""
    free, covered = (np.empty(len(batch.workers), np.int8) for _ in range(2))
    _closures(
        batch.ticketed, batch.workers, batch.tasks, batch.length, batch.counter, batch.value, batch.counts, batch.needs,
        free, covered,
    )  # fmt: skip
    return free, covered


def executed(batch: Batch, dispatch: int, seed: int, slots: Bytes | None = None, delay: bool = False) -> Bytes:
    """By program how two executions go, counters not cleared in between: ENDED, HUNG or EARLY.

    Workers get slots in the order of `dispatch`; which of those that can move does so next is drawn. `delay`: a task
    that another one needs and may overtake is left unfinished as long as anything else can move.
    """
    how = np.empty(len(batch.workers), np.int8)
    _executions(
        batch.ticketed, batch.workers, batch.slots if slots is None else slots, batch.tasks, batch.length,
        batch.counter, batch.value, batch.counts, batch.needs, dispatch, seed, delay, how,
    )  # fmt: skip
    return how


@njit(cache=True)
def _counted(tasks: np.uint64) -> int:
    found = 0
    for bit in range(64):
        found += (tasks >> np.uint64(bit)) & np.uint64(1) != 0
    return found


@njit(cache=True)
def _conditions(
    ticketed: int,
    workers: int,
    length: Bytes,
    counter: Bytes,
    value: Bytes,
    counts: Bits,
    after: Ints,
    waits_of: Ints,
    which: Ints,
) -> bool:
    """By task the one before it on its worker, and its waits since: `which` place of the lists, from `waits_of` on.

    Whether every wait can be fulfilled by itself, of a ticket by the tickets before it.
    """
    good, many = True, 0
    earlier = np.uint64(0)
    for row in range(1 if ticketed else workers):
        last = NOBODY
        begin = many
        for at in range(length[row]):
            if counter[row, at] >= 0:
                which[many] = row * MOST_INSTRUCTIONS + at
                many += 1
                there = counts[counter[row, at]] & earlier if ticketed else counts[counter[row, at]]
                good &= 0 <= value[row, at] <= _counted(there)
                continue
            task = value[row, at]
            after[task] = last if not ticketed or workers == 1 else NOBODY
            waits_of[2 * task], waits_of[2 * task + 1] = begin, many
            last, begin = task, many
            earlier |= np.uint64(1) << np.uint64(task)
    return good


@njit(cache=True)
def _starts(
    tasks: int, without: int, counter: Bytes, value: Bytes, counts: Bits, after: Ints, waits_of: Ints, which: Ints
) -> np.uint64:
    """The tasks that can start while `without` does not end, as bits: all that the others let start, until no more."""
    one = np.uint64(1)
    can = np.uint64(0)
    ends = np.uint64(0)
    for _ in range(tasks + 1):
        for task in range(tasks):
            fits = after[task] == NOBODY or (ends >> np.uint64(after[task])) & one != 0
            for place in range(waits_of[2 * task], waits_of[2 * task + 1]):
                row, at = which[place] // MOST_INSTRUCTIONS, which[place] % MOST_INSTRUCTIONS
                fits &= _counted(counts[counter[row, at]] & ends) >= value[row, at]
            if fits:
                can |= one << np.uint64(task)
                if task != without:
                    ends |= one << np.uint64(task)
    return can


@njit(cache=True)
def _closures(
    ticketed: Bytes, workers: Bytes, tasks: Bytes, length: Bytes, counter: Bytes, value: Bytes, counts: Bits,
    needs: Bits, free: Bytes, covered: Bytes,
) -> None:  # fmt: skip
    one = np.uint64(1)
    after, waits_of, which = np.zeros(64, np.int64), np.zeros(128, np.int64), np.zeros(8 * MOST_INSTRUCTIONS, np.int64)
    for number in range(len(free)):
        free[number] = _conditions(
            ticketed[number], workers[number], length[number], counter[number], value[number], counts[number], after,
            waits_of, which,
        )  # fmt: skip
        every = _starts(
            tasks[number], NOBODY, counter[number], value[number], counts[number], after, waits_of, which
        )  # fmt: skip
        free[number] &= _counted(every) == tasks[number]
        covered[number] = True
        for source in range(tasks[number]):
            can = _starts(tasks[number], source, counter[number], value[number], counts[number], after, waits_of, which)
            for task in range(tasks[number]):
                if (needs[number, task] >> np.uint64(source)) & one:
                    covered[number] &= (can >> np.uint64(task)) & one == 0


@njit(cache=True)
def _executions(
    ticketed: Bytes, workers: Bytes, slots: Bytes, tasks: Bytes, length: Bytes, counter: Bytes, value: Bytes,
    counts: Bits, needs: Bits, dispatch: int, seed: int, delay: bool, how: Bytes,
) -> None:  # fmt: skip
    np.random.seed(seed)
    one = np.uint64(1)
    after, waits_of, which = np.zeros(64, np.int64), np.zeros(128, np.int64), np.zeros(8 * MOST_INSTRUCTIONS, np.int64)
    for number in range(len(how)):
        late = np.uint64(0)
        if delay:
            _conditions(
                ticketed[number], workers[number], length[number], counter[number], value[number], counts[number],
                after, waits_of, which,
            )  # fmt: skip
            for source in range(tasks[number]):
                can = _starts(
                    tasks[number], source, counter[number], value[number], counts[number], after, waits_of, which
                )  # fmt: skip
                for task in range(tasks[number]):
                    needed = (needs[number, task] >> np.uint64(source)) & one != 0
                    if late == 0 and needed and (can >> np.uint64(task)) & one != 0:
                        late = one << np.uint64(source)
        count = workers[number]
        if delay and ticketed[number] and count > 1:
            count = tasks[number]  # a ticketed program is right for any number of workers, or it is not
        order = np.arange(count)
        if dispatch == REVERSED:
            order = order[::-1].copy()
        elif dispatch == RANDOM:
            np.random.shuffle(order)
        room = max(slots[number], count) if delay else slots[number]
        how[number] = _execute(
            ticketed[number], order, room, length[number], counter[number], value[number], counts[number],
            needs[number], late,
        )  # fmt: skip


@njit(cache=True)
def _execute(
    ticketed: int, order: Ints, slots: int, length: Bytes, counter: Bytes, value: Bytes, counts: Bits, needs: Bits,
    late: np.uint64,
) -> int:  # fmt: skip
    """Two executions. A worker moves by one step: past a wait, into a task, out of a task, or to its end."""
    one = np.uint64(1)
    count = len(order)
    stands, base = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
    early = False
    for _ in range(2):
        base[:] = stands
        at, inside = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        held = np.zeros(count, np.bool_)  # a ticket, whose next instruction is `at`
        resident = np.zeros(count, np.bool_)
        gone, came, claimed = 0, 0, 0
        ended = np.uint64(0)
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
                        task = np.uint64(value[row, at[worker]])
                        if attempt == 0 and (late >> task) & one:
                            continue
                        ended |= one << task
                        for which in range(len(counts)):
                            stands[which] += (counts[which] >> task) & one != 0
                        inside[worker], held[worker] = False, False
                        at[worker] += 1
                    elif ticketed and not held[worker]:
                        if claimed == length[0]:
                            resident[worker] = False
                            gone += 1
                        else:
                            at[worker], held[worker] = claimed, True
                            while counter[0, claimed] >= 0:
                                claimed += 1
                            claimed += 1
                    elif not ticketed and at[worker] == length[worker]:
                        resident[worker] = False
                        gone += 1
                    elif counter[row, at[worker]] >= 0:
                        which = counter[row, at[worker]]
                        if stands[which] < base[which] + value[row, at[worker]]:
                            continue
                        at[worker] += 1
                    else:
                        early |= needs[value[row, at[worker]]] & ~ended != 0
                        inside[worker] = True
                    moved = True
                    break
                if moved:
                    break
            if not moved:
                return HUNG
    return EARLY if early else ENDED
