"""The integer programs against all placements of small graphs, and against the simulator that executes their plans."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.graph import Graph, Kind, Operator, Value
from memplan.tiers import fixed, heuristic, moving, online
from memplan.tiers.machine import Machine
from memplan.tiers.placement import Placement, TiersTooSmall, placement
from memplan.tiers.plan import written
from memplan.tiers.simulate import simulate
from memplan.work import Work
from tests.memplan.tiers.oracle import least_static_time, least_sync_time, small_machine


@st.composite
def small_graphs(draw: st.DrawFn, most: int = 4) -> Graph:
    """Up to five values and as many operators, an input and perhaps a constant among them; nothing is shared."""
    count = draw(st.integers(2, most))
    values = [Value("x", draw(st.integers(1, 9)), "input")]
    if draw(st.booleans()):
        values.append(Value("w", draw(st.integers(1, 9)), "constant"))
    operators = []
    for number in range(count):
        known = [value.name for value in values]
        reads = tuple(sorted(draw(st.sets(st.sampled_from(known), min_size=1, max_size=3))))
        kind: Kind = "output" if number == count - 1 else "temporary"
        values.append(Value(f"v{number}", draw(st.integers(1, 9)), kind))
        operators.append(Operator(f"op{number}", reads, (f"v{number}",), float(draw(st.sampled_from([0, 20, 60])))))
    return Graph(tuple(values), tuple(operators))


def capacities(problem: Placement) -> list[list[int]]:
    return [[tier.capacity] * len(problem.compute) for tier in problem.machine.tiers]


def plenty() -> Work:
    return Work(60_000_000_000)


def fitting(graph: Graph, machine: Machine) -> Placement | None:
    problem = placement(graph, machine, alignment=1)
    try:
        problem.check_room()
    except TiersTooSmall:
        return None
    return problem


@settings(max_examples=40, deadline=None, derandomize=True)
@given(small_graphs(), st.integers(0, 25), st.sampled_from([12, 1000]), st.sampled_from([None, 30]))
def test_a_static_placement_is_the_best_of_all(graph: Graph, fast: int, slow: int, third: int | None) -> None:
    machine = small_machine(fast, slow, third)
    least = least_static_time(graph, machine)
    problem = fitting(graph, machine)
    if problem is None or least == float("inf"):
        return
    courses, solved = fixed.place(problem, capacities(problem), plenty(), 0.0)
    assert solved.objective == pytest.approx(least, rel=1e-6)
    assert solved.bound == pytest.approx(least, rel=1e-6)
    assert simulate(problem, *written(problem, courses)).time == pytest.approx(least, rel=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(small_graphs(), st.integers(5, 25), st.sampled_from([25, 1000]))
def test_no_sequence_of_waiting_moves_is_faster(graph: Graph, fast: int, slow: int) -> None:
    """Moves anywhere do not beat those next to uses, whether or not there is room for copies in the slow tier."""
    machine = small_machine(fast, slow)
    problem = fitting(graph, machine)
    least = least_sync_time(graph, machine)
    if problem is None or least == float("inf"):
        return
    courses, solved = moving.place(problem, capacities(problem), False, plenty(), 0.0)
    assert solved.objective == pytest.approx(least, rel=1e-6)
    assert simulate(problem, *written(problem, courses)).time == pytest.approx(least, rel=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(small_graphs(7), st.integers(5, 30), st.sampled_from([None, 40]))
def test_what_programs_promise_is_what_the_simulator_sees(graph: Graph, fast: int, third: int | None) -> None:
    machine = small_machine(fast, 1000, third)
    problem = fitting(graph, machine)
    if problem is None:
        return
    room = capacities(problem)
    times = []
    for overlapped in (False, True):
        courses, solved = moving.place(problem, room, overlapped, plenty(), 0.0)
        assert simulate(problem, *written(problem, courses)).time == pytest.approx(solved.objective, rel=1e-6)
        times.append(solved.objective)
    static = fixed.place(problem, room, plenty(), 0.0)[1].objective
    assert times[1] <= times[0] * (1 + 1e-6) and times[0] <= static * (1 + 1e-6), "more freedom is never slower"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(small_graphs(7), st.integers(5, 30), st.sampled_from(["static", "sync", "async"]))
def test_the_heuristic_lies_between_the_optimum_and_first_touch(graph: Graph, fast: int, mode: str) -> None:
    problem = fitting(graph, small_machine(fast))
    if problem is None:
        return
    room = capacities(problem)
    slow = online.all_slow(problem, room)
    found = simulate(problem, *written(problem, heuristic.plan(problem, room, mode, slow))).time
    if mode == "static":
        best = fixed.place(problem, room, plenty(), 0.0)[1].bound
    else:
        best = moving.place(problem, room, mode == "async", plenty(), 0.0)[1].bound
    assert found >= best * (1 - 1e-6)
    assert found <= best * 1.25, "on graphs of a few values, exchanging groups finds nearly the best"
