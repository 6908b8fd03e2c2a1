"""A program under a memory budget: order, results in place, kernels that run again, chunks of steps, tiles.

One search tries them all on what a program really needs, from what changes least. Where several keep the budget, the
one whose kernels take least time by estimate is taken. Tiles are of the model: regions are cut where kernels begin and
end, and every model in tiles that looks promising is lowered to see what its kernels need. A training step is cut only
where nothing else keeps the budget: its backward pass reads whole values of the forward pass, and on a perceptron of 64
layers tiles took two minutes to look for and were no faster than kernels that run again.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from graphopt.errors import BudgetNotKept
from graphopt.gradient.step import step_of
from graphopt.memory.tensors import ModelMemory, model_memory
from graphopt.memory.tiling.apart import with_values_again
from graphopt.memory.tiling.expansions import with_expansions_late
from graphopt.memory.tiling.layers import in_chunks
from graphopt.memory.tiling.pools import with_pools_in_steps
from graphopt.memory.tiling.products import with_products_apart
from graphopt.memory.tiling.search import LARGEST_TILED, Judge, Seen, tile_within
from graphopt.memory.tiling.shuffles import with_shuffles_apart
from graphopt.memory.tiling.slices import with_slices_before
from graphopt.memory.tiling.statistics import with_statistics_apart
from graphopt.model.nodes import implicit_inputs
from graphopt.program.clock import Clock
from graphopt.program.costs import ESTIMATED, Costs
from graphopt.program.in_place import in_place
from graphopt.program.lifetimes import memory_problem, planned
from graphopt.program.order import in_best_order, within_budget
from graphopt.program.regions.region import Lowered, Origin
from memplan.bounds import live_bytes, live_peak
from memplan.work import Work

SHARES = (1.0, 0.85)  # of a budget: what tiles are planned for; the second where they are not packed into the first
CHUNKS = (2, 3, 4, 5, 6, 8, 12, 16, 24)  # of the steps of recurrent layers
TILE_WORK, WAY_WORK = 40_000_000_000, 30_000_000_000  # steps of searching, about as many nanoseconds; of one search
FURTHER_WORK = 20_000_000_000  # of a second search, which knows further ways, where the first keeps no budget
LAST_WORK = 40_000_000_000  # and of each last one
AGAIN_WORK, TILED_WORK = 20_000_000_000, 5_000_000_000  # for kernels that run again; beside tiles, which have kept most
PACKINGS = 3  # tries, each for as much less as the arena of the one before was above the budget, the last one for
LOST = 64  # this part of the budget at the least: other plans lose other gaps
DEAR = 1.02  # so much longer than without a budget may a program take before other ways are looked at
TOO_DEAR = 1.1  # and so much before the model is taken apart

Lowering = Callable[[ir.Model], Lowered]  # where results may lie less well if that saves memory


def fitted(model: ir.Model, lowered: Lowered, budget: int, lower: Lowering, costs: Costs = ESTIMATED) -> Lowered:
    """The regions of `model`, which are `lowered`, within a budget in bytes of their arena.

    Raises BudgetNotKept naming the least that was found.
    """
    least: list[int] = []
    found: list[Lowered] = []
    clock = Clock(costs)
    time = clock.of

    def keep(one: Lowered, work: int = AGAIN_WORK) -> bool:
        aim = budget
        for turn in range(PACKINGS):
            try:
                fit = within_budget(one, aim, clock, work)
            except BudgetNotKept as error:
                if aim == budget:
                    least.append(error.least)
                return False
            arena = _arena(fit)
            if arena <= budget:
                found.append(fit)
                return True
            least.append(arena)
            aim -= max(arena - budget, turn * budget // LOST)  # what packing loses between buffers
        return False

    before = time(lowered)
    keep(lowered)
    if not found or time(found[-1]) > before:
        tight = lower(model)
        if _lie(tight) != _lie(lowered):
            keep(tight)
    for count in CHUNKS:
        if found or (chunked := in_chunks(model, count)) is None or keep(in_place(lower(chunked))):
            break
    judge, work, is_step = _judge(time, lower), Work(TILE_WORK), step_of(model) is not None

    def is_near(dear: float) -> bool:
        if not found or is_step or len(model.graph) > LARGEST_TILED:
            return bool(found)
        return min(map(time, found)) <= dear * before

    nearest: list[tuple[int, ir.Model]] = []  # a model in tiles and its live peak, of those that keep no budget

    def tile(one: ir.Model, left: Work, *, further: bool = False, again: bool = False) -> None:
        for share in SHARES:
            aim, given = int(budget * share), left.at_most(WAY_WORK)
            lanes = lowered.target.lanes()
            tiled, regions = tile_within(
                one, aim, sharing="strided", columns=0, vector=lanes, work=given, judge=judge, dear=DEAR,
                further=further, again=again,
            )  # fmt: skip
            now = in_place(lower(tiled))
            peak = live_peak(memory_problem(now))
            if peak > budget and (not nearest or peak < nearest[-1][0]):
                nearest.append((peak, tiled))
            if not regions and peak > budget:
                break
            if keep(now, TILED_WORK) or peak > budget:
                break

    if not is_near(DEAR):
        cut = with_pools_in_steps(with_expansions_late(model))
        cut = _in_order(cut, in_place(lower(cut)))
        tile(cut, work)
        if not is_near(TOO_DEAR) and (apart := _apart(cut, budget, judge)) is not cut:
            tile(apart, work)
        if not found and not is_step:
            work = Work(FURTHER_WORK)
            if nearest:
                tile(with_slices_before(nearest[-1][1]), work, further=True)
            if not found:
                tile(_apart(cut, budget, judge, further=True), work, further=True)
            divided = with_shuffles_apart(cut)
            if not found and divided is not cut:
                tile(divided, Work(LAST_WORK), further=True, again=True)
            if not found:
                tile(_apart(cut, budget, judge, further=True, nearby=True), Work(LAST_WORK), further=True, again=True)
    if not found:
        raise BudgetNotKept(budget, min(least))
    return min(found, key=time)


def _in_order(model: ir.Model, lowered: Lowered) -> ir.Model:
    """A copy of `model` whose nodes stand in the best order of its regions; the same model where that is its own.

    What tiles are looked for around is then not what another order would do without.
    """
    better = in_best_order(lowered, places=True)
    if better is lowered:
        return model
    copy = model.clone()
    nodes = {Origin.of(node).name: node for node in copy.graph}
    order: dict[ir.Node, None] = {}

    def run(node: ir.Node) -> None:
        before = (*node.inputs, *implicit_inputs(node))
        producers = [None if value is None else value.producer() for value in before]
        for one in producers:
            if one is not None and one.graph is copy.graph and one not in order:
                run(one)
        order[node] = None

    for region in better.regions:
        for origin in region.nodes:
            if origin.name in nodes and nodes[origin.name] not in order:
                run(nodes[origin.name])
    copy.graph.extend([*order, *(node for node in copy.graph if node not in order)])
    return copy


def _apart(model: ir.Model, budget: int, judge: Judge, *, further: bool = False, nearby: bool = False) -> ir.Model:
    """The model with products and values apart that are in the way of tiles."""
    divided = with_products_apart(with_statistics_apart(model, model_memory(model), budget), moved=further)
    memory = model_memory(divided)
    return with_values_again(divided, memory, judge(divided, memory).live, budget, nearby=nearby)


def _arena(lowered: Lowered) -> int:
    return planned(lowered).plan.arena_size


def _lie(lowered: Lowered) -> list[object]:
    """Where its regions read and write."""
    return [region.places for region in lowered.regions]


def _judge(time: Callable[[Lowered], float], lower: Lowering) -> Judge:
    """What the program of a model takes in the order of its nodes."""

    def judge(model: ir.Model, memory: ModelMemory) -> Seen:
        lowered = in_place(lower(model))
        changes = dict(live_bytes(memory_problem(lowered)))
        place = {one.name: at for at, one in enumerate(memory.graph.operators)}
        live, steps, now, last = [0] * len(place), [], 0, 0
        for step, region in enumerate(lowered.regions):
            now = changes.get(step, now)
            steps.append(now)
            there = [place[one.name] for one in region.nodes if one.name in place] or [last]
            end = max(there)
            for at in there:  # but nodes far before that a later one's kernel computes: they do not run there
                if at > last or at == end:
                    live[at] = max(live[at], now)
            last = end
        return Seen(live, steps, time(lowered))

    return judge
