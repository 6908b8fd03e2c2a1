"""Small programs at random, as arrays: safe ones as a scheduler makes them, broken ones, and ones without sense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from numba import njit

from scheduler.device import Device, cpu
from scheduler.program import Counter, Instruction, Item, Pinned, Program, Run, Ticketed, Wait
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.bulk import MOST_COUNTERS, MOST_TASKS, MOST_WORKERS, Batch

Bytes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint64]

KINDS = ("as made", "no sense", "dropped wait", "swapped", "one worker too many", "stale counter", "off by one")
AS_MADE, NO_SENSE, DROPPED, SWAPPED, TOO_MANY, STALE, OFF_BY_ONE = range(len(KINDS))
INSTRUCTIONS = 64  # room for those of one worker
MOST_DRAWN = 20  # tasks


def drawn(count: int, seed: int) -> tuple[Batch, Bytes]:
    """Programs and the kind of each, the kinds by turns.

    2 to 8 workers and up to 20 tasks in regions of one to three. A region has a counter for all of its tasks and some
    for parts. Slots are drawn from those that hold all workers, exactly as many among them; of "one worker too many"
    they are one less, and of "no sense" anything.
    """
    batch = Batch.empty(count, INSTRUCTIONS)
    kinds = (np.arange(count) % len(KINDS)).astype(np.int8)
    _draw(
        seed, kinds, batch.ticketed, batch.workers, batch.slots, batch.tasks, batch.region, batch.length, batch.counter,
        batch.value, batch.counts, batch.needs,
    )  # fmt: skip
    return batch, kinds


def program_of(batch: Batch, number: int) -> tuple[TaskGraph, Program, Device]:
    """One program of a batch as `scheduler.verify` reads it: each task a block, each slot a worker of a CPU."""
    tasks = range(int(batch.tasks[number]))
    region = batch.region[number].tolist()
    members = {one: [task for task in tasks if region[task] == one] for one in sorted({region[task] for task in tasks})}
    regions = tuple(Region(f"r{one}", (Kernel("k", len(some), (1.0,)),)) for one, some in members.items())
    needs = tuple(
        Need(f"r{source}", f"r{target}", _pattern(batch, number, members[source], members[target]))
        for target in members for source in members
        if any(_bits(batch.needs[number, task]) & set(members[source]) for task in members[target])
    )  # fmt: skip
    graph = TaskGraph("small", regions, needs)
    device = cpu(int(batch.slots[number]))
    workers = int(batch.workers[number])
    runs = {task: Run(f"r{region[task]}", task - members[region[task]][0]) for task in tasks}
    counters = []
    for mask in batch.counts[number]:
        if counted := sorted(_bits(mask)):
            first = members[region[counted[0]]][0]
            counters.append(Counter(f"r{region[counted[0]]}", counted[0] - first, counted[-1] + 1 - first))
    lists: list[list[Instruction]] = [
        [
            _instruction(int(batch.counter[number, worker, at]), int(batch.value[number, worker, at]), runs)
            for at in range(int(batch.length[number, worker]))
        ]
        for worker in range(workers)
    ]
    launch: Pinned | Ticketed = Pinned(tuple(map(tuple, lists)), tuple(counters))
    if batch.ticketed[number]:
        items: list[Item] = []
        waits: list[Wait] = []
        for one in lists[0]:
            if isinstance(one, Wait):
                waits.append(one)
            else:
                items.append(Item(one, tuple(waits)))
                waits = []
        launch = Ticketed(tuple(items), workers, tuple(counters))
    return graph, Program("small", device.name, {one.name: 0 for one in graph.regions}, (launch,)), device


def _pattern(batch: Batch, number: int, source: list[int], target: list[int]) -> Literal["all", "near"]:
    whole = all(set(source) <= _bits(batch.needs[number, task]) for task in target)
    return "all" if whole else "near"


def _bits(mask: np.uint64) -> set[int]:
    return {bit for bit in range(MOST_TASKS) if int(mask) >> bit & 1}


def _instruction(counter: int, value: int, runs: Mapping[int, Run]) -> Instruction:
    return runs[value] if counter < 0 else Wait(counter, value)


@njit(cache=True)
def _draw(
    seed: int, kinds: Bytes, ticketed: Bytes, workers: Bytes, slots: Bytes, tasks: Bytes, region: Bytes, length: Bytes,
    counter: Bytes, value: Bytes, counts: Bits, needs: Bits,
) -> None:  # fmt: skip
    np.random.seed(seed)
    for one in range(len(kinds)):
        kind = kinds[one]
        workers[one] = np.random.randint(2, MOST_WORKERS + 1)
        tasks[one] = np.random.randint(2, MOST_DRAWN + 1)
        slots[one] = workers[one] + max(0, np.random.randint(-2, 3))
        ticketed[one] = kind != TOO_MANY and np.random.randint(3) == 0  # of these a worker may have no slot
        if ticketed[one]:
            workers[one] = np.random.randint(1, MOST_WORKERS + 1)
            slots[one] = np.random.randint(1, MOST_WORKERS + 1)
        many = _draw_regions(tasks[one], region[one], counts[one])
        _draw_needs(tasks[one], region[one], needs[one])
        rows = 1 if ticketed[one] else workers[one]
        _make_lists(ticketed[one], rows, tasks[one], region[one], length[one], counter[one], value[one], counts[one],
                    needs[one])  # fmt: skip
        if kind == NO_SENSE:
            if not ticketed[one]:
                slots[one] = np.random.randint(1, MOST_WORKERS + 1)
            _any_waits(rows, length[one], counter[one], value[one], many)
        elif kind == TOO_MANY:
            slots[one] = workers[one] - 1
        elif kind != AS_MADE:
            _break_lists(kind, ticketed[one], rows, length[one], counter[one], value[one], counts[one])


@njit(cache=True)
def _draw_regions(tasks: int, region: Bytes, counts: Bits) -> int:
    """Tasks by ones, twos and threes; a counter for all of each and some for a part. How many counters there are."""
    one = np.uint64(1)
    first, number, made = 0, 0, 0
    while first < tasks:
        size = min(np.random.randint(1, 4), tasks - first)
        for task in range(first, first + size):
            region[task] = number
            counts[made] |= one << np.uint64(task)
        made += 1
        for begin in range(size if size > 1 else 0):
            if np.random.randint(3) and made < MOST_COUNTERS:
                for task in range(first + begin, first + min(size, begin + np.random.randint(1, 3))):
                    counts[made] |= one << np.uint64(task)
                made += 1
        first += size
        number += 1
    return made


@njit(cache=True)
def _draw_needs(tasks: int, region: Bytes, needs: Bits) -> None:
    """Of each region up to two of those before it, most of them not far away: all of it, or what is near."""
    one = np.uint64(1)
    for target in range(1, region[tasks - 1] + 1):
        for _ in range(np.random.randint(0, 3)):
            source = (
                np.random.randint(max(0, target - 3), target) if np.random.randint(4) else np.random.randint(target)
            )
            near = np.random.randint(2)
            from_first, from_many, to_first, to_many = 0, 0, 0, 0
            for task in range(tasks):
                from_first += region[task] < source
                from_many += region[task] == source
                to_first += region[task] < target
                to_many += region[task] == target
            for block in range(to_many):
                if needs[to_first + block] >> np.uint64(from_first) & ((one << np.uint64(from_many)) - one):
                    near = -1  # it is needed already
            for block in range(to_many if near >= 0 else 0):
                low, high = 0, from_many
                if near:
                    low = block * from_many // to_many
                    high = max(low + 1, -(-(block + 1) * from_many // to_many))
                for place in range(low, high):
                    needs[to_first + block] |= one << np.uint64(from_first + place)


@njit(cache=True)
def _make_lists(
    ticketed: int, rows: int, tasks: int, region: Bytes, length: Bytes, counter: Bytes, value: Bytes, counts: Bits,
    needs: Bits,
) -> None:  # fmt: skip
    """Append and wait, one task after the other; a wait that others imply is left out, mostly."""
    one = np.uint64(1)
    known = np.zeros(rows, np.uint64)
    before = np.zeros(tasks, np.uint64)
    for task in range(tasks):
        row = np.random.randint(rows)
        if ticketed:
            known[row] = 0
        for source in range(region[task] - 1, -1, -1):
            wanted = np.uint64(0)
            for other in range(tasks):
                if region[other] == source:
                    wanted |= needs[task] & (one << np.uint64(other))
            if wanted == 0 or (wanted & ~known[row] == 0 and np.random.randint(8)):
                continue
            which = np.random.randint(MOST_COUNTERS)
            while wanted & ~counts[which] != 0:
                which = (which + 1) % MOST_COUNTERS
            at = length[row]
            counter[row, at], value[row, at] = which, 0
            for other in range(tasks):
                if (counts[which] >> np.uint64(other)) & one:
                    value[row, at] += 1
                    known[row] |= before[other] | one << np.uint64(other)
            length[row] += 1
        before[task] = known[row]
        known[row] |= one << np.uint64(task)
        counter[row, length[row]], value[row, length[row]] = -1, task
        length[row] += 1


@njit(cache=True)
def _any_waits(rows: int, length: Bytes, counter: Bytes, value: Bytes, many: int) -> None:
    """Some waits become waits for anything, beyond what there is too."""
    for row in range(rows):
        for at in range(length[row]):
            if counter[row, at] >= 0 and np.random.randint(3) == 0:
                counter[row, at] = np.random.randint(many)
                value[row, at] = np.random.randint(-1, 4)


@njit(cache=True)
def _break_lists(
    kind: int, ticketed: int, rows: int, length: Bytes, counter: Bytes, value: Bytes, counts: Bits
) -> None:
    """One fault; none where there is no place for it. A list of tickets ends with a run."""
    for _ in range(50):
        row = np.random.randint(rows)
        if length[row] < 2 + ticketed:
            continue
        at = np.random.randint(length[row] - ticketed)
        if kind == SWAPPED:
            to = np.random.randint(length[row] - ticketed)
            _swap(counter[row], at, to)
            _swap(value[row], at, to)
            return
        if counter[row, at] < 0:
            continue
        if kind == DROPPED:
            for place in range(at, length[row] - 1):
                counter[row, place], value[row, place] = counter[row, place + 1], value[row, place + 1]
            length[row] -= 1
        elif kind == STALE:  # it counts the blocks of the execution before
            for task in range(MOST_TASKS):
                value[row, at] -= (counts[counter[row, at]] >> np.uint64(task)) & np.uint64(1) != 0
        else:
            value[row, at] += 1 if np.random.randint(2) else -1
        return


@njit(cache=True)
def _swap(row: Bytes, first: int, second: int) -> None:
    row[first], row[second] = row[second], row[first]
