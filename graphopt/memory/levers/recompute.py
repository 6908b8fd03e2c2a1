"""Recomputation (rematerialization): values are dropped and computed again before their next use."""

from __future__ import annotations

from graphopt.errors import BudgetNotKept
from graphopt.memory.levers.lever import Fitted, Lever, Task
from graphopt.memory.levers.order import ORDER_WORK, best_order
from graphopt.memory.plan import Planned, plan, problem_of
from graphopt.memory.tensors import ModelMemory
from memplan.bounds import live_peak
from memplan.condense import condense
from memplan.packing.reduced import CannotFit
from memplan.remat.errors import BudgetTooSmall
from memplan.remat.recompute import recompute

RECOMPUTE_WORK = 30_000_000_000  # steps of searching
CHECK_WORK = 500_000_000  # steps in which offsets within the budget are looked for, for one of many orders
LOOSER = (1.15, 1.05, 1.0, 0.93, 0.86)  # budgets for planners, as multiples of what the arena may take
# Ways to condense a graph for planners: joined sums, and room for slices. None is always best.
VARIANTS = ((True, False), (True, True), (False, False), (False, True))


def within(memory: ModelMemory, budget: int, *, start: Planned | None = None, work: int = RECOMPUTE_WORK) -> Planned:
    """An order whose arena takes at most `budget` bytes, with as little computed again as was found.

    `start`: the best order without recomputation, where the caller has it. Planners know sums in place only in the
    condensed graph, and slices not at all, so what they are told to keep may be looser than the budget: the loosest
    that keeps it costs least.

    Raises BudgetNotKept naming the least arena that was found, where the budget is below it.
    """
    start = start or best_order(memory, work=min(work, ORDER_WORK))
    if start.packing.arena_size <= budget:
        return start
    ordered = memory.graph.in_order(start.order)
    found: list[Planned] = []
    arenas = [start.packing.arena_size]
    for sums, rooms in VARIANTS:
        small = condense(ordered, sums=sums, rooms=rooms)
        for looser in LOOSER:
            each = work // (len(VARIANTS) * len(LOOSER))
            try:
                again = recompute(small.graph, int(budget * looser), work=each)
            except BudgetTooSmall:
                continue
            order = small.expand(again.order)
            peak = live_peak(problem_of(ordered, order))
            if peak > budget:
                arenas.append(peak)
                continue
            try:
                found.append(plan(ordered, order, capacity=budget, work=CHECK_WORK))
            except CannotFit:
                arenas.append(plan(ordered, order, work=CHECK_WORK).packing.arena_size)
                continue
            arenas.append(budget)
            break
    if not found:
        raise BudgetNotKept(budget, min(arenas))
    return min(found, key=lambda one: (one.time, one.packing.arena_size))


def _fit(task: Task) -> Fitted:
    planned = within(task.memory, task.budget, start=task.start, work=task.work[RECOMPUTATION.name])
    return Fitted(task.model, task.memory, planned, {RECOMPUTATION.name: planned.recomputations})


RECOMPUTATION = Lever(
    "recomputation", "recomputing", "operator", "again", "looking for what to compute again under the budget",
    RECOMPUTE_WORK, _fit,
)  # fmt: skip
