"""Whether a small program is safe, by keeping each block from ending in turn."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.program import Counter, Instruction, Pinned, Plain, Program, Run, Ticketed
from scheduler.tasks import TaskGraph, needed_blocks


def safe_by_brute_force(graph: TaskGraph, program: Program) -> bool:
    """Launch by launch, with each block that is needed kept from ending: what it keeps from starting. All resident.

    A ticketed launch has a worker for each ticket or, where it has one only, runs its tickets in order.
    """
    many = {one.name: one.kernels[0].blocks for one in graph.regions}
    needs: dict[Run, set[Run]] = {Run(name, block): set() for name in many for block in range(many[name])}
    for need in graph.needs:
        for target in range(many[need.target]):
            some = needed_blocks(need, many[need.source], many[need.target], target)
            needs[Run(need.target, target)] |= {Run(need.source, source) for source in some}
    ended: set[Run] = set()
    for launch in program.launches:
        lists: list[list[Instruction]]
        if isinstance(launch, Plain):
            lists = [[Run(launch.region, block)] for block in range(many[launch.region])]
        elif isinstance(launch, Pinned):
            lists = [list(worker) for worker in launch.workers]
        elif launch.workers == 1:
            lists = [[one for item in launch.items for one in (*item.waits, item.run)]]
        else:
            lists = [[*item.waits, item.run] for item in launch.items]
        counters = () if isinstance(launch, Plain) else launch.counters
        if isinstance(launch, Ticketed) and not _only_earlier(launch):
            return False
        here = [one for instructions in lists for one in instructions if isinstance(one, Run)]
        if len(_started(lists, counters, None)) < len(here):
            return False
        for without in here:
            if any(without in needs[one] for one in _started(lists, counters, without)):
                return False
        if any(needs[one] - ended - set(here) for one in here):
            return False
        ended |= set(here)
    return True


def _only_earlier(launch: Ticketed) -> bool:
    for ticket, item in enumerate(launch.items):
        for wait in item.waits:
            counter = launch.counters[wait.counter]
            before = [one.run for one in launch.items[:ticket] if one.run.region == counter.region]
            if sum(counter.begin <= run.block < counter.end for run in before) < wait.value:
                return False
    return True


def _started(lists: Sequence[list[Instruction]], counters: Sequence[Counter], without: Run | None) -> set[Run]:
    """What starts at all, one round of all lists after the other, each from its beginning."""
    started: set[Run] = set()
    while True:
        before = len(started)
        for instructions in lists:
            for one in instructions:
                if isinstance(one, Run):
                    started.add(one)
                    if one == without:
                        break
                    continue
                counter = counters[one.counter]
                stands = sum(
                    run != without and run.region == counter.region and counter.begin <= run.block < counter.end
                    for run in started
                )
                if stands < one.value:
                    break
        if len(started) == before:
            return started
