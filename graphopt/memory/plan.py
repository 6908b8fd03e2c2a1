"""Memory plans of a model: its own order or the best, within a budget or not, and the offsets in one arena.

Sizes are those of an arena for what nodes compute: temporaries and outputs, with views, results in place and slices
taken where they are free. Weights and inputs belong to the caller. A kernel's own scratch is not part of it: it differs
from runtime to runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.memory.tensors import ModelMemory
from kernels.listing import ALIGNMENT
from memplan.bounds import live_peak
from memplan.graph import Graph
from memplan.lifetimes import memory_problem
from memplan.packing.solve import solve
from memplan.plan import Packing
from memplan.problem import MemoryProblem
from memplan.verify.packing import verify
from memplan.verify.sequence import verify_sequence

PACK_WORK = 5_000_000_000  # steps of a search, about as many nanoseconds, where greedy packing leaves holes


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
