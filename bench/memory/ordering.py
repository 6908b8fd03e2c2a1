"""Orders: random graphs against brute force, and networks whose branches leave the order open.

NASNet and Inception are the zoo's; randomly wired networks are generated: three stages of 32 nodes after Watts and
Strogatz, each node sums what it reads, relu, depthwise and pointwise convolution (Xie et al., "Exploring Randomly Wired
Neural Networks for Image Recognition", ICCV 2019).
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import networkx

from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.memory.tensors import model_memory
from graphopt.model.load import load
from memplan.graph import Graph, Operator, Value
from memplan.ordering import order
from memplan.verify.sequence import verify_sequence
from models.training import Network, Tensor

ISSUE = 6
MOST_GAP, SECONDS = 0.05, 60.0
ZOO = ("nasnet_a_mobile", "inception_v3")
WIRINGS = ((4, 0.75), (4, 0.25), (6, 0.75), (8, 0.5))  # neighbours, how many of them are rewired
STAGES = ((78, 28), (156, 14), (312, 7))  # channels, height and width
LARGEST, RANDOM, QUICK_RANDOM = 20, 60, 15


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per network; a line for the random graphs."""
    order(random_graph(6, 0))  # compiles
    count = QUICK_RANDOM if quick else RANDOM
    equal = 0
    for seed in range(count):
        graph = random_graph(LARGEST - seed % 6, seed)
        found = order(graph)
        equal += verify_sequence(graph, found.order) == found.peak == least_peak(graph)
    networks = [(name, model_memory(load(model_file(name))).graph) for name in ZOO]
    networks += [
        (f"random wiring {near}, {rewired}, seed {seed}", random_wiring(near, rewired, seed))
        for near, rewired in WIRINGS
        for seed in range(1 if quick else 3)
    ]
    rows, worst, slowest = [], 0.0, 0.0
    for name, graph in networks:
        before = verify_sequence(graph, [operator.name for operator in graph.operators])
        begun = time.perf_counter()
        found = order(graph)
        seconds = time.perf_counter() - begun
        after = verify_sequence(graph, found.order)
        worst, slowest = max(worst, found.gap), max(slowest, seconds)
        rows.append(
            (name, len(graph.operators), before, after, found.lower_bound, 100 * found.gap, found.solver, seconds)
        )
    columns = ("network", "operators", "peak given", "peak found", "bound", "gap %", "found by", "seconds")
    sheet.table("order for least live peak, without sharing", columns, rows)
    figure = f"{equal} of {count} equal to brute force; largest gap {worst:.1%}, {slowest:.1f} s"
    met = equal == count and worst <= MOST_GAP and slowest <= SECONDS
    return [Bar(ISSUE, 4, "order for least peak", "all equal; gap 5 % in 60 s", figure, met)]


def random_graph(count: int, seed: int) -> Graph:
    """Operators with one result each that read up to three of the results before them."""
    draw = random.Random(seed)
    operands = [sorted(draw.sample(range(one), min(one, draw.randint(0, 3)))) for one in range(count)]
    values = tuple(Value(f"v{one}", draw.randint(1, 100)) for one in range(count))
    operators = tuple(
        Operator(f"v{one}", tuple(f"v{other}" for other in reads), (f"v{one}",)) for one, reads in enumerate(operands)
    )
    return Graph(values, operators)


def least_peak(graph: Graph) -> int:
    """By brute force: the least peak with which each set of operators can be reached, set by set."""
    position = {operator.name: one for one, operator in enumerate(graph.operators)}
    reads = [sum(1 << position[name] for name in operator.inputs) for operator in graph.operators]
    users = [sum(1 << one for one, read in enumerate(reads) if read >> made & 1) for made in range(len(reads))]
    size = [value.size for value in graph.values]
    reached = {0: 0}
    for _ in reads:
        further: dict[int, int] = {}
        for ran, peak in reached.items():
            live = sum(bytes_ for one, bytes_ in enumerate(size) if ran >> one & 1 and users[one] & ~ran)
            for one, read in enumerate(reads):
                if not ran >> one & 1 and not read & ~ran:
                    then, need = ran | 1 << one, max(peak, live + size[one])
                    if need < further.get(then, need + 1):
                        further[then] = need
        reached = further
    return min(reached.values())


def random_wiring(near: int, rewired: float, seed: int) -> Graph:
    """Three stages of 32 nodes."""
    net = Network(1)
    x = net.conv(net.input(3, 224, 224), STAGES[0][0] // 2, 3, 2)
    for number, (channels, height) in enumerate(STAGES):
        wires = networkx.connected_watts_strogatz_graph(32, near, rewired, seed=100 * seed + number)
        while x.shape[2] > height:
            x = net.pool(x, 3, 2)
        x = net.conv(x, channels, 1)
        made: dict[int, Tensor] = {}
        for node in range(32):
            total = _sum(net, [made[other] for other in sorted(wires[node]) if other < node] or [x])
            made[node] = net.conv(net.conv(net.relu(total), channels, 3, groups=channels), channels, 1)
        x = _sum(net, [made[node] for node in range(32) if all(other < node for other in wires[node])])
    net.linear(net.global_pool(x), 1000)
    return net.inference()


def _sum(net: Network, parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = net.add(total, part)
    return total


if __name__ == "__main__":
    main(measure)
