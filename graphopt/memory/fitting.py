"""A model under a memory budget by every means there is: another order, values computed again, regions in tiles.

Means are tried from the one that changes least. Where several keep the budget, the one that takes least time is taken:
computing again repeats whole operators, tiling repeats halos and copies what it cuts and joins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.errors import BudgetNotKept
from graphopt.memory.plan import RECOMPUTE_WORK, Planned, best, given, within
from graphopt.memory.sequence import write_order
from graphopt.memory.tensors import ModelMemory, model_memory
from graphopt.memory.tiling.search import LEAST_COLUMNS, TILE_WORK, tile_within


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan, and the model it is for: the one that was given, or a copy with tiles. The order is not written yet."""

    model: ir.Model
    memory: ModelMemory
    planned: Planned
    regions: int  # that run in tiles


def fit(
    model: ir.Model,
    memory: ModelMemory,
    budget: int,
    *,
    start: Planned,
    recompute_work: int = RECOMPUTE_WORK,
    tile_work: int = TILE_WORK,
    columns: int = LEAST_COLUMNS,
    tell: Callable[[str], None] = lambda text: None,
) -> Fitted:
    """The plan of least time whose arena takes at most `budget` bytes; `start` is the best order of `model`.

    What shares bytes is what `memory` says. `recompute_work` and `tile_work` are steps of searching, and none of them
    rules a means out; tiles of convolutions have at least so many `columns`. Raises BudgetNotKept
    naming the least arena that was found.
    """
    if start.packing.arena_size <= budget:
        return Fitted(model, memory, start, 0)
    found: list[Fitted] = []
    least = start.packing.arena_size
    if recompute_work > 0:
        tell("looking for what to compute again under the budget")
        try:
            found.append(Fitted(model, memory, within(memory, budget, start=start, work=recompute_work), 0))
        except BudgetNotKept as error:
            least = min(least, error.least)
    if tile_work > 0:
        tell("looking for what to compute in tiles under the budget")
        try:
            tiled = _tiled(model, memory, budget, start, (recompute_work, tile_work), columns, tell)
            found += [] if tiled is None else [tiled]
        except BudgetNotKept as error:
            least = min(least, error.least)
    if not found:
        raise BudgetNotKept(budget, least)
    return min(found, key=lambda one: (one.planned.time, one.planned.packing.arena_size))


def _tiled(
    model: ir.Model,
    memory: ModelMemory,
    budget: int,
    start: Planned,
    work: tuple[int, int],
    columns: int,
    tell: Callable[[str], None],
) -> Fitted | None:
    """With tiles, and with values computed again where these are not enough; None where nothing can be tiled."""
    ordered = model.clone()
    there = dict(zip(model.graph, ordered.graph, strict=True))
    write_order(ordered, start.order, {name: there[node] for name, node in memory.nodes.items()})
    tiled, regions = tile_within(ordered, budget, sharing=memory.sharing, columns=columns, work=work[1], tell=tell)
    if not regions:
        return None
    after = model_memory(tiled, sharing=memory.sharing)
    planned = given(after)
    if planned.packing.arena_size > budget:
        planned = min(planned, best(after), key=lambda one: one.packing.arena_size)
    if planned.packing.arena_size > budget:
        if not work[0]:
            raise BudgetNotKept(budget, planned.packing.arena_size)
        tell("looking for what to compute again beside tiles")
        planned = within(after, budget, start=planned, work=work[0])
    return Fitted(tiled, after, planned, regions)
