"""The least extra time within a budget, by trying everything: states are what has run and what is kept."""

from __future__ import annotations

import heapq
import random
from itertools import count

from memplan.graph import Graph, Operator, Value


def tiny_graph(seed: int, operators: int) -> Graph:
    """A random graph with an input, several results, workspaces, an operator that may not run again now and then."""
    draw = random.Random(seed)
    values, made, names = [Value("in", draw.randint(0, 4), "input")], [], ["in"]
    for number in range(operators):
        reads = tuple(name for name in names if draw.random() < 0.4)
        makes = tuple(f"v{number}.{part}" for part in range(draw.choice([1, 1, 1, 2])))
        values += [Value(name, draw.randint(1, 12), draw.choice(["temporary"] * 7 + ["output"])) for name in makes]
        names += makes
        made.append(
            Operator(
                f"o{number}", reads, makes, float(draw.randint(1, 9)), draw.choice([0, 0, 0, 3]), draw.random() < 0.9,
                tuple(f"o{other}" for other in range(number) if draw.random() < 0.03), draw.choice([0, 0, 0, 5]),
            )
        )  # fmt: skip
    return Graph(tuple(values), tuple(made))


def least_time(graph: Graph, budget: int) -> float | None:
    """Nanoseconds of the fastest sequence within the budget; None where there is none. Dijkstra over states."""
    names = [value.name for value in graph.values]
    bit = {name: 1 << place for place, name in enumerate(names)}
    size = {bit[value.name]: value.size for value in graph.values}
    place = {operator.name: 1 << number for number, operator in enumerate(graph.operators)}
    reads = [sum(bit[name] for name in dict.fromkeys(one.inputs)) for one in graph.operators]
    makes = [sum(bit[name] for name in one.outputs) for one in graph.operators]
    after = [sum(place[name] for name in one.after) for one in graph.operators]
    outputs = sum(bit[value.name] for value in graph.values if value.kind == "output")
    inputs = [value.name for value in graph.values if value.kind == "input"]
    unread = sum(bit[name] for name in inputs if not any(name in one.inputs for one in graph.operators))
    everything = (1 << len(graph.operators)) - 1

    def weight(held: int) -> int:
        return sum(bytes_ for one, bytes_ in size.items() if held & one)

    def subsets(ones: list[int]) -> list[int]:
        found = [0]
        for one in ones:
            found += [other | one for other in found]
        return found

    start = (0, sum(bit[name] for name in inputs) & ~unread)
    costs = {start: 0.0}
    ties = count()
    heap = [(0.0, next(ties), start)]
    while heap:
        cost, _, state = heapq.heappop(heap)
        if cost > costs[state]:
            continue
        ran, held = state
        if ran == everything and held & outputs == outputs:
            return cost
        further = []
        for one in size:
            if held & one:
                further.append((cost, (ran, held & ~one)))
        for number, operator in enumerate(graph.operators):
            is_new = not ran & (1 << number)
            if held & reads[number] != reads[number] or after[number] & ~ran or not (is_new or operator.recomputable):
                continue
            both = held | makes[number]
            beside = weight(unread) if ran == 0 else 0  # what nobody reads is there while the first operator runs
            for ended in subsets([bit[name] for name in dict.fromkeys(operator.inputs)]):
                spared = min(operator.reused, weight(ended))
                if weight(both) + beside + operator.workspace - spared <= budget:
                    further.append((cost + operator.time, (ran | (1 << number), both & ~ended)))
        for total, then in further:
            if total < costs.get(then, float("inf")):
                costs[then] = total
                heapq.heappush(heap, (total, next(ties), then))
    return None
