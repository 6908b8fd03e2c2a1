"""Tiles: regions of a model computed piece by piece, with values computed again where that is not enough."""

from __future__ import annotations

from graphopt.errors import BudgetNotKept
from graphopt.memory.levers.lever import Fitted, Lever, Task
from graphopt.memory.levers.order import ORDER_WORK, best_order
from graphopt.memory.levers.recompute import RECOMPUTATION, within
from graphopt.memory.plan import given
from graphopt.memory.sequence import write_order
from graphopt.memory.tensors import model_memory
from graphopt.memory.tiling.search import TILE_WORK, tile_within


def _fit(task: Task) -> Fitted | None:
    ordered = task.model.clone()
    there = dict(zip(task.model.graph, ordered.graph, strict=True))
    write_order(ordered, task.start.order, {name: there[node] for name, node in task.memory.nodes.items()})
    sharing = task.memory.sharing
    tiled, regions = tile_within(
        ordered, task.budget, sharing=sharing, columns=task.columns, work=task.work[TILES.name], progress=task.progress
    )
    if not regions:
        return None
    after = model_memory(tiled, sharing=sharing)
    planned = given(after)
    if planned.packing.arena_size > task.budget:
        planned = min(
            planned,
            best_order(after, work=min(ORDER_WORK, task.work[TILES.name])),
            key=lambda plan: plan.packing.arena_size,
        )
    if planned.packing.arena_size > task.budget:
        if not task.work[RECOMPUTATION.name]:
            raise BudgetNotKept(task.budget, planned.packing.arena_size)
        task.progress("looking for what to compute again beside tiles")
        planned = within(after, task.budget, start=planned, work=task.work[RECOMPUTATION.name])
    return Fitted(tiled, after, planned, {RECOMPUTATION.name: planned.recomputations, TILES.name: regions})


TILES = Lever(
    "tiles", "in tiles", "region", "in tiles", "looking for what to compute in tiles under the budget", TILE_WORK, _fit
)
