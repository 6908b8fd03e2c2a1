"""Schedule and memory, planned together.

A schedule that runs regions beside each other needs more memory than one after the other; and a buffer that takes the
place of another makes its writer wait for the other's readers. Between two ends lies a curve:

- forbid: buffers share bytes only where the task graph itself makes one happen before the other;
- wait: buffers share bytes as they may in the order of the schedule, and the waits that this takes are added to the
  task graph, which is scheduled again. This is repeated while it pays, for each schedule has an order of its own;
- within a budget: a buffer's bytes are left alone for as many regions of that order after its last use as the budget
  has room for, so that those who take them over find them free without waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import networkx
import numpy as np

from graphopt.errors import BudgetNotKept
from graphopt.memory.plan import PACK_WORK
from graphopt.memory.share import Budget, in_bytes
from graphopt.model.text import Progress, several, silent
from graphopt.program.tasks import Tasks
from kernels.listing import ALIGNMENT
from memplan.accesses import Accesses
from memplan.concurrent import concurrent_problem
from memplan.packing.solve import solve
from memplan.plan import Packing
from memplan.verify.concurrent import verify_concurrent
from scheduler.device import Device
from scheduler.policies.choose import USUAL_WORK, Scheduled, schedule
from scheduler.tasks import Need, TaskGraph

FORBID, WAIT = "forbid", "wait"
ROUNDS = 3
AS_FAST = 1.005  # so much slower counts as equally fast, and less memory decides


@dataclass(frozen=True, slots=True)
class Together:
    """A schedule with a place for every buffer; both have been verified."""

    scheduled: Scheduled
    packing: Packing
    way: str  # forbid or wait; or how long bytes are left alone
    added_waits: int  # needs that only the reuse of bytes makes


def plan_together(
    tasks: Tasks,
    device: Device,
    *,
    policy: str = "best",
    work: int = USUAL_WORK,
    memory_budget: Budget | None = None,
    progress: Progress = silent,
) -> tuple[Together, ...]:
    """All ways that were tried, the one to take first. `work`, in blocks placed, is for each schedule.

    `memory_budget` is for the arena, where a share is one of the arena that no reuse of bytes makes wait. Raises
    BudgetNotKept with the least arena that was found.
    """
    progress("scheduling")
    first = schedule(tasks.graph, device, policy=policy, work=work)
    order = _order(tasks, first)
    found = [Together(first, _packed(tasks, order, None), FORBID, 0)]
    now, budget = first, None if memory_budget is None else in_bytes(memory_budget, found[0].packing.arena_size)
    for number in range(ROUNDS):
        if budget is not None and found[0].packing.arena_size <= budget:
            break
        progress(f"schedule and memory, round {number + 1}")
        order = _order(tasks, now)
        slack, packing = (0, _packed(tasks, order, 0)) if budget is None else _within(tasks, order, budget)
        way = WAIT if not slack else f"bytes free after {several(slack, 'region')}"
        added = _reuse_needs(tasks, order, packing)
        if not added:
            found.append(Together(now, packing, way, 0))
            break
        needs = (*tasks.graph.needs, *added)
        graph = msgspec.structs.replace(tasks.graph, needs=needs)
        again = schedule(graph, device, policy=policy, work=work)
        _verify(tasks, graph, order, packing)
        found.append(Together(again, packing, way, len(added)))
        if again.makespan >= now.makespan and number:
            break
        now = again
    return _sorted(found, budget)


def _sorted(found: Sequence[Together], budget: int | None) -> tuple[Together, ...]:
    """Those within the budget first; of them the fastest, or what needs less memory and is as fast."""
    least = min(one.packing.arena_size for one in found)
    if budget is not None and least > budget:
        raise BudgetNotKept(budget, least)
    fitting = [one for one in found if budget is None or one.packing.arena_size <= budget]
    fastest = min(one.scheduled.makespan for one in fitting)
    return tuple(
        sorted(
            found,
            key=lambda one: (
                one not in fitting, one.scheduled.makespan > AS_FAST * fastest, one.packing.arena_size,
                one.scheduled.makespan,
            ),
        )
    )  # fmt: skip


def _within(tasks: Tasks, order: Sequence[str], budget: int) -> tuple[int, Packing]:
    """The most regions for which bytes can be left alone within the budget, and the packing; 0 where even that is not.

    Found by halving: more regions hardly ever need a smaller arena.
    """
    low, packing = 0, _packed(tasks, order, 0)
    high = len(order)
    while low + 1 < high and packing.arena_size <= budget:
        middle = (low + high) // 2
        found = _packed(tasks, order, middle)
        if found.arena_size <= budget:
            low, packing = middle, found
        else:
            high = middle
    return low, packing


def _order(tasks: Tasks, scheduled: Scheduled) -> tuple[str, ...]:
    """The regions by when their first block starts, none before what it needs."""
    simulation = scheduled.simulation
    first = np.full(len(simulation.regions), np.inf)
    np.minimum.at(first, simulation.region, simulation.start)
    start = dict(zip(simulation.regions, first.tolist(), strict=True))
    graph: networkx.DiGraph = networkx.DiGraph((need.source, need.target) for need in tasks.graph.needs)
    graph.add_nodes_from(region.name for region in tasks.graph.regions)
    position = {region.name: number for number, region in enumerate(tasks.graph.regions)}
    return tuple(
        networkx.lexicographical_topological_sort(
            graph, key=lambda name: (start.get(scheduled.merged.get(name, name), 0.0), position[name])
        )
    )


def _accesses(tasks: Tasks, order: Sequence[str], needs: Sequence[Need]) -> Accesses:
    """What happens before what between whole regions: a need from block to block promises nothing of the whole."""
    before = tuple((need.source, need.target) for need in needs if need.pattern == "all")
    return Accesses(tuple(order), before, tasks.reads, tasks.writes)


def _packed(tasks: Tasks, order: Sequence[str], slack: int | None) -> Packing:
    """Buffers at places of their own until the task graph orders their uses, or `slack` regions of `order` are past."""
    accesses = _accesses(tasks, order, tasks.graph.needs)
    problem = concurrent_problem(tasks.sizes, accesses, kept=tasks.kept, alignment=ALIGNMENT)
    if slack is None:
        packing = solve(problem, work=PACK_WORK)
        verify_concurrent(tasks.sizes, packing, accesses)
        return packing
    last: dict[str, int] = {}
    for position, region in enumerate(order):
        for buffer in (*tasks.reads.get(region, ()), *tasks.writes.get(region, ())):
            last[buffer] = position
    buffers = tuple(
        one if one.name in tasks.kept else replace(one, end=min(one.end, last[one.name] + 1 + slack))
        for one in problem.buffers
    )
    return solve(replace(problem, buffers=buffers), work=PACK_WORK)


def _verify(tasks: Tasks, graph: TaskGraph, order: Sequence[str], packing: Packing) -> None:
    verify_concurrent(tasks.sizes, packing, _accesses(tasks, order, graph.needs))


def _reuse_needs(tasks: Tasks, order: Sequence[str], packing: Packing) -> tuple[Need, ...]:
    """What has to be waited for besides, so that buffers on the same bytes never meet."""
    position = {name: number for number, name in enumerate(order)}
    users: dict[str, list[str]] = {name: [] for name in tasks.sizes}
    writers: dict[str, list[str]] = {name: [] for name in tasks.sizes}
    for name in order:
        for buffer in tasks.writes.get(name, ()):
            writers[buffer].append(name)
            users[buffer].append(name)
        for buffer in tasks.reads.get(name, ()):
            users[buffer].append(name)
    known = networkx.DiGraph((need.source, need.target) for need in tasks.graph.needs if need.pattern == "all")
    known.add_nodes_from(order)
    later: Mapping[str, set[str]] = {name: networkx.descendants(known, name) for name in order}
    added: dict[tuple[str, str], Need] = {}
    for one, other in _on_the_same_bytes(tasks, packing):
        early, late = (one, other) if position[users[one][-1]] < position[writers[other][0]] else (other, one)
        for use in users[early]:
            for write in writers[late]:
                if write not in later[use] and use != write:
                    added[use, write] = Need(use, write, reuse=True)
    return tuple(added.values())


def _on_the_same_bytes(tasks: Tasks, packing: Packing) -> list[tuple[str, str]]:
    names = sorted((name for name in tasks.sizes if tasks.sizes[name]), key=lambda name: (packing.offsets[name], name))
    pairs = []
    for position, one in enumerate(names):
        end = packing.offsets[one] + tasks.sizes[one]
        for other in names[position + 1 :]:
            if packing.offsets[other] >= end:
                break
            pairs.append((one, other))
    return pairs
