"""Priorities of tasks: who goes first when several are ready. The larger goes first; ties go to the lower number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scheduler.compiling import compiled
from scheduler.lists.tasks import Floats, Ints, Tasks

MOST_FOR_SETS = 4096  # tasks; beyond, sets of all descendants take too much memory (one bit for each pair)


def tails(tasks: Tasks) -> Floats:
    """Upward rank: the longest path from each task's start to the end, its own time included, delays not."""
    return _tails(tasks.order, tasks.times, tasks.behind_start, tasks.behind)


def heads(tasks: Tasks) -> Floats:
    """The longest path to each task's start, delays not included: no schedule starts it earlier."""
    return _heads(tasks.order, tasks.times, tasks.before_start, tasks.before)


def delayed_tails(tasks: Tasks) -> Floats:
    """Upward rank with every signal's delay counted, as HEFT does with the mean cost of communication.

    Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing".
    """
    return _delayed_tails(tasks.order, tasks.times, tasks.before_start, tasks.before, tasks.delays)


def work_behind(tasks: Tasks) -> Floats:
    """The time of each task and of all that comes after it; of very many tasks, along paths, some counted often."""
    if tasks.count > MOST_FOR_SETS:
        return _paths_behind(tasks.order, tasks.times, tasks.behind_start, tasks.behind)
    return _work_behind(tasks.order, tasks.times, tasks.behind_start, tasks.behind)


def rules(tasks: Tasks) -> Mapping[str, Floats]:
    """Several priorities by name. The first, "cp/misf", is critical path first, most immediate successors first.

    CP/MISF: Kasahara and Narita, "Practical multiprocessor scheduling algorithms for efficient parallel processing",
    IEEE Transactions on Computers C-33, 1984.
    """
    tail, behind = tails(tasks), work_behind(tasks)
    followers = np.diff(tasks.behind_start)
    late = tail + heads(tasks)
    return {
        "cp/misf": ranked(tail, followers),
        "critical path, work behind": ranked(tail, behind),
        "work behind": ranked(behind, tail),
        "longest path through": ranked(late, tail),
        "longest time": ranked(tasks.times, tail),
    }


def ranked(*keys: Floats | Ints) -> Floats:
    """One number for each task that orders them as the keys do, the first key first."""
    by = np.lexsort((-np.arange(len(keys[0])), *reversed(keys)))
    rank = np.empty(len(by), np.float64)
    rank[by] = np.arange(len(by))
    return rank


@compiled
def _tails(order: Ints, times: Floats, behind_start: Ints, behind: Ints) -> Floats:
    tail = np.zeros(len(order))
    for at in range(len(order) - 1, -1, -1):
        one = order[at]
        longest = 0.0
        for edge in range(behind_start[one], behind_start[one + 1]):
            longest = max(longest, tail[behind[edge]])
        tail[one] = longest + times[one]
    return tail


@compiled
def _heads(order: Ints, times: Floats, before_start: Ints, before: Ints) -> Floats:
    head = np.zeros(len(order))
    for one in order:
        for edge in range(before_start[one], before_start[one + 1]):
            head[one] = max(head[one], head[before[edge]] + times[before[edge]])
    return head


@compiled
def _delayed_tails(order: Ints, times: Floats, before_start: Ints, before: Ints, delays: Floats) -> Floats:
    tail = np.zeros(len(order))
    for at in range(len(order) - 1, -1, -1):
        one = order[at]
        tail[one] += times[one]
        for edge in range(before_start[one], before_start[one + 1]):
            tail[before[edge]] = max(tail[before[edge]], tail[one] + delays[edge])
    return tail


@compiled
def _work_behind(order: Ints, times: Floats, behind_start: Ints, behind: Ints) -> Floats:
    count = len(order)
    words = (count + 63) // 64
    after = np.zeros((count, words), np.uint64)
    work = np.zeros(count)
    for at in range(count - 1, -1, -1):
        one = order[at]
        after[one, one // 64] |= np.uint64(1) << np.uint64(one % 64)
        for edge in range(behind_start[one], behind_start[one + 1]):
            for word in range(words):
                after[one, word] |= after[behind[edge], word]
        for other in range(count):
            if (after[one, other // 64] >> np.uint64(other % 64)) & np.uint64(1):
                work[one] += times[other]
    return work


@compiled
def _paths_behind(order: Ints, times: Floats, behind_start: Ints, behind: Ints) -> Floats:
    work = np.zeros(len(order))
    for at in range(len(order) - 1, -1, -1):
        one = order[at]
        work[one] = times[one]
        for edge in range(behind_start[one], behind_start[one + 1]):
            work[one] = min(work[one] + work[behind[edge]], 1e300)
    return work
