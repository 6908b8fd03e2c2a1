"""Local search on schedules: shake the order of starts, list again, and justify to the end and back.

Justifying is forward-backward improvement: tasks are listed from the end of the schedule, latest end first, so that
each runs as late as it can, and then from the start again; the longer of two is dropped. Valls, Ballestin and
Quintanilla, "Justification and RCPSP: a technique that pays", European Journal of Operational Research 165, 2005.

Two ways to list: `fill` never leaves a worker idle while a task is ready, and so misses what can only be had by waiting
for a longer tail; `append` keeps strictly to the order given, and some order gives a least schedule. Shaken orders are
appended, justified by either. On narrow layered graphs `fill` alone ends 0.16 % above the best known, both 0.02 %.
"""

from __future__ import annotations

import numpy as np

from scheduler.compiling import compiled
from scheduler.lists.list_schedule import drop, fill, push
from scheduler.lists.sorting import ascending
from scheduler.lists.tasks import Floats, Ints, Tasks

CLOSE = 1e-9  # relative: lengths no further apart are equal


def improve(
    tasks: Tasks, workers: int, start: Floats, *, bound: float, decodes: int, seed: int
) -> tuple[Floats, Floats]:
    """The shortest schedule met, and the last that was kept, from which a later call may go on; both as starts.

    Stops after `decodes` schedules, or when one is as short as `bound`. Delays are not counted.
    """
    return _search(
        tasks.times, tasks.before_start, tasks.before, tasks.behind_start, tasks.behind, min(workers, tasks.count),
        start, bound, decodes, seed,
    )  # fmt: skip


def placed(tasks: Tasks, workers: int, start: Floats) -> tuple[Floats, Ints]:
    """Starts no later than the given ones, of a schedule that can be run, and a worker for each task."""
    position = np.empty(tasks.count, np.int64)
    position[tasks.order] = np.arange(tasks.count)
    sequence = np.lexsort((position, start)).astype(np.int64)
    return append(
        tasks.times, tasks.before_start, tasks.before, tasks.behind_start, tasks.behind, sequence,
        min(workers, max(1, tasks.count)),
    )  # fmt: skip


@compiled
def append(
    times: Floats, before_start: Ints, before: Ints, behind_start: Ints, behind: Ints, sequence: Ints, workers: int
) -> tuple[Floats, Ints]:
    """Tasks in the order of the sequence, as far as what they wait for allows, each behind all others on its worker.

    The worker is the one that became free last of those that are free when the task can begin, else the first free. A
    task that takes no time needs none: it stands right behind the last of what it waits for.
    """
    count = len(times)
    start, worker = np.empty(count), np.empty(count, np.int64)
    place = np.empty(count, np.int64)
    for at in range(count):
        place[sequence[at]] = at
    missing = before_start[1:] - before_start[:-1]
    ready = np.empty(count, np.int64)
    waiting = 0
    for one in range(count):
        if missing[one] == 0:
            waiting = push(ready, waiting, place[one])
    free = np.zeros(workers)
    while waiting > 0:
        one = sequence[ready[0]]
        waiting = drop(ready, waiting)
        begin, best = 0.0, 0
        for edge in range(before_start[one], before_start[one + 1]):
            other = before[edge]
            if start[other] + times[other] > begin:
                begin, best = start[other] + times[other], worker[other]
        if times[one] > 0:
            best, first = -1, 0
            for where in range(workers):
                if free[where] <= begin and (best < 0 or free[where] > free[best]):
                    best = where
                if free[where] < free[first]:
                    first = where
            if best < 0:
                best, begin = first, free[first]
            free[best] = begin + times[one]
        start[one], worker[one] = begin, best
        for edge in range(behind_start[one], behind_start[one + 1]):
            other = behind[edge]
            missing[other] -= 1
            if missing[other] == 0:
                waiting = push(ready, waiting, place[other])
    return start, worker


@compiled
def _listed(
    by_order: bool, times: Floats, before_start: Ints, before: Ints, behind_start: Ints, behind: Ints, keys: Floats,
    workers: int,
) -> tuple[Floats, float]:  # fmt: skip
    """Starts and length by either way; the smallest key goes first."""
    sequence = ascending(keys)
    if by_order:
        start, _ = append(times, before_start, before, behind_start, behind, sequence, workers)
    else:
        start, _ = fill(times, before_start, behind_start, behind, sequence, workers)
    length = 0.0
    for one in range(len(times)):
        length = max(length, start[one] + times[one])
    return start, length


@compiled
def _shake(start: Floats, length: float, mean: float, keys: Floats) -> None:
    """Keys near the starts: all a little later, a few tasks moved far, or one stretch of time shuffled."""
    count = len(start)
    kind = np.random.random()
    far = mean * 10.0 ** (np.random.random() * 2.0 - 0.6)
    if kind < 0.4:
        for one in range(count):
            keys[one] = start[one] + np.random.random() * far
    elif kind < 0.8:
        share = 0.02 + 0.3 * np.random.random() ** 2
        for one in range(count):
            keys[one] = start[one]
            if np.random.random() < share:
                keys[one] += (np.random.random() - 0.5) * 6.0 * far
    else:
        begin = np.random.random() * length
        end = begin + length * (0.05 + 0.2 * np.random.random())
        for one in range(count):
            keys[one] = start[one]
            if begin <= start[one] <= end:
                keys[one] = begin + np.random.random() * (end - begin)


@compiled
def _search(
    times: Floats, before_start: Ints, before: Ints, behind_start: Ints, behind: Ints, workers: int, given: Floats,
    bound: float, decodes: int, seed: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    np.random.seed(seed)
    count = len(times)
    keys = given.copy()
    best, best_length = given, 0.0
    for one in range(count):
        best_length = max(best_length, given[one] + times[one])
    kept, kept_length = best, best_length
    mean = times.mean()
    enough = bound * (1.0 + CLOSE)
    used = 0
    while used < decodes and best_length > enough:
        _shake(kept, kept_length, mean, keys)
        start, length = _listed(True, times, before_start, before, behind_start, behind, keys, workers)
        used += 1
        by_order = np.random.random() < 0.5
        last = np.inf
        while length < last and length > enough:
            last = length
            for one in range(count):
                keys[one] = -(start[one] + times[one])
            # Time runs backwards here: what is behind a task comes before it.
            late, _ = _listed(by_order, times, behind_start, behind, before_start, before, keys, workers)
            for one in range(count):
                keys[one] = -(late[one] + times[one])
            early, shorter = _listed(by_order, times, before_start, before, behind_start, behind, keys, workers)
            used += 2
            if shorter <= length:
                start, length = early, shorter
        if length <= kept_length:
            kept, kept_length = start, length
        if length < best_length:
            best, best_length = start, length
    return best, kept
