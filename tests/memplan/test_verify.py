"""The verifiers say no: every broken promise is found and the two at fault are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.accesses import Accesses
from memplan.graph import Graph, Operator, Value
from memplan.lifetimes import memory_problem
from memplan.plan import Packing
from memplan.problem import Alias, Buffer, InvalidProblem, MemoryProblem
from memplan.verify.concurrent import verify_concurrent
from memplan.verify.packing import WrongPlan, verify
from memplan.verify.sequence import verify_sequence
from tests.memplan.apart import apart
from tests.memplan.graphs import chain, graphs


def packed(problem: MemoryProblem, **offsets: int) -> Packing:
    size = max(offsets[buffer.name] + buffer.size for buffer in problem.buffers)
    return Packing(offsets, size, 0 if not problem.buffers else _needed(problem), "by hand")


def _needed(problem: MemoryProblem) -> int:
    steps = {buffer.begin for buffer in problem.buffers}
    return max(
        sum(b.size for b in problem.buffers if b.alias is None and any(x <= s < y for x, y in b.ranges()))
        for s in steps
    )


def fault(problem: MemoryProblem, packing: Packing) -> str:
    with pytest.raises(WrongPlan) as error:
        verify(problem, packing)
    return str(error.value)


PAIR = MemoryProblem((Buffer("a", 16, 0, 3), Buffer("b", 16, 2, 4)), alignment=16)


def test_two_that_live_together_may_not_share_bytes() -> None:
    verify(PAIR, packed(PAIR, a=0, b=16))
    assert fault(PAIR, packed(PAIR, a=0, b=0)) == "buffers 'a' and 'b' share bytes at step 2."


def test_alignment_pins_and_the_arenas_end() -> None:
    assert "starts at 8, which is no multiple of 16" in fault(PAIR, packed(PAIR, a=8, b=32))
    pinned = MemoryProblem((Buffer("a", 16, 0, 3, offset=32),), alignment=16)
    verify(pinned, packed(pinned, a=32))
    assert "is pinned to 32 and starts at 0" in fault(pinned, packed(pinned, a=0))
    good = packed(PAIR, a=0, b=16)
    assert "ends at 32, behind the arena's end" in fault(PAIR, replace(good, arena_size=31))
    assert "has no offset" in fault(PAIR, replace(good, offsets={"a": 0}))
    assert "lies not between" in fault(PAIR, replace(good, lower_bound=33))
    assert "lies not between" in fault(PAIR, replace(good, lower_bound=31))
    assert "larger than the capacity of 31" in fault(PAIR.with_capacity(31), good)


def test_a_gap_frees_the_bytes_and_only_there() -> None:
    problem = MemoryProblem((Buffer("a", 4, 0, 9, gaps=((3, 5),)), Buffer("b", 4, 3, 5), Buffer("c", 4, 5, 6)), 1)
    verify(problem, packed(problem, a=0, b=0, c=4))
    assert "'a' and 'c' share bytes at step 5" in fault(problem, packed(problem, a=0, b=4, c=0))


def test_bytes_under_a_layout_are_reused_only_there_and_by_that_layout() -> None:
    problem = MemoryProblem(
        (Buffer("a", 8, 0, 1, layout="halo"), Buffer("b", 8, 1, 2, layout="halo"), Buffer("c", 8, 2, 3)), alignment=1
    )
    verify(problem, packed(problem, a=0, b=0, c=8))
    assert "(layout 'halo') and 'c' (layout None)" in fault(problem, packed(problem, a=0, b=0, c=0))
    assert "which only one place of one layout may" in fault(problem, packed(problem, a=0, b=4, c=12))


def test_an_alias_lies_where_it_says() -> None:
    problem = MemoryProblem((Buffer("a", 8, 0, 2), Buffer("v", 4, 1, 3, alias=Alias("a", 4))), alignment=1)
    verify(problem, packed(problem, a=0, v=4))
    assert "lies in 'a' at 4, but starts at 0 while that starts at 0" in fault(problem, packed(problem, a=0, v=0))


def test_a_result_in_place_may_meet_its_operand_only_in_its_own_step() -> None:
    buffers = (Buffer("x", 8, 0, 2), Buffer("y", 8, 1, 4, alias=Alias("x", 0, overwrites=True)))
    problem = MemoryProblem(buffers, alignment=1)
    verify(problem, packed(problem, x=0, y=0))
    late = MemoryProblem((replace(buffers[0], end=3), buffers[1]), alignment=1)
    assert "'x' and 'y' share bytes at step 1" in fault(late, packed(late, x=0, y=0))
    viewed = MemoryProblem((*buffers, Buffer("v", 8, 0, 3, alias=Alias("x"))), alignment=1)
    assert "share bytes" in fault(viewed, packed(viewed, x=0, y=0, v=0))


def test_two_slices_may_not_lie_on_the_same_bytes() -> None:
    problem = MemoryProblem(
        (Buffer("a", 4, 0, 3, alias=Alias("c")), Buffer("b", 4, 1, 3, alias=Alias("c")), Buffer("c", 8, 2, 4)), 1
    )
    assert "'a' and 'b' share bytes at step 1" in fault(problem, packed(problem, a=0, b=0, c=0))
    beside = MemoryProblem(
        (problem.buffers[0], replace(problem.buffers[1], alias=Alias("c", 4)), problem.buffers[2]), 1
    )
    verify(beside, packed(beside, a=0, b=4, c=0))


@given(graphs(), st.data())
def test_moving_one_buffer_onto_another_is_always_found(graph: Graph, data: st.DataObject) -> None:
    problem = memory_problem(graph, alignment=1, views=False, in_place=False, slices=False)
    good = apart(problem)
    verify(problem, good)
    pairs = [
        (one, other)
        for one in problem.buffers
        for other in problem.buffers
        if one is not other and one.size and other.size and one.begin < other.end and other.begin < one.end
    ]
    if not pairs:
        return
    one, other = data.draw(st.sampled_from(pairs))
    wrong = replace(good, offsets={**good.offsets, one.name: good.offsets[other.name]}, arena_size=10_000)
    with pytest.raises(WrongPlan):
        verify(problem, wrong)


def test_a_sequence_runs_everything_on_what_is_there() -> None:
    graph = chain(2, 3, 1)
    assert verify_sequence(graph, ["op0", "op1", "op2"], budget=5) == 5
    for order, said in (
        (["op1", "op0", "op2"], "step 0: 'op1' reads 'v0', which is not there"),
        (["op0", "op1"], "operator 'op2' never runs"),
        (["op0", "op1", "op9", "op2"], "step 2 runs 'op9', which the graph does not have"),
    ):
        with pytest.raises(WrongPlan, match=said):
            verify_sequence(graph, order)
    with pytest.raises(WrongPlan, match=r"step 1 \('op1'\) needs 5 bytes, 1 above the budget"):
        verify_sequence(graph, ["op0", "op1", "op2"], budget=4)


def test_a_sequence_drops_what_is_made_again_and_refuses_what_may_not_run_again() -> None:
    graph = Graph(
        (Value("a", 4), Value("b", 9), Value("c", 1), Value("d", 1, "output")),
        (
            Operator("A", (), ("a",)),
            Operator("B", (), ("b",)),
            Operator("C", ("a", "b"), ("c",)),
            Operator("D", ("a", "c"), ("d",)),
        ),
    )
    again = ["A", "B", "C", "A", "D"]
    assert verify_sequence(graph, again) == 14
    assert verify_sequence(graph, ["A", "B", "C", "D"]) == 14
    once = Graph(graph.values, (replace(graph.operators[0], recomputable=False), *graph.operators[1:]))
    with pytest.raises(WrongPlan, match="step 3 runs 'A' again"):
        verify_sequence(once, again)
    waiting = Graph(
        (Value("a", 1), Value("b", 1)), (Operator("A", (), ("a",)), Operator("B", (), ("b",), after=("A",)))
    )
    with pytest.raises(WrongPlan, match="step 0 runs 'B' before 'A', which has to come first"):
        verify_sequence(waiting, ["B", "A"])


def diamond(*extra: tuple[str, str]) -> Accesses:
    """P writes a; Q reads a and writes b; R, beside Q, writes c; what `extra` says happens before what."""
    return Accesses(("P", "Q", "R"), (("P", "Q"), *extra), {"Q": ("a",)}, {"P": ("a",), "Q": ("b",), "R": ("c",)})


def test_in_a_concurrent_program_only_what_is_waited_for_makes_room() -> None:
    sizes = {"a": 8, "b": 8, "c": 8}
    packing = Packing({"a": 0, "b": 8, "c": 0}, 16, 16, "by hand")
    verify_concurrent(sizes, packing, diamond(("Q", "R")))
    with pytest.raises(WrongPlan, match=r"'a' and 'c' share bytes, and nothing makes '.' .* happen before 'R'"):
        verify_concurrent(sizes, packing, diamond(("P", "R")))
    with pytest.raises(InvalidProblem, match="goes in a circle"):
        verify_concurrent(sizes, packing, diamond(("Q", "P")))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Buffer("a", -1, 0, 1), "buffer 'a' has -1 bytes"),
        (lambda: Buffer("a", 1, 2, 2), "lives from step 2 to before 2: never"),
        (lambda: Buffer("a", 1, 0, 4, gaps=((3, 5),)), r"the gap \[3, 5\) is not inside its life"),
        (lambda: MemoryProblem((Buffer("a", 1, 0, 1), Buffer("a", 1, 0, 1))), "two buffers are named 'a'"),
        (lambda: MemoryProblem((Buffer("a", 1, 0, 1, alias=Alias("b")),)), "lies in 'b', which is not there"),
        (
            lambda: MemoryProblem((Buffer("a", 1, 0, 1, alias=Alias("b")), Buffer("b", 1, 0, 1, alias=Alias("a")))),
            "lies in itself",
        ),
        (
            lambda: MemoryProblem((Buffer("a", 4, 0, 1, alias=Alias("b", 6)), Buffer("b", 8, 0, 1))),
            "does not lie within 'b'",
        ),
        (lambda: Graph((Value("a", 1),), ()), "value 'a' is made by no operator"),
        (
            lambda: Graph(
                (Value("a", 1), Value("b", 1)), (Operator("A", ("b",), ("a",)), Operator("B", ("a",), ("b",)))
            ),
            "operator 'A' reads 'b', which is made later: the graph has a cycle or its order is wrong",
        ),
        (lambda: Operator("A", (), (), -1.0), "takes -1.0 ns; a time is not negative"),
    ],
)
def test_problems_that_mean_nothing_are_refused(make: object, said: str) -> None:
    with pytest.raises(InvalidProblem, match=said):
        make()  # type: ignore[operator]
