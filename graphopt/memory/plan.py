"""Memory plans of a model: its own order or the best, within a budget or not, and the offsets in one arena.

Sizes are those of an arena for what nodes compute: temporaries and outputs, with views, results in place and slices
taken where they are free. Weights and inputs belong to the caller. A kernel's own scratch is not part of it: it differs
from runtime to runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.errors import BudgetNotKept
from graphopt.memory.tensors import ModelMemory
from memplan.bounds import live_peak
from memplan.condense import condense
from memplan.graph import Graph
from memplan.lifetimes import memory_problem
from memplan.ordering.solve import order as least_order
from memplan.packing.solve import solve
from memplan.plan import Packing
from memplan.problem import MemoryProblem
from memplan.remat.errors import BudgetTooSmall
from memplan.remat.recompute import recompute
from memplan.verify.packing import verify
from memplan.verify.sequence import verify_sequence

ALIGNMENT = 64  # bytes
# Steps of searching, as memplan counts them: about as many nanoseconds.
ORDER_WORK = 20_000_000_000
RECOMPUTE_WORK = 30_000_000_000
PACK_WORK = 5_000_000_000
LOOSER = (1.15, 1.05, 1.0, 0.93, 0.86)  # budgets for planners, as multiples of what the arena may take


@dataclass(frozen=True, slots=True)
class Planned:
    """An order with its buffers and their places. Both have been checked by memplan's own verifiers."""

    order: tuple[str, ...]  # operators; one that stands there again is computed again
    problem: MemoryProblem
    packing: Packing
    time: float  # nanoseconds, of all operators in the order
    lower_bound: int  # bytes: of any order without recomputation, where that is known; else 0

    @property
    def peak(self) -> int:
        """The live peak in bytes."""
        return live_peak(self.problem)

    @property
    def recomputations(self) -> int:
        """How many operators run again."""
        return len(self.order) - len(set(self.order))


# Ways to condense a graph for planners: joined sums, and room for slices. None is always best.
VARIANTS = ((True, False), (True, True), (False, False), (False, True))


def problem_of(graph: Graph, order: Sequence[str] | None = None, *, sharing: bool = True) -> MemoryProblem:
    """The buffers of an order (None: the given one); without `sharing` each value has its own bytes, views excepted."""
    return memory_problem(
        graph, order, kinds=("temporary", "output"), alignment=ALIGNMENT, in_place=sharing, slices=sharing
    )


def plan(
    graph: Graph,
    order: Sequence[str],
    *,
    lower_bound: int = 0,
    capacity: int | None = None,
    work: int = PACK_WORK,
) -> Planned:
    """Offsets for an order; `capacity` in bytes is what the arena may take."""
    verify_sequence(graph, order)
    problem = problem_of(graph, order).with_capacity(capacity)
    packing = solve(problem, work=work)
    verify(problem, packing)
    times = {operator.name: operator.time for operator in graph.operators}
    return Planned(tuple(order), problem, packing, sum(times[name] for name in order), lower_bound)


def given(memory: ModelMemory) -> Planned:
    """The order of the file."""
    return plan(memory.graph, [operator.name for operator in memory.graph.operators])


def best(memory: ModelMemory, *, work: int = ORDER_WORK) -> Planned:
    """The order of the least live peak that was found; never worse than the order of the file."""
    graph = memory.graph
    file_order = tuple(operator.name for operator in graph.operators)
    candidates: list[tuple[int, tuple[str, ...]]] = [(live_peak(problem_of(graph)), file_order)]
    bound = 0
    for sums in (True, False):
        small = condense(graph, sums=sums)
        found = least_order(small.graph, work=work // 2)
        expanded = small.expand(found.order)
        candidates.append((live_peak(problem_of(graph, expanded)), expanded))
        if not sums:  # what is joined then loses no order, and sharing is counted as if it always held
            bound = found.lower_bound
    peak, order = min(candidates, key=lambda one: one[0])
    return plan(graph, order, lower_bound=min(bound, peak))


def within(memory: ModelMemory, budget: int, *, start: Planned | None = None, work: int = RECOMPUTE_WORK) -> Planned:
    """An order whose arena takes at most `budget` bytes, with as little computed again as was found.

    `start`: the best order without recomputation, where the caller has it. Planners know sums in place only in the
    condensed graph, and slices not at all, so what they are told to keep may be looser than the budget: the loosest
    that keeps it costs least.

    Raises BudgetNotKept naming the least arena that was found, where the budget is below it.
    """
    start = start or best(memory, work=min(work, ORDER_WORK))
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
            arenas.append(peak)
            if peak > budget:
                continue
            candidate = plan(ordered, order)
            if candidate.packing.arena_size <= budget:
                found.append(candidate)
                break
    if not found:
        raise BudgetNotKept(budget, min(arenas))
    return min(found, key=lambda one: (one.time, one.packing.arena_size))
