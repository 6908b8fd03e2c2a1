"""Programs of the policies with one fault each: the verifier refuses those, and only those, that brute force does."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import SchedulerError
from scheduler.policies.choose import schedule
from scheduler.program import Counter, Instruction, Item, Pinned, Plain, Program, Run, Ticketed, Wait
from scheduler.tasks import TaskGraph
from scheduler.verify.program import verify
from tests.scheduler.policies.graphs import small_gpu, task_graphs
from tests.scheduler.verify.brute import safe_by_brute_force

Lists = list[list[Instruction]]
Fault = Callable[[random.Random, Lists, list[Counter]], bool]


def _some_wait(draw: random.Random, lists: Lists) -> tuple[int, int, Wait] | None:
    found = [(row, at, one) for row, mine in enumerate(lists) for at, one in enumerate(mine) if isinstance(one, Wait)]
    return draw.choice(found) if found else None


def dropped(draw: random.Random, lists: Lists, counters: list[Counter]) -> bool:
    if (one := _some_wait(draw, lists)) is None:
        return False
    del lists[one[0]][one[1]]
    return True


def off_by_one(draw: random.Random, lists: Lists, counters: list[Counter]) -> bool:
    if (one := _some_wait(draw, lists)) is None:
        return False
    lists[one[0]][one[1]] = Wait(one[2].counter, max(0, one[2].value + draw.choice((-1, 1))))
    return True


def other_counter(draw: random.Random, lists: Lists, counters: list[Counter]) -> bool:
    if (one := _some_wait(draw, lists)) is None:
        return False
    number = draw.randrange(len(counters))
    lists[one[0]][one[1]] = Wait(number, counters[number].end - counters[number].begin)
    return True


def shorter_counter(draw: random.Random, lists: Lists, counters: list[Counter]) -> bool:
    wide = [number for number, one in enumerate(counters) if one.end - one.begin > 1]
    if not wide:
        return False
    number = draw.choice(wide)
    one = counters[number]
    counters[number] = Counter(one.region, one.begin, one.end - 1)
    for mine in lists:
        for at, instruction in enumerate(mine):
            if isinstance(instruction, Wait) and instruction.counter == number:
                mine[at] = Wait(number, instruction.value - 1)
    return True


def swapped(draw: random.Random, lists: Lists, counters: list[Counter]) -> bool:
    rows = [mine for mine in lists if len(mine) > 2]
    if not rows:
        return False
    mine = draw.choice(rows)
    first, second = draw.sample(range(len(mine) - 1), 2)  # the last one of a ticket stays
    mine[first], mine[second] = mine[second], mine[first]
    return True


def exchanged(draw: random.Random, lists: Lists, counters: list[Counter]) -> bool:
    """Two runs, each with its place."""
    places = [(row, at) for row, mine in enumerate(lists) for at, one in enumerate(mine) if isinstance(one, Run)]
    if len(places) < 2:
        return False
    (row, at), (other, to) = draw.sample(places, 2)
    lists[row][at], lists[other][to] = lists[other][to], lists[row][at]
    return True


FAULTS: tuple[Fault, ...] = (dropped, off_by_one, other_counter, shorter_counter, swapped, exchanged)


def broken(launch: Pinned | Ticketed, fault: Fault, draw: random.Random) -> Pinned | Ticketed | None:
    """The launch with the fault; None where there is no place for it."""
    counters = list(launch.counters)
    if isinstance(launch, Pinned):
        lists: Lists = [list(worker) for worker in launch.workers]
        if not fault(draw, lists, counters):
            return None
        return msgspec.structs.replace(launch, workers=tuple(map(tuple, lists)), counters=tuple(counters))
    lists = [[*item.waits, item.run] for item in launch.items]
    if not fault(draw, lists, counters):
        return None
    items = []
    for mine in lists:
        runs, waits = ([one for one in mine if isinstance(one, kind)] for kind in (Run, Wait))
        items.append(Item(runs[0], tuple(waits)))  # type: ignore[arg-type]
    return msgspec.structs.replace(launch, items=tuple(items), counters=tuple(counters))


def test_faults_are_found_where_they_matter() -> None:
    refused = {fault.__name__: [0, 0] for fault in FAULTS}

    @settings(max_examples=120, deadline=None, derandomize=True)
    @given(task_graphs(5, 5), st.sampled_from(("pinned", "ticketed")), st.integers(0, 999))
    def agree(drawn: TaskGraph, form: str, seed: int) -> None:
        device, draw = small_gpu(), random.Random(seed)
        regions = tuple(msgspec.structs.replace(region, kernels=region.kernels[:1]) for region in drawn.regions)
        graph = msgspec.structs.replace(drawn, regions=regions)
        made = schedule(graph, device, policy="blocks", work=0, form=form)  # type: ignore[arg-type]
        for number, launch in enumerate(made.program.launches):
            for fault in FAULTS * 2:
                worse = None if isinstance(launch, Plain) else broken(launch, fault, draw)
                if worse is None:
                    continue
                launches = (*made.program.launches[:number], worse, *made.program.launches[number + 1 :])
                program: Program = msgspec.structs.replace(made.program, launches=launches)
                safe = safe_by_brute_force(graph, program)
                refused[fault.__name__][safe] += 1
                try:
                    verify(graph, program, device)
                except SchedulerError:
                    assert not safe
                else:
                    assert safe

    agree()
    assert all(unsafe > 10 for unsafe, _ in refused.values()), refused
