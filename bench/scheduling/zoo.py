"""Models of the zoo scheduled on two GPUs, simulated: never slower than the better of the two baselines.

The baselines are one launch per region and wave by wave; all policies use one cost model.
"""

from __future__ import annotations

from pathlib import Path

import models
from bench.bar import Bar, Sheet
from bench.memory.dims import sizes_of
from bench.peers import OURS
from bench.script import main
from graphopt.errors import GraphoptError
from graphopt.model.dimensions import change_dims
from graphopt.model.load import load
from graphopt.program.tasks import tasks_of
from kernels.target import host
from scheduler.device import device
from scheduler.policies.choose import schedule

ISSUE = 7
DEVICES = ("v100", "h200")
BASELINES = ("launches", "waves")
WORK, QUICK_WORK = 15_000_000, 3_000_000  # blocks placed
QUICK = ("mlp_tiny", "squeezenet1_1", "resnet18", "inception_v3", "nasnet_a_mobile")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per model and device."""
    rows, slower, refused = [], [], []
    for name in QUICK if quick else models.names():
        for where in DEVICES:
            place = device(where)
            model = load(models.load(name))
            change_dims(model, {}, sizes_of(model))
            try:
                tasks = tasks_of(model, place, host(), name)
            except GraphoptError as error:
                refused.append(f"{name}: {error}")
                continue
            found = schedule(tasks.graph, place, work=QUICK_WORK if quick else WORK)
            baseline = min(found.figures[one] for one in BASELINES)
            if found.makespan > baseline * (1 + 1e-9):
                slower.append(f"{name} on {where}")
            rows.append((
                name, where, len(tasks.graph.regions), found.makespan / 1000,
                found.figures[BASELINES[0]] / found.makespan,
                found.figures[BASELINES[1]] / found.makespan, found.policy,
            ))  # fmt: skip
    columns = ("model", "device", "regions", "makespan us", "launches / ours", "waves / ours", "policy")
    sheet.table("zoo, simulated", columns, rows)
    figure = (
        f"{len(rows) - len(slower)} of {len(rows)} not slower{'; refused: ' + '; '.join(refused) if refused else ''}"
    )
    return [Bar(ISSUE, 4, "scheduler: zoo, simulated", "never slower than a baseline", figure, not slower)]


if __name__ == "__main__":
    main(measure)
