"""Models of the zoo under a memory budget: what recomputation costs, and that the outputs keep every bit.

The budget is 75 % of the arena of the best order without recomputation. The model that results is run beside the one it
was made of, ONNX Runtime's optimizations off; a bit that differs ends the measurement.
"""

from __future__ import annotations

import time
from pathlib import Path

import models
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from graphopt.model.load import load
from graphopt.planning import memory as planning
from graphopt.planning.budget import keep_budget
from graphopt.planning.tensors import model_memory

ISSUE = 6
NAMES = ("unet_own", "densenet121")
SHARE = 0.75
MIB = 1 << 20


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per model."""
    rows = []
    for name in NAMES:
        model = load(models.load(name))
        best = planning.best(model_memory(model))
        started = time.perf_counter()
        done = keep_budget(model, int(SHARE * best.packing.arena_size), verify_seconds=60.0)
        growth = ("", "") if done.measured is None else tuple(f"{one.all_runs / MIB:.1f}" for one in done.measured)
        rows.append((
            name, done.arena_given / MIB, done.arena_best / MIB, done.budget / MIB, done.arena / MIB, done.added_nodes,
            done.extra_time_percent, time.perf_counter() - started, *growth,
        ))  # fmt: skip
    columns = (
        "model", "file order", "best order", "budget", "arena", "nodes added", "extra time %", "seconds", "ORT before",
        "ORT after",
    )  # fmt: skip
    sheet.table("recomputation at 75 % of the best order, MiB; ORT with optimizations off", columns, rows)
    kept = all(row[4] <= row[3] for row in rows)
    figure = ", ".join(f"{row[0]} {row[3]:.1f} MiB at {row[6]:.1f} % extra" for row in rows) + "; bit-equal"
    return [Bar(ISSUE, 5, "memory: zoo models at 75 %", "bit-equal", figure, kept)]


if __name__ == "__main__":
    main(measure)
