"""The condensed graph: what is joined, what is not, and that its orders are orders of the large graph."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.bounds import live_peak
from memplan.condense import condense
from memplan.graph import Graph, Operator, Share, Value
from memplan.lifetimes import memory_problem
from memplan.verify.packing import verify
from memplan.verify.sequence import verify_sequence
from tests.memplan.apart import apart
from tests.memplan.graphs import graphs


def block() -> Graph:
    """conv -> x -> relu (in place) -> y -> reshape (view) -> z -> sum with s (in place of z) -> out."""
    return Graph(
        (
            Value("i", 8, "input"), Value("s", 8), Value("x", 8), Value("y", 8), Value("z", 8),
            Value("out", 8, "output"),
        ),
        (
            Operator("skip", ("i",), ("s",), 1.0),
            Operator("conv", ("i",), ("x",), 5.0),
            Operator("relu", ("x",), ("y",), 2.0),
            Operator("reshape", ("y",), ("z",)),
            Operator("sum", ("z", "s"), ("out",), 3.0),
        ),
        (Share("y", "x", overwrites=True), Share("z", "y"), Share("out", "z", overwrites=True)),
    )  # fmt: skip


def test_views_and_sole_results_in_place_join_what_they_stand_on() -> None:
    small = condense(block())
    assert dict(small.groups) == {"skip": ("skip",), "conv": ("conv", "relu", "reshape"), "sum": ("sum",)}
    assert small.graph.operators[1] == Operator("conv", ("i",), ("y",), 7.0)
    assert small.expand(["conv", "skip", "sum"]) == ("conv", "relu", "reshape", "skip", "sum")


def test_sums_join_when_asked_for() -> None:
    small = condense(block(), sums=True)
    assert dict(small.groups) == {"skip": ("skip",), "conv": ("conv", "relu", "reshape", "sum")}
    assert small.graph.operators[1].inputs == ("i", "s")


def test_a_view_that_nobody_reads_stays_behind_what_it_views() -> None:
    graph = Graph(
        (Value("i", 8, "input"), Value("x", 8), Value("y", 8, "output"), Value("v", 8)),
        (Operator("X", ("i",), ("x",)), Operator("relu", ("x",), ("y",)), Operator("view", ("x",), ("v",))),
        (Share("y", "x", overwrites=True), Share("v", "x")),
    )
    small = condense(graph)
    assert small.first == () and small.expand(["X"]) == ("X", "relu", "view")
    verify_sequence(graph, small.expand(["X"]))


@settings(max_examples=400)
@given(graphs(), st.booleans())
def test_the_given_order_survives_and_needs_no_more_than_before(graph: Graph, sums: bool) -> None:
    small = condense(graph, sums=sums)
    given_order = [operator.name for operator in small.graph.operators]
    order = small.expand(given_order)
    assert sorted(order) == sorted(operator.name for operator in graph.operators)
    verify_sequence(graph, order)
    problem = memory_problem(graph, order, alignment=1)
    verify(problem, apart(problem))
    assert sum(one.time for one in small.graph.operators) == pytest.approx(
        sum(one.time for one in graph.operators if one.name not in small.first and one.time)
        - sum(one.time for one in graph.operators if one.name not in small.first and _is_view(graph, one))
    )
    assert live_peak(memory_problem(small.graph, alignment=1)) >= 0


def _is_view(graph: Graph, operator: Operator) -> bool:
    small = condense(graph)
    joined = [name for group in small.groups.values() for name in group[1:]]
    shares = [share for share in graph.shares if share.value == operator.outputs[0] and not share.overwrites]
    return operator.name in joined and any(share.of in operator.inputs for share in shares)
