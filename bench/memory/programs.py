"""Our programs under half of the optimized model's arena: what is kept, and what it costs when the programs run.

A program is compiled for one thread without a budget and with one; both are compared with ONNX Runtime by the compiler.
Time is that thread's CPU time, programs by turns on one feed, so that neighbours count little. Models with free dims
are left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import pin, ratio, readings, unpin
from bench.memory.dims import sizes_of
from bench.peers import OURS
from bench.script import main
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.errors import BudgetNotKept, GraphoptError
from graphopt.model.load import load

ISSUE = 22
SHARE = 0.5
SHARES: Mapping[str, float] = {"densenet121": 0.4}
MOST_EXTRA = 10.0  # percent
LEFT_OUT = 2  # models that may miss it
ROUNDS, QUICK_ROUNDS = 15, 5
QUICK = ("dscnn_kws", "squeezenet1_1")
MIB = 1 << 20


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model without free dims."""
    rows: list[tuple[object, ...]] = []
    missed: list[str] = []
    for name in QUICK if quick else models.names():
        if sizes_of(load(models.load(name))):
            continue
        row, is_kept = _row(name, QUICK_ROUNDS if quick else ROUNDS)
        sheet.console.print(*row)
        rows.append(row)
        missed += [] if is_kept else [name]
    columns = (
        "model", "model's arena", "budget", "program's arena", "", "kept in", "extra time %", "from", "to", "seconds",
    )  # fmt: skip
    sheet.table("programs under a share of the optimized model's arena, MiB", columns, rows)
    figure = f"{len(rows) - len(missed)} of {len(rows)}" + (f" (not: {', '.join(missed)})" if missed else "")
    return [Bar(ISSUE, 4, "programs: half of the arena, measured", "27 of 29 at 10 %", figure, len(missed) <= LEFT_OUT)]


def _row(name: str, rounds: int) -> tuple[tuple[object, ...], bool]:
    source = models.load(name)
    arena = graphopt.memory(graphopt.optimize(source, verify=False).model, levers=None).record.arena
    budget = int(SHARES.get(name, SHARE) * arena)
    started = time.perf_counter()
    try:
        plain = graphopt.compile(source, threads=1)
    except GraphoptError as error:
        return (name, arena / MIB, budget / MIB, "", str(error), "", "", "", "", ""), False
    alone = plain.linked.plan.arena_size
    try:
        kept = graphopt.compile(source, threads=1, memory_budget=budget)
    except BudgetNotKept as error:
        took = time.perf_counter() - started
        return (name, arena / MIB, budget / MIB, alone / MIB, "refused", error.least / MIB, "", "", "", took), False
    took = time.perf_counter() - started
    pin()
    feed = {key: np.asarray(value) for key, value in make_feed(inputs_of(load(source)), {}, "normal").items()}
    taken = readings({"plain": plain.program.bind(feed), "kept": kept.program.bind(feed)}, rounds)
    unpin()
    slower = ratio(taken["kept"], taken["plain"])
    extra, low, high = (100 * (one - 1) for one in (slower.median, slower.low, slower.high))
    its = kept.linked.plan.arena_size
    return (
        name, arena / MIB, budget / MIB, alone / MIB, "kept", its / MIB, extra, low, high, took
    ), its <= budget and extra <= MOST_EXTRA  # fmt: skip


if __name__ == "__main__":
    main(measure)
