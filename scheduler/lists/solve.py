"""The best schedule of tasks on identical workers: rules, local search and branch and bound, until proved least."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from scheduler.bounds import lower_bound
from scheduler.lists.empty import with_empty, without_empty
from scheduler.lists.exact import branch_and_bound
from scheduler.lists.improve import CLOSE, improve, placed
from scheduler.lists.list_schedule import Listed, insert_schedule, list_schedule
from scheduler.lists.priority import delayed_tails, rules
from scheduler.lists.tasks import Floats, Ints, Tasks, check_workers, tasks_of

MOST_EXACT = 1200  # tasks for branch and bound: its memory grows with their square
# What one second allows, in tasks and edges handled. Half of it is used on the machine this was measured on, so that
# the same result comes out on a slower one.
SEARCH_STEPS = 8_000_000
EXACT_STEPS = 200_000_000
EXACT_PARTS = (1 / 32, 15 / 32)  # for each direction: a short try at both before a long one at either
DELAYED_STEPS = 4_000_000
MOST_OF_LIMIT = 0.85  # of the limit may pass before the last piece of work is begun
MOST_BEFORE_EXACT = 0.6  # and before branch and bound, which cannot be cut short
PIECE_STEPS = 200_000  # between two looks at the clock
NODES_SMALL = 2_000_000  # starts that a graph of at most `SMALL` tasks may take: enough to search it whole
SMALL = 14


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A schedule and what is known of it, in the tasks' unit of time."""

    start: Floats
    worker: Ints
    makespan: float
    lower_bound: float
    bound_name: str
    proved_optimal: bool
    solver: str  # what found the schedule


def solve(tasks: Tasks, workers: int, *, time_limit: float = 1.0, seed: int = 0) -> Solved:
    """A schedule as short as can be found in `time_limit` seconds, compilation not counted; the same each time.

    The work done is counted, not timed: the limit scales it, and the clock only cuts it short on a slow machine. With
    delays of signals there are only rules, with and without insertion, and shaken orders. Raises InvalidTaskGraph.
    """
    until = time.perf_counter() + MOST_OF_LIMIT * time_limit
    check_workers(workers)
    if tasks.delayed:
        return _delayed(tasks, workers, until, time_limit, seed)
    reduced = without_empty(tasks)
    inner, kept = reduced if reduced is not None else (tasks, np.arange(tasks.count))
    if not inner.count:
        starts, places = with_empty(tasks, kept, np.zeros(0), np.zeros(0, np.int64))
        return Solved(starts, places, 0.0, 0.0, "critical path", True, "nothing to do")
    solved = _solve(inner, workers, until, time_limit, seed)
    starts, places = with_empty(tasks, kept, solved.start, solved.worker) if reduced else (solved.start, solved.worker)
    return replace(solved, start=starts, worker=places)


def warm_up() -> None:
    """Compile what `solve` uses, or read it from numba's cache."""
    for workers in (2, 3):
        one = tasks_of([0, 3, 3, 2, 2, 2, 5, 1], [[], [], [], [], [1], [1, 2], [2], [3]])
        solve(one, workers)
        solve(one.reversed(), workers)
    inner = tasks_of([3, 3, 2, 2, 2], [[], [], [], [], [0]])
    start, _ = placed(inner, 2, np.zeros(5))
    improve(inner, 2, start, bound=0.0, decodes=10, seed=1)
    branch_and_bound(inner, 2, 100.0, lower=0.0, nodes=10)
    solve(tasks_of([1.0, 1.0], [[], [0]], 1.0), 2)


@dataclass(slots=True)
class _Best:
    """The best schedule so far; the one record here that changes."""

    tasks: Tasks
    workers: int
    bound: float
    bound_name: str
    start: Floats
    worker: Ints
    makespan: float
    solver: str

    @property
    def proved(self) -> bool:
        return self.makespan <= self.bound * (1 + CLOSE)

    def offer(self, start: Floats, solver: str) -> None:
        """Take a schedule, told by its starts, if it is shorter."""
        starts, places = placed(self.tasks, self.workers, start)
        makespan = float((starts + self.tasks.times).max())
        if makespan < self.makespan * (1 - CLOSE):
            self.start, self.worker, self.makespan, self.solver = starts, places, makespan, solver


def _solve(tasks: Tasks, workers: int, until: float, share: float, seed: int) -> Solved:
    bound = lower_bound(tasks, workers)
    name, first = _best_rule(tasks, workers)
    best = _Best(tasks, workers, bound.value, bound.name, first.start, first.worker, first.makespan, name)
    size = tasks.count + len(tasks.before)
    if not best.proved:
        _search(best, until, share * 0.25, seed)
    if not best.proved and tasks.count <= MOST_EXACT and tasks.times.min() > 0:
        for part in EXACT_PARTS:
            nodes = NODES_SMALL if tasks.count <= SMALL else max(1, int(share * EXACT_STEPS * part / size))
            for backwards in (False, True):
                if not best.proved and time.perf_counter() < until - (MOST_OF_LIMIT - MOST_BEFORE_EXACT) * share:
                    _exact(best, nodes, backwards=backwards)
    if not best.proved:
        _search(best, until, share * 0.75, seed + 1)
    proved = best.proved
    low = min(best.bound, best.makespan)
    return Solved(best.start, best.worker, best.makespan, low, best.bound_name, proved, best.solver)


def _search(best: _Best, until: float, share: float, seed: int) -> None:
    """Local search in pieces, so that the clock is looked at now and then."""
    size = best.tasks.count + len(best.tasks.before)
    piece = max(3, PIECE_STEPS // size)
    kept = best.start
    for number in range(max(1, int(share * SEARCH_STEPS / size) // piece)):
        if best.proved or time.perf_counter() >= until:
            return
        drawn = (seed * 1_000_003 + number) % 2**31
        found, kept = improve(best.tasks, best.workers, kept, bound=best.bound, decodes=piece, seed=drawn)
        best.offer(found, "local search")


def _exact(best: _Best, nodes: int, *, backwards: bool) -> None:
    """Branch and bound from the first task on or from the last one back: one is often far quicker than the other."""
    tasks = best.tasks.reversed() if backwards else best.tasks
    found = branch_and_bound(tasks, best.workers, best.makespan, lower=best.bound, nodes=nodes)
    if found.start is not None:
        ends = found.start + tasks.times
        best.offer(ends.max() - ends if backwards else found.start, "branch and bound")
    if found.complete and not best.proved:
        best.bound, best.bound_name = best.makespan, "branch and bound"


def _best_rule(tasks: Tasks, workers: int) -> tuple[str, Listed]:
    made = [(name, list_schedule(tasks, workers, priority)) for name, priority in rules(tasks).items()]
    return min(made, key=lambda one: one[1].makespan)


def _delayed(tasks: Tasks, workers: int, until: float, share: float, seed: int) -> Solved:
    """The best of all rules, then orders shaken around the best starts, listed with and without insertion by turns."""
    bound = lower_bound(tasks, workers)
    priorities = {"upward rank": delayed_tails(tasks), **rules(tasks)}
    made = [(name, list_schedule(tasks, workers, priority)) for name, priority in priorities.items()]
    made += [(f"{name}, insertion", insert_schedule(tasks, workers, one)) for name, one in priorities.items()]
    name, best = min(made, key=lambda one: one[1].makespan)
    draw = np.random.default_rng(seed)
    mean = float(tasks.times.mean())
    size = tasks.count + len(tasks.before) + tasks.count**2 // 40  # all that is ready is looked at for each task
    for number in range(int(share * DELAYED_STEPS / size)):
        if best.makespan <= bound.value * (1 + CLOSE) or time.perf_counter() >= until:
            break
        far = mean * 10.0 ** draw.uniform(-0.6, 1.4)
        order = -(best.start + draw.random(tasks.count) * far)
        shaken = (insert_schedule if number % 2 else list_schedule)(tasks, workers, order)
        if shaken.makespan <= best.makespan:
            name, best = ("local search" if shaken.makespan < best.makespan else name), shaken
    low = min(bound.value, best.makespan)
    proved = best.makespan <= bound.value * (1 + CLOSE)
    return Solved(best.start, best.worker, best.makespan, low, bound.name, proved, name)
