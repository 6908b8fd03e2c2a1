"""Orders: equal to brute force where that can be done, never worse than the given one, and proved where it says so."""

from __future__ import annotations

import random
import subprocess
import sys

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.graph import Graph, Operator, Value
from memplan.ordering import order
from memplan.verify.packing import WrongPlan
from memplan.verify.sequence import verify_sequence
from models.training import Network


def random_graph(seed: int, count: int, *, density: float = 0.3) -> Graph:
    """Operators with one or two results, some of them outputs, workspaces, and a few orders that no value asks for."""
    draw = random.Random(seed)
    values, operators, names = [Value("in", draw.randint(0, 5), "input"), Value("w", 99, "constant")], [], ["in", "w"]
    for number in range(count):
        reads = [name for name in names if draw.random() < density or (number == 0 and name == "in")][:4]
        makes = [f"v{number}.{part}" for part in range(draw.choice([1, 1, 1, 2]))]
        values += [Value(name, draw.randint(0, 20), draw.choice(["temporary"] * 8 + ["output"])) for name in makes]
        after = tuple(f"o{other}" for other in range(number) if draw.random() < 0.02)
        workspace = draw.choice([0, 0, 3, 9])
        reused = draw.choice([0, 0, 0, 8])
        operators.append(Operator(f"o{number}", tuple(reads), tuple(makes), 1.0, workspace, after=after, reused=reused))
        names += makes
    return Graph(tuple(values), tuple(operators))


def least_peak(graph: Graph) -> int:
    """Every order at once: by the set of what has run, the least peak with which it can be reached."""
    makers = {name: number for number, one in enumerate(graph.operators) for name in one.outputs}
    numbers = {one.name: number for number, one in enumerate(graph.operators)}
    first = [
        {makers[name] for name in one.inputs if name in makers} | {numbers[name] for name in one.after}
        for one in graph.operators
    ]
    users = {
        value.name: {n for n, one in enumerate(graph.operators) if value.name in one.inputs} for value in graph.values
    }
    held = [value for value in graph.values if value.kind != "constant"]
    size = {value.name: value.size for value in held}

    def live(ran: frozenset[int]) -> int:
        there = [value for value in held if value.kind == "input" or makers[value.name] in ran]
        return sum(
            value.size
            for value in there
            if value.kind == "output" or users[value.name] - ran or (value.kind == "input" and not users[value.name])
        )

    reached = {frozenset[int](): 0}
    for _ in graph.operators:
        further: dict[frozenset[int], int] = {}
        for ran, peak in reached.items():
            now = live(ran)
            for number, one in enumerate(graph.operators):
                if number not in ran and first[number] <= ran:
                    then = ran | {number}
                    ends = [value for value in held if value.name in one.inputs and value.kind != "output"]
                    ended = sum(value.size for value in ends if not users[value.name] - then)
                    now_needed = now + one.workspace + sum(size[name] for name in one.outputs)
                    need = max(peak, now_needed - min(one.reused, ended))
                    further[then] = min(need, further.get(then, need))
        reached = further
    return min(reached.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 10), st.sampled_from([0.15, 0.3, 0.6]))
def test_the_least_peak_of_small_graphs(seed: int, count: int, density: float) -> None:
    graph = random_graph(seed, count, density=density)
    found = order(graph)
    assert verify_sequence(graph, found.order) == found.peak == found.lower_bound == least_peak(graph)
    assert found.proved_optimal and found.gap == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_least_peak_of_graphs_of_sixteen_operators(seed: int) -> None:
    graph = random_graph(seed, 16, density=0.25)
    found = order(graph)
    assert verify_sequence(graph, found.order) == found.peak == least_peak(graph)


@pytest.mark.parametrize("seed", range(3))
def test_never_worse_than_given_even_without_time(seed: int) -> None:
    graph = random_graph(seed, 80, density=0.08)
    given_peak = verify_sequence(graph, [one.name for one in graph.operators])
    peaks = []
    for work in (0, 300_000_000):
        found = order(graph, work=work)
        assert found.lower_bound <= verify_sequence(graph, found.order) == found.peak <= given_peak
        peaks.append(found.peak)
    assert peaks[1] <= peaks[0]


def test_a_large_branch_is_finished_before_the_next_begins() -> None:
    # Two branches of a large map and a small result each: one after the other, never both large maps at once.
    values = [Value("x", 1, "input"), *(Value(name, size) for name, size in
              [("a1", 100), ("b1", 100), ("a2", 1), ("b2", 1)]), Value("y", 1, "output")]  # fmt: skip
    operators = [
        Operator("a_large", ("x",), ("a1",)), Operator("b_large", ("x",), ("b1",)),
        Operator("a_small", ("a1",), ("a2",)), Operator("b_small", ("b1",), ("b2",)),
        Operator("sum", ("a2", "b2"), ("y",)),
    ]  # fmt: skip
    found = order(Graph(tuple(values), tuple(operators)))
    assert found.peak == 102 and found.proved_optimal
    assert found.order[:2] in (("a_large", "a_small"), ("b_large", "b_small"))


def test_what_has_to_come_first_does() -> None:
    values = (Value("a", 10), Value("b", 1), Value("c", 1, "output"))
    operators = (
        Operator("start", (), ("b",)), Operator("large", (), ("a",), after=("start",)),
        Operator("end", ("a", "b"), ("c",)),
    )  # fmt: skip
    assert order(Graph(values, operators)).order == ("start", "large", "end")


def test_nothing_to_order() -> None:
    assert order(Graph((), ())).order == ()
    assert order(Graph((Value("x", 7, "input"),), ())).peak == 7


def random_wiring(nodes: int, seed: int) -> Graph:
    """A stage of a randomly wired network: each node sums what it reads, relu, convolution."""
    net = Network(1)
    wires = networkx.connected_watts_strogatz_graph(nodes, 4, 0.75, seed=seed)
    entry = net.conv(net.input(16, 16, 16), 16)
    made = {}
    for node in range(nodes):
        read = [made[other] for other in sorted(wires[node]) if other < node] or [entry]
        total = read[0]
        for other in read[1:]:
            total = net.add(total, other)
        made[node] = net.conv(net.relu(total), 16)
    total = made[nodes - 1]
    for node in range(nodes - 1):
        if all(other < node for other in wires[node]):
            total = net.add(total, made[node])
    return net.inference()


@pytest.mark.parametrize("seed", range(3))
def test_randomly_wired_networks_are_solved(seed: int) -> None:
    graph = random_wiring(32, seed)
    found = order(graph, work=20_000_000_000)
    assert found.proved_optimal
    assert verify_sequence(graph, found.order) == found.peak < verify_sequence(graph, [o.name for o in graph.operators])


def test_the_same_order_every_time() -> None:
    graph = random_wiring(24, 7)
    assert order(graph) == order(graph)


def test_every_swap_that_breaks_an_order_is_caught() -> None:
    graph = random_graph(3, 12)
    found = order(graph)
    names = {one.name: one for one in graph.operators}
    caught = broken = 0
    for at in range(len(found.order) - 1):
        one, other = names[found.order[at]], names[found.order[at + 1]]
        if set(one.outputs) & set(other.inputs) or one.name in other.after:
            broken += 1
            swapped = (*found.order[:at], other.name, one.name, *found.order[at + 2 :])
            with pytest.raises(WrongPlan):
                verify_sequence(graph, swapped)
            caught += 1
    assert caught == broken > 0


def test_small_graphs_are_ordered_before_numba_is_loaded_and_come_out_alike() -> None:
    """In a process of its own: here numba may be there already."""
    said = subprocess.run([sys.executable, "-W", "error", "-c", _ALIKE], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "searched" in said.stdout, said.stderr


_ALIKE = """
import sys
from memplan.ordering import order, search
from tests.memplan.ordering.test_order import random_graph
graphs = [random_graph(seed, 12) for seed in range(20)]
plain = [order(graph, work=10**9) for graph in graphs]
assert "numba" not in sys.modules
search.PLAIN_LOOKS = 0
assert [order(graph, work=10**9) for graph in graphs] == plain
assert "numba" in sys.modules
print("searched")
"""
