"""Greedy packing: correct on anything drawn, the least arena where one can see it, and a verifier that says no."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.bounds import live_peak
from memplan.packing.greedy import pack
from memplan.problem import Buffer, InvalidProblem, MemoryProblem
from memplan.verify.packing import WrongPlan, verify

problems = st.builds(
    lambda drawn, alignment: MemoryProblem(
        tuple(Buffer(f"b{n}", size, begin, begin + length) for n, (size, begin, length) in enumerate(drawn)), alignment
    ),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 12), st.integers(1, 8)), max_size=25),
    st.sampled_from([1, 16, 64]),
)


@settings(deadline=None)
@given(problems)
def test_every_plan_is_verified(problem: MemoryProblem) -> None:
    plan = pack(problem)
    verify(problem, plan)
    assert plan.lower_bound == live_peak(problem)
    assert plan.arena_size <= sum(problem.aligned(buffer.size) for buffer in problem.buffers)


def test_a_chain_needs_two_buffers_at_a_time() -> None:
    chain = MemoryProblem(tuple(Buffer(f"v{step}", 100, step, step + 2) for step in range(10)), alignment=1)
    plan = pack(chain)
    assert plan.arena_size == plan.lower_bound == 200 and plan.fragmentation == 0


def test_order_by_size_alone_is_not_enough() -> None:
    # The long one must lie below or above everything; placing it third, by size, leaves a hole.
    problem = MemoryProblem(
        (Buffer("a", 30, 0, 2), Buffer("b", 30, 4, 6), Buffer("long", 10, 1, 5), Buffer("c", 20, 2, 4)), alignment=1
    )
    assert pack(problem).arena_size == live_peak(problem) == 40


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"a": 8, "b": 0}, "'b' and 'a' share bytes at step 1"),
        ({"a": 0}, "'b' has no offset"),
        ({"a": 0, "b": 20}, "'b' starts at 20, which is no multiple of 16"),
        ({"a": 0, "b": 160}, "'b' ends at 176, behind the arena's end"),
    ],
)
def test_a_wrong_plan_is_named(change: dict[str, int], fault: str) -> None:
    problem = MemoryProblem(
        (Buffer("a", 16, 0, 2), Buffer("b", 16, 1, 3)), alignment=16 if "8" not in str(change) else 8
    )
    good = pack(problem)
    with pytest.raises(WrongPlan, match=fault):
        verify(problem, replace(good, offsets=change))


def test_a_bound_that_is_too_low_is_found() -> None:
    problem = MemoryProblem((Buffer("a", 16, 0, 2), Buffer("b", 16, 1, 3)), alignment=16)
    with pytest.raises(WrongPlan, match="the bound 16 lies not between"):
        verify(problem, replace(pack(problem), lower_bound=16))


def test_impossible_buffers_are_refused() -> None:
    with pytest.raises(InvalidProblem, match="lives from step 3 to before 3: never"):
        Buffer("a", 1, 3, 3)
    with pytest.raises(InvalidProblem, match="has -1 bytes"):
        Buffer("a", -1, 0, 1)
    with pytest.raises(InvalidProblem, match="two buffers are named 'a'"):
        MemoryProblem((Buffer("a", 1, 0, 1), Buffer("a", 1, 0, 1)))
