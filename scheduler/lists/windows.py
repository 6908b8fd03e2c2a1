"""Windows of tasks tightened by what the workers can do: the earliest begin and the latest end of each.

After a task, all that depends on it has to be run by the same few workers. So the time behind a task is not only the
longest path, but for every set of its descendants: the path to the set, the set's work shared by the workers, and the
shortest time that is still behind each of the set. The head of a task is the same, seen from the other end.

After Carlier, "Scheduling jobs with release dates and tails on identical machines to minimize the makespan", European
Journal of Operational Research 29, 1987, whose bound for one set is used here for each task's descendants.
"""

from __future__ import annotations

import numpy as np

from scheduler.compiling import compiled
from scheduler.lists.sorting import ascending
from scheduler.lists.tasks import Floats, Ints, Tasks

MOST_TASKS = 2048  # beyond, sets of descendants take too much memory and time
MOST_FOR_PAIRS = 400  # tasks; up to here sets are also cut by how far behind the task they are


def tight_tails(tasks: Tasks, workers: int) -> Floats:
    """For each task, its own time included: no schedule ends sooner than that after the task's start."""
    return _tight(
        tasks.order, tasks.times, tasks.behind_start, tasks.behind, workers, tasks.whole, tasks.count <= MOST_FOR_PAIRS
    )


def tight_heads(tasks: Tasks, workers: int) -> Floats:
    """For each task: no schedule starts it sooner."""
    return _tight(
        tasks.order[::-1].copy(), tasks.times, tasks.before_start, tasks.before, workers, tasks.whole,
        tasks.count <= MOST_FOR_PAIRS,
    ) - tasks.times  # fmt: skip


@compiled
def _tight(
    order: Ints, times: Floats, behind_start: Ints, behind: Ints, workers: int, whole: bool, pairs: bool
) -> Floats:
    count = len(order)
    words = (count + 63) // 64
    one_bit = np.uint64(1)
    after = np.zeros((count, words), np.uint64)
    position = np.empty(count, np.int64)
    for at in range(count):
        position[order[at]] = at
    tail = np.zeros(count)
    path = np.full(count, -1.0)  # from the end of the task at hand to the start of a descendant
    for at in range(count - 1, -1, -1):
        task = order[at]
        longest = 0.0
        for edge in range(behind_start[task], behind_start[task + 1]):
            other = behind[edge]
            longest = max(longest, tail[other])
            after[task, other // 64] |= one_bit << np.uint64(other % 64)
            for word in range(words):
                after[task, word] |= after[other, word]
        many = 0
        for word in range(words):
            bits = after[task, word]
            while bits:
                many += 1
                bits &= bits - one_bit
        if many > workers:
            inside = np.empty(many, np.int64)
            rest = np.empty(many)
            made = 0
            for later in range(at + 1, count):
                other = order[later]
                if (after[task, other // 64] >> np.uint64(other % 64)) & one_bit:
                    inside[made] = other
                    rest[made] = times[other] - tail[other]  # the largest time behind first
                    made += 1
            by = ascending(rest)
            longest = max(longest, _shared(inside, rest, by, times, workers, path, -1.0, whole))
            if pairs:
                for one in inside:
                    path[one] = 0.0
                for one in inside:  # in the order of the tasks, so every path is whole when it is read
                    for edge in range(behind_start[one], behind_start[one + 1]):
                        other = behind[edge]
                        path[other] = max(path[other], path[one] + times[one])
                paths = path[inside]
                last = 0.0
                for place in ascending(paths):
                    if paths[place] > last:
                        last = paths[place]
                        longest = max(longest, _shared(inside, rest, by, times, workers, path, last, whole))
                for one in inside:
                    path[one] = -1.0
        tail[task] = longest + times[task]
    return tail


@compiled
def _shared(
    inside: Ints, rest: Floats, by: Ints, times: Floats, workers: int, path: Floats, away: float, whole: bool
) -> float:
    """The best bound of sets of tasks at least `away` behind (all of them if negative), the longest tails first."""
    most, work = 0.0, 0.0
    for at in by:
        one = inside[at]
        if path[one] < away:
            continue
        work += times[one]
        share = work / workers
        if whole:
            share = np.ceil(share - 1e-9)
        most = max(most, share - rest[at])
    return most + max(away, 0.0)
