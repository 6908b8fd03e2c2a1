"""Random layered graphs: layers of random widths, edges to the next layer, and some that skip layers.

Written after the description of Gagrani et al., "Neural Topological Ordering for Computation Graphs", NeurIPS 2022,
appendix A: widths vary by three quarters around their mean, a fifth of the pairs of neighbouring layers are joined,
about one edge in seven skips layers, and sizes come from a mixture of four normal distributions. All times are equal.
The given order follows an operator's consumers as soon as they can run, as frameworks that trace a program do.
"""

from __future__ import annotations

import random
from itertools import pairwise

from memplan.graph import Graph, Operator, Value

VARIATION, DENSITY, SKIPS = 0.75, 0.2, 0.14
SIZES = ((0.3, 500, 500), (0.3, 1_000, 1_000), (0.3, 3_000, 1_000), (0.1, 5_000, 1_000))  # share, mean, deviation


def layered_graph(count: int, width: float, seed: int) -> Graph:
    """`count` operators with one result each, in layers of `width` operators on average."""
    draw = random.Random(seed)
    layers: list[list[int]] = [[0]]
    made = 1
    while made < count - 1:
        wide = max(1, round(width * draw.uniform(1 - VARIATION, 1 + VARIATION)))
        layers.append(list(range(made, min(made + wide, count - 1))))
        made = layers[-1][-1] + 1
    layers.append([count - 1])
    layer_of = {one: number for number, layer in enumerate(layers) for one in layer}
    operands: list[set[int]] = [set() for _ in range(count)]
    for above, below in pairwise(layers):
        for one in below:
            operands[one] = {other for other in above if draw.random() < DENSITY} or {draw.choice(above)}
        read = {other for one in below for other in operands[one]}
        for other in above:
            if other not in read:
                operands[draw.choice(below)].add(other)
    joined = sum(len(one) for one in operands)
    for _ in range(int(joined * SKIPS / (1 - SKIPS))):
        one = draw.randrange(layers[2][0], count) if len(layers) > 2 else count - 1
        operands[one].add(draw.choice(layers[draw.randrange(layer_of[one] - 1)] if layer_of[one] > 1 else [0]))
    sizes = [_size(draw) for _ in range(count)]
    order = _traced(operands)
    return Graph(
        tuple(Value(f"v{one}", sizes[one]) for one in order),
        tuple(
            Operator(f"v{one}", tuple(f"v{other}" for other in sorted(operands[one])), (f"v{one}",), 1.0)
            for one in order
        ),
    )


def _size(draw: random.Random) -> int:
    _, mean, deviation = draw.choices(SIZES, [share for share, _, _ in SIZES])[0]
    return 10 * max(1, round(abs(draw.gauss(mean, deviation)) / 10))


def _traced(operands: list[set[int]]) -> list[int]:
    users: list[list[int]] = [[] for _ in operands]
    for one, reads in enumerate(operands):
        for other in sorted(reads):
            users[other].append(one)
    missing = [len(reads) for reads in operands]
    stack = [one for one, many in enumerate(missing) if not many]
    order = []
    while stack:
        one = stack.pop()
        order.append(one)
        for user in users[one]:
            missing[user] -= 1
            if not missing[user]:
                stack.append(user)
    return order
