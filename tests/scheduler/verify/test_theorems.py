"""The theorems on deadlock, held against the simulator: what the verifier rests on.

T1: with all workers resident every order ends in the same state. T2: then a program is free of deadlock if and only if
program order and waits together have no circle and every wait can be satisfied. T3: appending, and waiting for what has
been appended, gives such programs. T4: tickets that wait for earlier ones need no residency.
"""

from __future__ import annotations

from typing import Any

import networkx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.device import cpu
from scheduler.errors import UnsafeProgram
from scheduler.program import Instruction, Item, Launch, Pinned, Program, Run, Ticketed, Wait
from scheduler.simulate import Dispatch, Hung, simulate
from scheduler.tasks import Kernel, Region, TaskGraph
from scheduler.verify.program import verify

ORDERS: tuple[Dispatch, ...] = ("in-order", "reversed", "random", "adversarial")


def whole(launch: Launch, tasks: int, slots: int) -> tuple[TaskGraph, Program]:
    graph = TaskGraph("g", tuple(Region(f"t{task}", (Kernel("k", 1, (1.0,)),)) for task in range(tasks)))
    return graph, Program("g", cpu(slots).name, {region.name: 0 for region in graph.regions}, (launch,))


def hangs(launch: Launch, tasks: int, slots: int, dispatch: Dispatch = "in-order", seed: int = 0) -> bool:
    graph, program = whole(launch, tasks, slots)
    try:
        found = simulate(graph, program, cpu(slots), dispatch=dispatch, seed=seed, spread=0.5)
    except Hung:
        return True
    assert len(found.end) == tasks and found.makespan >= found.end.max(initial=0.0)
    return False


def accepted(launch: Launch, tasks: int, slots: int) -> bool:
    graph, program = whole(launch, tasks, slots)
    try:
        verify(graph, program, cpu(slots))
    except UnsafeProgram:
        return False
    return True


@st.composite
def any_lists(draw: st.DrawFn) -> tuple[Pinned, int]:
    """Runs and waits without sense, and how many runs."""
    workers = draw(st.integers(1, 5))
    lists: list[list[Instruction]] = []
    tasks = 0
    for _ in range(workers):
        lists.append([])
        for _ in range(draw(st.integers(0, 5))):
            if draw(st.booleans()):
                lists[-1].append(Run(f"t{tasks}", 0))
                tasks += 1
            else:
                lists[-1].append(Wait(draw(st.integers(0, workers - 1)), draw(st.integers(0, 2))))
    return Pinned(tuple(map(tuple, lists))), tasks


@st.composite
def made_lists(draw: st.DrawFn) -> tuple[Pinned, int]:
    """As Rammer's interface makes them: append a run; wait for runs that have been appended."""
    workers = draw(st.integers(1, 5))
    lists: list[list[Instruction]] = [[] for _ in range(workers)]
    done = [0] * workers
    tasks = draw(st.integers(1, 12))
    for task in range(tasks):
        worker = draw(st.integers(0, workers - 1))
        for other in draw(st.sets(st.integers(0, workers - 1), max_size=2)):
            lists[worker].append(Wait(other, draw(st.integers(0, done[other]))))
        lists[worker].append(Run(f"t{task}", 0))
        done[worker] += 1
    return Pinned(tuple(map(tuple, lists))), tasks


def in_circle(launch: Pinned) -> bool:
    """Every instruction is a node, reached from the one before it and, a wait, from the run it waits for."""
    order: networkx.DiGraph = networkx.DiGraph()
    runs = [[at for at, one in enumerate(worker) if isinstance(one, Run)] for worker in launch.workers]
    for worker, instructions in enumerate(launch.workers):
        for at, one in enumerate(instructions):
            order.add_edge((worker, at - 1), (worker, at))
            if isinstance(one, Wait) and one.runs:
                order.add_edge((one.worker, runs[one.worker][one.runs - 1]), (worker, at))
    return not networkx.is_directed_acyclic_graph(order)


def satisfiable(launch: Pinned) -> bool:
    runs = [sum(isinstance(one, Run) for one in worker) for worker in launch.workers]
    return all(one.runs <= runs[one.worker] for worker in launch.workers for one in worker if isinstance(one, Wait))


@settings(deadline=None, max_examples=200)
@given(any_lists(), st.integers(0, 99))
def test_t1_all_orders_end_alike(case: tuple[Pinned, int], seed: int) -> None:
    launch, tasks = case
    slots = len(launch.workers)
    assert len({hangs(launch, tasks, slots, order, seed) for order in ORDERS}) == 1


@settings(deadline=None, max_examples=300)
@given(any_lists())
def test_t2_a_circle_or_nothing(case: tuple[Pinned, int]) -> None:
    launch, tasks = case
    slots = len(launch.workers)
    free = satisfiable(launch) and not in_circle(launch)
    assert hangs(launch, tasks, slots) == (not free)
    assert accepted(launch, tasks, slots) == free, "there are no needs, so nothing else can be wrong"


@settings(deadline=None, max_examples=200)
@given(made_lists(), st.sampled_from(ORDERS), st.integers(0, 99))
def test_t3_append_and_wait_makes_no_circle(case: tuple[Pinned, int], dispatch: Dispatch, seed: int) -> None:
    launch, tasks = case
    slots = len(launch.workers)
    assert not hangs(launch, tasks, slots, dispatch, seed) and accepted(launch, tasks, slots)


@settings(deadline=None, max_examples=200)
@given(made_lists(), st.integers(0, 99), st.data())
def test_t3_does_not_help_without_residency(case: tuple[Pinned, int], seed: int, data: st.DataObject) -> None:
    """It may hang or may not: with a slot too few it is refused, whatever the luck of the dispatch."""
    launch, tasks = case
    assume(len(launch.workers) > 1)
    assert not accepted(launch, tasks, data.draw(st.integers(1, len(launch.workers) - 1)))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_t4_tickets_need_no_residency(data: st.DataObject) -> None:
    tasks, workers = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 9))
    items = tuple(
        Item(Run(f"t{task}", 0), tuple(data.draw(st.sets(st.integers(0, task - 1), max_size=3)) if task else ()))
        for task in range(tasks)
    )
    for slots in (1, 2, workers):
        assert accepted(Ticketed(items, workers), tasks, slots)
        for order in ORDERS:
            assert not hangs(Ticketed(items, workers), tasks, slots, order, seed=tasks)


def test_t4_is_about_the_order_of_arrival_not_about_numbers() -> None:
    """Waits for lower workers only: safe with one slot if workers come in order, and not otherwise."""
    lists: Any = ((Run("t0", 0),), (Wait(0, 1), Run("t1", 0)), (Wait(1, 1), Run("t2", 0)))
    assert not hangs(Pinned(lists), 3, slots=1)
    assert hangs(Pinned(lists), 3, slots=1, dispatch="reversed")
    with pytest.raises(UnsafeProgram, match="3 workers, of which only 1"):
        verify(*whole(Pinned(lists), 3, 1), cpu(1))
