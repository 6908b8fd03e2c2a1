"""A model under a memory budget by every lever there is: another order, values computed again, regions in tiles.

Levers are tried from the one that changes least. Where several keep the budget, the one that takes least time is taken:
computing again repeats whole operators, tiling repeats halos and copies what it cuts and joins.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.errors import BudgetNotKept
from graphopt.memory.levers.lever import Fitted, Lever, Task
from graphopt.memory.levers.recompute import RECOMPUTATION
from graphopt.memory.levers.tile import TILES
from graphopt.memory.plan import Planned
from graphopt.memory.tensors import ModelMemory
from graphopt.memory.tiling.candidates import LEAST_COLUMNS
from graphopt.memory.tiling.search import LARGEST_TILED
from graphopt.model.text import Progress, several, silent

LEVERS: tuple[Lever, ...] = (RECOMPUTATION, TILES)


def fit(
    model: ir.Model,
    memory: ModelMemory,
    budget: int,
    *,
    start: Planned,
    work: Mapping[str, int] | None = None,
    columns: int = LEAST_COLUMNS,
    progress: Progress = silent,
) -> Fitted:
    """The plan of least time whose arena takes at most `budget` bytes; `start` is the best order of `model`.

    What shares bytes is what `memory` says. `work` are steps of searching by the name of a lever, those of the lever
    itself where it is not named, and 0 rules a lever out; tiles of convolutions have at least so many `columns`.
    Raises BudgetNotKept naming the least arena that was found.
    """
    if start.packing.arena_size <= budget:
        return Fitted(model, memory, start, {})
    steps = {lever.name: lever.work for lever in LEVERS} | dict(work or {})
    task = Task(model, memory, budget, start, steps, columns, progress)
    candidates: list[Fitted] = []
    least = start.packing.arena_size
    for lever in LEVERS:
        if steps[lever.name] <= 0 or (lever is TILES and candidates and len(model.graph) > LARGEST_TILED):
            continue
        progress(lever.search)
        try:
            fitted = lever.fit(task)
        except BudgetNotKept as error:
            least = min(least, error.least)
        else:
            candidates += [] if fitted is None else [fitted]
    if not candidates:
        raise BudgetNotKept(budget, least)
    return min(candidates, key=lambda fitted: (fitted.planned.time, fitted.planned.packing.arena_size))


def alone(lever: Lever, work: int) -> dict[str, int]:
    """The `work` of `fit` with which this lever is tried and no other."""
    return {other.name: work if other is lever else 0 for other in LEVERS}


def used(fitted: Fitted) -> tuple[Lever, ...]:
    """The levers that a plan uses beyond the order."""
    return tuple(lever for lever in LEVERS if fitted.uses.get(lever.name))


def counts(fitted: Fitted) -> str:
    """How often each lever was used: "3 operators again, 2 regions in tiles"."""
    return ", ".join(f"{several(fitted.uses[lever.name], lever.unit)} {lever.done}" for lever in used(fitted))
