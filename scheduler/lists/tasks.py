"""The problem of list scheduling: tasks with times, what each waits for, and the delay of a signal between workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduler.compiling import compiled
from scheduler.errors import InvalidTaskGraph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Tasks 0 .. count-1. Made by `tasks_of` and `tasks_of_edges`, which check what they are given.

    The predecessors of task i are `before[before_start[i]:before_start[i + 1]]`, ascending and each once; its
    successors are told by `behind` in the same way. `delays[e]` is how much later than its end the task `before[e]` is
    seen to have ended by workers other than its own. `order` has every task after its predecessors.
    """

    times: Floats  # of any one unit
    before_start: Ints
    before: Ints
    delays: Floats
    behind_start: Ints
    behind: Ints
    order: Ints

    @property
    def count(self) -> int:
        """How many tasks there are."""
        return len(self.times)

    @property
    def whole(self) -> bool:
        """Whether every time is a whole number, so that every useful start is one too."""
        return bool(np.all(self.times == np.floor(self.times)) and np.all(self.delays == np.floor(self.delays)))

    @property
    def delayed(self) -> bool:
        """Whether any signal takes time."""
        return bool(np.any(self.delays > 0))

    def reversed(self) -> Tasks:
        """The same tasks with every arrow turned round and without delays."""
        return Tasks(
            self.times, self.behind_start, self.behind, np.zeros(len(self.behind)), self.before_start, self.before,
            self.order[::-1].copy(),
        )  # fmt: skip


def tasks_of(times: ArrayLike, predecessors: Sequence[Sequence[int]], delay: float = 0.0) -> Tasks:
    """Tasks from each one's predecessors. Raises InvalidTaskGraph."""
    counts = np.array([len(one) for one in predecessors], np.int64)
    given = np.asarray(times, np.float64)
    if len(given) != len(counts):
        raise InvalidTaskGraph(f"{len(given)} times do not fit {len(counts)} lists of predecessors.")
    sources = np.array([source for one in predecessors for source in one], np.int64)
    return tasks_of_edges(given, sources, np.repeat(np.arange(len(given)), counts), delay)


def tasks_of_edges(
    times: ArrayLike,
    sources: ArrayLike,
    targets: ArrayLike,
    delay: ArrayLike = 0.0,
    names: Sequence[object] | None = None,
) -> Tasks:
    """Tasks from edges: `targets[e]` waits for `sources[e]`, and sees its end `delay` (one for all, or of each) later.

    Raises InvalidTaskGraph for a time or delay that is negative or not finite, an edge to a task that is not there, and
    tasks that wait for each other in a circle; it calls the tasks by their `names`, or by their numbers.
    """
    given = np.ascontiguousarray(times, np.float64)
    source, target = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
    delays = np.ascontiguousarray(np.broadcast_to(np.asarray(delay, np.float64), source.shape))
    count = len(given)
    called = range(count) if names is None else names
    _check_numbers(given, source, target, delays, called)
    # Of an edge that is given twice the longest delay counts.
    by_edge = np.lexsort((-delays, source, target))
    source, target, delays = source[by_edge], target[by_edge], delays[by_edge]
    first = np.ones(len(source), np.bool_)
    first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    source, target, delays = source[first], target[first], delays[first]
    before_start = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(target, minlength=count))))
    behind_start = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(source, minlength=count))))
    behind = target[np.argsort(source, kind="stable")]
    order, done = _topological(before_start, behind_start, behind)
    if done < count:
        circle = _circle(before_start, source, order[:done])
        shown = " -> ".join(str(called[one]) for one in circle)
        raise InvalidTaskGraph(f"the tasks wait for each other in a circle: {shown}; drop one of these edges.")
    return Tasks(given, before_start, source, delays, behind_start, behind, order)


def check_workers(workers: int) -> None:
    """Raises InvalidTaskGraph unless there is a worker."""
    if workers < 1:
        raise InvalidTaskGraph(f"{workers} workers cannot run anything: give at least 1.")


def _check_numbers(times: Floats, source: Ints, target: Ints, delays: Floats, called: Sequence[object]) -> None:
    wrong = np.flatnonzero(~(np.isfinite(times) & (times >= 0)))
    if len(wrong):
        one = int(wrong[0])
        raise InvalidTaskGraph(f"task {called[one]} takes a time of {times[one]:g}: a time is finite and at least 0.")
    for ends in (source, target):
        away = np.flatnonzero((ends < 0) | (ends >= len(times)))
        if len(away):
            at = int(away[0])
            edge, last = f"{source[at]} -> {target[at]}", len(times) - 1
            raise InvalidTaskGraph(f"the edge {edge} names a task that is not there: tasks are 0 to {last}.")
    if not np.all(np.isfinite(delays) & (delays >= 0)):
        raise InvalidTaskGraph("a signal's delay is negative or not finite: give 0 or more.")


@compiled
def _topological(before_start: Ints, behind_start: Ints, behind: Ints) -> tuple[Ints, int]:
    """Kahn's order, first come first served, and how many tasks are in it: fewer than all if there is a circle."""
    count = len(before_start) - 1
    missing = before_start[1:] - before_start[:-1]
    order = np.empty(count, np.int64)
    made = 0
    for one in range(count):
        if missing[one] == 0:
            order[made] = one
            made += 1
    at = 0
    while at < made:
        one = order[at]
        at += 1
        for edge in range(behind_start[one], behind_start[one + 1]):
            other = behind[edge]
            missing[other] -= 1
            if missing[other] == 0:
                order[made] = other
                made += 1
    return order, made


def _circle(before_start: Ints, before: Ints, done: Ints) -> list[int]:
    """A circle in the direction of the arrows: from any task left over, back along predecessors that are left over."""
    over = set(range(len(before_start) - 1)) - set(done.tolist())
    path = [min(over)]
    while True:
        one = path[-1]
        ahead = next(int(other) for other in before[before_start[one] : before_start[one + 1]] if int(other) in over)
        if ahead in path:
            return [ahead, *path[path.index(ahead) :][::-1]]
        path.append(ahead)
