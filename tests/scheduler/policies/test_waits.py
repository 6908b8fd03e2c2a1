"""A wait is for what its block needs, all of it, and for nothing that the worker knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings

from scheduler.device import cpu
from scheduler.errors import UnsafeProgram
from scheduler.policies.choose import schedule
from scheduler.program import Counter, Item, Pinned, Run, Ticketed, Wait
from scheduler.tasks import Kernel, Need, Region, TaskGraph, needed_blocks
from scheduler.verify.program import verify
from tests.scheduler.policies.graphs import near, small_gpu, task_graphs


def carries_a_need(graph: TaskGraph, counter: Counter, run: Run) -> bool:
    """Whether the block needs one that is counted."""
    many = {region.name: region.kernels[0].blocks for region in graph.regions}
    for need in graph.needs:
        if (need.source, need.target) == (counter.region, run.region):
            some = needed_blocks(need, many[need.source], many[need.target], run.block)
            if set(some) & set(range(counter.begin, counter.end)):
                return True
    return False


@settings(max_examples=40, deadline=None)
@given(task_graphs(6, 8))
def test_a_need_is_one_wait(drawn: TaskGraph) -> None:
    device = small_gpu()
    regions = tuple(msgspec.structs.replace(region, kernels=region.kernels[:1]) for region in drawn.regions)
    graph = TaskGraph(drawn.name, regions, drawn.needs)
    for form in ("pinned", "ticketed"):
        made = schedule(graph, device, policy="blocks", work=0, form=form)  # type: ignore[arg-type]
        launch = made.program.launches[0]
        assert isinstance(launch, Pinned | Ticketed)
        lists: Sequence[Sequence[Run | Wait]] = (
            launch.workers if isinstance(launch, Pinned) else [(*item.waits, item.run) for item in launch.items]
        )
        for instructions in lists:
            waited: list[int] = []
            for place, one in enumerate(instructions):
                if isinstance(one, Wait):
                    counter = launch.counters[one.counter]
                    assert one.value == counter.end - counter.begin, "all of its blocks"
                    run = next(other for other in instructions[place:] if isinstance(other, Run))
                    assert carries_a_need(graph, counter, run)
                    waited.append(one.counter)
            assert len(set(waited)) == len(waited), "none is waited for twice"
        assert {one.counter for instructions in lists for one in instructions if isinstance(one, Wait)} == set(
            range(len(launch.counters))
        ), "and none counts for nobody"


def test_waits_do_not_grow_with_workers() -> None:
    """Two regions of 60 blocks on 30 workers: one wait a worker."""
    kernel = (Kernel("k", 60, (5000.0,), 1024),)
    graph = TaskGraph("wide", (Region("a", kernel), Region("b", kernel)), (Need("a", "b"),))
    made = schedule(graph, small_gpu(30), policy="blocks", work=0)
    launch = made.program.launches[0]
    assert isinstance(launch, Pinned) and len(launch.workers) == 60
    assert launch.counters == (Counter("a", 0, 60),) and made.waits == 60


def test_what_another_wait_tells_is_not_waited_for() -> None:
    """c needs b, b needs all of a: then c needs no wait for a, whether a worker is known or not."""
    wide = (Kernel("k", 6, (5000.0,)),)
    graph = TaskGraph(
        "three", tuple(Region(name, wide) for name in "abc"), (Need("a", "b"), Need("b", "c", "near"), Need("a", "c"))
    )
    for form in ("pinned", "ticketed"):
        made = schedule(graph, small_gpu(3), policy="blocks", work=0, form=form)  # type: ignore[arg-type]
        launch = made.program.launches[0]
        assert isinstance(launch, Pinned | Ticketed)
        lists = launch.workers if isinstance(launch, Pinned) else [(*item.waits, item.run) for item in launch.items]
        for instructions in lists:
            for place, one in enumerate(instructions):
                if isinstance(one, Wait) and launch.counters[one.counter].region == "a":
                    assert any(isinstance(other, Run) and other.region == "b" for other in instructions[place:])


def test_stripes_are_waited_for_where_they_pay() -> None:
    """Twelve blocks that end at once are waited for whole; of sixty on eight workers the next begin before the last."""
    sizes = {}
    for blocks, workers in ((12, 12), (60, 8)):
        made = schedule(near(blocks, 0.1), cpu(workers), policy="blocks", work=0)
        launch = made.program.launches[0]
        assert isinstance(launch, Ticketed)
        sizes[blocks] = {one.end - one.begin for one in launch.counters}
    assert sizes[12] == {12} and max(sizes[60]) < 30


def ended_before(launch: Ticketed, waits: Sequence[Wait]) -> set[tuple[str, int]]:
    """The blocks that have ended once these waits have: those that are counted, and those that these waited for."""
    items = {(one.run.region, one.run.block): one for one in launch.items}
    found, left = set[tuple[str, int]](), list(waits)
    while left:
        counter = launch.counters[left.pop().counter]
        for block in {(counter.region, at) for at in range(counter.begin, counter.end)} - found:
            found.add(block)
            left += items[block].waits
    return found


@settings(max_examples=25, deadline=None)
@given(task_graphs(5, 4))
def test_a_wait_of_a_ticket_can_be_dropped_where_its_other_waits_tell_the_same(graph: TaskGraph) -> None:
    """Of stripes what others wait for is asked again; nothing else is asked that an item need not know."""
    device = small_gpu()
    made = schedule(graph, device, policy="blocks", work=0, form="ticketed")
    launch = made.program.launches[0]
    if not isinstance(launch, Ticketed):
        return
    for number, item in enumerate(launch.items):
        for other in item.waits:
            others = tuple(one for one in item.waits if one != other)
            items = list(launch.items)
            items[number] = Item(item.run, others)
            dropped = msgspec.structs.replace(
                made.program, launches=(msgspec.structs.replace(launch, items=tuple(items)),)
            )
            counter = launch.counters[other.counter]
            asked = {(counter.region, at) for at in range(counter.begin, counter.end)}
            if asked <= ended_before(launch, others):
                verify(made.graph, dropped, device)
            else:
                with pytest.raises(UnsafeProgram):
                    verify(made.graph, dropped, device)


def test_waits_that_cost_are_counted_in_the_plan() -> None:
    """A wait that takes longer than a launch is not taken: the regions run one after the other."""
    kernel = (Kernel("k", 4, (1000.0,)),)
    graph = TaskGraph("chain", (Region("a", kernel), Region("b", kernel)), (Need("a", "b"),))
    for wait, launches in ((100.0, 1), (5000.0, 2)):
        device = replace(small_gpu(4, block_fixed_ns=0.0), wait_ns=wait)
        made = schedule(graph, device, work=15_000)
        assert len(made.program.launches) == launches
