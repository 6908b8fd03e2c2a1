"""The simulator: times one can follow by eye, a second way to compute them, and programs that hang."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device import Device, cpu, device
from scheduler.errors import InvalidProgram, UnsafeProgram
from scheduler.program import Counter, Instruction, Item, Pinned, Plain, Program, Run, Ticketed, Wait
from scheduler.simulate import Dispatch, Hung, simulate
from scheduler.tasks import Kernel, Need, Region, TaskGraph

SIGNAL = 100.0
TWO = replace(cpu(2), signal_ns=SIGNAL, wait_ns=0.0, launch_ns=1000.0)
# One multiprocessor that holds up to four blocks, which then take longer.
SHARED = Device("shared", 1, 2048, 64, 4, 65536, 0, 0, 0, 1)


def graph_of(**times: tuple[float, ...] | float) -> TaskGraph:
    """One block per region unless its name ends in a number of blocks: `wide4=10.0`."""
    regions = []
    for name, taken in times.items():
        blocks = int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 1)
        regions.append(Region(name, (Kernel("k", blocks, taken if isinstance(taken, tuple) else (taken,)),)))
    return TaskGraph("g", tuple(regions))


def program_of(graph: TaskGraph, *launches: Pinned | Ticketed | Plain, on: Device = TWO) -> Program:
    return Program(graph.name, on.name, {region.name: 0 for region in graph.regions}, launches)


def single(*names: str) -> tuple[Counter, ...]:
    """A counter for each of these regions of one block."""
    return tuple(Counter(name, 0, 1) for name in names)


def test_a_wait_costs_the_rest_of_the_run_and_the_signal() -> None:
    graph = graph_of(a=500.0, b=200.0, c=300.0)
    program = program_of(graph, Pinned(((Run("a", 0),), (Run("b", 0), Wait(0, 1), Run("c", 0))), single("a")))
    found = simulate(graph, program, TWO)
    assert found.start.tolist() == [1000, 1000, 1600] and found.makespan == 1900
    assert found.waited.tolist() == [0, 0, 300] and found.signalled.tolist() == [0, 0, SIGNAL]
    assert found.cause.tolist() == [-1, -1, 0] and found.worker.tolist() == [0, 1, 1]
    stalls = found.stalls
    assert (stalls.busy, stalls.waiting, stalls.signal, stalls.launch, stalls.idle) == (1000, 300, 100, 2000, 400)
    assert found.utilisation.tolist() == [500 / 1900, 500 / 1900]


def test_one_own_past_runs_send_no_signal() -> None:
    graph = graph_of(a=500.0, b=200.0)
    program = program_of(graph, Pinned(((Run("a", 0), Wait(0, 1), Run("b", 0)),), single("a")))
    found = simulate(graph, program, TWO)
    assert found.makespan == 1700 and found.stalls.waiting == found.stalls.signal == 0
    found = simulate(graph, program, replace(TWO, wait_ns=30.0))
    assert found.makespan == 1730 and found.stalls.looking == 30, "but the wait is made"


def test_every_wait_costs_whether_it_waits_or_not() -> None:
    graph = graph_of(a=500.0, b=100.0, c=900.0, d=300.0)
    lists = ((Run("a", 0),), (Run("b", 0),), (Run("c", 0), Wait(0, 1), Wait(1, 1), Run("d", 0)))
    program = program_of(graph, Pinned(lists, single("a", "b")), on=replace(TWO, name="three"))
    found = simulate(graph, program, replace(TWO, name="three", multiprocessors=3, wait_ns=30.0))
    assert found.makespan == 1000 + 900 + 60 + 300, "a and b have ended long ago"
    assert (found.stalls.looking, found.stalls.waiting, found.stalls.signal) == (60, 0, 0)
    lists = (*lists[:2], (Wait(1, 1), Wait(0, 1), Run("d", 0), Run("c", 0)))
    program = program_of(graph, Pinned(lists, single("a", "b")), on=replace(TWO, name="three"))
    found = simulate(graph, program, replace(TWO, name="three", multiprocessors=3, wait_ns=30.0))
    # b has ended at 100 and is seen at 200; looked at until 230; a is seen at 600 and looked at until 630.
    assert found.start[2] == 1630 and found.looked[2] == 60 and found.cause[2] == 0
    assert found.waited[2] == 100 + 270 and found.signalled[2] == 100 + 100


def test_a_counter_is_at_its_value_when_as_many_have_ended() -> None:
    graph = graph_of(wide4=100.0, b=50.0, c=50.0)
    lists = (
        (Run("wide4", 0), Run("wide4", 1), Run("b", 0)), (Run("wide4", 2), Run("wide4", 3)),
        (Wait(0, 2), Run("c", 0)),
    )  # fmt: skip
    on = replace(TWO, name="three", multiprocessors=3)
    found = simulate(graph, program_of(graph, Pinned(lists, (Counter("wide4", 0, 4),)), on=on), on)
    assert found.start[-1] == 1200, "two have ended after 100"
    found = simulate(graph, program_of(graph, Pinned(lists, (Counter("wide4", 1, 4),)), on=on), on)
    assert found.start[-1] == 1300, "of these one has ended after 100, all after 200"


def test_tickets_pay_for_their_waits() -> None:
    graph = graph_of(a=100.0, b=300.0, c=100.0)
    items = (Item(Run("a", 0)), Item(Run("b", 0)), Item(Run("c", 0), (Wait(0, 1), Wait(1, 1))))
    on = replace(TWO, wait_ns=30.0)
    found = simulate(graph, program_of(graph, Ticketed(items, 2, single("a", "b"))), on)
    # The worker of a sees it at once, and b, which ends at 300, after a signal.
    assert found.start[2] == 1000 + 300 + SIGNAL + 30 and found.looked[2] == 60
    assert found.waited[2] == 300 - 130 and found.signalled[2] == SIGNAL


def test_launches_follow_each_other() -> None:
    graph = graph_of(wide3=100.0, b=50.0)
    found = simulate(graph, program_of(graph, Plain("wide3"), Plain("b")), TWO)
    assert found.launches == ((0.0, 1200.0), (1200.0, 2250.0)), "three blocks on two workers take two rounds"
    assert found.launch.tolist() == [0, 0, 0, 1] and found.block.tolist() == [0, 1, 2, 0]
    stalls = found.stalls
    assert found.workers == 2 and stalls.absent == 1050, "the second launch has one worker"
    together = stalls.busy + stalls.waiting + stalls.signal + stalls.launch + stalls.idle + stalls.absent
    assert (stalls.launch, stalls.busy, together) == (3000, 350, 2 * found.makespan)


def test_blocks_that_start_together_share_the_multiprocessor() -> None:
    graph = graph_of(wide6=(100.0, 110.0, 130.0, 200.0))
    found = simulate(graph, program_of(graph, Plain("wide6"), on=SHARED), SHARED)
    assert found.end.tolist() == [200, 200, 200, 200, 310, 310]
    assert simulate(graph, program_of(graph, Plain("wide6"), on=SHARED), SHARED, slots=2).makespan == 330


def test_tickets_are_claimed_in_order() -> None:
    graph = graph_of(a=100.0, b=300.0, c=100.0, d=100.0)
    items = (Item(Run("a", 0)), Item(Run("b", 0)), Item(Run("c", 0), (Wait(0, 1),)), Item(Run("d", 0)))
    found = simulate(graph, program_of(graph, Ticketed(items, 2, single("b"))), TWO)
    # Worker 0 claims c while b runs, and holds it; worker 1 goes on to d, which is free.
    assert found.worker.tolist() == [0, 1, 0, 1] and found.start.tolist() == [1000, 1000, 1400, 1300]
    assert simulate(graph, program_of(graph, Ticketed(items, 9, single("b"))), TWO, slots=1).makespan == 1600


def test_who_hangs_is_named() -> None:
    graph = graph_of(a=1.0, b=1.0)
    circle = Pinned(((Wait(1, 1), Run("a", 0)), (Wait(0, 1), Run("b", 0))), single("a", "b"))
    with pytest.raises(Hung, match=r"launch 0 hangs: worker 0 waits for 1 blocks of b \(0 have ended\), "
                                   r"worker 1 waits for 1 blocks of a"):  # fmt: skip
        simulate(graph, program_of(graph, circle), TWO)
    too_far = Pinned(((Run("a", 0),), (Wait(0, 2), Run("b", 0))), single("a"))
    with pytest.raises(Hung, match=r"worker 1 waits for 2 blocks of a \(1 have ended\), no worker has another"):
        simulate(graph, program_of(graph, too_far), TWO)
    forward = Ticketed((Item(Run("a", 0), (Wait(0, 1),)), Item(Run("b", 0))), 1, single("b"))
    with pytest.raises(Hung, match=r"ticket 0 waits for 1 blocks of counter 0 \(0 have ended\), and no worker is left"):
        simulate(graph, program_of(graph, forward), TWO)


@pytest.mark.parametrize(("dispatch", "hangs"), [("in-order", False), ("reversed", True), ("adversarial", True)])
def test_one_worker_too_many_hangs_in_some_order(dispatch: Dispatch, hangs: bool) -> None:
    graph = graph_of(a=1.0, b=1.0, c=1.0)
    workers: tuple[tuple[Instruction, ...], ...] = (
        (Run("a", 0),), (Wait(0, 1), Run("b", 0)), (Wait(0, 1), Run("c", 0)),
    )  # fmt: skip
    program = program_of(graph, Pinned(workers, single("a")))
    if hangs:
        with pytest.raises(Hung, match="worker 0 has no slot"):
            simulate(graph, program, TWO, dispatch=dispatch)
    else:
        assert simulate(graph, program, TWO, dispatch=dispatch).makespan == 1102


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (Pinned(((Run("z", 0),),)), "runs the region 'z', which the task graph does not have"),
        (Pinned(((Run("a", 1),),)), "runs block 1 of 'a', whose kernel has 1 blocks"),
        (Pinned(((Wait(3, 1), Run("a", 0)),), single("a")), "waits for counter 3; the launch has 1"),
        (Pinned(((Run("a", 0),),), single("z")), "runs the region 'z', which"),
        (Ticketed((Item(Run("a", 0), (Wait(-1, 1),)),), 1), "waits for counter -1"),
        (Ticketed((Item(Run("a", 0)),), 0), "launch 0 has 0 workers"),
        (Plain("z"), "runs the region 'z'"),
    ],
)
def test_what_is_not_there_is_named(launch: Pinned | Ticketed | Plain, said: str) -> None:
    graph = graph_of(a=1.0)
    with pytest.raises(InvalidProgram, match=said):
        simulate(graph, program_of(graph, launch), TWO)


def test_what_fits_nowhere_is_refused() -> None:
    graph = graph_of(a=1.0)
    with pytest.raises(UnsafeProgram, match="no block of 2048 threads, 0 registers and 0 bytes"):
        simulate(graph, program_of(graph, Pinned(((Run("a", 0),),), threads=2048)), device("v100"))
    with pytest.raises(InvalidProgram, match=r"a spread is in \[0, 1\)"):
        simulate(graph, program_of(graph, Plain("a")), TWO, spread=1.0)


@st.composite
def safe_programs(draw: st.DrawFn) -> tuple[TaskGraph, Program, list[float], list[int], list[list[int]]]:
    """Tasks put on workers one after the other, each waiting for some before it: workers and waits by task."""
    count, workers = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    times = [float(draw(st.integers(0, 9))) for _ in range(count)]
    lists: list[list[Instruction]] = [[] for _ in range(workers)]
    of, waits = [], []
    for task in range(count):
        worker = draw(st.integers(0, workers - 1))
        waits.append(sorted(draw(st.sets(st.integers(0, task - 1), max_size=3)) if task else ()))
        lists[worker] += [Wait(other, 1) for other in waits[-1]]
        lists[worker].append(Run(f"t{task}", 0))
        of.append(worker)
    graph = TaskGraph("g", tuple(Region(f"t{task}", (Kernel("k", 1, (times[task],)),)) for task in range(count)))
    launch = Pinned(tuple(map(tuple, lists)), single(*(f"t{task}" for task in range(count))))
    return graph, program_of(graph, launch, on=cpu(workers)), times, of, waits


@settings(deadline=None)
@given(safe_programs(), st.sampled_from(("in-order", "reversed", "random", "adversarial")), st.integers(0, 9))
def test_times_are_those_of_the_recurrence(
    case: tuple[TaskGraph, Program, list[float], list[int], list[list[int]]], dispatch: Dispatch, seed: int
) -> None:
    """Each wait ends `wait` after the one before or the signal, if that is later; whatever the dispatch."""
    graph, program, times, of, waits = case
    launch = program.launches[0]
    assert isinstance(launch, Pinned)
    on = replace(cpu(len(launch.workers)), signal_ns=2.0, wait_ns=0.5)
    ends: list[float] = []
    last = dict.fromkeys(of, 0.0)
    for task, worker in enumerate(of):
        begin = last[worker]
        for other in waits[task]:
            begin = max(begin, ends[other] + (2.0 if of[other] != worker else 0.0)) + 0.5
        last[worker] = begin + times[task]
        ends.append(last[worker])
    found = simulate(graph, program, on, dispatch=dispatch, seed=seed)
    assert found.makespan == max(ends)
    assert {graph.regions[region].name: end for region, end in zip(found.region, found.end, strict=True)} == {
        f"t{task}": end for task, end in enumerate(ends)
    }
    stalls = found.stalls
    together = stalls.busy + stalls.waiting + stalls.signal + stalls.looking + stalls.launch + stalls.idle
    assert together == pytest.approx(len(launch.workers) * found.makespan) and stalls.idle >= -1e-9
    assert found.workers == len(launch.workers) and stalls.absent == 0


def test_a_spread_is_drawn_from_the_seed() -> None:
    graph = graph_of(wide4=100.0)
    program = program_of(graph, Plain("wide4"))
    first, again, other = (simulate(graph, program, TWO, spread=0.1, seed=seed) for seed in (1, 1, 2))
    taken = first.end - first.start
    assert first.makespan == again.makespan != other.makespan
    assert np.all((taken >= 90) & (taken <= 110)) and len(set(taken)) == 4


def test_a_hundred_thousand_blocks_are_simulated() -> None:
    layers, wide, on = 320, 320, device("v100")
    regions = tuple(Region(f"r{layer}", (Kernel("k", wide, (1000.0, 2000.0)),)) for layer in range(layers))
    graph = TaskGraph("g", regions, tuple(Need(f"r{layer}", f"r{layer + 1}") for layer in range(layers - 1)))
    lists: list[list[Instruction]] = [[] for _ in range(wide)]
    counters = tuple(Counter(f"r{layer}", 0, wide) for layer in range(layers))
    for layer in range(layers):
        for block in range(wide):
            if layer:
                lists[block].append(Wait(layer - 1, wide))
            lists[block].append(Run(f"r{layer}", block))
    program = program_of(graph, Pinned(tuple(map(tuple, lists)), counters, threads=256), on=on)
    found = simulate(graph, program, on)
    # Four workers to a multiprocessor, 3 us a block with the fixed microsecond, 1 us a signal and 0.1 us a wait.
    assert found.makespan == 2000 + layers * 3000 + (layers - 1) * 1100
