"""The order of nodes of the least live peak. It computes nothing again, so every other lever starts from it."""

from __future__ import annotations

from graphopt.memory.plan import PACK_WORK, Planned, plan, problem_of
from graphopt.memory.tensors import ModelMemory
from memplan.bounds import live_peak
from memplan.condense import condense
from memplan.ordering.solve import order as least_order

ORDER_WORK = 20_000_000_000  # steps of searching, as memplan counts them: about as many nanoseconds


def best_order(memory: ModelMemory, *, work: int = ORDER_WORK) -> Planned:
    """The order of the least live peak that was found; never worse than the order of the file.

    `work` are steps of searching for orders; offsets have a third as many, as far as they are usual.
    """
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
    return plan(graph, order, lower_bound=min(bound, peak), work=min(PACK_WORK, work // 3))
