"""Waits are those of the transitive reduction: without any one of them the program is not safe."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from scheduler.errors import UnsafeProgram
from scheduler.policies.choose import schedule
from scheduler.program import Item, Pinned, Ticketed, Wait
from scheduler.tasks import TaskGraph
from scheduler.verify.program import verify
from tests.scheduler.policies.graphs import small_gpu, task_graphs


@settings(max_examples=25, deadline=None)
@given(task_graphs(5, 4))
def test_no_wait_of_a_pinned_program_can_be_dropped(graph: TaskGraph) -> None:
    device = small_gpu()
    made = schedule(graph, device, policy="blocks", work=0)
    launch = made.program.launches[0]
    if not isinstance(launch, Pinned):
        return
    for number, worker in enumerate(launch.workers):
        for at, one in enumerate(worker):
            if isinstance(one, Wait):
                workers = list(launch.workers)
                workers[number] = worker[:at] + worker[at + 1 :]
                dropped = msgspec.structs.replace(launch, workers=tuple(workers))
                with pytest.raises(UnsafeProgram):
                    verify(made.graph, msgspec.structs.replace(made.program, launches=(dropped,)), device)


@settings(max_examples=25, deadline=None)
@given(task_graphs(5, 4))
def test_no_wait_of_a_ticket_can_be_dropped(graph: TaskGraph) -> None:
    device = small_gpu()
    made = schedule(graph, device, policy="blocks", work=0, form="ticketed")
    launch = made.program.launches[0]
    if not isinstance(launch, Ticketed):
        return
    for number, item in enumerate(launch.items):
        for other in item.waits:
            items = list(launch.items)
            items[number] = Item(item.run, tuple(one for one in item.waits if one != other))
            dropped = msgspec.structs.replace(launch, items=tuple(items))
            with pytest.raises(UnsafeProgram):
                verify(made.graph, msgspec.structs.replace(made.program, launches=(dropped,)), device)
