"""Whole plans: every method and mode passes the verifier, offsets fit, and figures are ordered as they must be."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.graph import Graph, Operator, Value
from memplan.tiers.machine import Machine, machine
from memplan.tiers.placement import TiersTooSmall, placement
from memplan.tiers.plan import Method, Mode, TierPlan, all_fast_time, plan_tiers
from memplan.tiers.simulate import simulate
from memplan.verify.tiers import verify_tiers
from tests.memplan.graphs import graphs
from tests.memplan.tiers.networks import training
from tests.memplan.tiers.oracle import small_machine

MODES: tuple[Mode, ...] = get_args(Mode)
METHODS: tuple[Method, ...] = get_args(Method)


def checked(graph: Graph, target: Machine, mode: Mode, method: Method, alignment: int = 64) -> TierPlan:
    plan = plan_tiers(graph, target, mode=mode, method=method, alignment=alignment)
    verify_tiers(graph, plan.memory, plan.capacities, plan.aliases, alignment)
    assert all_fast_time(graph, target, alignment=alignment) <= plan.time * (1 + 1e-9)
    assert plan.bound <= plan.time and plan.memory.time == plan.time == plan.simulation.time
    return plan


def scarce(graph: Graph, share: float) -> Machine:
    """dram+pmem with a part of what the graph needs at its peak as DRAM."""
    target = machine("dram+pmem")
    return target.with_capacity("dram", int(max(placement(graph, target).live()) * share))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(graphs(), st.integers(0, 150), st.sampled_from(MODES), st.sampled_from(METHODS), st.booleans())
def test_every_plan_of_a_drawn_graph_is_verified(
    graph: Graph, fast: int, mode: Mode, method: Method, third: bool
) -> None:
    """Views, results in place, slices of concatenations and workspaces among the values."""
    target = small_machine(fast, 120 if third else 2000, 2000 if third else None)
    try:
        checked(graph, target, mode, method, alignment=1)
    except TiersTooSmall as error:
        assert "too " in str(error)


@pytest.mark.parametrize("mode", MODES)
def test_methods_of_a_training_network_are_ordered(mode: Mode) -> None:
    graph = training(12)
    target = scarce(graph, 0.3)
    plans = {method: checked(graph, target, mode, method) for method in METHODS}
    assert plans["ilp"].time <= plans["heuristic"].time * (1 + 1e-9)
    assert plans["heuristic"].time <= plans["first-touch"].time <= plans["all-slow"].time
    assert plans["heuristic"].time >= plans["ilp"].bound
    assert plans["ilp"].gap <= 0.01
    assert plans["ilp"].solver == "HiGHS"


@pytest.mark.parametrize("work", [0, 1, 10**9])
@pytest.mark.parametrize("mode", MODES)
def test_the_program_keeps_the_heuristics_plan_where_that_is_faster(mode: Mode, work: int) -> None:
    graph = training(9)
    target = scarce(graph, 0.35)
    program = plan_tiers(graph, target, mode=mode, work=work)
    assert program.time <= plan_tiers(graph, target, mode=mode, method="heuristic").time
    assert work > 1 or program.limited == "work"


@pytest.mark.parametrize("work", [2_000_000, 50_000_000, 500_000_000])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_program_that_is_interrupted_gives_the_same_plan_each_time(mode: Mode, work: int) -> None:
    graph = training(14)
    target = scarce(graph, 0.25)
    one, other = (plan_tiers(graph, target, mode=mode, work=work, gap=0.0) for _ in range(2))
    verify_tiers(graph, one.memory, one.capacities, one.aliases, one.alignment)
    assert (one.memory, one.bound, one.solver) == (other.memory, other.bound, other.solver)
    assert one.limited == "work"


def test_moves_make_a_training_network_faster() -> None:
    graph = training(12)
    target = scarce(graph, 0.3)
    static, sync, overlapped = (checked(graph, target, mode, "ilp") for mode in MODES)
    assert overlapped.time <= sync.time < static.time
    assert not static.memory.moves
    assert all(not move.overlapped for move in sync.memory.moves)


def test_copies_that_are_waited_for_are_told_apart_from_operators() -> None:
    """Eight bytes are read four times. Fetched once, at 0.5 bytes/ns, they are read at 1 and not at 0.2 bytes/ns."""
    values = (Value("w", 8, "constant"), Value("x", 8, "input"), *(Value(f"v{n}", 8, "output") for n in range(4)))
    operators = [Operator("first", ("x",), ("v0",))]
    operators += [Operator(f"op{n}", ("w",), (f"v{n}",)) for n in range(1, 4)]
    graph = Graph(values, tuple(operators))
    plan = checked(graph, small_machine(24), "sync", "ilp", alignment=1)
    assert plan.time == pytest.approx(sum(plan.simulation.operators) + sum(plan.simulation.waits))
    again = simulate(placement(graph, small_machine(24), 1), plan.memory.stays, plan.memory.moves)
    assert again == plan.simulation


def test_the_same_input_gives_the_same_plan() -> None:
    graph = training(8)
    target = scarce(graph, 0.4)
    assert plan_tiers(graph, target, mode="async", method="heuristic").memory == (
        plan_tiers(graph, target, mode="async", method="heuristic").memory
    )


def test_enough_of_the_fast_tier_costs_nothing() -> None:
    graph = training(5)
    for mode in MODES:
        plan = checked(graph, machine("dram+pmem"), mode, "ilp")
        assert plan.time == pytest.approx(all_fast_time(graph, machine("dram+pmem")))
        assert plan.gap == pytest.approx(0.0, abs=1e-9)


def test_one_tier_is_a_machine_too() -> None:
    graph = training(3)
    hbm = machine("hbm+host")
    alone = Machine("card", hbm.tiers[:1])
    for mode in MODES:
        plan = checked(graph, alone, mode, "ilp")
        assert {stay.tier for stay in plan.memory.stays} == {"hbm"}


def test_a_graph_without_operators_has_an_empty_plan() -> None:
    for mode in MODES:
        assert checked(Graph((), ()), machine("dram+pmem"), mode, "ilp").time == 0.0
        weights = checked(Graph((Value("w", 64, "constant"),), ()), machine("dram+pmem"), mode, "ilp")
        assert weights.time == 0.0 and len(weights.memory.stays) == 1


def test_tiers_that_are_too_small_are_refused_with_what_is_missing() -> None:
    graph = Graph((Value("x", 100, "input"), Value("y", 50, "output")), (Operator("op", ("x",), ("y",)),))
    with pytest.raises(TiersTooSmall) as raised:
        plan_tiers(graph, small_machine(40, 60), alignment=1)
    assert str(raised.value) == (
        "the model needs 150 bytes at once and the tiers of 'small' hold 100: 50 bytes too few."
    )
    with pytest.raises(TiersTooSmall) as raised:
        plan_tiers(graph, small_machine(70, 80), alignment=1)
    assert str(raised.value) == "'x' has 100 bytes and the largest tier, 'slow', holds 80: 20 bytes too few."
