"""Recomputation: always within the budget, as cheap as can be where everything can be tried, refused with reason."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.graph import Graph, Operator, Value
from memplan.ordering import order
from memplan.problem import InvalidProblem
from memplan.remat import BudgetTooSmall, pareto, recompute
from memplan.verify.packing import WrongPlan
from memplan.verify.sequence import verify_sequence
from models.training import resnet
from tests.memplan.ordering.test_order import random_graph
from tests.memplan.remat.exhaustive import least_time, tiny_graph


def given_order(graph: Graph) -> tuple[str, ...]:
    return tuple(operator.name for operator in graph.operators)


def mirrored_chain(length: int, size: int = 10) -> Graph:
    """f0 .. fn, then backward operators that read the gradient behind them and the forward value before them."""
    values, operators = [Value("x", size, "input")], []
    for number in range(length):
        before = f"f{number - 1}" if number else "x"
        values.append(Value(f"f{number}", size))
        operators.append(Operator(f"f{number}", (before,), (f"f{number}",), 1.0))
    for number in reversed(range(length)):
        gradient = (f"b{number + 1}",) if number + 1 < length else ()
        saved = f"f{number}"
        values.append(Value(f"b{number}", size, "temporary" if number else "output"))
        operators.append(Operator(f"b{number}", (*gradient, saved), (f"b{number}",), 2.0))
    return Graph(tuple(values), tuple(operators))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(5, 7), st.sampled_from([0.7, 0.8, 0.9, 0.97]))
def test_small_graphs_are_solved_as_cheaply_as_can_be(seed: int, count: int, share: float) -> None:
    graph = tiny_graph(seed, count)
    budget = int(order(graph).peak * share)
    best = least_time(graph, budget)
    try:
        found = recompute(graph, budget, work=5_000_000_000)
    except BudgetTooSmall as error:
        assert best is None, "there is a plan"
        assert error.least > budget
        if error.proved:
            assert least_time(graph, error.least - 1) is None, "the bound holds for every plan"
        return
    assert verify_sequence(graph, found.order, budget) == found.peak
    assert found.time == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.integers(20, 40), st.sampled_from([0.6, 0.8, 0.95]))
def test_larger_graphs_keep_the_budget(seed: int, count: int, share: float) -> None:
    graph = random_graph(seed, count, density=0.15)
    budget = int(verify_sequence(graph, given_order(graph)) * share)
    try:
        found = recompute(graph, budget, work=300_000_000)
    except BudgetTooSmall as error:
        assert error.least > budget
        return
    assert verify_sequence(graph, found.order, budget) == found.peak >= found.lower_bound
    times = {operator.name: operator.time for operator in graph.operators}
    assert found.time == pytest.approx(sum(times[name] for name in found.order))
    assert found.time - found.extra_time == pytest.approx(sum(times.values()))


def test_a_budget_that_the_order_keeps_costs_nothing() -> None:
    graph = mirrored_chain(10)
    found = recompute(graph, verify_sequence(graph, given_order(graph)))
    assert found.extra_time == 0 and found.extra_percent == 0 and found.solver == "order"


@pytest.mark.parametrize(("length", "share", "most"), [(16, 0.5, 0.35), (64, 0.3, 0.35), (100, 0.2, 0.4)])
def test_a_chain_needs_less_than_one_more_forward_pass(length: int, share: float, most: float) -> None:
    # Chen's bound: with segments of the square root of the length, each forward operator runs at most once more.
    graph = mirrored_chain(length)
    budget = int(verify_sequence(graph, given_order(graph)) * share)
    found = recompute(graph, budget, work=2_000_000_000)
    assert verify_sequence(graph, found.order, budget) <= budget
    assert 0 < found.extra_time <= most * 3 * length


def test_workspaces_count() -> None:
    # The backward operator's workspace does not fit beside both saved values.
    values = (Value("a", 10), Value("b", 10), Value("c", 1), Value("d", 1, "output"))
    operators = (
        Operator("make a", (), ("a",), 1.0), Operator("make b", (), ("b",), 3.0),
        Operator("work", (), ("c",), 5.0, 15, after=("make a", "make b")),
        Operator("end", ("a", "b", "c"), ("d",), 1.0),
    )  # fmt: skip
    graph = Graph(values, operators)
    assert verify_sequence(graph, given_order(graph)) == 36
    found = recompute(graph, 26)
    assert verify_sequence(graph, found.order, 26) == 26 and found.extra_time == 1.0
    with pytest.raises(BudgetTooSmall, match="a budget of 20 bytes is 2 bytes too small: no plan needs less than 22"):
        recompute(graph, 20)


def test_what_may_run_once_runs_once() -> None:
    chain = mirrored_chain(12)
    dice = tuple(
        Operator(one.name, one.inputs, one.outputs, one.time, recomputable=one.name not in ("f3", "f7"))
        for one in chain.operators
    )
    graph = Graph(chain.values, dice)
    found = recompute(graph, int(verify_sequence(graph, given_order(graph)) * 0.75), work=2_000_000_000)
    assert found.order.count("f3") == found.order.count("f7") == 1 and found.extra_time > 0
    verify_sequence(graph, found.order, found.peak)


def test_a_budget_that_no_plan_is_known_for_says_what_is() -> None:
    graph = mirrored_chain(40)
    with pytest.raises(BudgetTooSmall, match=r"30 bytes is \d+ bytes too small: the least that was found is"):
        recompute(graph, 30, work=200_000_000)


def test_less_memory_never_costs_less_time() -> None:
    graph = resnet([1, 1, 1, 1], 2, 64).training()
    front = pareto(graph, 6, work=6_000_000_000)
    assert len(front) >= 3 and front[0].extra_time == 0
    for more, less in pairwise(front):
        assert less.peak < more.peak and less.time > more.time
    for plan in front:
        assert verify_sequence(graph, plan.order, plan.peak) == plan.peak
    with pytest.raises(InvalidProblem, match="a front of 0 points"):
        pareto(graph, 0)


def test_the_same_plan_every_time() -> None:
    graph = mirrored_chain(24)
    assert recompute(graph, 140) == recompute(graph, 140)


def test_a_dropped_recomputation_and_every_broken_swap_are_caught() -> None:
    graph = mirrored_chain(20)
    budget = 120
    found = recompute(graph, budget, work=2_000_000_000)
    operators = {one.name: one for one in graph.operators}
    again = [step for step, name in enumerate(found.order) if name in found.order[:step]]
    assert again
    for step in again:
        with pytest.raises(WrongPlan):
            verify_sequence(graph, (*found.order[:step], *found.order[step + 1 :]), budget)
    swapped = 0
    for step, (one, other) in enumerate(pairwise(found.order)):
        if one in found.order[:step] or not set(operators[one].outputs) & set(operators[other].inputs):
            continue  # two that need nothing of each other, or what was there before, may well change places
        swapped += 1
        with pytest.raises(WrongPlan):
            verify_sequence(graph, (*found.order[:step], other, one, *found.order[step + 2 :]), budget)
    assert swapped > 10


def test_nothing_to_compute() -> None:
    assert recompute(Graph((), ()), 0).order == ()
