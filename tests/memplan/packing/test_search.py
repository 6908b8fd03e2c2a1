"""The exact search: what it finds it finds in steps of any size, and what it rules out is not there."""

from __future__ import annotations

from hypothesis import given, settings

from bench.memory.instances import cut
from memplan.packing.reduced import empty_pins, reduce
from memplan.packing.search import NOISE, NOISY_PREORDERS, PREORDERS, Outcome, Search
from memplan.packing.sections import sections
from memplan.problem import MemoryProblem
from tests.memplan.packing.drawn import least_arena, problems


@settings(max_examples=100, deadline=None)
@given(problems())
def test_every_preorder_finds_the_least_and_rules_out_less(problem: MemoryProblem) -> None:
    reduced = reduce(problem)
    arena = least_arena(problem)
    if arena == empty_pins(problem):  # what is searched may be lower
        return
    least = arena // reduced.unit
    rows = sections(reduced)
    for number, preorder in enumerate(NOISY_PREORDERS):
        assert Search(rows, least, preorder, NOISE, number).advance(10**6) == "found"
        assert Search(rows, least - 1, preorder, NOISE, number).advance(10**6) == "exhausted"


def test_a_search_goes_on_where_it_stopped() -> None:
    reduced = reduce(cut(60, 3))
    rows = sections(reduced)
    for preorder in PREORDERS:
        whole, parts = Search(rows, 1024, preorder), Search(rows, 1024, preorder)
        outcome: Outcome = whole.advance(2000)
        for _ in range(2000):
            parts.advance(1)
        assert parts.outcome == outcome
        assert (parts.solution == whole.solution).all()
