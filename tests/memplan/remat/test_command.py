"""`python -m memplan remat`: the example of the documentation, fractions, and files that mean nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from click.testing import CliRunner

from memplan.cli.remat import command, parse_budget
from memplan.errors import MemplanError
from memplan.ordering.arrays import arrays_of
from memplan.ordering.runs import needs, tables
from memplan.problem import InvalidProblem
from memplan.remat.graph_file import graph_of, read_graph


def node_link(costs: list[tuple[float, float]], links: list[tuple[int, int]], key: str = "links") -> dict[str, Any]:
    return {
        "directed": True, "multigraph": False, "graph": {},
        "nodes": [{"id": number, "cost_ram": ram, "cost_cpu": cpu} for number, (ram, cpu) in enumerate(costs)],
        key: [{"source": source, "target": target} for source, target in links],
    }  # fmt: skip


def run(tmp_path: Path, content: dict[str, Any], budget: str) -> dict[str, Any]:
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(content))
    outcome = CliRunner().invoke(
        command, [str(file), "--budget", budget, "--work", "2000000000"], catch_exceptions=False
    )
    assert outcome.exit_code == 0
    return dict(json.loads(outcome.stdout))


def needs_of_sequence(content: dict[str, Any], sequence: list[int]) -> list[int]:
    """The rule of the documentation, word for word: what is there and needed, plus what is made, at each step."""
    ram = {node["id"]: node["cost_ram"] for node in content["nodes"]}
    operands: dict[int, set[int]] = {one: set() for one in ram}
    for link in content.get("links", content.get("edges")):
        operands[link["target"]].add(link["source"])
    found = []
    for step, one in enumerate(sequence):
        there = set()
        for other in set(sequence[:step]) - {one}:
            for later in range(step, len(sequence)):
                if other in operands[sequence[later]]:
                    there.add(other)
                if sequence[later] == other:
                    break
        found.append(ram[one] + sum(ram[other] for other in there))
    return found


def test_the_example_has_peaks_of_2_5_and_4() -> None:
    graph = graph_of(node_link([(2, 1), (3, 1), (1, 1)], [(0, 1), (1, 2)])).graph
    arrays = arrays_of(graph)
    assert needs(tables(arrays), np.arange(3)).tolist() == [2, 5, 4]


@pytest.mark.parametrize("key", ["links", "edges"])
def test_a_value_is_made_again_instead_of_kept(tmp_path: Path, key: str) -> None:
    # 0 is large and cheap, and needed at both ends of something larger.
    content = node_link([(8, 1), (2, 3), (12, 3), (1, 3), (1, 3)], [(0, 1), (1, 2), (2, 3), (0, 4), (3, 4)], key)
    assert needs_of_sequence(content, [0, 1, 2, 3, 4]) == [8, 10, 22, 21, 10]
    found = run(tmp_path, content, "14")
    assert found["given_peak"] == 22 and found["budget"] == found["peak"] == 14
    assert found["sequence"] == [0, 1, 2, 3, 0, 4] and found["time"] == 14
    assert found["extra_time_percent"] == pytest.approx(100 / 13)
    assert needs_of_sequence(content, found["sequence"]) == [8, 10, 14, 13, 9, 10]


def test_fractions_are_of_the_given_order_and_the_peak_is_that_of_the_rule(tmp_path: Path) -> None:
    draw = random.Random(4)
    graph = networkx.DiGraph()
    for number in range(40):
        graph.add_node(number, cost_ram=draw.randint(1, 100), cost_cpu=draw.random())
        for other in range(max(0, number - 6), number):
            if draw.random() < 0.4:
                graph.add_edge(other, number)
    content = networkx.node_link_data(graph, edges="edges")
    found = run(tmp_path, content, "0.9")
    given = needs_of_sequence(content, list(range(40)))
    assert found["given_peak"] == max(given) and found["budget"] == int(0.9 * max(given))
    assert found["peak"] == max(needs_of_sequence(content, found["sequence"])) <= found["budget"]
    times = networkx.get_node_attributes(graph, "cost_cpu")
    once = sum(times.values())
    assert found["time"] == pytest.approx(sum(times[one] for one in found["sequence"]))
    assert found["extra_time_percent"] == pytest.approx(100 * (found["time"] - once) / once)


def test_ids_are_those_of_the_file() -> None:
    content = node_link([(1, 1), (1, 1)], [(0, 1)])
    content["nodes"].reverse()
    assert graph_of(content).order == ("0", "1")
    content = {"nodes": [{"id": "b", "cost_ram": 1, "cost_cpu": 0.5}, {"id": "a", "cost_ram": 1.0, "cost_cpu": 0}],
               "edges": [{"source": "b", "target": "a"}]}  # fmt: skip
    assert list(graph_of(content).ids.values()) == ["b", "a"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"links": [{"source": 0, "target": 1}, {"source": 1, "target": 0}]}, "the graph has a cycle: "),
        ({"links": [{"source": 1, "target": 1}]}, "the graph has a cycle: 1 -> 1."),
        (
            {"links": [{"source": 1, "target": 0}]},
            "node 0 reads 1, which comes later: the nodes are not in",
        ),
        ({"links": [{"source": 0, "target": 7}]}, "a link leads from 0 to 7, but there is no node 7"),
        ({"links": [{"source": 0}]}, "a link of the graph lacks 'source' or 'target'"),
        ({"links": None}, "the graph has neither 'links' nor 'edges'"),
        ({"directed": False}, "the graph is not directed"),
        ({"nodes": 3}, "a node-link graph is an object with a list of 'nodes'"),
        ({"nodes": [{"cost_ram": 1}]}, "a node of the graph has no 'id'"),
        ({"nodes": [{"id": 0}, {"id": 0}]}, "two nodes have the id 0"),
        ({"nodes": [{"id": 0, "cost_ram": 1}, {"id": 1}]}, "node 1 has no number 'cost_ram'"),
        ({"nodes": [{"id": 0, "cost_ram": -1}]}, "node 0 has a 'cost_ram' of -1: it is neither negative nor infinite"),
        ({"nodes": [{"id": 0, "cost_ram": 1.5}]}, "node 0 has a 'cost_ram' of 1.5: bytes are whole"),
        (
            {"nodes": [{"id": 0, "cost_ram": 1, "cost_cpu": float("nan")}], "links": []},
            "node 0 has a 'cost_cpu' of nan",
        ),
        ({"nodes": [{"id": 0, "cost_ram": 1, "cost_cpu": "x"}], "links": []}, "node 0 has no number 'cost_cpu'"),
    ],
)
def test_a_file_that_means_nothing_is_refused(change: dict[str, Any], fault: str) -> None:
    content = node_link([(1, 1), (1, 1)], [(0, 1)]) | change
    if "nodes" in change and isinstance(change["nodes"], list) and "links" not in change:
        content["links"] = []
    with pytest.raises(InvalidProblem) as caught:
        graph_of(content)
    assert fault in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MemplanError, match="cannot be read: No such file"):
        read_graph(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(MemplanError, match="is not JSON"):
        read_graph(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("text", "wanted"), [("0.8", 80), ("1.0", 100), ("1", 1), ("250", 250), ("0", 0), ("1e-1", 10)]
)
def test_budgets(text: str, wanted: int) -> None:
    assert parse_budget(text, 100) == wanted


@pytest.mark.parametrize(
    ("text", "fault"),
    [("x", "'x' is no budget"), ("1.5", "a fraction of the peak is at most 1"), ("-3", "a budget of -3 is negative"),
     ("nan", "'nan' is no budget")],
)  # fmt: skip
def test_what_is_no_budget(text: str, fault: str) -> None:
    with pytest.raises(InvalidProblem, match=fault):
        parse_budget(text, 100)


def test_a_budget_below_the_bound_says_by_how_much(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(node_link([(2, 1), (3, 1), (1, 1)], [(0, 1), (1, 2)])))
    outcome = CliRunner().invoke(command, [str(file), "--budget", "4"])
    assert str(outcome.exception) == "a budget of 4 bytes is 1 bytes too small: no plan needs less than 5."
