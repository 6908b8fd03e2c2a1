"""The verifier is exact: brute force over small programs agrees."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device import cpu
from scheduler.errors import UnsafeProgram
from scheduler.program import Counter, Instruction, Item, Launch, Pinned, Program, Run, Ticketed, Wait
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.program import verify
from tests.scheduler.verify.brute import safe_by_brute_force


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
