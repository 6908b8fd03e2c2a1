"""Rematerialization: a sequence of runs within a budget, with as little time more as is found.

A better order may be all that is needed, and small graphs are solved exactly. Otherwise several planners propose:
segments of the forward pass, and eviction under several rules, each from the given and from the best order; runs that
turn out not to be worth their time are taken out. What is cheapest is then improved by random changes, and so is the
best order itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memplan.graph import Graph
from memplan.ordering.anneal import LARGEST, Annealing, affords_rounds, round_of
from memplan.ordering.arrays import Arrays, Ints, arrays_of
from memplan.ordering.greedy import greedy_orders
from memplan.ordering.runs import Tables, needs, tables
from memplan.ordering.solve import best_order
from memplan.problem import InvalidProblem
from memplan.remat.behind import Changes
from memplan.remat.bounds import least_need
from memplan.remat.errors import BudgetTooSmall
from memplan.remat.evict import RULES, evict
from memplan.remat.evolve import evolve
from memplan.remat.exact import least_extra
from memplan.remat.prune import prune
from memplan.remat.replay import replay, uses_in
from memplan.remat.segments import DEPTHS, segment_plans
from memplan.work import Limit, Work, allowed

USUAL_WORK, USUAL_FRONT_WORK = 30_000_000_000, 60_000_000_000  # steps
STEPS_PER_EVICTION_LOOK, STEPS_PER_PRUNING_LOOK = 20, 1
STEPS_PER_VALUE = 400  # of a segment plan, which is made anew in Python
ORDER_SHARE = 0.2  # of the work, for a better order
EVOLUTION_SHARE = 0.5  # of what is left then
SMALL = 128  # operators: the search for an order is exact as a rule
SEGMENTED = 512  # operators: where segments of a larger graph keep the budget, random changes find next to nothing
IDLE_RULES = 4  # of evictions there, one after the other, that found nothing cheaper; each takes the square of values
ORDER_ROUNDS = 2  # of random moves under the budget, before a better order is looked for
# What a run counts against bytes above the budget, and the temperature at which a search begins.
SEARCHES = ((3.0, 1.0), (10.0, 3.0), (10.0, 1.0))
PATIENCE = 12  # rounds without success


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Operators in the order in which they run; one that stands there again is computed again."""

    order: tuple[str, ...]
    peak: int  # bytes, as memplan.verify.sequence counts them
    time: float  # nanoseconds
    extra_time: float  # nanoseconds: of what runs again
    lower_bound: int  # bytes: no plan of this graph needs less
    solver: str
    limited: Limit | None = None  # what ended the search before it had nothing more to try

    @property
    def extra_percent(self) -> float:
        """The extra time, in percent of the time without."""
        once = self.time - self.extra_time
        return 100.0 * self.extra_time / once if once else 0.0


@dataclass(frozen=True, slots=True)
class _Plan:
    runs: Ints
    time: float
    solver: str


def recompute(graph: Graph, budget: int, *, work: int | None = None, time_limit: float | None = None) -> Recomputed:
    """A plan that needs at most `budget` bytes at every step, workspaces included; inputs and outputs count too.

    `work` in steps, half a minute's where nothing is said; `time_limit` in seconds, if the user wants one. Raises
    BudgetTooSmall where there is no such plan, or where none is found.
    """
    with allowed(work, time_limit, USUAL_WORK) as steps:
        return _Planner(graph).within(budget, steps)


def pareto(
    graph: Graph, points: int = 8, *, work: int | None = None, time_limit: float | None = None
) -> tuple[Recomputed, ...]:
    """Plans from the least peak without recomputation down to the least that is found: peak falls, extra time rises.

    Budgets are `points` steps of equal ratio between that peak and what no plan can do without.
    """
    if points < 1:
        raise InvalidProblem(f"a front of {points} points has no plan.")
    planner = _Planner(graph)
    with allowed(work, time_limit, USUAL_FRONT_WORK) as steps:
        ordering = steps.part(ORDER_SHARE)
        found = [planner.result(planner.least_order(ordering), ordering)]
        low = max(planner.least, 1)
        for point in range(1, points):
            budget = int(found[0].peak * (low / max(found[0].peak, 1)) ** (point / max(points - 1, 1)))
            try:
                found.append(planner.within(budget, steps.part(1 / (points - point))))
            except BudgetTooSmall:
                break
    front: list[Recomputed] = []
    for plan in sorted(found, key=lambda one: (one.peak, one.time)):
        if not front or plan.time < front[-1].time:
            front.append(plan)
    return tuple(reversed(front))


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self.arrays: Arrays = arrays_of(graph)
        self.graph: Tables = tables(self.arrays)
        self._changes = Changes(graph, self.arrays)
        self.least = least_need(self.arrays)
        self._once = float(self.arrays.time.sum())
        self._orders: list[Ints] = []
        self._lowest: _Plan | None = None

    def within(self, budget: int, work: Work) -> Recomputed:
        """The cheapest plan found within a budget."""
        if budget < self.least:
            raise BudgetTooSmall(budget, self.least, proved=True)
        free = self._free(budget, work)
        if free is not None:
            return self.result(free)
        exact = least_extra(self.arrays, budget)
        if exact is not None and np.array_equal(self._changes.behind(exact), exact):
            return self.result(self._plan(exact, "exact"))
        best: _Plan | None = None
        lowest = self._peak(self.least_order(work).runs)
        is_segmented = False
        for plan in self._proposals(budget, work):
            peak = self._peak(plan.runs)
            lowest = min(lowest, peak)
            is_segmented = is_segmented or (peak <= budget and plan.solver == "segments")
            if peak <= budget and (best is None or plan.time < best.time):
                best = plan
        if not is_segmented or self.arrays.count <= SEGMENTED:
            best, lowest = self._evolved(best, budget, work, lowest)
            best, lowest = self._annealed(best, budget, work, lowest)
        if best is None:
            raise BudgetTooSmall(budget, lowest, proved=False)
        return self.result(best, work)

    def result(self, plan: _Plan, work: Work | None = None) -> Recomputed:
        """The plan in names; with the `work` that ended, what ended it."""
        names = tuple(self.arrays.names[one] for one in plan.runs)
        extra = self._extra(plan.runs)
        limited = None if work is None else work.limited
        return Recomputed(names, self._peak(plan.runs), self._once + extra, extra, self.least, plan.solver, limited)

    def least_order(self, work: Work) -> _Plan:
        """The order of least peak that is known, searched for once."""
        if self._lowest is None:
            found = best_order(self.arrays, work)
            self._lowest = _Plan(found.order, self._once, "order")
        return self._lowest

    def _free(self, budget: int, work: Work) -> _Plan | None:
        """An order that keeps the budget without anything computed twice."""
        if not self._orders:
            self._orders = greedy_orders(self.arrays)
        for order in self._orders:
            if self._peak(order) <= budget:
                return _Plan(order, self._once, "order")
        is_large = self.arrays.count > LARGEST or not affords_rounds(self.arrays, work)
        if self._lowest is None and self.arrays.count > SMALL and not is_large:
            lowest = min(self._orders, key=self._peak)
            search = Annealing(self.arrays, lowest, budget, adding=False)
            round_ = round_of(self.arrays, work)
            for _ in range(ORDER_ROUNDS):
                work.spend(round_)
                order = search.run(round_, 0.0)
                if self._peak(order) <= budget:
                    return _Plan(order, self._once, "order")
        plan = self.least_order(work.part(ORDER_SHARE))
        return plan if self._peak(plan.runs) <= budget else None

    def _peak(self, runs: Ints) -> int:
        return int(needs(self.graph, runs).max(initial=0 if self.arrays.count else self.arrays.inputs_size()))

    def _proposals(self, budget: int, work: Work) -> Iterator[_Plan]:
        """Segments of each order, and evictions; of a large graph that segments keep, as long as these get cheaper."""
        lowest = self.least_order(work).runs
        orders = [self._orders[0]] if np.array_equal(lowest, self._orders[0]) else [self._orders[0], lowest]
        cheapest, idle = np.inf, 0
        for order in orders:
            uses = uses_in(self.arrays, order)
            for plan in self._segments(order, uses, budget, work):
                cheapest = min(cheapest, plan.time if self._peak(plan.runs) <= budget else np.inf)
                yield plan
            if work.over():
                return
            is_enough = self.arrays.count > SEGMENTED and cheapest < np.inf
            weight = np.ones(len(self.arrays.size))
            for rule in RULES:
                if is_enough and idle >= IDLE_RULES:
                    break
                runs, looks = evict(self.graph, order, uses, weight, budget, rule)
                work.spend(STEPS_PER_EVICTION_LOOK * looks)
                behind = self._changes.behind(runs)
                idle += 1
                if len(behind) and (behind is runs or self._peak(behind) <= budget):
                    for plan in self._pruned(behind, budget, "eviction", work):
                        cheapest, idle = (plan.time, 0) if plan.time < cheapest else (cheapest, idle)
                        yield plan
                if work.over():
                    return

    def _segments(self, order: Ints, uses: tuple[Ints, Ints], budget: int, work: Work) -> Iterator[_Plan]:
        """Plans with segments, cut once more where no other keeps the budget."""
        needed = needs(self.graph, order)
        for depth in DEPTHS:
            is_kept = False
            for plan in segment_plans(self.arrays, order, needed, depth):
                work.spend(STEPS_PER_VALUE * len(self.arrays.size))
                runs = replay(self.graph, order, uses, plan.dropped, plan.of, plan.held, plan.holding)
                runs = self._changes.behind(runs)
                if len(runs) and self._peak(runs) <= budget:
                    is_kept = True
                    yield from self._pruned(runs, budget, "segments", work)
                elif len(runs):
                    yield self._plan(runs, "segments")
                if work.over():
                    return
            if is_kept:
                return

    def _pruned(self, runs: Ints, budget: int, solver: str, work: Work) -> Iterator[_Plan]:
        for by in range(3):
            kept, looks = prune(self.graph, runs, budget, by=by)
            work.spend(STEPS_PER_PRUNING_LOOK * looks)
            yield self._plan(kept, solver)

    def _plan(self, runs: Ints, solver: str) -> _Plan:
        return _Plan(runs, self._once + self._extra(runs), solver)

    def _extra(self, runs: Ints) -> float:
        again = np.bincount(runs, minlength=self.arrays.count) - 1
        return float((again * self.arrays.time).sum())

    def _evolved(self, best: _Plan | None, budget: int, work: Work, lowest: int) -> tuple[_Plan | None, int]:
        """Evictions that are changed at random, from all orders that are known."""
        orders = [*self._orders, self.least_order(work).runs]
        runs = evolve(self.graph, self.arrays, orders, self._changes, budget, work.part(EVOLUTION_SHARE))
        if not len(runs):
            return best, lowest
        plan, peak = self._plan(runs, "evolution"), self._peak(runs)
        is_better = peak <= budget and (best is None or plan.time < best.time)
        return plan if is_better else best, min(lowest, peak)

    def _annealed(self, best: _Plan | None, budget: int, work: Work, lowest: int) -> tuple[_Plan | None, int]:
        """Random changes, from the cheapest plan and from the best order by turns."""
        if self.arrays.count > LARGEST or not affords_rounds(self.arrays, work):
            return best, lowest
        order = self.least_order(work).runs
        searches = [
            Annealing(self.arrays, order, budget, adding=True, seed=seed) for seed in range(1, len(SEARCHES) + 1)
        ]
        idle = number = 0
        round_ = round_of(self.arrays, work)
        while idle < PATIENCE and (best is None or best.time > self._once) and work.affords(round_):
            work.spend(round_)
            turn = number % (len(SEARCHES) + 1)
            if best is not None and turn == len(SEARCHES):
                search = Annealing(self.arrays, best.runs, budget, adding=True, seed=1000 + number)
                runs = search.run(round_, 3.0, warm=0.2)
            else:
                price, warm = SEARCHES[turn % len(SEARCHES)]
                runs = searches[turn % len(SEARCHES)].run(round_, price, warm=warm)
            number += 1
            idle += 1
            runs = self._changes.behind(runs)
            if not len(runs):
                continue
            peak = self._peak(runs)
            lowest = min(lowest, peak)
            if peak > budget:
                continue
            for plan in self._pruned(runs, budget, "annealing", work):
                if best is None or plan.time < best.time * (1 - 1e-9):
                    best, idle = plan, 0
        return best, lowest
