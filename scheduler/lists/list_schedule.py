"""List scheduling: whenever a worker is free, it takes the ready task of the highest priority."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.compiling import compiled
from scheduler.errors import InvalidTaskGraph
from scheduler.lists.tasks import Floats, Ints, Tasks, check_workers


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A schedule: each task's start and worker, in the tasks' unit of time, and when the last one ends."""

    start: Floats
    worker: Ints
    makespan: float


def list_schedule(tasks: Tasks, workers: int, priority: Floats) -> Listed:
    """The schedule in which no worker is idle while it could begin a task; of those that could begin at the same time
    the one of the largest priority goes first, ties to the lower number. Tasks that take no time go before all.

    With delays a task goes to the worker on which it can begin first: the one that made what it waits for longest, or
    the one that is free first. Raises InvalidTaskGraph without a worker, or if priorities are not one for each task.

    Any such schedule of tasks without delays takes at most 2 - 1/workers of the least (Graham 1966).
    """
    check_workers(workers)
    if len(priority) != tasks.count:
        raise InvalidTaskGraph(f"{len(priority)} priorities do not fit {tasks.count} tasks.")
    sequence = sequence_of(tasks, -np.asarray(priority, np.float64))
    if tasks.delayed:
        start, worker = _earliest(
            tasks.times, tasks.before_start, tasks.before, tasks.delays, tasks.behind_start, tasks.behind, sequence,
            workers,
        )  # fmt: skip
    else:
        start, worker = fill(
            tasks.times, tasks.before_start, tasks.behind_start, tasks.behind, sequence, workers
        )  # fmt: skip
    return Listed(start, worker, float((start + tasks.times).max(initial=0.0)))


def insert_schedule(tasks: Tasks, workers: int, priority: Floats) -> Listed:
    """Earliest finish with insertion: ready tasks by priority, each where it ends first, gaps between others included.

    HEFT's second phase (Topcuoglu, Hariri and Wu 2002) on identical workers. Raises as `list_schedule`.
    """
    check_workers(workers)
    if len(priority) != tasks.count:
        raise InvalidTaskGraph(f"{len(priority)} priorities do not fit {tasks.count} tasks.")
    start, worker = _insert(
        tasks.times, tasks.before_start, tasks.before, tasks.delays, tasks.behind_start, tasks.behind,
        sequence_of(tasks, -np.asarray(priority, np.float64)), workers,
    )  # fmt: skip
    return Listed(start, worker, float((start + tasks.times).max(initial=0.0)))


def sequence_of(tasks: Tasks, keys: Floats) -> Ints:
    """The tasks by key, the smallest first; those that take no time come before all."""
    return np.lexsort((keys, tasks.times > 0)).astype(np.int64)


@compiled
def push(heap: Ints, many: int, value: int) -> int:
    """Add a value to a binary heap of whole numbers, the smallest on top; the new size."""
    at = many
    while at > 0:
        above = (at - 1) >> 1
        if heap[above] <= value:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = value
    return many + 1


@compiled
def drop(heap: Ints, many: int) -> int:
    """Take the smallest value, which stands at heap[0], away; the new size."""
    many -= 1
    value = heap[many]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= many:
            break
        if below + 1 < many and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= value:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = value
    return many


@compiled
def fill(
    times: Floats, before_start: Ints, behind_start: Ints, behind: Ints, sequence: Ints, workers: int
) -> tuple[Floats, Ints]:
    """Starts and workers without delays. `sequence` names the tasks, the one that goes first at its head."""
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
    most = min(workers, count)
    idle = np.empty(most, np.int64)  # a stack, the lowest worker on top
    for one in range(most):
        idle[one] = most - 1 - one
    free = most
    ends, runs = np.empty(most), np.empty(most, np.int64)  # a heap by end of what runs
    running = 0
    now = 0.0
    while True:
        while waiting > 0 and free > 0:
            one = sequence[ready[0]]
            waiting = drop(ready, waiting)
            start[one] = now
            worker[one] = idle[free - 1]
            if times[one] == 0:
                for edge in range(behind_start[one], behind_start[one + 1]):
                    other = behind[edge]
                    missing[other] -= 1
                    if missing[other] == 0:
                        waiting = push(ready, waiting, place[other])
                continue
            free -= 1
            end = now + times[one]
            at = running
            while at > 0:
                above = (at - 1) >> 1
                if ends[above] <= end:
                    break
                ends[at], runs[at] = ends[above], runs[above]
                at = above
            ends[at], runs[at] = end, one
            running += 1
        if running == 0:
            return start, worker
        now = ends[0]
        while running > 0 and ends[0] == now:
            one = runs[0]
            running -= 1
            end, last = ends[running], runs[running]
            at = 0
            while True:
                below = 2 * at + 1
                if below >= running:
                    break
                if below + 1 < running and ends[below + 1] < ends[below]:
                    below += 1
                if ends[below] >= end:
                    break
                ends[at], runs[at] = ends[below], runs[below]
                at = below
            ends[at], runs[at] = end, last
            idle[free] = worker[one]
            free += 1
            for edge in range(behind_start[one], behind_start[one + 1]):
                other = behind[edge]
                missing[other] -= 1
                if missing[other] == 0:
                    waiting = push(ready, waiting, place[other])


@compiled
def _arrivals(
    one: int, start: Floats, worker: Ints, times: Floats, before_start: Ints, before: Ints, delays: Floats
) -> tuple[float, int, float]:
    """When a task can begin on any worker; the worker on which it may begin earlier, or -1; and when there."""
    latest, near = 0.0, -1
    for edge in range(before_start[one], before_start[one + 1]):
        other = before[edge]
        seen = start[other] + times[other] + delays[edge]
        if seen > latest:
            latest, near = seen, worker[other]
    there = 0.0
    for edge in range(before_start[one], before_start[one + 1]):
        other = before[edge]
        end = start[other] + times[other]
        there = max(there, end if worker[other] == near else end + delays[edge])
    return latest, near, there


@compiled
def _earliest(
    times: Floats, before_start: Ints, before: Ints, delays: Floats, behind_start: Ints, behind: Ints, sequence: Ints,
    workers: int,
) -> tuple[Floats, Ints]:  # fmt: skip
    """Of all ready tasks the one that can begin first, then the first in the sequence; where it can begin first."""
    count = len(times)
    start, worker = np.zeros(count), np.zeros(count, np.int64)
    place = np.empty(count, np.int64)
    for at in range(count):
        place[sequence[at]] = at
    missing = before_start[1:] - before_start[:-1]
    ready = np.empty(count, np.int64)
    latest, there, near = np.zeros(count), np.zeros(count), np.full(count, -1)
    waiting = 0
    for one in range(count):
        if missing[one] == 0:
            ready[waiting] = one
            waiting += 1
    most = min(workers, count)
    free = np.zeros(most)
    while waiting > 0:
        first = 0
        for one in range(1, most):
            if free[one] < free[first]:
                first = one
        best, best_start, best_worker = -1, np.inf, 0
        for at in range(waiting):
            one = ready[at]
            begin, where = max(free[first], latest[one]), first
            if near[one] >= 0:
                here = max(free[near[one]], there[one])
                if here <= begin:
                    begin, where = here, near[one]
            if begin < best_start or (begin == best_start and place[one] < place[ready[best]]):
                best, best_start, best_worker = at, begin, where
        one = ready[best]
        waiting -= 1
        ready[best] = ready[waiting]
        if best_start > 0 and free[best_worker] < best_start and best_worker != near[one]:
            # Of the workers that are free by then, the one that became free last: the others can still do earlier work.
            for other in range(most):
                if free[best_worker] < free[other] <= best_start:
                    best_worker = other
        start[one], worker[one] = best_start, best_worker
        free[best_worker] = best_start + times[one]
        for edge in range(behind_start[one], behind_start[one + 1]):
            other = behind[edge]
            missing[other] -= 1
            if missing[other] == 0:
                latest[other], near[other], there[other] = _arrivals(
                    other, start, worker, times, before_start, before, delays
                )
                ready[waiting] = other
                waiting += 1
    return start, worker


@compiled
def _insert(
    times: Floats, before_start: Ints, before: Ints, delays: Floats, behind_start: Ints, behind: Ints, sequence: Ints,
    workers: int,
) -> tuple[Floats, Ints]:  # fmt: skip
    count = len(times)
    start, worker = np.zeros(count), np.zeros(count, np.int64)
    place = np.empty(count, np.int64)
    for at in range(count):
        place[sequence[at]] = at
    missing = before_start[1:] - before_start[:-1]
    ready = np.empty(count, np.int64)
    waiting = 0
    for one in range(count):
        if missing[one] == 0:
            waiting = push(ready, waiting, place[one])
    most = min(workers, count)
    # What each worker does, by start, as linked lists: first[w], then following[task].
    first, following = np.full(most, -1), np.full(count, -1)
    while waiting > 0:
        one = sequence[ready[0]]
        waiting = drop(ready, waiting)
        latest, near, there = _arrivals(one, start, worker, times, before_start, before, delays)
        best, best_worker, best_after = np.inf, 0, -1
        for where in range(most):
            begin = there if where == near else latest
            after, ahead = -1, first[where]
            while ahead >= 0 and start[ahead] < begin + times[one]:
                begin = max(begin, start[ahead] + times[ahead])
                after, ahead = ahead, following[ahead]
            if begin < best:
                best, best_worker, best_after = begin, where, after
        start[one], worker[one] = best, best_worker
        if best_after < 0:
            following[one], first[best_worker] = first[best_worker], one
        else:
            following[one], following[best_after] = following[best_after], one
        for edge in range(behind_start[one], behind_start[one + 1]):
            other = behind[edge]
            missing[other] -= 1
            if missing[other] == 0:
                waiting = push(ready, waiting, place[other])
    return start, worker
