"""Packings side by side: every one is verified, each is lower than asked for, and more of them get lower."""

from __future__ import annotations

from hypothesis import assume, given, settings

from bench.memory.instances import uniform
from memplan.bounds import live_peak
from memplan.packing.beam import SOLVER, Beam
from memplan.packing.greedy import PLAIN, Placed, greedy, packing
from memplan.packing.reduced import Reduced, expand, reduce
from memplan.packing.solve import MOST_SEARCHED, solve
from memplan.problem import Buffer, MemoryProblem
from memplan.verify.packing import verify
from memplan.work import Work
from tests.memplan.packing.drawn import problems

PLENTY = 10**12  # steps


def _verified(problem: MemoryProblem, reduced: Reduced, placed: Placed) -> None:
    verify(problem, packing(problem, reduced, placed, proved=False))


@settings(max_examples=150, deadline=None)
@given(problems(most=12))
def test_small_problems_with_gaps_and_alignments_are_packed(problem: MemoryProblem) -> None:
    reduced = reduce(problem)
    assume(reduced.rows > 0 and (reduced.pinned < 0).all())
    beam = Beam(reduced)
    for stack in beam.stacks():
        for width in (1, 3):
            placed = beam.below(None, stack, width, Work(PLENTY))
            assert placed is not None
            _verified(problem, reduced, placed)


def test_each_packing_is_lower_than_asked_for_and_the_same_again() -> None:
    problem = uniform(4000, 3)
    reduced = reduce(problem)
    again = Beam(reduced)
    beam, height, found = Beam(reduced), 1 << 60, 0
    for width, back in ((1, None), (8, None), (8, 100), (16, None), (16, 300)):
        for stack in beam.stacks():
            placed = beam.below(height, stack, width, Work(PLENTY), back)
            other = again.below(height, stack, width, Work(PLENTY), back)
            assert (placed is None) == (other is None)
            if placed is not None and other is not None:
                assert placed.height < height and placed.offsets.tolist() == other.offsets.tolist()
                _verified(problem, reduced, placed)
                height, found = placed.height, found + 1
    assert found > 1
    assert height <= 1.03 * reduced.bound < min(placed.height for placed in greedy(reduced, PLAIN))
    assert beam.below(reduced.bound, 0, 1, Work(PLENTY)) is None


def test_work_ends_it() -> None:
    reduced = reduce(uniform(4000, 3))
    work = Work(10**6)
    assert Beam(reduced).below(None, 0, 8, work) is None
    assert work.over() and work.left > -(10**6)


def test_a_hole_is_kept_for_what_leaves_with_its_neighbour() -> None:
    # Holes of 4 bytes open at 4 beside `late` and far from it: `next` leaves together with `late`.
    problem = MemoryProblem(
        (
            Buffer("base", 8, 0, 6),
            Buffer("short", 4, 0, 4),
            Buffer("soon", 8, 0, 5),
            Buffer("long", 4, 0, 4),
            Buffer("late", 8, 0, 12),
            Buffer("next", 4, 4, 12),
            Buffer("fifth", 4, 5, 6),
            Buffer("sixth", 4, 6, 7),
            Buffer("seventh", 4, 7, 12),
        ),
        alignment=4,
    )
    reduced = reduce(problem)
    placed = Beam(reduced).below(None, 0, 1, Work(PLENTY))
    assert placed is not None and placed.height == reduced.bound
    offsets = expand(problem, reduced, placed.offsets)
    assert (offsets["late"], offsets["next"]) == (24, 20)


def test_what_lies_too_high_is_packed_again_with_a_little_before_it() -> None:
    """In time, both sides of the peak: most rows keep their places, and the work is a fraction of a new packing's."""
    problem = uniform(4000, 11)
    reduced = reduce(problem)
    beam = Beam(reduced)
    first = beam.below(None, 0, 1, Work(PLENTY))
    assert first is not None and first.height > reduced.bound
    new, mended = Work(PLENTY), Work(PLENTY)
    assert Beam(reduced).below(None, 0, 16, new) is not None
    placed = next(found for _ in range(20) if (found := beam.below(first.height, 0, 16, mended, 50)) is not None)
    assert placed.height < first.height
    _verified(problem, reduced, placed)
    assert (placed.offsets == first.offsets).mean() > 0.25
    assert PLENTY - mended.left < PLENTY - new.left


def _height(beam: Beam, stack: int) -> int:
    placed = beam.below(None, stack, 1, Work(PLENTY))
    assert placed is not None
    return placed.height


def test_a_stack_between_two_that_favor_different_sides_is_lower() -> None:
    """Here one side rises to 1.9 % above the bound from every stack to begin with, and mixing them leaves 1.0 %."""
    reduced = reduce(uniform(4000, 13))
    beam = Beam(reduced)
    lowest = min(_height(beam, stack) for stack in beam.stacks())
    mixed = []
    for _ in range(5):
        stack = beam.mixed()
        assert stack is not None
        mixed.append(_height(beam, stack))
    assert lowest > 1.015 * reduced.bound
    assert min(mixed) < 1.012 * reduced.bound
    assert set(beam.stacks()) == set(range(3 + 3 + 5))


def test_nothing_is_mixed_where_all_favor_one_side_or_nothing_is_packed() -> None:
    beam = Beam(reduce(uniform(4000, 8)))
    assert beam.mixed() is None
    for stack in beam.stacks():
        _height(beam, stack)
    assert beam.mixed() is None


def test_evenly_drawn_problems_come_within_the_promise() -> None:
    problem = uniform(4000, 11)
    assert reduce(problem).rows > MOST_SEARCHED
    plan = solve(problem, work=3_000_000_000)
    verify(problem, plan)
    assert plan.solver == SOLVER
    assert plan.arena_size <= 1.01 * live_peak(problem)
