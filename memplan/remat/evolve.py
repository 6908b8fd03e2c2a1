"""Many evictions, each a change of a cheap one: how much each value is worth keeping, and the order that is followed.

Eviction takes a moment, and what it drops first decides about all that follows. So weights of values are drawn, and of
the cheapest plans some weights are drawn anew and some operators run earlier or later, as long as that finds cheaper
ones. Where none keeps the budget, plans that come near it are changed until they do.

Source: an evolution strategy without recombination, as of Rechenberg, "Evolutionsstrategie", 1973; on what is random in
a greedy heuristic rather than on its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memplan.ordering.arrays import Arrays, Ints
from memplan.ordering.runs import Tables, needs
from memplan.remat.behind import Changes
from memplan.remat.evict import RULES, Rule, evict
from memplan.remat.prune import prune
from memplan.remat.replay import uses_in
from memplan.work import Work

TRIES, PATIENCE = 2_000, 500  # in all, and without a cheaper plan
UNTIL_KEPT = 2  # times as many of both, as long as no plan keeps the budget
FIRST = 300  # tries whose weights are all drawn anew
PARENTS = 4  # plans that are changed
NEAR = (1.0, 1.05, 1.1, 1.2)  # of the budget: what to begin with; the first that is kept
CLOSER = 0.99  # of what has been kept, until that is the budget
FRESH, CHANGED, MOST_MOVED = 1.0, 1.5, 5  # deviations of a weight's logarithm; operators that move at a time
WEIGHTS, ORDER = 0.6, 0.6  # shares of changes that are of weights, and of the order; some are of both
FEWEST, MOST = 0.01, 0.3  # shares of the weights that change
TO_END = 0.3  # share of the moves that go as early as is possible, and of those that go as late
WAYS, KEPT_WAY = 3, 0.8  # to take out runs; share of the changes that do so as before
STEPS_PER_LOOK, STEPS_PER_OPERATOR = 20, 5_000  # of a try


@dataclass(frozen=True, slots=True)
class _Plan:
    goal: int  # bytes that it keeps
    time: float  # nanoseconds of all runs
    order: Ints
    weight: NDArray[np.float64]
    rule: Rule
    by: int  # which runs are taken out first
    runs: Ints

    @property
    def rank(self) -> tuple[int, float]:
        return self.goal, self.time


def evolve(
    graph: Tables, arrays: Arrays, orders: Sequence[Ints], changes: Changes, budget: int, work: Work
) -> Ints:  # fmt: skip
    """The runs of the cheapest plan that is found within `budget`, or near it; none where eviction finds none."""
    search = _Evolution(graph, arrays, orders, changes, work)
    plans: list[_Plan] = []
    for share in NEAR:
        plans = sorted(search.begun(int(share * budget)), key=lambda one: one.rank)[:PARENTS]
        if plans:
            break
    last = kept_at = 0  # tries
    for number in range(UNTIL_KEPT * TRIES):
        is_kept = bool(plans) and plans[0].goal <= budget
        kept_at = kept_at if is_kept else number
        patience = PATIENCE if is_kept else UNTIL_KEPT * PATIENCE
        is_enough = is_kept and number >= max(TRIES, kept_at + PATIENCE)
        if not plans or work.over() or number - last > patience or is_enough:
            break
        goal = budget if is_kept else max(budget, int(CLOSER * plans[0].goal))
        plan = search.drawn(goal) if number < FIRST else search.changed(plans, goal)
        if plan is None or any(plan.rank == one.rank for one in plans):
            continue
        if plan.rank < plans[0].rank:
            last = number
        plans = sorted([*plans, plan], key=lambda one: one.rank)[:PARENTS]
    return plans[0].runs if plans else np.empty(0, np.int64)


class _Evolution:
    def __init__(
        self, graph: Tables, arrays: Arrays, orders: Sequence[Ints], changes: Changes, work: Work
    ) -> None:  # fmt: skip
        self._graph, self._arrays, self._orders, self._changes, self._work = graph, arrays, orders, changes, work
        self._even = np.ones(len(arrays.size))
        self._random = np.random.default_rng(1)

    def begun(self, goal: int) -> Iterator[_Plan]:
        """Plans of every order and rule, in which values are worth the same."""
        for order in self._orders:
            for rule in RULES:
                for by in range(WAYS):
                    if not self._work.over() and (plan := self._tried(goal, order, self._even, rule, by)):
                        yield plan

    def drawn(self, goal: int) -> _Plan | None:
        """A plan of some order and rule by weights that are drawn."""
        order = self._orders[int(self._random.integers(len(self._orders)))]
        weight = np.exp(FRESH * self._random.standard_normal(len(self._arrays.size)))
        rule = RULES[int(self._random.integers(len(RULES)))]
        return self._tried(goal, order, weight, rule, int(self._random.integers(WAYS)))

    def changed(self, plans: Sequence[_Plan], goal: int) -> _Plan | None:
        """One of the plans with some weights drawn anew, or in another order."""
        plan, kind = plans[int(self._random.integers(len(plans)))], self._random.random()
        weight, order = plan.weight, plan.order
        if kind < WEIGHTS:
            share = FEWEST * (MOST / FEWEST) ** self._random.random()
            factor = np.exp(CHANGED * self._random.standard_normal(len(weight)))
            weight = np.where(self._random.random(len(weight)) < share, weight * factor, weight)
        if kind >= 1 - ORDER:
            for _ in range(self._random.integers(1, MOST_MOVED + 1)):
                order = self._moved(order)
        by = plan.by if self._random.random() < KEPT_WAY else int(self._random.integers(WAYS))
        return self._tried(goal, order, weight, plan.rule, by)

    def _moved(self, order: Ints) -> Ints:
        """The order with one operator elsewhere, behind those it waits for and before those that wait for it."""
        origin = int(self._random.integers(len(order)))
        one = order[origin]
        rest = np.delete(order, origin)
        place = np.empty(self._arrays.count, np.int64)
        place[rest] = np.arange(len(rest))
        low = int(place[self._arrays.before[one]].max(initial=-1)) + 1
        high = int(place[self._arrays.behind[one]].min(initial=len(rest)))
        where = self._random.random()
        inside = int(self._random.integers(low, high + 1))
        goal = low if where < TO_END else high if where < 2 * TO_END else inside
        return np.insert(rest, goal, one)

    def _tried(self, goal: int, order: Ints, weight: NDArray[np.float64], rule: Rule, by: int) -> _Plan | None:
        runs, looks = evict(self._graph, order, uses_in(self._arrays, order), weight, goal, rule)
        self._work.spend(STEPS_PER_LOOK * looks + STEPS_PER_OPERATOR * self._arrays.count)
        behind = self._changes.behind(runs)
        if not len(behind) or (behind is not runs and needs(self._graph, behind).max() > goal):
            return None
        kept, looks = prune(self._graph, behind, goal, by=by)
        self._work.spend(looks)
        return _Plan(goal, float(self._arrays.time[kept].sum()), order, weight, rule, by, kept)
