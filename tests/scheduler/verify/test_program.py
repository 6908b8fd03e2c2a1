"""The verifier says no, and to what; and it is exact: brute force over small programs agrees."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.device import Device, cpu, device
from scheduler.errors import InvalidProgram, InvalidTaskGraph, SchedulerError, UnsafeProgram
from scheduler.program import Instruction, Item, Launch, Pinned, Plain, Program, Run, Ticketed, Wait
from scheduler.simulate import Hung, simulate
from scheduler.tasks import Kernel, Need, Region, TaskGraph, needed_blocks
from scheduler.verify.program import verify

TWO = cpu(2)


def region(name: str, blocks: int = 1, **more: Any) -> Region:
    return Region(name, (Kernel("k", blocks, (1.0,), **more),))


def program_of(graph: TaskGraph, *launches: Launch, on: Device = TWO) -> Program:
    return Program(graph.name, on.name, {one.name: 0 for one in graph.regions}, launches)


# conv has two blocks, of which the second block of pool reads one each; dense reads all of pool.
NET = TaskGraph(
    "net", (region("conv", 2), region("pool", 2), region("dense")),
    (Need("conv", "pool", "near"), Need("pool", "dense")),
)  # fmt: skip
GOOD = Pinned((
    (Run("conv", 0), Run("pool", 0), Wait(1, 2), Run("dense", 0)),
    (Run("conv", 1), Run("pool", 1)),
))  # fmt: skip


def test_what_is_covered_is_accepted() -> None:
    verify(NET, program_of(NET, GOOD), TWO)
    verify(NET, program_of(NET, Plain("conv"), Plain("pool"), Plain("dense")), TWO)
    tickets = Ticketed(
        (Item(Run("conv", 0)), Item(Run("conv", 1)), Item(Run("pool", 1), (1,)), Item(Run("pool", 0), (0,)),
         Item(Run("dense", 0), (2, 3))), workers=7,
    )  # fmt: skip
    verify(NET, program_of(NET, tickets), TWO)


def test_a_launch_covers_what_is_before_it() -> None:
    first = Pinned(((Run("conv", 1), Run("pool", 1)), (Run("conv", 0),)))
    verify(NET, program_of(NET, first, Pinned(((Run("pool", 0), Run("dense", 0)),))), TWO)


def test_waits_carry_over() -> None:
    """b comes after a because c does, and b waits for c."""
    graph = TaskGraph("g", (region("a"), region("c"), region("b")), (Need("a", "b"),))
    three = cpu(3)
    launch = Pinned(((Run("a", 0),), (Wait(0, 1), Run("c", 0)), (Wait(1, 1), Run("b", 0))))
    verify(graph, program_of(graph, launch, on=three), three)
    tickets = Ticketed((Item(Run("a", 0)), Item(Run("c", 0), (0,)), Item(Run("b", 0), (1,))), 3)
    verify(graph, program_of(graph, tickets, on=three), three)


def test_one_worker_runs_its_tickets_in_order() -> None:
    graph = TaskGraph("g", (region("a"), region("b")), (Need("a", "b"),))
    verify(graph, program_of(graph, Ticketed((Item(Run("a", 0)), Item(Run("b", 0))), 1)), TWO)
    with pytest.raises(UnsafeProgram, match=r"nothing makes ticket 1, b\[0\], come after ticket 0, a\[0\]"):
        verify(graph, program_of(graph, Ticketed((Item(Run("a", 0)), Item(Run("b", 0))), 2)), TWO)
    with pytest.raises(UnsafeProgram, match=r"nothing makes ticket 0, b\[0\], come after ticket 1, a\[0\]"):
        verify(graph, program_of(graph, Ticketed((Item(Run("b", 0)), Item(Run("a", 0))), 1)), TWO)


def test_nothing_is_a_program_too() -> None:
    empty = TaskGraph("g", ())
    for launches in ((), (Pinned(((), ())),), (Ticketed((), 3),)):
        verify(empty, program_of(empty, *launches), TWO)
        assert simulate(empty, program_of(empty, *launches), TWO).makespan == 0


UNSAFE: Sequence[tuple[str, tuple[Launch, ...]]] = (
    (
        r"launch 0: nothing makes dense\[0\] on worker 0 come after pool\[1\] on worker 1, which it needs: the edge "
        r"pool\[1\] -> dense\[0\] is missing",
        (Pinned(((*GOOD.workers[0][:2], Wait(1, 1), Run("dense", 0)), GOOD.workers[1])),),
    ),
    (
        r"nothing makes pool\[0\] on worker 0 come after conv\[0\] on worker 0",
        (Pinned(((Run("pool", 0), Run("conv", 0), Wait(1, 2), Run("dense", 0)), GOOD.workers[1])),),
    ),
    (
        r"launch 0: worker 0 waits for run 3 of worker 1, which has 2 runs: it waits for ever",
        (Pinned(((*GOOD.workers[0][:2], Wait(1, 3), Run("dense", 0)), GOOD.workers[1])),),
    ),
    (
        r"launch 0 hangs, because each waits for the next: worker 0 run 2 -> worker 1 run 2 -> worker 0 run 2",
        (Pinned(((Run("conv", 0), Wait(1, 2), Run("pool", 0), Run("dense", 0)),
                 (Run("conv", 1), Wait(0, 2), Run("pool", 1)))),),
    ),
    (
        r"launch 0 hangs, because each waits for the next: worker 1 run 2 -> worker 1 run 2",
        (Pinned((GOOD.workers[0], (Run("conv", 1), Wait(1, 2), Run("pool", 1)))),),
    ),
    (
        r"launch 0 has 3 workers, of which only 2 are resident at once on device 'cpu:2' with 1 threads, 0 registers",
        (Pinned((*GOOD.workers, ())),),
    ),
    (
        r"launch 0: ticket 0 waits for ticket 1, which is not earlier",
        (Ticketed((Item(Run("conv", 0), (1,)), Item(Run("conv", 1))), 2), Plain("pool"), Plain("dense")),
    ),
    (
        r"launch 0: ticket 1 waits for ticket 1, which is not earlier",
        (Ticketed((Item(Run("conv", 0)), Item(Run("conv", 1), (1,))), 2), Plain("pool"), Plain("dense")),
    ),
    (
        r"pool\[0\] of launch 0 needs conv\[0\], which a later launch runs: the edge conv\[0\] -> pool\[0\] is missing",
        (Plain("pool"), Plain("conv"), Plain("dense")),
    ),
)  # fmt: skip


@pytest.mark.parametrize(("said", "launches"), UNSAFE)
def test_what_may_hang_or_read_too_early_is_refused(said: str, launches: tuple[Launch, ...]) -> None:
    with pytest.raises(UnsafeProgram, match=said):
        verify(NET, program_of(NET, *launches), TWO)


def test_a_long_circle_is_cut_short() -> None:
    on = cpu(40)
    graph = TaskGraph("g", (region("a", 40),))
    lists = tuple((Wait((worker + 1) % 40, 1), Run("a", worker)) for worker in range(40))
    program = program_of(graph, Pinned(lists), on=on)
    with pytest.raises(UnsafeProgram) as refused:
        verify(graph, program, on)
    assert str(refused.value).endswith("worker 5 run 1 -> worker 6 run 1 -> (33 more) -> worker 0 run 1.")
    with pytest.raises(Hung, match=r"worker 6 waits .*, and so on through 32 more, worker 39 waits until worker 0 has"):
        simulate(graph, program, on)


INVALID: Sequence[tuple[str, tuple[Launch, ...]]] = (
    (r"the program never runs pool\[0\]; every block runs once", (Plain("conv"),)),
    (r"runs conv\[0\] twice, in launch 0 and in launch 1", (Plain("conv"), Plain("conv"))),
    (r"launch 0 runs the region 'soft', which the task graph does not have", (Plain("soft"),)),
    (r"launch 0 runs block 2 of 'conv', whose kernel has 2 blocks", (Pinned(((Run("conv", 2),),)),)),
    (r"launch 0 runs block -1 of 'conv'", (Ticketed((Item(Run("conv", -1)),), 1),)),
    (r"launch 0 has 0 workers; it needs at least one", (Pinned(()),)),
    (r"launch 0 has 0 workers; it needs at least one", (Ticketed((), 0),)),
    (r"worker 0 of launch 0 waits for 1 runs of worker 1; the launch has workers 0 to 0", (Pinned(((Wait(1, 1),),)),)),
    (r"worker 0 of launch 0 waits for -1 runs .* runs are counted from its own start", (Pinned(((Wait(0, -1),),)),)),
    (r"ticket 0 of launch 0 waits for ticket 1; there are 1", (Ticketed((Item(Run("conv", 0), (1,)),), 1),)),
)


@pytest.mark.parametrize(("said", "launches"), INVALID)
def test_what_is_not_well_formed_is_refused(said: str, launches: tuple[Launch, ...]) -> None:
    with pytest.raises(InvalidProgram, match=said):
        verify(NET, program_of(NET, *launches), TWO)


def test_a_program_belongs_to_its_graph_and_device() -> None:
    program = program_of(NET, GOOD)
    with pytest.raises(InvalidProgram, match="made for the device 'cpu:2', not for 'cpu:3'; schedule it again"):
        verify(NET, program, cpu(3))
    with pytest.raises(InvalidProgram, match="made for the task graph 'net', not for 'other'"):
        verify(TaskGraph("other", NET.regions), program, TWO)
    strange = Program(program.graph, program.device, {**program.choice, "soft": 0}, program.launches)
    with pytest.raises(InvalidProgram, match="chooses a kernel of 'soft', which the task graph does not have"):
        verify(NET, strange, TWO)
    for choice, said in (({**program.choice, "pool": 1}, "number 1"), ({"conv": 0, "dense": 0}, "none")):
        with pytest.raises(InvalidProgram, match=f"chooses {said} of the 1 kernels of 'pool'"):
            verify(NET, Program(program.graph, program.device, choice, program.launches), TWO)
    cyclic = TaskGraph("net", NET.regions, (*NET.needs, Need("dense", "conv")))
    with pytest.raises(InvalidTaskGraph, match="need each other in a circle: conv -> pool -> dense -> conv"):
        verify(cyclic, program, TWO)


@pytest.mark.parametrize(
    ("kernel", "launch", "said"),
    [
        ({"threads": 256}, {"threads": 128}, r"its workers have 128 threads, a block of 'a' needs 256"),
        ({"registers": 64}, {"registers": 32}, r"have 32 registers, a block of 'a' needs 64"),
        ({"shared_memory": 9}, {}, r"have 0 bytes of shared memory, a block of 'a' needs 9"),
        ({"opt_in": True}, {}, r"needs shared memory by opt-in, its workers lack it"),
        ({"threads": 2048}, {"threads": 2048}, r"no worker fits device 'v100' with 2048 threads"),
        ({"threads": 128, "uniform_barriers": False}, {"threads": 256}, r"a barrier in 'a' is not reached by all"),
        ({"threads": 128, "uniform_barriers": False}, {"threads": 128}, None),
        ({"threads": 128}, {"threads": 256}, None),
        ({"shared_memory": 60_000, "opt_in": True}, {"shared_memory": 60_000, "opt_in": True}, None),
        ({"shared_memory": 60_000}, {"shared_memory": 60_000}, r"no worker fits .* 60000 bytes of shared memory each"),
    ],
)
def test_resources_of_a_launch(kernel: dict[str, Any], launch: dict[str, Any], said: str | None) -> None:
    on = device("v100")
    graph = TaskGraph("g", (region("a", **kernel),))
    for one in (Pinned(((Run("a", 0),),), **launch), Ticketed((Item(Run("a", 0)),), 1, **launch)):
        if said is None:
            verify(graph, program_of(graph, one, on=on), on)
        else:
            with pytest.raises(UnsafeProgram, match=said):
                verify(graph, program_of(graph, one, on=on), on)


def test_a_plain_launch_has_to_fit_too() -> None:
    on = device("v100")
    graph = TaskGraph("g", (region("a", threads=1024, registers=200),))
    with pytest.raises(UnsafeProgram, match="launch 0: no block of 'a' fits device 'v100' with 1024 threads, 200"):
        verify(graph, program_of(graph, Plain("a"), on=on), on)


def test_the_last_worker_that_fits() -> None:
    on = device("h200")  # 132 multiprocessors with two workers of 1,024 threads each
    for count, safe in ((264, True), (265, False)):
        graph = TaskGraph("g", (region("a", count, threads=1024),))
        program = program_of(graph, Pinned(tuple((Run("a", one),) for one in range(count)), threads=1024), on=on)
        if safe:
            verify(graph, program, on)
        else:
            with pytest.raises(UnsafeProgram, match="265 workers, of which only 264 are resident"):
                verify(graph, program, on)


def test_reuse_has_to_be_covered_like_a_read() -> None:
    """c overwrites what b still reads."""
    graph = TaskGraph(
        "g", (region("a"), region("b"), region("c")), (Need("a", "b"), Need("b", "c", reuse=True)),
    )  # fmt: skip
    lists: list[list[Instruction]] = [[Run("a", 0), Run("c", 0)], [Wait(0, 1), Run("b", 0)]]
    with pytest.raises(UnsafeProgram, match=r"the edge b\[0\] -> c\[0\] is missing"):
        verify(graph, program_of(graph, Pinned(tuple(map(tuple, lists)))), TWO)
    lists[0].insert(1, Wait(1, 1))
    verify(graph, program_of(graph, Pinned(tuple(map(tuple, lists)))), TWO)


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
    graph = TaskGraph("g", tuple(region(f"r{number}", many) for number, many in enumerate(blocks)), needs)
    runs = [Run(f"r{number}", block) for number, many in enumerate(blocks) for block in range(many)]
    if draw(st.integers(0, 4)) == 0:
        runs = list(draw(st.permutations(runs)))
    cut = draw(st.integers(0, len(runs)))
    launches: list[Launch] = []
    for part in (runs[:cut], runs[cut:]):
        if not part:
            continue
        if draw(st.booleans()):
            workers = draw(st.integers(1, 3))
            lists: list[list[Instruction]] = [[] for _ in range(workers)]
            done = [0] * workers
            ahead = draw(st.integers(0, 5)) == 0
            for run in part:
                worker = draw(st.integers(0, workers - 1))
                for other in range(workers):
                    if draw(st.integers(0, 3)):
                        lists[worker].append(Wait(other, draw(st.integers(0, 4)) if ahead else done[other]))
                lists[worker].append(run)
                done[worker] += 1
            launches.append(Pinned(tuple(map(tuple, lists))))
        else:
            ahead = draw(st.integers(0, 5)) == 0
            items = tuple(
                Item(run, tuple(draw(st.sets(st.integers(0, len(part) - 1 if ahead else ticket - 1), max_size=3)))
                     if ahead or ticket else ())
                for ticket, run in enumerate(part)
            )  # fmt: skip
            launches.append(Ticketed(items, draw(st.integers(1, 2))))
    return graph, program_of(graph, *launches, on=cpu(3))


def safe_by_brute_force(graph: TaskGraph, program: Program) -> bool:
    """Events and arrows between them; safe if no arrow leads back and each need is a path. All workers are resident."""
    before: networkx.DiGraph = networkx.DiGraph()
    for number, launch in enumerate(program.launches):
        before.add_edge(("begin", number), ("end", number))
        before.add_edge(("end", number - 1), ("begin", number))
        if isinstance(launch, Pinned):
            runs = [[one for one in worker if isinstance(one, Run)] for worker in launch.workers]
            for worker, instructions in enumerate(launch.workers):
                last: Any = ("begin", number)
                for at, one in enumerate(instructions):
                    this = (one.region, one.block) if isinstance(one, Run) else ("wait", number, worker, at)
                    before.add_edge(last, this)
                    last = this
                    if isinstance(one, Wait) and one.runs > len(runs[one.worker]):
                        return False
                    if isinstance(one, Wait) and one.runs > 0:
                        source = runs[one.worker][one.runs - 1]
                        before.add_edge((source.region, source.block), this)
                before.add_edge(last, ("end", number))
        elif isinstance(launch, Ticketed):
            names = [(item.run.region, item.run.block) for item in launch.items]
            for ticket, item in enumerate(launch.items):
                if any(wait >= ticket for wait in item.waits):
                    return False
                before.add_edges_from((names[wait], names[ticket]) for wait in item.waits)
                before.add_edges_from(((("begin", number), names[ticket]), (names[ticket], ("end", number))))
            if launch.workers == 1:
                before.add_edges_from(itertools.pairwise(names))
    if not networkx.is_directed_acyclic_graph(before):
        return False
    closed = networkx.transitive_closure_dag(before)
    many = {one.name: one.kernels[0].blocks for one in graph.regions}
    return all(
        closed.has_edge((need.source, source), (need.target, target))
        for need in graph.needs
        for target in range(many[need.target])
        for source in needed_blocks(need, many[need.source], many[need.target], target)
    )


def test_the_verdict_is_that_of_brute_force() -> None:
    seen = {True: 0, False: 0}

    @settings(max_examples=600, deadline=None, derandomize=True)
    @given(cases())
    @example((NET, program_of(NET, GOOD, on=cpu(3))))
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


def test_more_than_a_few_thousand_tickets() -> None:
    """The sources of a ticket are looked at in several goes; the one missing wait is found wherever it is."""
    count = 10_000
    graph = TaskGraph("g", (region("a", count), region("b", count)), (Need("a", "b", "near"),))
    items = [Item(Run("a", block)) for block in range(count)]
    items += [Item(Run("b", block), (block,)) for block in range(count)]
    on = cpu(4)
    verify(graph, program_of(graph, Ticketed(tuple(items), 4), on=on), on)
    for lost in (0, 4095, 4096, 9999):
        broken = list(items)
        broken[count + lost] = Item(Run("b", lost), ((lost + 1) % count,))
        with pytest.raises(UnsafeProgram, match=rf"the edge a\[{lost}\] -> b\[{lost}\] is missing"):
            verify(graph, program_of(graph, Ticketed(tuple(broken), 4), on=on), on)
    everything = TaskGraph("g", (region("a", 5000), region("b"), region("c")), (Need("a", "b"), Need("a", "c")))
    waits = tuple(range(5000))
    items = [*items[:5000], Item(Run("b", 0), waits), Item(Run("c", 0), (5000,))]
    verify(everything, program_of(everything, Ticketed(tuple(items), 4), on=on), on)
    items[5000] = Item(Run("b", 0), waits[:4500] + waits[4501:])
    with pytest.raises(UnsafeProgram, match=r"the edge a\[4500\] -> b\[0\] is missing"):
        verify(everything, program_of(everything, Ticketed(tuple(items), 4), on=on), on)


def test_a_hundred_thousand_blocks_are_verified() -> None:
    layers, wide, on = 320, 320, device("v100")
    regions = tuple(region(f"r{layer}", wide, threads=256) for layer in range(layers))
    graph = TaskGraph(
        "g", regions, tuple(Need(f"r{layer}", f"r{layer + 1}", "near", 0.003) for layer in range(layers - 1))
    )
    lists: list[list[Instruction]] = [[] for _ in range(wide)]
    for layer, block in itertools.product(range(layers), range(wide)):
        if layer:
            lists[block] += [Wait(one, layer) for one in (block - 1, block + 1) if 0 <= one < wide]
        lists[block].append(Run(f"r{layer}", block))
    program = program_of(graph, Pinned(tuple(map(tuple, lists)), threads=256), on=on)
    verify(graph, program, on)
    lists[100][-3] = Wait(99, layers - 2)  # instead of the run after that
    broken = program_of(graph, Pinned(tuple(map(tuple, lists)), threads=256), on=on)
    with pytest.raises(SchedulerError, match=r"the edge r318\[99\] -> r319\[100\] is missing"):
        verify(graph, broken, on)


def test_limits_of_a_device_are_read_from_it() -> None:
    """The same program is safe on a device with one multiprocessor more."""
    graph = TaskGraph("g", (region("a", 3),))
    program = program_of(graph, Pinned(tuple((Run("a", block),) for block in range(3))), on=TWO)
    verify(graph, program, replace(TWO, multiprocessors=3))
    with pytest.raises(UnsafeProgram, match="3 workers, of which only 2"):
        verify(graph, program, TWO)
