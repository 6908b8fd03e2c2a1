"""JSON of records: read back as written, refused by name otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given

from memplan.document import InvalidDocument, read, write
from memplan.graph import Graph
from memplan.lifetimes import memory_problem
from memplan.plan import MemoryPlan, Move, Packing, Stay
from memplan.problem import InvalidProblem, MemoryProblem
from tests.memplan.graphs import graphs


@given(graphs())
def test_graphs_and_problems_are_read_back_as_written(graph: Graph) -> None:
    problem = memory_problem(graph)
    assert read(write(graph), Graph) == graph and read(write(problem), MemoryProblem) == problem
    assert write(graph) == write(graph)


def test_a_plan_is_read_back_as_written() -> None:
    plan = MemoryPlan(
        ("A", "B", "A"), {"dram": Packing({"a": 0}, 8, 8, "by hand", True)}, 3.5, (Stay("a", "dram", 0, 3),),
        (Move("a", "dram", "pmem", 2, True),),
    )  # fmt: skip
    assert read(write(plan), MemoryPlan) == plan and plan.recomputed == ("A",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "no document of memplan"),
        (b'{"schema": "memplan.graph/1", "content": {}}', "'memplan.graph/1', not of 'memplan.problem/1'"),
        (b'{"schema": "memplan.problem/1", "content": {}}', "missing required field `buffers`"),
    ],
)
def test_other_documents_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(InvalidDocument, match=said):
        read(data, MemoryProblem)


def test_a_record_that_means_nothing_is_refused_as_ever() -> None:
    data = b'{"schema": "memplan.problem/1", "content": {"buffers": [{"name": "a", "size": -1, "begin": 0, "end": 1}]}}'
    with pytest.raises(InvalidProblem, match="'a' has -1 bytes"):
        read(data, MemoryProblem)
