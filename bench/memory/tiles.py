"""The zoo under half of its best order's peak by every means, every result in bytes of its own; bits are compared.

A model that has nothing to tile (recurrent ones, those whose peak is an output) says so. Extra time is estimated from
flops and bytes.
"""

from __future__ import annotations

import time
from pathlib import Path

import models
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from graphopt.errors import BudgetNotKept, OptionError
from graphopt.memory.budget import keep_budget
from graphopt.memory.levers.order import best_order
from graphopt.memory.tensors import model_memory
from graphopt.model.load import load

SHARES = (0.75, 0.6, 0.5)
MIB = 1 << 20


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model whose sizes are known: the least of the budgets that is kept."""
    rows: list[tuple[object, ...]] = []
    for name in models.names():
        model = load(models.load(name))
        try:
            best = best_order(model_memory(model, sharing=False), work=4_000_000_000).peak
        except OptionError:  # dims without a value
            continue
        started = time.perf_counter()
        kept = None
        for share in SHARES[:1] if quick else SHARES:
            try:
                kept = keep_budget(model, int(share * best), verify_seconds=60.0, measure=False).record
            except BudgetNotKept:
                break
        took = time.perf_counter() - started
        if kept is None:
            rows.append((name, best / MIB, "", "", "", "", "", took))
        else:
            rows.append((
                name, best / MIB, kept.arena / MIB, 100 * kept.arena / best, kept.tiled_regions, kept.added_nodes,
                kept.extra_time_percent, took,
            ))  # fmt: skip
    columns = ("model", "best order", "kept", "% of it", "regions in tiles", "nodes added", "extra time %", "seconds")
    sheet.table("least of 75, 60 and 50 % that is kept, MiB; bits equal", columns, rows)
    return []


if __name__ == "__main__":
    main(measure)
