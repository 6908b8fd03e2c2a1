"""The verifier says no, and to what."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler.device import Device, cpu, device
from scheduler.errors import InvalidProgram, InvalidTaskGraph, SchedulerError, UnsafeProgram
from scheduler.program import Counter, Instruction, Item, Launch, Pinned, Plain, Program, Run, Ticketed, Wait
from scheduler.simulate import Hung, simulate
from scheduler.tasks import Kernel, Need, Region, TaskGraph
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
# One counter for each of their blocks, and one for both of pool's.
COUNTERS = (
    Counter("conv", 0, 1), Counter("conv", 1, 2), Counter("pool", 0, 1), Counter("pool", 1, 2), Counter("pool", 0, 2),
)  # fmt: skip
CONV, POOL, BOTH = 0, 2, 4
GOOD = Pinned((
    (Run("conv", 0), Run("pool", 0), Wait(BOTH, 2), Run("dense", 0)),
    (Run("conv", 1), Run("pool", 1)),
), COUNTERS)  # fmt: skip


def test_what_is_covered_is_accepted() -> None:
    verify(NET, program_of(NET, GOOD), TWO)
    verify(NET, program_of(NET, Plain("conv"), Plain("pool"), Plain("dense")), TWO)
    tickets = Ticketed(
        (Item(Run("conv", 0)), Item(Run("conv", 1)), Item(Run("pool", 1), (Wait(CONV + 1, 1),)),
         Item(Run("pool", 0), (Wait(CONV, 1),)), Item(Run("dense", 0), (Wait(BOTH, 2),))), 7, COUNTERS,
    )  # fmt: skip
    verify(NET, program_of(NET, tickets), TWO)


def test_a_launch_covers_what_is_before_it() -> None:
    first = Pinned(((Run("conv", 1), Run("pool", 1)), (Run("conv", 0),)))
    verify(NET, program_of(NET, first, Pinned(((Run("pool", 0), Run("dense", 0)),))), TWO)


def test_waits_carry_over() -> None:
    """b comes after a because c does, and b waits for c."""
    graph = TaskGraph("g", (region("a"), region("c"), region("b")), (Need("a", "b"),))
    three = cpu(3)
    counters = (Counter("a", 0, 1), Counter("c", 0, 1))
    launch = Pinned(((Run("a", 0),), (Wait(0, 1), Run("c", 0)), (Wait(1, 1), Run("b", 0))), counters)
    verify(graph, program_of(graph, launch, on=three), three)
    items = (Item(Run("a", 0)), Item(Run("c", 0), (Wait(0, 1),)), Item(Run("b", 0), (Wait(1, 1),)))
    tickets = Ticketed(items, 3, counters)
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
        (Pinned(((*GOOD.workers[0][:2], Wait(CONV + 1, 1), Run("dense", 0)), GOOD.workers[1]), COUNTERS),),
    ),
    (
        r"nothing makes pool\[0\] on worker 0 come after conv\[0\] on worker 0",
        (Pinned(((Run("pool", 0), Run("conv", 0), Wait(BOTH, 2), Run("dense", 0)), GOOD.workers[1]), COUNTERS),),
    ),
    (
        r"the edge pool\[1\] -> dense\[0\] is missing",
        (Pinned(((*GOOD.workers[0][:2], Wait(BOTH, 1), Run("dense", 0)), GOOD.workers[1]), COUNTERS),),
    ),
    (
        r"launch 0: worker 0 waits for 3 blocks of pool\[0-1\], of which the launch runs 2: it waits for ever",
        (Pinned(((*GOOD.workers[0][:2], Wait(BOTH, 3), Run("dense", 0)), GOOD.workers[1]), COUNTERS),),
    ),
    (
        r"launch 1: worker 0 waits for 1 blocks of conv\[0\], of which the launch runs 0: it waits for ever",
        (Plain("conv"), Pinned(((Wait(CONV, 1), Run("pool", 0), Run("pool", 1), Run("dense", 0)),), COUNTERS)),
    ),
    (
        r"launch 0 hangs, because each waits for the next: worker 0 run 2 -> worker 1 run 2 -> worker 0 run 2",
        (Pinned(((Run("conv", 0), Wait(POOL + 1, 1), Run("pool", 0), Run("dense", 0)),
                 (Run("conv", 1), Wait(POOL, 1), Run("pool", 1))), COUNTERS),),
    ),
    (
        r"launch 0 hangs, because each waits for the next: worker 1 run 2 -> worker 1 run 2",
        (Pinned((GOOD.workers[0], (Run("conv", 1), Wait(POOL + 1, 1), Run("pool", 1))), COUNTERS),),
    ),
    (
        r"launch 0 has 3 workers, of which only 2 are resident at once on device 'cpu:2' with 1 threads, 0 registers",
        (Pinned((*GOOD.workers, ()), COUNTERS),),
    ),
    (
        r"launch 0: ticket 0 waits for 1 blocks of conv\[1\], of which earlier tickets run 0",
        (Ticketed((Item(Run("conv", 0), (Wait(CONV + 1, 1),)), Item(Run("conv", 1))), 2, COUNTERS),
         Plain("pool"), Plain("dense")),
    ),
    (
        r"launch 0: ticket 1 waits for 1 blocks of conv\[1\], of which earlier tickets run 0",
        (Ticketed((Item(Run("conv", 0)), Item(Run("conv", 1), (Wait(CONV + 1, 1),))), 2, COUNTERS),
         Plain("pool"), Plain("dense")),
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
    counters = tuple(Counter("a", worker, worker + 1) for worker in range(40))
    program = program_of(graph, Pinned(lists, counters), on=on)
    with pytest.raises(UnsafeProgram) as refused:
        verify(graph, program, on)
    assert str(refused.value).endswith("worker 5 run 1 -> worker 6 run 1 -> (33 more) -> worker 0 run 1.")
    with pytest.raises(Hung, match=r"worker 6 waits .*, and so on through 32 more, worker 39 waits for 1 blocks of a"):
        simulate(graph, program, on)


CONV_0 = COUNTERS[:1]
INVALID: Sequence[tuple[str, tuple[Launch, ...]]] = (
    (r"the program never runs pool\[0\]; every block runs once", (Plain("conv"),)),
    (r"runs conv\[0\] twice, in launch 0 and in launch 1", (Plain("conv"), Plain("conv"))),
    (r"launch 0 runs the region 'soft', which the task graph does not have", (Plain("soft"),)),
    (r"launch 0 runs block 2 of 'conv', whose kernel has 2 blocks", (Pinned(((Run("conv", 2),),)),)),
    (r"launch 0 runs block -1 of 'conv'", (Ticketed((Item(Run("conv", -1)),), 1),)),
    (r"launch 0 has 0 workers; it needs at least one", (Pinned(()),)),
    (r"launch 0 has 0 workers; it needs at least one", (Ticketed((), 0),)),
    (r"worker 0 of launch 0 waits for counter 1 at 1; the launch has 1 counters", (Pinned(((Wait(1, 1),),), CONV_0),)),
    (r"worker 0 of launch 0 waits for counter 0 at -1.* from its own start", (Pinned(((Wait(0, -1),),), CONV_0),)),
    (r"ticket 0 of launch 0 waits for counter 1 at 1", (Ticketed((Item(Run("conv", 0), (Wait(1, 1),)),), 1, CONV_0),)),
    (r"counts the blocks 1 to 3 of 'conv', whose kernel has 2 blocks", (Pinned(((),), (Counter("conv", 1, 3),)),)),
    (r"launch 0 counts the blocks 1 to 1 of 'conv'", (Pinned(((),), (Counter("conv", 1, 1),)),)),
    (r"launch 0 counts the region 'soft', which the task graph", (Pinned(((),), (Counter("soft", 0, 1),)),)),
)  # fmt: skip


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
    counters = (Counter("a", 0, 1), Counter("b", 0, 1))
    with pytest.raises(UnsafeProgram, match=r"the edge b\[0\] -> c\[0\] is missing"):
        verify(graph, program_of(graph, Pinned(tuple(map(tuple, lists)), counters)), TWO)
    lists[0].insert(1, Wait(1, 1))
    verify(graph, program_of(graph, Pinned(tuple(map(tuple, lists)), counters)), TWO)


def test_what_a_wait_for_a_part_orders_is_decided() -> None:
    """Of four blocks on one worker the first two have ended when two have; on two workers any two."""
    graph = TaskGraph("g", (region("a", 4), region("b", 2)), (Need("a", "b", "near"),))
    counters = (Counter("a", 0, 4),)
    after: tuple[Instruction, ...] = (Wait(0, 2), Run("b", 0), Wait(0, 4), Run("b", 1))
    one = Pinned((tuple(Run("a", block) for block in range(4)), after), counters)
    verify(graph, program_of(graph, one), TWO)
    reordered = Pinned((tuple(Run("a", block) for block in (0, 2, 1, 3)), after), counters)
    with pytest.raises(UnsafeProgram, match=r"the edge a\[1\] -> b\[0\] is missing"):
        verify(graph, program_of(graph, reordered), TWO)
    three = cpu(3)
    apart = Pinned(((Run("a", 0), Run("a", 1)), (Run("a", 2), Run("a", 3)), after), counters)
    with pytest.raises(UnsafeProgram, match=r"the edge a\[[01]\] -> b\[0\] is missing"):
        verify(graph, program_of(graph, apart, on=three), three)
    # Three of four have ended: of any two that follow each other the first one has.
    enough = Pinned((*apart.workers[:2], (Wait(0, 3), Run("b", 0), Wait(0, 4), Run("b", 1))), counters)
    with pytest.raises(UnsafeProgram, match=r"the edge a\[1\] -> b\[0\] is missing"):
        verify(graph, program_of(graph, enough, on=three), three)
    lean = TaskGraph("g", (region("a", 4), region("b", 4)), (Need("a", "b", "near"),))
    last = (Wait(0, 3), Run("b", 0), Run("b", 2), Wait(0, 4), Run("b", 1), Run("b", 3))
    verify(lean, program_of(lean, Pinned((*apart.workers[:2], last), counters), on=three), three)


def test_a_part_of_tickets_is_judged_for_any_number_of_workers() -> None:
    graph = TaskGraph("g", (region("a", 2), region("b")), (Need("a", "b", "near"),))
    chosen = TaskGraph("g", graph.regions, (Need("a", "b"),))
    items = (Item(Run("a", 0)), Item(Run("a", 1)), Item(Run("b", 0), (Wait(0, 1),)))
    for net in (graph, chosen):
        with pytest.raises(UnsafeProgram, match=r"the edge a\[0\] -> b\[0\] is missing"):
            verify(net, program_of(net, Ticketed(items, 2, (Counter("a", 0, 2),))), TWO)
    verify(chosen, program_of(chosen, Ticketed(items, 1, (Counter("a", 0, 2),))), TWO)


def test_more_than_a_few_thousand_tickets() -> None:
    """The sources of a ticket are looked at in several goes; the one missing wait is found wherever it is."""
    count = 10_000
    graph = TaskGraph("g", (region("a", count), region("b", count)), (Need("a", "b", "near"),))
    items = [Item(Run("a", block)) for block in range(count)]
    items += [Item(Run("b", block), (Wait(block, 1),)) for block in range(count)]
    counters = tuple(Counter("a", block, block + 1) for block in range(count))
    on = cpu(4)
    verify(graph, program_of(graph, Ticketed(tuple(items), 4, counters), on=on), on)
    for lost in (0, 4095, 4096, 9999):
        broken = list(items)
        broken[count + lost] = Item(Run("b", lost), (Wait((lost + 1) % count, 1),))
        with pytest.raises(UnsafeProgram, match=rf"the edge a\[{lost}\] -> b\[{lost}\] is missing"):
            verify(graph, program_of(graph, Ticketed(tuple(broken), 4, counters), on=on), on)
    everything = TaskGraph("g", (region("a", 5000), region("b"), region("c")), (Need("a", "b"), Need("a", "c")))
    counters = (Counter("a", 0, 5000), Counter("b", 0, 1), Counter("a", 0, 4500))
    items = [*items[:5000], Item(Run("b", 0), (Wait(0, 5000),)), Item(Run("c", 0), (Wait(1, 1),))]
    verify(everything, program_of(everything, Ticketed(tuple(items), 4, counters), on=on), on)
    items[5000] = Item(Run("b", 0), (Wait(2, 4500),))
    with pytest.raises(UnsafeProgram, match=r"the edge a\[4500\] -> b\[0\] is missing"):
        verify(everything, program_of(everything, Ticketed(tuple(items), 4, counters), on=on), on)


def test_a_hundred_thousand_blocks_are_verified() -> None:
    layers, wide, on = 320, 320, device("v100")
    regions = tuple(region(f"r{layer}", wide, threads=256) for layer in range(layers))
    graph = TaskGraph(
        "g", regions, tuple(Need(f"r{layer}", f"r{layer + 1}", "near", 0.003) for layer in range(layers - 1))
    )
    lists: list[list[Instruction]] = [[] for _ in range(wide)]
    counters = tuple(Counter(f"r{layer}", block, block + 1) for layer in range(layers) for block in range(wide))
    for layer, block in itertools.product(range(layers), range(wide)):
        before = (layer - 1) * wide
        if layer:
            lists[block] += [Wait(before + one, 1) for one in (block - 1, block + 1) if 0 <= one < wide]
        lists[block].append(Run(f"r{layer}", block))
    program = program_of(graph, Pinned(tuple(map(tuple, lists)), counters, threads=256), on=on)
    verify(graph, program, on)
    lists[100][-3] = Wait((layers - 3) * wide + 99, 1)  # instead of the layer after that
    broken = program_of(graph, Pinned(tuple(map(tuple, lists)), counters, threads=256), on=on)
    with pytest.raises(SchedulerError, match=r"the edge r318\[99\] -> r319\[100\] is missing"):
        verify(graph, broken, on)


def test_limits_of_a_device_are_read_from_it() -> None:
    """The same program is safe on a device with one multiprocessor more."""
    graph = TaskGraph("g", (region("a", 3),))
    program = program_of(graph, Pinned(tuple((Run("a", block),) for block in range(3))), on=TWO)
    verify(graph, program, replace(TWO, multiprocessors=3))
    with pytest.raises(UnsafeProgram, match="3 workers, of which only 2"):
        verify(graph, program, TWO)
