"""What a program does on a device: an event-driven simulation, launch by launch.

Times in nanoseconds. Nothing here decides whether a program is safe: a program that hangs in the dispatch that was
asked for is reported as hung, one that is only lucky is not. `scheduler.verify` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.device import Device
from scheduler.errors import InvalidProgram, UnsafeProgram
from scheduler.program import Pinned, Plain, Program, Ticketed
from scheduler.simulation.arrays import NO_RUN, Floats, Ints, Kernels, Lists, Queue, Times, lists, queue
from scheduler.simulation.pinned import BLOCKED, ENDED, OUTSIDE, pinned_loop
from scheduler.simulation.ticketed import ticketed_loop
from scheduler.tasks import Kernel, TaskGraph, chosen

SHOWN = 8  # workers, in an error
Dispatch = Literal["in-order", "reversed", "random", "adversarial"]


class Hung(UnsafeProgram):
    """Nothing can proceed; the message names who waits for what."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Where the time of all workers goes, added up over them, in nanoseconds.

    The seven together are `Simulation.workers` times the makespan; without `absent`, the workers of each launch times
    what it took.
    """

    busy: float  # running blocks
    waiting: float  # for the end of another worker's run
    signal: float  # for the signal of it to arrive
    looking: float  # at counters: what waits take, also for what has ended long ago
    launch: float
    idle: float  # without a block from the last one on; before the first one only where there was no slot
    absent: float  # of workers that a launch does not have


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """Every run with its place and time; runs are numbered launch by launch, in a launch as the program names them.

    So a pinned launch's runs are worker by worker, a ticketed one's by ticket, a plain one's by block.
    """

    makespan: float
    workers: int  # of the launch that has most of them, and at least one for each multiprocessor
    regions: tuple[str, ...]
    launches: tuple[tuple[float, float], ...]  # begin, the cost of launching included, and end
    launch: Ints  # by run
    region: Ints  # number in `regions`
    block: Ints
    worker: Ints
    multiprocessor: Ints
    start: Floats
    end: Floats
    waited: Floats  # for the end of `cause`
    signalled: Floats  # for the signal of it
    looked: Floats  # what its waits themselves took
    cause: Ints  # the run that this one waited for last; -1: it did not wait
    utilisation: Floats  # by multiprocessor the share of the makespan with at least one block on it
    stalls: Stalls


def simulate(
    graph: TaskGraph, program: Program, device: Device, *, dispatch: Dispatch = "in-order", slots: int | None = None,
    seed: int = 0, spread: float = 0.0,
) -> Simulation:  # fmt: skip
    """Run `program` once.

    `dispatch` is the order in which workers get the resident slots, of which there are as many as the device has for
    the launch, or `slots`; "adversarial" lets those that wait come first and those that are waited for last. Durations
    are multiplied by numbers drawn from [1 - spread, 1 + spread]. Raises Hung when nothing can proceed, UnsafeProgram
    where no block of a launch fits the device, InvalidProgram for what the program names that is not there.
    """
    if not 0 <= spread < 1 or (slots is not None and slots < 1):
        raise InvalidProgram(f"a spread is in [0, 1) and slots are at least one; got {spread} and {slots}.")
    kernels = _kernels(graph, program)
    arrays = Kernels.of(kernels, device.block_fixed_ns)
    random = np.random.default_rng(seed)
    busy = np.zeros(device.multiprocessors)
    parts: list[tuple[Times, Ints, Ints]] = []
    spans: list[tuple[float, float]] = []
    present: list[int] = []  # workers by launch
    now, first = 0.0, 0
    for number, launch in enumerate(program.launches):
        begin = now + device.launch_ns
        there = _slots(number, launch, kernels, device, slots)
        flat: Lists | Queue
        if isinstance(launch, Pinned):
            flat = lists(launch, arrays)
            times, end = _pinned(
                number, flat, arrays, _order(flat, dispatch, random), there, _drawn(random, len(flat.regions), spread),
                device, begin, busy,
            )  # fmt: skip
            workers = len(launch.workers)
        else:
            flat = queue(launch, arrays)
            workers = min(there, flat.workers)
            times, end = _ticketed(
                number, flat, arrays, _order(workers, dispatch, random), _drawn(random, len(flat.regions), spread),
                device, begin, busy,
            )  # fmt: skip
        times.cause[times.cause != NO_RUN] += first
        first += len(flat.regions)
        parts.append((times, flat.regions, flat.blocks))
        spans.append((now, end))
        present.append(workers)
        now = end
    return _simulation(tuple(kernels), parts, tuple(spans), busy, present, device)


def _kernels(graph: TaskGraph, program: Program) -> dict[str, Kernel]:
    try:
        return chosen(graph, program.choice)
    except (KeyError, IndexError) as error:
        raise InvalidProgram(f"the program chooses no kernel of the task graph '{graph.name}': {error}.") from None


def _slots(number: int, launch: Pinned | Ticketed | Plain, kernels: dict[str, Kernel], device: Device,
           asked: int | None) -> int:  # fmt: skip
    if isinstance(launch, Plain):
        if launch.region not in kernels:
            raise InvalidProgram(f"the program runs the region '{launch.region}', which the task graph does not have.")
        resources = kernels[launch.region].resources
    else:
        resources = launch.resources
    there = device.resident(resources)
    if there < 1:
        raise UnsafeProgram(
            f"launch {number}: no block of {resources.threads} threads, {resources.registers} registers and "
            f"{resources.shared_memory} bytes of shared memory fits device '{device.name}'."
        )
    return there if asked is None else asked


def _order(launch: Lists | int, dispatch: Dispatch, random: np.random.Generator) -> Ints:
    """Workers as they come."""
    count = launch if isinstance(launch, int) else len(launch.instructions) - 1
    order = np.arange(count)
    if dispatch == "reversed":
        return order[::-1].copy()
    if dispatch == "random":
        return random.permutation(order)
    if dispatch == "adversarial" and not isinstance(launch, int):
        return _waiters_first(launch)
    return order


def _waiters_first(launch: Lists) -> Ints:
    """Who waits soonest comes first; of those alike, who is waited for by fewer; workers that wait for nobody last."""
    count = len(launch.instructions) - 1
    waiter = np.repeat(np.arange(count), np.diff(launch.instructions))
    real = (launch.target >= 0) & (launch.value > 0)
    soonest = np.full(count, len(launch.target) + 1)
    np.minimum.at(soonest, waiter[real], (np.arange(len(real)) - launch.instructions[waiter])[real])
    counts = launch.counts
    waits = np.bincount(launch.target[real], minlength=len(counts.runs_of) - 1)
    run = np.repeat(np.arange(len(launch.regions)), np.diff(counts.counters_of))
    runner = np.searchsorted(launch.runs, run, side="right") - 1
    wanted = np.bincount(runner, weights=waits[counts.counters], minlength=count)
    return np.lexsort((np.arange(count), wanted, soonest))


def _drawn(random: np.random.Generator, count: int, spread: float) -> Floats:
    return random.uniform(1 - spread, 1 + spread, count) if spread else np.ones(count)


def _pinned(
    number: int, flat: Lists, kernels: Kernels, order: Ints, slots: int, factors: Floats, device: Device, begin: float,
    busy: Floats,
) -> tuple[Times, float]:  # fmt: skip
    times, counts = Times.empty(len(flat.regions)), flat.counts
    stands = np.zeros(len(counts.runs_of) - 1, np.int64)
    state, at = np.full(len(order), OUTSIDE), flat.instructions[:-1].copy()
    end = pinned_loop(
        flat.instructions, flat.target, flat.value, flat.runs, counts.runs_of, counts.counters, counts.counters_of,
        kernels.times, factors, order, slots, device.multiprocessors, device.signal_ns, device.wait_ns, begin,
        times.start, times.end, times.worker, times.multiprocessor, times.waited, times.signalled, times.looked,
        times.cause, busy, state, at, stands,
    )  # fmt: skip
    if (state != ENDED).any():
        raise Hung(f"launch {number} hangs: {_who_waits(flat, kernels, times, state, at, stands)}.")
    return times, end


def _who_waits(flat: Lists, kernels: Kernels, times: Times, state: Ints, at: Ints, stands: Ints) -> str:
    """From one blocked worker on, each waits for a run of the next, until one that cannot go on or was named before."""
    said: list[str] = []
    named: set[int] = set()
    run = np.repeat(np.arange(len(flat.regions)), np.diff(flat.counts.counters_of))
    worker = int(np.argmax(state == BLOCKED)) if (state == BLOCKED).any() else int(np.argmax(state == OUTSIDE))
    while worker not in named and state[worker] == BLOCKED:
        named.add(worker)
        counter, need = int(flat.target[at[worker]]), int(flat.value[at[worker]])
        counted = run[flat.counts.counters == counter]
        left = counted[np.isinf(times.end[counted])]
        what = kernels.names[flat.regions[counted[0]]] if len(counted) else "nothing"
        said.append(f"worker {worker} waits for {need} blocks of {what} ({stands[counter]} have ended)")
        if not len(left):
            return _cut([*said, "no worker has another"])
        worker = int(np.searchsorted(flat.runs, left[0], side="right")) - 1
    if state[worker] == OUTSIDE:
        said.append(f"worker {worker} has no slot")
    return _cut(said)


def _cut(said: list[str]) -> str:
    if len(said) > SHOWN:
        said[SHOWN - 1 : -1] = [f"and so on through {len(said) - SHOWN} more"]
    return ", ".join(said)


def _ticketed(
    number: int, flat: Queue, kernels: Kernels, order: Ints, factors: Floats, device: Device, begin: float, busy: Floats
) -> tuple[Times, float]:
    if len(order) < 1:
        raise InvalidProgram(f"launch {number} has {flat.workers} workers; it needs at least one.")
    times, counts = Times.empty(len(flat.regions)), flat.counts
    stands = np.zeros(len(counts.runs_of) - 1, np.int64)
    end = ticketed_loop(
        flat.regions, flat.follows, flat.target, flat.value, flat.waits_of, flat.waiters, flat.heights, flat.waiters_of,
        counts.runs_of, counts.counters, counts.counters_of, kernels.times, factors, order, device.multiprocessors,
        device.signal_ns, device.wait_ns, begin, times.start, times.end, times.worker, times.multiprocessor,
        times.waited, times.signalled, times.looked, times.cause, busy, stands,
    )  # fmt: skip
    stuck = np.flatnonzero(np.isinf(times.start))
    if len(stuck):
        ticket = int(stuck[0])
        waits = slice(flat.waits_of[ticket], flat.waits_of[ticket + 1])
        missing = [
            f"{value} blocks of counter {counter} ({stands[counter]} have ended)"
            for counter, value in zip(flat.target[waits], flat.value[waits], strict=True) if stands[counter] < value
        ]  # fmt: skip
        raise Hung(f"launch {number} hangs: ticket {ticket} waits for {', '.join(missing)}, and no worker is left.")
    return times, end


def _simulation(
    regions: tuple[str, ...], parts: list[tuple[Times, Ints, Ints]], spans: tuple[tuple[float, float], ...],
    busy: Floats, present: list[int], device: Device,
) -> Simulation:  # fmt: skip
    makespan = spans[-1][1] if spans else 0.0
    parts = parts or [(Times.empty(0), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    times = [part[0] for part in parts]
    start, end = np.concatenate([one.start for one in times]), np.concatenate([one.end for one in times])
    waited, signalled, looked = (
        np.concatenate([getattr(one, what) for one in times]) for what in ("waited", "signalled", "looked")
    )
    running, waiting = float((end - start).sum()), float(waited.sum())
    signal, looking = float(signalled.sum()), float(looked.sum())
    most = max((device.multiprocessors, *present))
    lasted = [(count, after - before) for count, (before, after) in zip(present, spans, strict=True)]
    launching = sum(present) * device.launch_ns
    idle = sum(count * time for count, time in lasted) - launching - running - waiting - signal - looking
    absent = sum((most - count) * time for count, time in lasted)
    return Simulation(
        makespan, most, regions, spans,
        launch=np.repeat(np.arange(len(parts)), [len(part[1]) for part in parts]),
        region=np.concatenate([part[1] for part in parts]), block=np.concatenate([part[2] for part in parts]),
        worker=np.concatenate([one.worker for one in times]),
        multiprocessor=np.concatenate([one.multiprocessor for one in times]),
        start=start, end=end, waited=waited, signalled=signalled, looked=looked,
        cause=np.concatenate([one.cause for one in times]),
        utilisation=busy / makespan if makespan else busy,
        stalls=Stalls(running, waiting, signal, looking, launching, idle, absent),
    )  # fmt: skip
