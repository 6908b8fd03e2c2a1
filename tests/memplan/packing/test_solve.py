"""The least arena: equal to trying everything on small problems, known by construction on larger ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from bench.memory.instances import cut, layered, structured, training, uniform
from memplan.bounds import live_peak
from memplan.packing.greedy import PLAIN, greedy, pack, perturbed
from memplan.packing.outward import Outward
from memplan.packing.reduced import CannotFit, expand, reduce
from memplan.packing.solve import solve
from memplan.plan import Packing
from memplan.problem import Alias, Buffer, InvalidProblem, MemoryProblem
from memplan.verify.packing import WrongPlan, verify
from memplan.work import Work
from tests.memplan.packing.drawn import least_arena, problems


@settings(max_examples=500, deadline=None)
@given(problems())
def test_the_least_arena_is_found_and_proved(problem: MemoryProblem) -> None:
    plan = solve(problem)
    verify(problem, plan)
    assert plan.arena_size == least_arena(problem)
    assert plan.proved_optimal


@settings(max_examples=100, deadline=None)
@given(problems(most=14, free_pins=True))
def test_every_packing_is_verified(problem: MemoryProblem) -> None:
    try:
        plan = solve(problem, work=200_000_000)
    except CannotFit as error:  # two pins
        assert "need the same bytes at one step" in str(error)
        return
    verify(problem, plan)
    greedy = pack(problem)
    verify(problem, greedy)
    assert plan.arena_size <= greedy.arena_size
    again = solve(problem, work=0, start=plan)
    verify(problem, again)
    assert again.arena_size <= plan.arena_size


@settings(max_examples=60, deadline=None)
@given(problems(most=6))
def test_one_unit_less_than_the_least_does_not_fit(problem: MemoryProblem) -> None:
    least = solve(problem).arena_size
    verify(problem.with_capacity(least), solve(problem.with_capacity(least)))
    if least:
        with pytest.raises(CannotFit, match=r"below the lower bound|ruled out by a search"):
            solve(problem.with_capacity(least - 1))


@pytest.mark.parametrize("seed", range(4))
def test_a_rectangle_that_was_cut_is_put_together_again(seed: int) -> None:
    problem = cut(120, seed)
    assert live_peak(problem) == problem.capacity == 1024
    assert pack(problem).arena_size > 1100  # greedy is far away
    plan = solve(problem)
    verify(problem, plan)
    assert plan.arena_size == 1024 and plan.proved_optimal


@pytest.mark.parametrize("seed", range(3))
def test_a_shift_by_one_is_caught_wherever_it_is(seed: int) -> None:
    # Without a free byte at any step, whatever moves runs into a neighbour or leaves the arena.
    problem = cut(60, seed, capacity=256, steps=100)
    plan = solve(problem)
    verify(problem, plan)
    for name, offset in plan.offsets.items():
        for shift in (-1, 1):
            with pytest.raises(WrongPlan, match=f"'{name}'"):
                verify(problem, replace(plan, offsets={**plan.offsets, name: offset + shift}))
        with pytest.raises(WrongPlan, match=f"'{name}' has no offset"):
            verify(problem, replace(plan, offsets={key: at for key, at in plan.offsets.items() if key != name}))


def test_views_and_slices_take_no_bytes_and_keep_their_base_alive() -> None:
    joined = MemoryProblem(
        (
            Buffer("whole", 96, 2, 4),
            Buffer("left", 64, 0, 3, alias=Alias("whole", 0)),
            Buffer("right", 32, 1, 3, alias=Alias("whole", 64)),
            Buffer("view", 32, 3, 9, alias=Alias("right", 0)),
            Buffer("late", 96, 8, 10),
        ),
        alignment=16,
    )
    plan = solve(joined)
    verify(joined, plan)
    assert plan.arena_size == 192  # the view keeps all of `whole` until 9, when `late` is there already
    assert plan.offsets["view"] == plan.offsets["whole"] + 64


def test_bytes_in_a_gap_are_used() -> None:
    problem = MemoryProblem((Buffer("a", 64, 0, 9, gaps=((2, 7),)), Buffer("b", 64, 3, 6)))
    plan = solve(problem)
    verify(problem, plan)
    assert plan.arena_size == 64


def test_buffers_of_one_layout_share_places_and_nobody_else_does() -> None:
    problem = MemoryProblem(
        (
            Buffer("a", 64, 0, 2, layout="x"),
            Buffer("b", 64, 2, 4, layout="x"),
            Buffer("c", 64, 2, 4),
            Buffer("d", 64, 4, 6),
        )
    )
    plan = solve(problem)
    verify(problem, plan)
    assert plan.offsets["a"] == plan.offsets["b"] != plan.offsets["c"] == plan.offsets["d"]
    assert plan.arena_size == plan.lower_bound == 128


def test_what_is_pinned_stays_and_the_rest_goes_around() -> None:
    problem = MemoryProblem((Buffer("pin", 16, 0, 4, offset=16), Buffer("a", 16, 0, 4), Buffer("b", 32, 1, 3)), 16)
    plan = solve(problem)
    verify(problem, plan)
    assert plan.offsets == {"pin": 16, "a": 0, "b": 32} and plan.proved_optimal


def test_pins_that_clash_are_named() -> None:
    problem = MemoryProblem((Buffer("a", 16, 0, 4, offset=0), Buffer("b", 16, 3, 5, offset=8)), 8)
    with pytest.raises(
        CannotFit, match=r"buffer 'a' \(pinned to 0\) and buffer 'b' \(pinned to 8\) need the same bytes"
    ):
        solve(problem)


def test_a_capacity_below_the_bound_is_refused_with_what_is_missing() -> None:
    problem = MemoryProblem((Buffer("a", 60, 0, 2), Buffer("b", 60, 1, 3)), alignment=1, capacity=100)
    with pytest.raises(CannotFit, match=r"capacity of 100 bytes is 20 bytes below the lower bound of 120 bytes"):
        solve(problem)


def test_an_impossible_capacity_is_ruled_out() -> None:
    # At most 10 bytes are live at once, but no packing below 12 exists.
    problem = MemoryProblem(
        tuple(
            Buffer(name, size, begin, end)
            for name, size, begin, end in [
                ("a", 4, 0, 2),
                ("b", 4, 4, 6),
                ("c", 6, 1, 3),
                ("d", 6, 3, 5),
                ("e", 4, 2, 4),
            ]
        ),
        alignment=1,
    )
    least = solve(problem)
    verify(problem, least)
    assert (live_peak(problem), least.arena_size, least.proved_optimal) == (10, least_arena(problem), True)


def test_too_little_work_is_said_and_what_is_no_limit_refused() -> None:
    problem = cut(120, 0)
    with pytest.raises(
        CannotFit, match=r"no packing within the capacity of 1024 bytes was found with the work allowed"
    ):
        solve(problem, work=0)
    assert solve(problem.with_capacity(None), work=0).limited == "work"
    with pytest.raises(InvalidProblem, match="-1 steps of work are no budget: give 0 or more"):
        solve(problem, work=-1)
    with pytest.raises(InvalidProblem, match="a time limit of -1 s is no time limit"):
        solve(problem, time_limit=-1)
    with pytest.raises(InvalidProblem, match="a time limit of nan s is no time limit"):
        solve(problem, time_limit=float("nan"))


def test_a_result_says_that_the_users_time_has_ended_it() -> None:
    problem = cut(120, 0).with_capacity(None)
    assert solve(problem, time_limit=0).limited == "time"
    assert solve(MemoryProblem((Buffer("a", 64, 0, 1),)), time_limit=0).limited is None  # nothing was left to try


def test_a_start_is_never_made_worse_and_nonsense_is_passed_over() -> None:
    problem = cut(120, 1).with_capacity(None)
    good = solve(problem)
    again = solve(problem, work=0, start=good)
    verify(problem, again)
    assert again.arena_size == good.arena_size
    nonsense = Packing({}, 0, 0, "nobody")
    verify(problem, solve(problem, work=0, start=nonsense))


def test_no_buffers_need_no_bytes() -> None:
    assert solve(MemoryProblem(())).arena_size == 0
    empty = MemoryProblem((Buffer("a", 0, 0, 1), Buffer("b", 0, 0, 1, offset=64)))
    plan = solve(empty)
    verify(empty, plan)
    assert plan.offsets == {"a": 0, "b": 64}


@pytest.mark.parametrize(("make", "most"), [(structured, 1.01), (uniform, 1.01)])
def test_outward_from_the_peak_comes_close_to_the_bound(make: type, most: float) -> None:
    problem: MemoryProblem = make(4000, 3)
    reduced = reduce(problem)
    heights = []
    for found in Outward(reduced).runs(6, Work(1)):
        arena = found.height * reduced.unit
        verify(problem, Packing(expand(problem, reduced, found.offsets), arena, live_peak(problem), found.solver))
        heights.append(found.height)
    limit = min(heights) + reduced.bound // 100
    outward = Outward(reduced)
    tries = (outward.under(limit, 20, Work(10**9)) for _ in range(6))
    below = next(found for found in tries if found is not None)
    assert below.height <= limit
    arena = below.height * reduced.unit
    verify(problem, Packing(expand(problem, reduced, below.offsets), arena, live_peak(problem), below.solver))
    plan = solve(problem, work=4_000_000_000)
    verify(problem, plan)
    assert plan.arena_size <= most * live_peak(problem)


@pytest.mark.parametrize("make", [structured, training, layered, uniform])
@pytest.mark.parametrize("work", [0, 300_000_000])
def test_no_packing_is_above_the_plainest_greedy(make: Callable[[int, int], MemoryProblem], work: int) -> None:
    problem = make(4000, 8)
    reduced = reduce(problem)
    plain = min(placed.height for placed in greedy(reduced, PLAIN)) * reduced.unit
    plan = solve(problem, work=work)
    verify(problem, plan)
    assert plan.arena_size <= plain


def test_equal_buffers_are_perturbed() -> None:
    # Of one size and in one layer all orders are the same but for chance.
    reduced = reduce(MemoryProblem(tuple(Buffer(str(n), 64 + n % 2, n // 3, n // 3 + 2 + n % 5) for n in range(200))))
    turns = [perturbed(reduced, turn) for turn in range(12)]
    assert len({placed.offsets.tobytes() for placed in turns}) > 8
    assert turns[3].offsets.tolist() == perturbed(reduced, 3).offsets.tolist()


def test_the_same_problem_is_packed_the_same_way() -> None:
    problem = structured(1000, 5)
    assert pack(problem) == pack(problem)
    assert solve(cut(80, 2)) == solve(cut(80, 2))


def test_a_view_lies_in_a_place_that_its_layout_shares() -> None:
    problem = MemoryProblem(
        (
            Buffer("a", 64, 0, 3, layout="x"),
            Buffer("view", 16, 1, 3, alias=Alias("a", 16)),
            Buffer("b", 64, 4, 6, layout="x"),
        ),
        alignment=16,
    )
    plan = solve(problem)
    verify(problem, plan)
    assert plan.arena_size == 64 and plan.offsets["view"] == 16
    with pytest.raises(WrongPlan, match=r"'a' .* and 'b' .* share bytes, which only one place"):
        verify(problem, replace(plan, offsets={"a": 0, "view": 16, "b": 16}, arena_size=80))
