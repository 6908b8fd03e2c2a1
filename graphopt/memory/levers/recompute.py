"""Recomputation (rematerialization): values are dropped and computed again before their next use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress

from graphopt.errors import BudgetNotKept
from graphopt.memory.levers.lever import Fitted, Lever, Task
from graphopt.memory.levers.order import ORDER_WORK, best_order
from graphopt.memory.plan import Planned, plan, problem_of
from graphopt.memory.tensors import ModelMemory
from memplan.bounds import live_peak
from memplan.condense import Condensed, condense
from memplan.graph import Graph
from memplan.packing.reduced import CannotFit
from memplan.remat.errors import BudgetTooSmall
from memplan.remat.recompute import recompute

RECOMPUTE_WORK = 30_000_000_000  # steps of searching
CHECK_WORK = 500_000_000  # steps in which offsets within the budget are looked for, for one of many orders
TRIES = 5  # budgets for planners, of one graph
LEAST_STEPS = 200_000  # of a try, for each operator: planners of a large graph find nothing in less
LOOSER, TIGHTER = 1.15, 0.995  # than what the last try makes likely
NEAR = 0.02  # of the budget: what is left of it then buys no time
# Ways to condense a graph for planners: joined sums, and room for slices. None is always best.
VARIANTS = ((True, False), (True, True), (False, False), (False, True))


def within(memory: ModelMemory, budget: int, *, start: Planned | None = None, work: int = RECOMPUTE_WORK) -> Planned:
    """An order whose arena takes at most `budget` bytes, with as little computed again as was found.

    `start`: the best order without recomputation, where the caller has it. It is one base of the search, the order of
    the file is the other: a training graph has its layers one after the other there, forward and backward.

    Raises BudgetNotKept naming the least arena that was found, where the budget is below it.
    """
    start = start or best_order(memory, work=min(work, ORDER_WORK))
    if start.packing.arena_size <= budget:
        return start
    given = tuple(operator.name for operator in memory.graph.operators)
    bases = [memory.graph] if start.order == given else [memory.graph, memory.graph.in_order(start.order)]
    affordable = max(1, work // (TRIES * LEAST_STEPS * max(len(memory.graph.operators), 1)))
    graphs = list(itertools.islice(_by_turns(bases), affordable))
    each = work // (len(graphs) * TRIES)
    found: list[Planned] = []
    arenas = [start.packing.arena_size]
    for base, small in graphs:
        for one in _tries(base, small, budget, each):
            arenas.append(one.packing.arena_size)
            found += [one] if arenas[-1] <= budget else []
    if not found:
        raise BudgetNotKept(budget, min(arenas))
    return min(found, key=lambda one: (one.time, one.packing.arena_size))


def _by_turns(bases: Sequence[Graph]) -> Iterator[tuple[Graph, Condensed]]:
    """Every base with the ways to condense it that differ, the first of each base before the second of any."""
    for ones in itertools.zip_longest(*map(_condensed, bases)):
        yield from ((base, small) for base, small in zip(bases, ones, strict=True) if small is not None)


def _condensed(graph: Graph) -> Iterator[Condensed]:
    """The ways to condense a graph that differ: where nothing is in place and nothing joined, they are one."""
    different: list[Condensed] = []
    for sums, rooms in VARIANTS:
        small = condense(graph, sums=sums, rooms=rooms)
        if small not in different:
            different.append(small)
            yield small


def _tries(graph: Graph, small: Condensed, budget: int, work: int) -> Iterator[Planned]:
    """Plans for planners' budgets around `budget`, each aimed by what the one before has taken.

    Planners know sums in place only in the condensed graph, slices not at all, and no holes between buffers: what they
    are told to keep may be looser than the budget, or must be tighter. The loosest that keeps it costs least.
    """
    aim, low, high = 1.0, 0.0, float("inf")  # shares of the budget: the next, the loosest that kept it, the least not
    for number in range(TRIES):
        try:
            order = small.expand(recompute(small.graph, int(budget * aim), work=work).order)
        except BudgetTooSmall:
            if number:
                return
            aim = LOOSER
            continue
        one = _packed(graph, order, budget)
        yield one
        ratio = budget / max(one.packing.arena_size, 1)
        if ratio >= 1:
            low, following = max(low, aim), aim * ratio
        else:
            high, following = min(high, aim), aim * ratio * TIGHTER
        if not low < following < high:
            following = (low + high) / 2 if high < float("inf") else aim
        if ratio >= 1 and following <= aim * (1 + NEAR):
            return
        aim = following


def _packed(graph: Graph, order: Sequence[str], budget: int) -> Planned:
    """The order with offsets within the budget, or the least arena that is found quickly."""
    if live_peak(problem_of(graph, order)) <= budget:
        with suppress(CannotFit):
            return plan(graph, order, capacity=budget, work=CHECK_WORK)
    return plan(graph, order, work=CHECK_WORK)


def _fit(task: Task) -> Fitted:
    planned = within(task.memory, task.budget, start=task.start, work=task.work[RECOMPUTATION.name])
    return Fitted(task.model, task.memory, planned, {RECOMPUTATION.name: planned.recomputations})


RECOMPUTATION = Lever(
    "recomputation", "recomputing", "operator", "again", "looking for what to compute again under the budget",
    RECOMPUTE_WORK, _fit,
)  # fmt: skip
