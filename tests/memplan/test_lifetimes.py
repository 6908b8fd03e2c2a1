"""Lifetimes and shared places: hand-made stories, and anything drawn checked by the verifier."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from memplan.bounds import live_peak
from memplan.graph import Graph, Operator, Share, Value
from memplan.lifetimes import memory_problem
from memplan.packing.solve import solve
from memplan.problem import Alias, InvalidProblem
from memplan.verify.packing import verify
from memplan.verify.sequence import verify_sequence
from tests.memplan.apart import apart
from tests.memplan.graphs import chain, graphs


def lives(graph: Graph, order: list[str] | None = None) -> dict[str, tuple[int, int]]:
    return {one.name: (one.begin, one.end) for one in memory_problem(graph, order).buffers}


def test_a_value_lives_from_its_maker_to_its_last_reader() -> None:
    assert lives(chain(2, 3, 1)) == {"v0": (0, 2), "v1": (1, 3), "v2": (2, 3)}
    assert live_peak(memory_problem(chain(2, 3, 1), alignment=1)) == 5


def test_a_value_that_is_computed_again_has_two_lives() -> None:
    graph = Graph(
        (Value("a", 4), Value("b", 1), Value("c", 1, "output")),
        (Operator("A", (), ("a",)), Operator("B", ("a",), ("b",)), Operator("C", ("a", "b"), ("c",))),
    )
    assert lives(graph, ["A", "B", "A", "C"]) == {"a": (0, 2), "a#2": (2, 4), "b": (1, 4), "c": (3, 4)}


def test_an_input_lives_from_the_start_and_an_output_to_the_end() -> None:
    graph = Graph(
        (Value("x", 1, "input"), Value("y", 1, "output"), Value("z", 1)),
        (Operator("Y", ("x",), ("y",)), Operator("Z", ("y",), ("z",), workspace=7)),
    )
    assert lives(graph) == {"x": (0, 1), "y": (0, 2), "z": (1, 2), "Z@1": (1, 2)}


def test_an_order_that_reads_what_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="step 0: 'op1' reads 'v0', which is not there yet"):
        memory_problem(chain(1, 1), ["op1", "op0"])
    with pytest.raises(InvalidProblem, match="names the operator 'op7', which the graph does not have"):
        memory_problem(chain(1, 1), ["op7"])


def residual(kind_of_x: str = "temporary", read_later: bool = False) -> Graph:
    """x -> relu -> y in place; x is read once more, later, where asked."""
    return Graph(
        (Value("i", 8, "input"), Value("x", 8, kind_of_x), Value("y", 8), Value("z", 8, "output")),  # type: ignore[arg-type]
        (
            Operator("X", ("i",), ("x",)),
            Operator("relu", ("x",), ("y",)),
            Operator("Z", ("y", "x") if read_later else ("y",), ("z",)),
        ),
        (Share("y", "x", overwrites=True),),
    )


def alias_of(graph: Graph, name: str) -> Alias | None:
    return next(one.alias for one in memory_problem(graph).buffers if one.name == name)


def test_a_result_takes_its_operands_place_only_when_nobody_reads_that_later() -> None:
    assert alias_of(residual(), "y") == Alias("x", 0, True)
    assert alias_of(residual(read_later=True), "y") is None
    assert alias_of(residual("output"), "y") is None


def test_a_callers_input_is_never_overwritten() -> None:
    graph = Graph(
        (Value("x", 8, "input"), Value("y", 8, "output")),
        (Operator("relu", ("x",), ("y",)),),
        (Share("y", "x", overwrites=True),),
    )
    assert alias_of(graph, "y") is None


def joined(late: bool) -> Graph:
    """a and b are made, then joined to c; with `late`, much happens between a and b."""
    return Graph(
        (Value("a", 10), Value("t", 30 if late else 1), Value("b", 10), Value("c", 20, "output")),
        (
            Operator("A", (), ("a",)),
            Operator("T", (), ("t",), workspace=15 if late else 0),
            Operator("B", ("t",), ("b",)),
            Operator("C", ("a", "b"), ("c",)),
        ),
        (Share("a", "c", 0), Share("b", "c", 10)),
    )


def test_operands_are_made_inside_their_concatenation_where_that_does_not_raise_the_peak() -> None:
    assert alias_of(joined(late=False), "a") == Alias("c", 0) and alias_of(joined(late=False), "b") == Alias("c", 10)
    assert live_peak(memory_problem(joined(late=False), alignment=1)) == 21
    assert alias_of(joined(late=True), "a") is None
    assert live_peak(memory_problem(joined(late=True), alignment=1)) == 55


def test_an_operand_lies_in_one_concatenation_only() -> None:
    """a is joined to c, and then once more to d; what holds it already is not moved into the next."""
    graph = Graph(
        (Value("a", 4), Value("b", 4), Value("c", 8, "output"), Value("d", 4), Value("e", 4, "output")),
        (
            Operator("A", (), ("a",)),
            Operator("B", (), ("b",)),
            Operator("C", ("a", "b"), ("c",)),
            Operator("D", ("a",), ("d",)),
            Operator("E", ("a",), ("e",)),
        ),
        (Share("a", "c", 0), Share("b", "c", 4), Share("a", "d", 0), Share("a", "e", 0)),
    )
    problem = memory_problem(graph, alignment=1)
    verify(problem, apart(problem))
    by_name = {buffer.name: buffer for buffer in problem.buffers}
    assert all(by_name[name].alias is None for name in "cde"), "results of concatenations stay where they are"


@settings(max_examples=400)
@given(graphs())
def test_whatever_shares_bytes_may(graph: Graph) -> None:
    problem = memory_problem(graph, alignment=1)
    verify(problem, apart(problem))


@given(graphs())
def test_sharing_never_raises_the_peak_and_without_it_both_counts_agree(graph: Graph) -> None:
    alone = memory_problem(graph, alignment=1, views=False, in_place=False, slices=False)
    order = [operator.name for operator in graph.operators]
    assert live_peak(alone) == verify_sequence(graph, order)
    # A view keeps its base needed, which without sharing might be dropped: only then may views cost.
    placed = memory_problem(graph, alignment=1, slices=False)
    assert live_peak(memory_problem(graph, alignment=1)) <= live_peak(placed)


def test_a_part_of_what_is_needed_longer_lies_in_no_concatenation() -> None:
    """y joins c and the second half of a: were a laid there, y or c would destroy its first half, which z reads."""
    values = [Value(name, size) for name, size in (("a", 8), ("first", 4), ("second", 4), ("c", 4), ("y", 8))]
    operators = [
        Operator("make", (), ("a",), 1.0),
        Operator("halve", ("a",), ("first", "second"), 1.0),
        Operator("compute", ("first",), ("c",), 1.0),
        Operator("join", ("c", "second"), ("y",), 1.0),
        Operator("read", ("a", "y"), ("z",), 1.0),
    ]
    shares = (Share("first", "a"), Share("second", "a", 4), Share("c", "y"), Share("second", "y", 4))
    problem = memory_problem(Graph((*values, Value("z", 1, "output")), tuple(operators), shares), alignment=1)
    held = {buffer.name: buffer.alias for buffer in problem.buffers}
    assert held["a"] is None and held["c"] is not None
    verify(problem, solve(problem))


def test_what_holds_a_part_laid_into_a_concatenation_stands_on_no_other_part() -> None:
    """y joins c and the second half of a: with that half in y, the first half of a lies in the place of c."""
    values = [Value(name, size) for name, size in (("a", 2), ("c", 1), ("second", 1))]
    operators = [
        Operator("make", (), ("a",)),
        Operator("compute", (), ("c",)),
        Operator("halve", ("a",), ("second",)),
        Operator("join", ("c", "second"), ("y",)),
    ]
    shares = (Share("second", "a", 1), Share("c", "y"), Share("second", "y", 1))
    problem = memory_problem(Graph((*values, Value("y", 2, "output")), tuple(operators), shares), alignment=1)
    verify(problem, apart(problem))
