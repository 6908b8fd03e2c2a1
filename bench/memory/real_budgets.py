"""Budgets where users run the file: ten CNNs of the zoo at 75 % and 50 % of their arena, in ONNX Runtime.

Each optimized model is given both budgets. What is accepted is run in ONNX Runtime with the options that are printed
with it, in a process whose heap is counted by a library of ours; the second count is the kernel's growth of the
resident set, which shares no code with it and is larger by pages. Time is processor time on one thread, models by
turns, and is compared with what the command said.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from graphopt.errors import BudgetNotKept
from graphopt.memory.measured import use_in_onnxruntime

ISSUE = 17
NAMES = (
    "resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "densenet121", "unet_own", "inception_v3",
    "nasnet_a_mobile", "resnext29_8x64d", "convnext_tiny",
)  # fmt: skip
SHARES = (0.75, 0.5)
KEPT = 1.02  # of a budget, by the heap
POINTS = 15  # percent that the measured slowdown may be away from what was said
MIB = 1 << 20


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and budget."""
    rows: list[tuple[object, ...]] = []
    good = 0
    for name in NAMES[2:4] if quick else NAMES:
        source = models.load(name)
        arena = graphopt.memory(graphopt.optimize(source, verify=False).model, levers=None).record.arena
        for share in SHARES:
            budget = int(share * arena)
            started = time.process_time()
            try:
                result = graphopt.optimize(source, memory_budget=budget)
            except BudgetNotKept as error:
                rows.append((name, arena / MIB, budget / MIB, "refused", error.least / MIB, "", "", "", ""))
                continue
            took = time.process_time() - started
            kept = result.budgeted
            assert kept is not None, "it was asked for"
            plain = graphopt.optimize(source, verify=False).model
            uses = use_in_onnxruntime((plain, result.model), contract=True)
            assert uses is not None, "the zoo runs here"
            pairs = zip(uses[0].milliseconds, uses[1].milliseconds, strict=True)
            slower = 100 * (statistics.median(two / one for one, two in pairs) - 1)
            said = kept.record.slowdown_percent or 0.0
            fits = uses[1].heap <= KEPT * budget and abs(slower - said) <= POINTS
            good += fits
            rows.append((
                name, arena / MIB, budget / MIB, "kept" if fits else "missed", uses[1].heap / MIB,
                kept.record.aim / MIB, said, slower, took,
            ))  # fmt: skip
    columns = ("model", "arena", "budget", "", "heap", "planned for", "said %", "measured %", "CPU s")
    sheet.table("budgets in ONNX Runtime, MiB", columns, rows)
    figure = f"{good} of {len(rows)}"
    return [Bar(ISSUE, 3, "memory: budgets kept by ONNX Runtime's heap", "16 of 20", figure, good >= 0.8 * len(rows))]


if __name__ == "__main__":
    main(measure)
