"""Memory plans of the zoo and of the onnx package's light models: arena against live peak, and against ONNX Runtime.

ONNX Runtime's figure is the heap that five runs take at the most with its default options and one thread; ours
is the arena for the same tensors (temporaries and outputs) in the order of the file, and in the best order.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import models
from bench.bar import Bar, Sheet
from bench.memory.dims import sizes_of
from bench.peers import OURS
from bench.script import main
from graphopt.memory import plan as planning
from graphopt.memory.levers.order import best_order
from graphopt.memory.measured import use_in_onnxruntime
from graphopt.memory.tensors import model_memory
from graphopt.model.dimensions import change_dims
from graphopt.model.load import load

ISSUE = 6
MOST = 1.005  # arena over live peak
SHARE = 0.95  # of the models whose arena is the live peak
SECONDS = 1.0  # for one plan
ORDER_WORK, QUICK_ORDER_WORK = 20_000_000_000, 2_000_000_000  # steps
MIB = 1 << 20


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per model; the first plan of the process, which compiles, is made twice."""
    names = (*models.names(), *models.onnx_light_names())
    planning.given(model_memory(load(models.load("mlp_tiny"))))
    rows, ratios, beside, slowest = [], [], [], 0.0
    for name in names:
        model = load(models.load(name))
        change_dims(model, {}, sizes_of(model))
        memory = model_memory(model)
        started = time.perf_counter()
        given = planning.given(memory)
        seconds = time.perf_counter() - started
        slowest = max(slowest, seconds)
        best = best_order(memory, work=QUICK_ORDER_WORK if quick else ORDER_WORK)
        ratio = given.packing.arena_size / max(given.peak, 1)
        ratios.append(ratio)
        uses = None if quick else use_in_onnxruntime([model], contract=False, rounds=1, runs=5)
        heap = None if uses is None else uses[0].heap
        grown = None if heap is None else heap / max(given.packing.arena_size, 1)
        if grown is not None and given.packing.arena_size > MIB:  # below, a process grows by its own housekeeping
            beside.append(grown)
        rows.append((
            name, len(memory.graph.operators), given.peak / MIB, ratio, seconds, best.peak / MIB,
            best.lower_bound / MIB, None if heap is None else heap / MIB, grown,
        ))  # fmt: skip
    columns = (
        "model",
        "operators",
        "live peak",
        "arena / peak",
        "seconds",
        "best order",
        "its bound",
        "ORT grows",
        "ORT / ours",
    )
    sheet.table("arena for temporaries and outputs, MiB; ONNX Runtime's heap over five runs", columns, rows)
    exact = sum(ratio == 1.0 for ratio in ratios)
    met = exact >= SHARE * len(ratios) and max(ratios) <= MOST and slowest < SECONDS
    mean = math.exp(sum(map(math.log, beside)) / len(beside)) if beside else None
    peer = "" if mean is None else f"; ORT grows by {mean:.1f} x the arena (geometric mean of {len(beside)})"
    less = [row for row in rows if row[5] < row[2]]
    figure = f"{exact} of {len(ratios)} equal, worst {max(ratios):.4f} x, {slowest:.2f} s{peer}"
    saved = ", ".join(f"{row[0]} {row[2]:.2f} -> {row[5]:.2f}" for row in less)
    return [
        Bar(ISSUE, 2, "memory: arena of zoo and light models", "95 %, 1.005 x, 1 s", figure, met),
        Bar(ISSUE, 4, "memory: zoo's peaks by order, MiB", "shown", f"{len(less)} fall: {saved}", True),
    ]


if __name__ == "__main__":
    main(measure)
