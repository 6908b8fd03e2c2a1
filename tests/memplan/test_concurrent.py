"""Lifetimes of concurrent programs: intervals that do not meet mean an order, checked pair by pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.accesses import Accesses
from memplan.concurrent import concurrent_problem
from memplan.packing.greedy import pack
from memplan.problem import InvalidProblem
from memplan.verify.concurrent import verify_concurrent


def test_a_buffer_is_free_only_for_what_happens_after_all_its_readers() -> None:
    """P writes a, which Q and R read, each by itself; S happens after Q, T after both."""
    accesses = Accesses(
        ("P", "Q", "R", "S", "T"),
        (("P", "Q"), ("P", "R"), ("Q", "S"), ("R", "T"), ("S", "T")),
        {"Q": ("a",), "R": ("a",), "S": ("q",), "T": ("r", "s")},
        {"P": ("a",), "Q": ("q",), "R": ("r",), "S": ("s",), "T": ("t",)},
    )
    problem = concurrent_problem(dict.fromkeys("aqrst", 8), accesses, alignment=1)
    lives = {buffer.name: (buffer.begin, buffer.end) for buffer in problem.buffers}
    assert lives["a"] == (0, 4), "S may run while R still reads"
    assert lives["q"] == (1, 4) and lives["t"] == (4, 5)
    packing = pack(problem)
    verify_concurrent(dict.fromkeys("aqrst", 8), packing, accesses)
    assert packing.offsets["t"] == packing.offsets["a"] or packing.arena_size == 32


@st.composite
def programs(draw: st.DrawFn) -> Accesses:
    count = draw(st.integers(1, 9))
    items = tuple(f"i{number}" for number in range(count))
    before, reads, writes = [], {}, {}
    for number, item in enumerate(items):
        sources = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        before += [(items[source], item) for source in sources]
        reads[item] = tuple(f"b{source}" for source in sources)
        writes[item] = (f"b{number}",)
    return Accesses(items, tuple(before), reads, writes)


@given(programs())
def test_any_packing_of_the_intervals_is_right_for_the_program(accesses: Accesses) -> None:
    sizes = {f"b{number}": 8 * (number % 4 + 1) for number in range(len(accesses.items))}
    problem = concurrent_problem(sizes, accesses, alignment=8)
    verify_concurrent(sizes, pack(problem), accesses)


def test_what_is_kept_lives_to_the_end_and_nonsense_is_refused() -> None:
    chain = Accesses(("A", "B", "C"), (("A", "B"), ("B", "C")), {"B": ("a",)}, {"A": ("a",), "B": ("b",), "C": ("c",)})
    lives = concurrent_problem({"a": 1, "b": 1, "c": 1}, chain, kept=frozenset("a")).buffers
    assert [(one.begin, one.end) for one in lives] == [(0, 3), (1, 2), (2, 3)]
    with pytest.raises(InvalidProblem, match="nothing writes the buffer 'z'"):
        concurrent_problem({"z": 1}, chain)
    with pytest.raises(InvalidProblem, match="'B' happens before 'A', but does not stand before it"):
        concurrent_problem({"a": 1}, Accesses(("A", "B"), (("B", "A"),), {}, {"A": ("a",)}))
