"""Models of the zoo under a memory budget: what recomputation and tiles cost, and that the outputs keep every bit.

The best order's peak is told twice: with every value in bytes of its own, as a runtime that shares nothing counts it,
and with results in place and slices, as our bundles have them. Budgets are shares of the smaller one; whether a budget
is kept is told in the stricter way of the two that keeps it. The model that results is run beside the one it was made
of, ONNX Runtime's optimizations off; a bit that differs ends the measurement.
"""

from __future__ import annotations

import time
from pathlib import Path

import models
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from graphopt.errors import BudgetNotKept
from graphopt.memory.budget import keep_budget
from graphopt.memory.levers.order import best_order
from graphopt.memory.tensors import model_memory
from graphopt.model.load import load

ISSUE = 6
NAMES = ("unet_own", "densenet121")
SHARE = 0.75
SHARES = (SHARE, 0.6, 0.5)
MIB = 1 << 20


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and budget."""
    rows: list[tuple[object, ...]] = []
    figures, kept = [], []
    for name in NAMES:
        model = load(models.load(name))
        alone, shared = (best_order(model_memory(model, sharing=sharing)).peak for sharing in (False, True))
        for share in SHARES[:1] if quick else SHARES:
            budget = int(share * min(alone, shared))
            started = time.perf_counter()
            try:
                kept_model = keep_budget(model, budget, verify_seconds=60.0, measure=share == SHARE)
                done = kept_model.record
            except BudgetNotKept as error:
                least = (error.least / MIB, 100 * error.least / min(alone, shared))
                rows.append((name, alone / MIB, shared / MIB, budget / MIB, "not kept", *least, *("",) * 6))
                kept.append(share != SHARE)
                continue
            took = time.perf_counter() - started
            growth = tuple("" if taken is None else f"{taken / MIB:.1f}" for taken in (done.heap_before, done.heap))
            rows.append((
                name, alone / MIB, shared / MIB, budget / MIB, "shared" if done.sharing else "own", done.arena / MIB,
                100 * done.arena / min(alone, shared), done.tiled_regions, done.added_nodes, done.extra_time_percent,
                took, *growth,
            ))  # fmt: skip
            kept.append(done.bit_equal and done.arena <= budget)
            if share == SHARE:
                figures.append(
                    f"{name} {done.arena / MIB:.2f} MiB: {100 * done.arena / shared:.1f} % of {shared / MIB:.2f}, "
                    f"{done.extra_time_percent:.1f} % extra"
                )
    columns = (
        "model", "best, own bytes", "best, shared", "budget", "counted in", "arena", "% of the smaller",
        "regions in tiles", "nodes added", "extra time %", "seconds", "ORT before", "ORT after",
    )  # fmt: skip
    sheet.table("budgets that are kept, MiB; heap of ONNX Runtime with the options that keep them", columns, rows)
    return [
        Bar(ISSUE, 5, "memory: zoo models at 75 %, bit-equal", "75 % of the best order", ", ".join(figures), all(kept))
    ]


if __name__ == "__main__":
    main(measure)
