"""Models of the zoo under a memory budget: what recomputation costs, and that the outputs keep every bit.

Budgets are shares of the best order's peak, which is told twice: with every value in bytes of its own, as a runtime
that shares nothing counts it, and with results in place and slices, as our plans do. From the smaller of the two at
75 % upwards, the least budget that is kept is looked for. The model that results is run beside the one it was made of,
ONNX Runtime's optimizations off; a bit that differs ends the measurement.
"""

from __future__ import annotations

import time
from pathlib import Path

import onnx_ir as ir

import models
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from graphopt.errors import OptionError
from graphopt.model.load import load
from graphopt.planning import memory as planning
from graphopt.planning.budget import Budgeted, keep_budget
from graphopt.planning.tensors import model_memory
from memplan.bounds import live_peak

ISSUE = 6
NAMES = ("unet_own", "densenet121")
SHARE = 0.75
STEP = 0.025  # of the peak with sharing: between budgets that are tried
MIB = 1 << 20


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per model."""
    rows = []
    for name in NAMES:
        model = load(models.load(name))
        memory = model_memory(model)
        best = planning.best(memory)
        alone = live_peak(planning.problem_of(memory.graph, best.order, sharing=False))
        started = time.perf_counter()
        done = _least(model, best.peak)
        growth = ("", "") if done.measured is None else tuple(f"{one.all_runs / MIB:.1f}" for one in done.measured)
        rows.append((
            name, alone / MIB, best.peak / MIB, done.arena / MIB, 100 * done.arena / alone,
            100 * done.arena / best.peak,
            done.added_nodes, done.extra_time_percent, time.perf_counter() - started, *growth,
        ))  # fmt: skip
    columns = (
        "model", "own bytes", "shared bytes", "least budget", "% of own", "% of shared", "nodes added", "extra time %",
        "seconds", "ORT before", "ORT after",
    )  # fmt: skip
    sheet.table("least budgets that are kept, MiB; ORT with optimizations off", columns, rows)
    kept = all(row[4] <= 100 * SHARE + 0.01 for row in rows)
    figure = ", ".join(
        f"{row[0]} {row[3]:.2f} MiB: {row[4]:.1f} % of {row[1]:.2f}, {row[7]:.1f} % extra" for row in rows
    )
    return [Bar(ISSUE, 5, "memory: zoo models at 75 %, bit-equal", "75 % of the best order", figure, kept)]


def _least(model: ir.Model, peak: int) -> Budgeted:
    share = SHARE
    while True:
        try:
            return keep_budget(model, int(share * peak), verify_seconds=60.0)
        except OptionError:
            share += STEP


if __name__ == "__main__":
    main(measure)
