"""The theorems on deadlock, held against the simulator: what the verifier rests on.

T1: with all workers resident every order ends in the same state. T2: then a program of waits for whole counters is free
of deadlock if and only if program order and waits together have no circle and every wait can be satisfied. T3:
appending, and waiting for what has been appended, gives such programs. T4: tickets that wait for blocks of earlier ones
need no residency.
"""

from __future__ import annotations

from typing import Any

import networkx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.device import cpu
from scheduler.errors import UnsafeProgram
from scheduler.program import Counter, Instruction, Item, Launch, Pinned, Program, Run, Ticketed, Wait
from scheduler.simulate import Dispatch, Hung, simulate
from scheduler.tasks import Kernel, Region, TaskGraph
from scheduler.verify.program import verify

ORDERS: tuple[Dispatch, ...] = ("in-order", "reversed", "random", "adversarial")


def whole(launch: Launch, tasks: int, slots: int) -> tuple[TaskGraph, Program]:
    """A region with all tasks as its blocks, so that counters may count any neighbours."""
    graph = TaskGraph("g", (Region("t", (Kernel("k", tasks, (1.0,)),)),) if tasks else ())
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


def counters_for(draw: st.DrawFn, tasks: int) -> tuple[Counter, ...]:
    """Some stripes of the tasks, which may overlap."""
    found = []
    for _ in range(draw(st.integers(1, 4)) if tasks else 0):
        begin = draw(st.integers(0, tasks - 1))
        found.append(Counter("t", begin, draw(st.integers(begin + 1, min(tasks, begin + 4)))))
    return tuple(found)


@st.composite
def any_lists(draw: st.DrawFn, parts: bool = True) -> tuple[Pinned, int]:
    """Runs and waits without sense, and how many runs; without `parts` for whole counters, or for more."""
    workers = draw(st.integers(1, 5))
    marks = [draw(st.lists(st.booleans(), max_size=5)) for _ in range(workers)]
    tasks = sum(map(sum, marks))
    order = iter(draw(st.permutations(range(tasks))))
    counters = counters_for(draw, tasks)
    lists: list[list[Instruction]] = []
    for mine in marks:
        lists.append([])
        for is_run in mine:
            if is_run:
                lists[-1].append(Run("t", next(order)))
            elif counters:
                number = draw(st.integers(0, len(counters) - 1))
                counts = counters[number].end - counters[number].begin
                value = draw(st.integers(0, counts + 1) if parts else st.sampled_from((0, counts, counts, counts + 1)))
                lists[-1].append(Wait(number, value))
    return Pinned(tuple(map(tuple, lists)), counters), tasks


@st.composite
def made_lists(draw: st.DrawFn) -> tuple[Pinned, int]:
    """As Rammer's interface makes them: append a run; wait for as many of a counter's as have been appended."""
    workers = draw(st.integers(1, 5))
    lists: list[list[Instruction]] = [[] for _ in range(workers)]
    tasks = draw(st.integers(1, 12))
    counters = counters_for(draw, tasks)
    for task in range(tasks):
        worker = draw(st.integers(0, workers - 1))
        for number in draw(st.sets(st.integers(0, len(counters) - 1), max_size=2)):
            there = len(range(counters[number].begin, min(task, counters[number].end)))
            lists[worker].append(Wait(number, draw(st.integers(0, there))))
        lists[worker].append(Run("t", task))
    return Pinned(tuple(map(tuple, lists)), counters), tasks


def in_circle(launch: Pinned) -> bool:
    """Every instruction is a node, reached from the one before it and, a wait, from all runs that it counts."""
    order: networkx.DiGraph = networkx.DiGraph()
    place = {one: (worker, at) for worker, instructions in enumerate(launch.workers)
             for at, one in enumerate(instructions) if isinstance(one, Run)}  # fmt: skip
    for worker, instructions in enumerate(launch.workers):
        for at, one in enumerate(instructions):
            order.add_edge((worker, at - 1), (worker, at))
            if isinstance(one, Wait) and one.value:
                counter = launch.counters[one.counter]
                order.add_edges_from(
                    (place[Run("t", block)], (worker, at)) for block in range(counter.begin, counter.end)
                )
    return not networkx.is_directed_acyclic_graph(order)


def satisfiable(launch: Pinned) -> bool:
    counts = [counter.end - counter.begin for counter in launch.counters]
    waits = [one for worker in launch.workers for one in worker if isinstance(one, Wait)]
    return all(one.value <= counts[one.counter] for one in waits)


@settings(deadline=None, max_examples=200)
@given(any_lists(), st.integers(0, 99))
def test_t1_all_orders_end_alike(case: tuple[Pinned, int], seed: int) -> None:
    launch, tasks = case
    slots = len(launch.workers)
    assert len({hangs(launch, tasks, slots, order, seed) for order in ORDERS}) == 1


@settings(deadline=None, max_examples=300)
@given(any_lists(parts=False))
def test_t2_a_circle_or_nothing(case: tuple[Pinned, int]) -> None:
    launch, tasks = case
    slots = len(launch.workers)
    free = satisfiable(launch) and not in_circle(launch)
    assert hangs(launch, tasks, slots) == (not free)
    assert accepted(launch, tasks, slots) == free, "there are no needs, so nothing else can be wrong"


@settings(deadline=None, max_examples=300)
@given(any_lists())
def test_a_wait_for_a_part_hangs_or_not_as_the_verifier_says(case: tuple[Pinned, int]) -> None:
    launch, tasks = case
    slots = len(launch.workers)
    assert hangs(launch, tasks, slots) == (not accepted(launch, tasks, slots))


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
    counters = counters_for(data.draw, tasks)
    items = []
    for task in range(tasks):
        there = [len(range(counter.begin, min(task, counter.end))) for counter in counters]
        some = data.draw(st.sets(st.integers(0, len(counters) - 1), max_size=3))
        items.append(Item(Run("t", task), tuple(Wait(one, data.draw(st.integers(0, there[one]))) for one in some)))
    launch = Ticketed(tuple(items), workers, counters)
    for slots in (1, 2, workers):
        assert accepted(launch, tasks, slots)
        for order in ORDERS:
            assert not hangs(launch, tasks, slots, order, seed=tasks)


def test_t4_is_about_the_order_of_arrival_not_about_numbers() -> None:
    """Waits for lower workers only: safe with one slot if workers come in order, and not otherwise."""
    lists: Any = ((Run("t", 0),), (Wait(0, 1), Run("t", 1)), (Wait(1, 1), Run("t", 2)))
    launch = Pinned(lists, (Counter("t", 0, 1), Counter("t", 1, 2)))
    assert not hangs(launch, 3, slots=1)
    assert hangs(launch, 3, slots=1, dispatch="reversed")
    with pytest.raises(UnsafeProgram, match="3 workers, of which only 1"):
        verify(*whole(launch, 3, 1), cpu(1))
