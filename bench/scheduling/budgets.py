"""Bar of schedules under a memory budget: what half of the memory between two plans costs in time.

Randomly wired networks (Xie et al., 2019: connected Watts-Strogatz graphs of 32 nodes), as ONNX models. Each is planned
without a budget, once with no reuse of bytes that waits and once with as much as there is; half-way between the two
arenas, a third of the difference in time may be lost. Simulated, on GPUs and for workers of a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import graphopt
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main

ISSUE = 18
DEVICES, QUICK_DEVICES = ("h200", "v100", "cpu:2", "cpu:8"), ("cpu:8",)
SEEDS, QUICK_SEEDS = (1, 2, 3), (1,)
WORK = 2_000_000  # blocks placed, for each schedule
SHARE = 1 / 3  # of the difference in time


def random_wiring(seed: int, channels: int = 78, rows: int = 28, stages: int = 2) -> onnx.ModelProto:
    """Stages of 32 nodes, each a sum, ReLU, and a separable 3 x 3 convolution."""
    draw = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def node(kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        drawn = draw.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
        weights.append(numpy_helper.from_array(drawn.astype(np.float32), name))
        return name

    def separable(value: str, given: int, made: int, stride: int) -> str:
        value = node("Relu", [value])
        value = node(
            "Conv", [value, weight(given, 1, 3, 3)], group=given, pads=[1, 1, 1, 1], strides=[stride, stride]
        )  # fmt: skip
        return node("Conv", [value, weight(made, given, 1, 1)])

    x = node("Conv", ["x", weight(channels, 3, 3, 3)], pads=[1, 1, 1, 1], strides=[2, 2])
    width = channels
    for stage in range(stages):
        wiring = networkx.connected_watts_strogatz_graph(32, 4, 0.75, seed=10 * seed + stage)
        made = channels << stage
        values: dict[int, str] = {}
        read: set[int] = set()
        for one in sorted(wiring.nodes):
            sources = sorted(other for other in wiring.neighbors(one) if other < one)
            read.update(sources)
            inputs = [values[other] for other in sources]
            if inputs:
                values[one] = separable(node("Sum", inputs) if len(inputs) > 1 else inputs[0], made, made, 1)
            else:
                values[one] = separable(x, width, made, 2)
        ends = [values[one] for one in sorted(values) if one not in read]
        x, width = node("Mean", ends) if len(ends) > 1 else ends[0], made
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"]))
    size = 4 * rows
    graph = helper.make_graph(
        nodes, "random_wiring",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, width, 1, 1])],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each network and device."""
    rows, over = [], []
    for seed in QUICK_SEEDS if quick else SEEDS:
        model = random_wiring(seed).SerializeToString()
        for where in QUICK_DEVICES if quick else DEVICES:
            free = graphopt.schedule(model, device=where, work=WORK, measure=False).record
            fast = max(free.ways, key=lambda way: way.arena)
            small = min(free.ways, key=lambda way: way.arena)
            budget = (fast.arena + small.arena) // 2
            half = graphopt.schedule(model, device=where, work=WORK, memory_budget=budget, measure=False).record
            taken = next(way for way in half.ways if way.taken)
            lost = taken.makespan - min(fast.makespan, small.makespan)
            between = max(abs(small.makespan - fast.makespan), 1e-9)
            kept = lost <= SHARE * between and taken.arena <= budget
            rows.append((
                f"seed {seed}", where, fast.arena / 2**20, fast.makespan / 1000, small.arena / 2**20,
                small.makespan / 1000, budget / 2**20, taken.arena / 2**20, taken.makespan / 1000, lost / between,
            ))  # fmt: skip
            if not kept:
                over.append(f"seed {seed} on {where}")
    columns = ("wiring", "device", "most MiB", "us", "least MiB", "us", "budget", "taken MiB", "us", "share lost")
    sheet.table("random wiring under a budget half-way, simulated", columns, rows)
    figure = f"{len(rows) - len(over)} of {len(rows)}" + (f"; not: {', '.join(over)}" if over else "")
    return [Bar(ISSUE, 8, "half of the memory between two plans", "a third of the time between", figure, not over)]


if __name__ == "__main__":
    main(measure)
