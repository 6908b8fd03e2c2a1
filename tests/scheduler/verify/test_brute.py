"""The verifier is exact: brute force over small programs agrees."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device import cpu
from scheduler.errors import UnsafeProgram
from scheduler.program import Counter, Instruction, Item, Launch, Pinned, Plain, Program, Run, Ticketed, Wait
from scheduler.tasks import Kernel, Need, Region, TaskGraph, needed_blocks
from scheduler.verify.program import verify


@st.composite
def cases(draw: st.DrawFn) -> tuple[TaskGraph, Program]:
    """Anything small: needs of any pattern, launches of any kind, waits of every sort, most of them sensible."""
    count = draw(st.integers(1, 4))
    blocks = [draw(st.integers(1, 3)) for _ in range(count)]
    pairs = list(itertools.combinations(range(count), 2))
    needs = tuple(
        Need(f"r{source}", f"r{target}", draw(st.sampled_from(("all", "near"))), draw(st.sampled_from((0.0, 0.3))),
             draw(st.booleans()))
        for source, target in pairs if draw(st.integers(0, 2)) == 0
    )  # fmt: skip
    graph = TaskGraph(
        "g", tuple(Region(f"r{number}", (Kernel("k", many, (1.0,)),)) for number, many in enumerate(blocks)), needs
    )
    runs = [Run(f"r{number}", block) for number, many in enumerate(blocks) for block in range(many)]
    if draw(st.integers(0, 4)) == 0:
        runs = list(draw(st.permutations(runs)))
    cut = draw(st.integers(0, len(runs)))
    counters = []
    for number, many in enumerate(blocks):
        begin = draw(st.integers(0, many - 1))
        counters += [Counter(f"r{number}", 0, many), Counter(f"r{number}", begin, draw(st.integers(begin + 1, many)))]
    counters = tuple(counters)
    launches: list[Launch] = []
    for part in (runs[:cut], runs[cut:]):
        if not part:
            continue
        if draw(st.booleans()):
            workers = draw(st.integers(1, 3))
            lists: list[list[Instruction]] = [[] for _ in range(workers)]
            ahead = draw(st.integers(0, 5)) == 0
            for place, run in enumerate(part):
                worker = draw(st.integers(0, workers - 1))
                lists[worker] += _waits(draw, counters, part[: None if ahead else place])
                lists[worker].append(run)
            launches.append(Pinned(tuple(map(tuple, lists)), counters))
        else:
            ahead = draw(st.integers(0, 5)) == 0
            items = tuple(
                Item(run, tuple(_waits(draw, counters, part[: None if ahead else place])))
                for place, run in enumerate(part)
            )
            launches.append(Ticketed(items, draw(st.integers(1, 2)), counters))
    return graph, Program("g", "cpu:3", {one.name: 0 for one in graph.regions}, tuple(launches))


def _waits(draw: st.DrawFn, counters: Sequence[Counter], runs: Sequence[Run]) -> list[Wait]:
    """Waits for all that counters count of these runs, most of them, or for a part of it."""
    found = []
    for number, counter in enumerate(counters):
        there = sum(run.region == counter.region and counter.begin <= run.block < counter.end for run in runs)
        if draw(st.integers(0, 3)) == 0:
            found.append(Wait(number, draw(st.integers(0, there)) if draw(st.integers(0, 4)) == 0 else there))
    return found


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


def test_the_verdict_is_that_of_brute_force() -> None:
    seen = {True: 0, False: 0}

    @settings(max_examples=600, deadline=None, derandomize=True)
    @given(cases())
    def agree(case: tuple[TaskGraph, Program]) -> None:
        graph, program = case
        safe = safe_by_brute_force(graph, program)
        seen[safe] += 1
        try:
            verify(graph, program, cpu(3))
        except UnsafeProgram:
            assert not safe
        else:
            assert safe

    agree()
    assert min(seen.values()) > 100, "both verdicts are tried"
