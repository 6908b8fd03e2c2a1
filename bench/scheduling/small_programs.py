"""Small programs at random, as arrays: safe ones as a scheduler makes them, broken ones, and ones without sense."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from scheduler.device import Device, cpu
from scheduler.program import Instruction, Item, Pinned, Program, Run, Ticketed, Wait
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.bulk import MOST_TASKS, MOST_WORKERS, Batch

Bytes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint64]

KINDS = ("as made", "no sense", "dropped wait", "swapped", "one worker too many", "stale counter", "off by one")
AS_MADE, NO_SENSE, DROPPED, SWAPPED, TOO_MANY, STALE, OFF_BY_ONE = range(len(KINDS))
INSTRUCTIONS = 64  # room for those of one worker
MOST_DRAWN = 20  # tasks


def drawn(count: int, seed: int) -> tuple[Batch, Bytes]:
    """Programs and the kind of each, the kinds by turns.

    2 to 8 workers and up to 20 tasks. Slots are drawn from those that hold all workers, exactly as many among them;
    of "one worker too many" they are one less, and of "no sense" anything.
    """
    batch = Batch.empty(count, INSTRUCTIONS)
    kinds = (np.arange(count) % len(KINDS)).astype(np.int8)
    _draw(
        seed, kinds, batch.ticketed, batch.workers, batch.slots, batch.tasks, batch.length, batch.other, batch.value,
        batch.tickets, batch.needs,
    )  # fmt: skip
    return batch, kinds


def program_of(batch: Batch, number: int) -> tuple[TaskGraph, Program, Device]:
    """One program of a batch as `scheduler.verify` reads it: each task a region, each slot a worker of a CPU."""
    tasks = int(batch.tasks[number])
    needs = tuple(
        Need(f"t{source}", f"t{task}")
        for task in range(tasks) for source in _bits(batch.needs[number, task])
    )  # fmt: skip
    graph = TaskGraph("small", tuple(Region(f"t{task}", (Kernel("k", 1, (1.0,)),)) for task in range(tasks)), needs)
    device = cpu(int(batch.slots[number]))
    workers = int(batch.workers[number])
    launch: Pinned | Ticketed
    if batch.ticketed[number]:
        items = range(int(batch.length[number, 0]))
        launch = Ticketed(
            tuple(Item(Run(f"t{batch.value[number, 0, one]}", 0), _bits(batch.tickets[number, one])) for one in items),
            workers,
        )
    else:
        launch = Pinned(tuple(
            tuple(
                _instruction(int(batch.other[number, worker, at]), int(batch.value[number, worker, at]))
                for at in range(int(batch.length[number, worker]))
            )
            for worker in range(workers)
        ))  # fmt: skip
    return graph, Program("small", device.name, {region.name: 0 for region in graph.regions}, (launch,)), device


def _bits(mask: np.uint64) -> tuple[int, ...]:
    return tuple(bit for bit in range(MOST_TASKS) if int(mask) >> bit & 1)


def _instruction(other: int, value: int) -> Instruction:
    return Run(f"t{value}", 0) if other < 0 else Wait(other, value)


@njit(cache=True)
def _draw(
    seed: int, kinds: Bytes, ticketed: Bytes, workers: Bytes, slots: Bytes, tasks: Bytes, length: Bytes, other: Bytes,
    value: Bytes, tickets: Bits, needs: Bits,
) -> None:  # fmt: skip
    np.random.seed(seed)
    for one in range(len(kinds)):
        kind = kinds[one]
        workers[one] = np.random.randint(2, MOST_WORKERS + 1)
        tasks[one] = np.random.randint(2, MOST_DRAWN + 1)
        slots[one] = workers[one] + max(0, np.random.randint(-2, 3))
        # A counter, and a worker without a slot, only a pinned program has.
        ticketed[one] = kind not in (TOO_MANY, STALE, OFF_BY_ONE) and np.random.randint(3) == 0
        _draw_needs(tasks[one], needs[one])
        if ticketed[one]:
            workers[one] = np.random.randint(1, MOST_WORKERS + 1)
            slots[one] = np.random.randint(1, MOST_WORKERS + 1)
            length[one, 0] = tasks[one]
            _make_tickets(tasks[one], other[one, 0], value[one, 0], tickets[one], needs[one])
            if kind == NO_SENSE:
                _any_tickets(tasks[one], value[one, 0], tickets[one])
            elif kind != AS_MADE:
                _break_tickets(kind, tasks[one], value[one, 0], tickets[one])
            continue
        _make_lists(workers[one], tasks[one], length[one], other[one], value[one], needs[one])
        if kind == NO_SENSE:
            slots[one] = np.random.randint(1, MOST_WORKERS + 1)
            _any_waits(workers[one], length[one], other[one], value[one])
        elif kind == TOO_MANY:
            slots[one] = workers[one] - 1
        elif kind != AS_MADE:
            _break_lists(kind, workers[one], length[one], other[one], value[one])


@njit(cache=True)
def _draw_needs(tasks: int, needs: Bits) -> None:
    """Of each task up to three of those before it, most of them not far away."""
    for task in range(1, tasks):
        for _ in range(np.random.randint(0, 4)):
            source = np.random.randint(max(0, task - 6), task) if np.random.randint(4) else np.random.randint(task)
            needs[task] |= np.uint64(1) << np.uint64(source)


@njit(cache=True)
def _make_lists(workers: int, tasks: int, length: Bytes, other: Bytes, value: Bytes, needs: Bits) -> None:
    """Append and wait, one task after the other; a wait that others imply is left out, mostly."""
    one = np.uint64(1)
    known = np.zeros(workers, np.uint64)
    before = np.zeros(tasks, np.uint64)
    of, run, has = np.zeros(tasks, np.int64), np.zeros(tasks, np.int64), np.zeros(workers, np.int64)
    for task in range(tasks):
        worker = np.random.randint(workers)
        for source in range(task - 1, -1, -1):  # those after it may imply it
            if (needs[task] >> np.uint64(source)) & one == 0:
                continue
            if (known[worker] >> np.uint64(source)) & one and np.random.randint(8):
                continue
            at = length[worker]
            other[worker, at], value[worker, at] = of[source], run[source]
            length[worker] += 1
            known[worker] |= before[source] | one << np.uint64(source)
        before[task] = known[worker]
        known[worker] |= one << np.uint64(task)
        has[worker] += 1
        of[task], run[task] = worker, has[worker]
        other[worker, length[worker]], value[worker, length[worker]] = -1, task
        length[worker] += 1


@njit(cache=True)
def _make_tickets(tasks: int, other: Bytes, value: Bytes, tickets: Bits, needs: Bits) -> None:
    """Tasks as they come, each waiting for what it needs and no other wait implies, mostly."""
    one = np.uint64(1)
    before = np.zeros(tasks, np.uint64)
    for task in range(tasks):
        other[task], value[task] = -1, task
        for source in range(task - 1, -1, -1):
            if (needs[task] >> np.uint64(source)) & one == 0:
                continue
            if (before[task] >> np.uint64(source)) & one == 0 or np.random.randint(8) == 0:
                tickets[task] |= one << np.uint64(source)
                before[task] |= before[source] | one << np.uint64(source)


@njit(cache=True)
def _any_waits(workers: int, length: Bytes, other: Bytes, value: Bytes) -> None:
    """Some waits become waits for anything, beyond what there is too."""
    for worker in range(workers):
        for at in range(length[worker]):
            if other[worker, at] >= 0 and np.random.randint(3) == 0:
                other[worker, at] = np.random.randint(workers)
                value[worker, at] = np.random.randint(-1, 6)


@njit(cache=True)
def _any_tickets(tasks: int, value: Bytes, tickets: Bits) -> None:
    """Some waits more, in one program of two for later tickets too."""
    later = np.random.randint(2)
    for _ in range(np.random.randint(1, 4)):
        ticket = np.random.randint(1, tasks)
        tickets[ticket] |= np.uint64(1) << np.uint64(np.random.randint(tasks if later else ticket))
    _swap(value, np.random.randint(tasks), np.random.randint(tasks))


@njit(cache=True)
def _break_tickets(kind: int, tasks: int, value: Bytes, tickets: Bits) -> None:
    if kind == SWAPPED:
        first = np.random.randint(tasks - 1)
        _swap(value, first, first + 1)
        if np.random.randint(2):
            tickets[first], tickets[first + 1] = tickets[first + 1], tickets[first]
        return
    for _ in range(50):
        ticket, bit = np.random.randint(tasks), np.uint64(1) << np.uint64(np.random.randint(tasks))
        if tickets[ticket] & bit:
            tickets[ticket] &= ~bit
            return


@njit(cache=True)
def _break_lists(kind: int, workers: int, length: Bytes, other: Bytes, value: Bytes) -> None:
    """One fault; none where there is no place for it."""
    for _ in range(50):
        worker = np.random.randint(workers)
        if length[worker] < 2:
            continue
        at = np.random.randint(length[worker])
        if kind == SWAPPED:
            to = np.random.randint(length[worker])
            _swap(other[worker], at, to)
            _swap(value[worker], at, to)
            return
        if other[worker, at] < 0:
            continue
        if kind == DROPPED:
            for place in range(at, length[worker] - 1):
                other[worker, place], value[worker, place] = other[worker, place + 1], value[worker, place + 1]
            length[worker] -= 1
        elif kind == STALE:  # it counts the runs of the execution before
            source = other[worker, at]
            for place in range(length[source]):
                value[worker, at] -= other[source, place] < 0
        else:
            value[worker, at] += 1 if np.random.randint(2) else -1
        return


@njit(cache=True)
def _swap(row: Bytes, first: int, second: int) -> None:
    row[first], row[second] = row[second], row[first]
