"""The failing cases of the public block fusion code (NNFusion), as programs: what it emits, and what is safe instead.

It places each region's blocks on as many "block executors" as it was told to have, 10,240 by default, without asking
how many are resident; waits are region to region; and threads a block does not use leave early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.device import cpu, device
from scheduler.errors import UnsafeProgram
from scheduler.program import Counter, Instruction, Item, Pinned, Plain, Program, Run, Ticketed, Wait
from scheduler.simulate import Dispatch, Hung, simulate
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.program import verify

H200 = device("h200")  # 132 multiprocessors
THREADS = 1024  # two workers to a multiprocessor: 264 slots
SLOTS = 264


def chain(*blocks: int) -> TaskGraph:
    regions = tuple(Region(f"r{at}", (Kernel("k", many, (1000.0,), THREADS),)) for at, many in enumerate(blocks))
    return TaskGraph("chain", regions, tuple(Need(f"r{at - 1}", f"r{at}") for at in range(1, len(blocks))))


FORK_JOIN = TaskGraph(
    "fork-join", tuple(Region(f"r{at}", (Kernel("k", 64, (1000.0,), THREADS),)) for at in range(8)),
    (*(Need("r0", f"r{at}") for at in range(1, 7)), *(Need(f"r{at}", "r7") for at in range(1, 7))),
)  # fmt: skip


def counted(graph: TaskGraph) -> tuple[Counter, ...]:
    """One counter for each region, in their order."""
    return tuple(Counter(region.name, 0, region.kernels[0].blocks) for region in graph.regions)


def fused(graph: TaskGraph, executors: int, all_waits: bool = True) -> Program:
    """Each region on the next executors in a row, from the first on where they do not suffice, several blocks on one.

    Before it, all its executors wait for its predecessors. `all_waits` false: for the first block and the last one of
    each; fewer waits hang less.
    """
    lists: list[list[Instruction]] = [[] for _ in range(executors)]
    number = {region.name: at for at, region in enumerate(graph.regions)}
    counters = list(counted(graph))
    begin = 0
    for region in graph.regions:
        blocks = region.kernels[0].blocks
        wide = min(blocks, executors)
        begin = 0 if begin + wide > executors else begin
        waits = []
        for need in graph.needs:
            if need.target == region.name:
                source = counters[number[need.source]]
                if all_waits:
                    waits.append(Wait(number[need.source], source.end))
                else:
                    waits += [Wait(len(counters), 1), Wait(len(counters) + 1, 1)]
                    counters += [Counter(source.region, 0, 1), Counter(source.region, source.end - 1, source.end)]
        for executor in range(begin, begin + wide):
            lists[executor] += waits
        for block in range(blocks):
            lists[begin + block % wide].append(Run(region.name, block))
        begin += wide
    launch = Pinned(tuple(tuple(one) for one in lists if one), tuple(counters), threads=THREADS)
    return Program(graph.name, H200.name, {region.name: 0 for region in graph.regions}, (launch,))


def outcomes(graph: TaskGraph, program: Program) -> list[str]:
    """How it goes when workers are dispatched in order, in reverse, and at random."""
    found = []
    orders: Sequence[Dispatch] = ("in-order", "reversed", "random")
    for dispatch in orders:
        try:
            simulate(graph, program, H200, dispatch=dispatch, seed=3)
            found.append("ends")
        except Hung:
            found.append("hangs")
    return found


LUCKY, LOST = ["ends", "hangs", "hangs"], ["hangs", "hangs", "hangs"]


@pytest.mark.parametrize(
    ("graph", "executors", "workers", "expected"),
    [
        (chain(200, 200, 200, 200), 10_240, 800, LUCKY),
        (FORK_JOIN, 10_240, 512, LUCKY),
        (chain(600, 600), 1024, 600, LOST),
        (chain(600, 600), 512, 512, LOST),
        (chain(6000, 6000), 10_240, 6000, LOST),
    ],
    ids=["chain of 4 x 200", "fork and join of 8 x 64", "2 x 600 on 1024", "2 x 600 on 512", "2 x 6000 starts again"],
)
def test_more_executors_than_slots_are_refused(
    graph: TaskGraph, executors: int, workers: int, expected: list[str]
) -> None:
    """Whether it ends depends on an order of dispatch that nobody promises; it is refused in each case."""
    program = fused(graph, executors, all_waits=workers < 1000)
    assert outcomes(graph, program) == expected
    with pytest.raises(UnsafeProgram, match=f"{workers} workers, of which only {SLOTS} are resident at once"):
        verify(graph, program, H200)


@pytest.mark.parametrize("executors", [1, 7, 64, 200, 264])
@pytest.mark.parametrize("graph", [chain(200, 200, 200, 200), FORK_JOIN, chain(600, 600)], ids=["chain", "fork", "two"])
def test_any_number_of_resident_executors_is_fine(graph: TaskGraph, executors: int) -> None:
    program = fused(graph, executors)
    verify(graph, program, H200)
    assert outcomes(graph, program) == ["ends", "ends", "ends"]


def test_tickets_end_with_any_number_of_workers() -> None:
    """The same chain, ticketed: a worker that has no slot holds no ticket, so nobody waits for it."""
    graph = chain(200, 200, 200, 200)
    waits = [(Wait(at - 1, 200),) if at else () for at in range(4)]
    items = tuple(Item(Run(f"r{at}", block), waits[at]) for at in range(4) for block in range(200))
    for workers in (1, 264, 10_240):
        choice = {region.name: 0 for region in graph.regions}
        program = Program(graph.name, H200.name, choice, (Ticketed(items, workers, counted(graph), threads=THREADS),))
        verify(graph, program, H200)
        assert outcomes(graph, program) == ["ends", "ends", "ends"]


def test_a_launch_for_each_region_never_waits() -> None:
    graph = chain(6000, 6000)
    launches = tuple(Plain(region.name) for region in graph.regions)
    program = Program(graph.name, H200.name, {region.name: 0 for region in graph.regions}, launches)
    verify(graph, program, H200)
    assert outcomes(graph, program) == ["ends", "ends", "ends"]


def test_a_wait_added_late_is_a_false_dependency() -> None:
    """It waits for more than what is needed, which is all the verifier asks for.

    b needs a; a long block that has nothing to do with b follows a on its executor.
    """
    times = {"a": 100.0, "long": 900.0, "b": 100.0}
    regions = tuple(Region(name, (Kernel("k", 1, (taken,)),)) for name, taken in times.items())
    graph = TaskGraph("g", regions, (Need("a", "b"),))
    on = replace(cpu(2), signal_ns=10.0, wait_ns=0.0)
    makespans = {}
    counters = (Counter("a", 0, 1), Counter("long", 0, 1))
    for runs in (1, 2):
        launch = Pinned(((Run("a", 0), Run("long", 0)), (Wait(runs - 1, 1), Run("b", 0))), counters)
        program = Program("g", on.name, {"a": 0, "long": 0, "b": 0}, (launch,))
        verify(graph, program, on)
        found = simulate(graph, program, on)
        makespans[runs] = (found.makespan, found.waited.tolist()[2])
    assert makespans == {1: (1000.0, 100.0), 2: (1110.0, 1000.0)}


def test_threads_that_leave_early_miss_barriers() -> None:
    """A block of 128 threads in a worker of 1,024: the others leave, and never come to the barrier in a loop of it."""

    def graph_of(uniform: bool) -> TaskGraph:
        kernels = (Kernel("k", 4, (1000.0,), 128, uniform_barriers=uniform), Kernel("k", 4, (1000.0,), THREADS))
        return TaskGraph("g", tuple(Region(name, (one,)) for name, one in zip("ab", kernels, strict=True)))

    lists = tuple((Run("a", block), Run("b", block)) for block in range(4))
    program = Program("g", H200.name, {"a": 0, "b": 0}, (Pinned(lists, threads=THREADS),))
    verify(graph_of(True), program, H200)
    with pytest.raises(UnsafeProgram, match=r"a barrier in 'a' is not reached by all threads, so its 128 threads"):
        verify(graph_of(False), program, H200)
    apart = Program("g", H200.name, {"a": 0, "b": 0}, (Plain("a"), Plain("b")))
    verify(graph_of(False), apart, H200)
