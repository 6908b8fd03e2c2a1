"""The best schedule of tasks on identical workers: rules, local search and branch and bound, until proved least."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import numpy as np

from scheduler.bounds import lower_bound
from scheduler.compiling import Stopwatch
from scheduler.errors import InvalidTaskGraph
from scheduler.lists.empty import with_empty, without_empty
from scheduler.lists.exact import branch_and_bound
from scheduler.lists.improve import CLOSE, improve, placed
from scheduler.lists.list_schedule import Listed, insert_schedule, list_schedule
from scheduler.lists.priority import delayed_tails, rules
from scheduler.lists.tasks import Floats, Ints, Tasks, check_workers

MOST_EXACT = 1200  # tasks for branch and bound: its memory grows with their square
# Work counts tasks and edges that local search handles; half a second's, about, where nothing is said. Branch and
# bound handles so many times as many, listing with delays fewer, as they take less or more time for each.
USUAL_WORK = 8_000_000
EXACT_STEPS, DELAYED_STEPS = 25.0, 0.5
EXACT_PARTS = (1 / 32, 15 / 32)  # for each direction: a short try at both before a long one at either
MOST_BEFORE_EXACT = 0.6  # of a time limit may have passed before branch and bound, which cannot be cut short
PIECE_STEPS = 200_000  # between two looks at the clock, where there is one
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
    limited: Literal["work", "time"] | None = None  # what ended the search before there was a proof


def solve(
    tasks: Tasks, workers: int, *, work: int | None = None, time_limit: float | None = None, seed: int = 0
) -> Solved:
    """A schedule as short as can be found with so much `work`, tasks and edges handled; the same each time.

    A `time_limit` in seconds, compiling left out, is the user's own: it scales the work, and a result that it cut short
    says so. With delays of signals there are only rules, with and without insertion, and perturbed orders. Raises
    InvalidTaskGraph.
    """
    check_workers(workers)
    if work is not None and work < 0:
        raise InvalidTaskGraph(f"{work} steps of work are no budget: give 0 or more.")
    if time_limit is not None and not 0 <= time_limit < inf:
        raise InvalidTaskGraph(f"a time limit of {time_limit:g} s is none: give 0 or more seconds.")
    usual = USUAL_WORK if time_limit is None else int(USUAL_WORK * time_limit)
    limits = _Limits(usual if work is None else work, time_limit)
    with limits.watch.running():
        solved = _solved(tasks, workers, limits, seed)
    return replace(solved, limited=None if solved.proved_optimal else "time" if limits.was_late else "work")


@dataclass(slots=True)
class _Limits:
    """How much a search may do."""

    work: int  # tasks and edges handled
    seconds: float | None
    watch: Stopwatch = field(default_factory=Stopwatch)
    was_late: bool = False

    def late(self, share: float = 1.0) -> bool:
        """Whether the user's time is over, or a share of it."""
        if self.seconds is not None and self.watch.seconds() >= share * self.seconds:
            self.was_late = True
            return True
        return False


def _solved(tasks: Tasks, workers: int, limits: _Limits, seed: int) -> Solved:
    if tasks.delayed:
        return _delayed(tasks, workers, limits, seed)
    reduced = without_empty(tasks)
    inner, kept = reduced if reduced is not None else (tasks, np.arange(tasks.count))
    if not inner.count:
        starts, places = with_empty(tasks, kept, np.zeros(0), np.zeros(0, np.int64))
        return Solved(starts, places, 0.0, 0.0, "critical path", True, "nothing to do")
    solved = _solve(inner, workers, limits, seed)
    starts, places = with_empty(tasks, kept, solved.start, solved.worker) if reduced else (solved.start, solved.worker)
    return replace(solved, start=starts, worker=places)


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


def _solve(tasks: Tasks, workers: int, limits: _Limits, seed: int) -> Solved:
    bound = lower_bound(tasks, workers)
    name, first = _best_rule(tasks, workers)
    best = _Best(tasks, workers, bound.value, bound.name, first.start, first.worker, first.makespan, name)
    size = tasks.count + len(tasks.before)
    if not best.proved:
        _search(best, limits, 0.25, seed)
    if not best.proved and tasks.count <= MOST_EXACT and tasks.times.min() > 0:
        for part in EXACT_PARTS:
            nodes = NODES_SMALL if tasks.count <= SMALL else max(1, int(limits.work * EXACT_STEPS * part / size))
            for backwards in (False, True):
                if not best.proved and not limits.late(MOST_BEFORE_EXACT):
                    _exact(best, nodes, backwards=backwards)
    if not best.proved:
        _search(best, limits, 0.75, seed + 1)
    proved = best.proved
    low = min(best.bound, best.makespan)
    return Solved(best.start, best.worker, best.makespan, low, best.bound_name, proved, best.solver)


def _search(best: _Best, limits: _Limits, share: float, seed: int) -> None:
    """Local search in pieces, so that a clock is looked at now and then."""
    size = best.tasks.count + len(best.tasks.before)
    piece = max(3, PIECE_STEPS // size)
    kept = best.start
    for number in range(max(1, int(share * limits.work / size) // piece)):
        if best.proved or limits.late():
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


def _delayed(tasks: Tasks, workers: int, limits: _Limits, seed: int) -> Solved:
    """The best of all rules, then the best starts perturbed, listed with and without insertion by turns."""
    bound = lower_bound(tasks, workers)
    priorities = {"upward rank": delayed_tails(tasks), **rules(tasks)}
    made = [(name, list_schedule(tasks, workers, priority)) for name, priority in priorities.items()]
    made += [(f"{name}, insertion", insert_schedule(tasks, workers, one)) for name, one in priorities.items()]
    name, best = min(made, key=lambda one: one[1].makespan)
    draw = np.random.default_rng(seed)
    mean = float(tasks.times.mean())
    size = tasks.count + len(tasks.before) + tasks.count**2 // 40  # all that is ready is looked at for each task
    for number in range(int(limits.work * DELAYED_STEPS / size)):
        if best.makespan <= bound.value * (1 + CLOSE) or limits.late():
            break
        far = mean * 10.0 ** draw.uniform(-0.6, 1.4)
        order = -(best.start + draw.random(tasks.count) * far)
        perturbed = (insert_schedule if number % 2 else list_schedule)(tasks, workers, order)
        if perturbed.makespan <= best.makespan:
            name, best = ("local search" if perturbed.makespan < best.makespan else name), perturbed
    low = min(bound.value, best.makespan)
    proved = best.makespan <= bound.value * (1 + CLOSE)
    return Solved(best.start, best.worker, best.makespan, low, bound.name, proved, name)
