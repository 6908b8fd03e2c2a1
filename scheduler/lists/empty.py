"""Tasks that take no time, such as the entry and the exit of a standard task graph: left out, and put back at the end.

    a -> e -> c          a -> c
    b -> e -> d   -->    a -> d      if e takes no time
                         b -> c
                         b -> d

They need no worker, only a moment. Left alone if that would give many more edges: a barrier of many by many.
"""

from __future__ import annotations

import numpy as np

from scheduler.lists.tasks import Floats, Ints, Tasks, tasks_of_edges

MORE_EDGES = 2  # times as many as there are edges and tasks are accepted


def without_empty(tasks: Tasks) -> tuple[Tasks, Ints] | None:
    """The tasks that take time, and their numbers; None if there would be too many edges. Delays are not kept."""
    kept = np.flatnonzero(tasks.times > 0)
    if len(kept) == tasks.count:
        return tasks, kept
    most = MORE_EDGES * (len(tasks.before) + tasks.count)
    reads: list[set[int]] = [set() for _ in range(tasks.count)]
    edges = 0
    for one in tasks.order.tolist():
        for other in tasks.before[tasks.before_start[one] : tasks.before_start[one + 1]].tolist():
            if tasks.times[other] > 0:
                reads[one].add(other)
            else:
                reads[one] |= reads[other]
        edges += len(reads[one])
        if edges > most:
            return None
    number = np.full(tasks.count, -1)
    number[kept] = np.arange(len(kept))
    pairs = [(other, one) for one in kept.tolist() for other in sorted(reads[one])]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    return tasks_of_edges(tasks.times[kept], number[ends[:, 0]], number[ends[:, 1]]), kept


def with_empty(tasks: Tasks, kept: Ints, start: Floats, worker: Ints) -> tuple[Floats, Ints]:
    """Starts and workers of all tasks: one that takes no time comes right behind the last of what it waits for."""
    starts, workers = np.zeros(tasks.count), np.zeros(tasks.count, np.int64)
    starts[kept], workers[kept] = start, worker
    for one in tasks.order.tolist():
        if tasks.times[one] > 0:
            continue
        before = tasks.before[tasks.before_start[one] : tasks.before_start[one + 1]]
        if len(before):
            ends = starts[before] + tasks.times[before]
            last = int(np.argmax(ends))
            starts[one], workers[one] = ends[last], workers[before[last]]
    return starts, workers
