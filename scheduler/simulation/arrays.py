"""A launch as arrays: what the loops of the simulator read, and what they fill in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import InvalidProgram
from scheduler.program import Counter, Pinned, Plain, Run, Ticketed, Wait
from scheduler.tasks import Kernel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NO_RUN = -1
NEVER = 1 << 40  # blocks: no counter has as many


@dataclass(frozen=True, slots=True)
class Kernels:
    """The chosen kernels by number; `times[kernel, c - 1]` of a block with c on its multiprocessor."""

    names: tuple[str, ...]
    number: dict[str, int]
    blocks: Ints
    times: Floats

    @classmethod
    def of(cls, chosen: dict[str, Kernel], fixed_ns: float) -> Kernels:
        """One row per region, as wide as the longest, the last entry repeated; the device's fixed cost included."""
        names = tuple(chosen)
        width = max((len(kernel.times) for kernel in chosen.values()), default=1)
        times = np.zeros((len(names), width))
        for row, kernel in enumerate(chosen.values()):
            times[row] = fixed_ns + np.asarray([kernel.time(residents + 1) for residents in range(width)])
        blocks = np.asarray([kernel.blocks for kernel in chosen.values()], np.int64)
        return cls(names, {name: number for number, name in enumerate(names)}, blocks, times)

    def check(self, regions: Ints, blocks: Ints) -> None:
        """Raises InvalidProgram for a run of a block that its kernel does not have."""
        wrong = (blocks < 0) | (blocks >= self.blocks[regions])
        if wrong.any():
            at = int(np.argmax(wrong))
            name, has = self.names[regions[at]], self.blocks[regions[at]]
            raise InvalidProgram(f"the program runs block {blocks[at]} of '{name}', whose kernel has {has} blocks.")

    def numbered(self, names: list[str]) -> Ints:
        """Raises InvalidProgram for a region that is not in the graph."""
        try:
            return np.asarray([self.number[name] for name in names], np.int64)
        except KeyError as error:
            raise InvalidProgram(f"the program runs the region {error}, which the task graph does not have.") from None


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of a launch; its runs are numbered as in Times."""

    runs_of: Ints  # of each counter how many runs the ones before it have, and the end
    counters: Ints  # that a run raises, one run's after the other
    counters_of: Ints  # of each run the first in `counters`, and the end


@dataclass(frozen=True, slots=True)
class Lists:
    """A pinned launch. An instruction waits for counter `target` at `value`, or, where that is -1, runs a block."""

    instructions: Ints  # of each worker the first, and the end
    target: Ints
    value: Ints  # of a run the kernel's number
    runs: Ints  # of each worker the first, and the end
    regions: Ints  # by run, workers one after the other
    blocks: Ints
    counts: Counts


@dataclass(frozen=True, slots=True)
class Queue:
    """A ticketed launch, or a plain one as tickets that wait for nothing."""

    regions: Ints  # by ticket
    blocks: Ints
    target: Ints  # the counters waited for, one ticket's after the other
    value: Ints
    waits_of: Ints  # of each ticket the first in `target`, and the end
    waiters: Ints  # by counter the tickets that wait for it, those for the least value first
    heights: Ints  # and the values
    waiters_of: Ints  # of each counter the first in `waiters`, and the end
    counts: Counts
    workers: int
    follows: Bools  # by ticket: whoever has the one before has it too


@dataclass(frozen=True, slots=True)
class Times:
    """What a loop fills in, by run of the launch; nanoseconds."""

    start: Floats
    end: Floats
    worker: Ints
    multiprocessor: Ints
    waited: Floats  # for the end of another worker's run
    signalled: Floats  # for the signal of it to arrive
    looked: Floats  # what the waits themselves took
    cause: Ints  # the run waited for last; NO_RUN: it did not wait

    @classmethod
    def empty(cls, runs: int) -> Times:
        """Nothing has run: starts and ends are infinite."""
        return cls(
            np.full(runs, np.inf), np.full(runs, np.inf), np.full(runs, -1), np.full(runs, -1), np.zeros(runs),
            np.zeros(runs), np.zeros(runs), np.full(runs, NO_RUN),
        )  # fmt: skip


def lists(launch: Pinned, kernels: Kernels) -> Lists:
    """The arrays of a pinned launch; raises InvalidProgram for what it names that is not there."""
    target: list[int] = []
    value: list[int] = []
    instructions, runs = [0], [0]
    regions: list[str] = []
    blocks: list[int] = []
    for worker in launch.workers:
        for instruction in worker:
            if isinstance(instruction, Run):
                target.append(-1)
                value.append(len(blocks))
                regions.append(instruction.region)
                blocks.append(instruction.block)
            else:
                _add(instruction, len(launch.counters), target, value)
        instructions.append(len(target))
        runs.append(len(blocks))
    numbers = kernels.numbered(regions)
    of_blocks = _ints(blocks)
    kernels.check(numbers, of_blocks)
    targets, values = _ints(target), _ints(value)
    values[targets < 0] = numbers
    counts = _counts(launch.counters, numbers, of_blocks, kernels)
    return Lists(_ints(instructions), targets, values, _ints(runs), numbers, of_blocks, counts)


def queue(launch: Ticketed | Plain, kernels: Kernels) -> Queue:
    """The arrays of a ticketed or plain launch; raises InvalidProgram for what it names that is not there."""
    if isinstance(launch, Plain):
        number = int(kernels.numbered([launch.region])[0])
        count = int(kernels.blocks[number])
        regions, blocks = np.full(count, number), np.arange(count)
        none, nothing = np.zeros(0, np.int64), np.zeros(count + 1, np.int64)
        counts = _counts((), regions, blocks, kernels)
        alone = np.zeros(count, np.bool_)
        return Queue(regions, blocks, none, none, nothing, none, none, np.zeros(1, np.int64), counts, count, alone)
    count = len(launch.items)
    regions = kernels.numbered([item.run.region for item in launch.items])
    blocks = _ints([item.run.block for item in launch.items])
    kernels.check(regions, blocks)
    target: list[int] = []
    value: list[int] = []
    for item in launch.items:
        for wait in item.waits:
            _add(wait, len(launch.counters), target, value)
    targets, values = _ints(target), _ints(value)
    many = _ints([len(item.waits) for item in launch.items])
    waiting = np.repeat(np.arange(count), many)
    by = np.lexsort((values, targets))
    return Queue(
        regions, blocks, targets, values, _begins(many), waiting[by], values[by],
        _begins(np.bincount(targets, minlength=len(launch.counters))),
        _counts(launch.counters, regions, blocks, kernels), launch.workers,
        np.asarray([item.follows for item in launch.items], np.bool_),
    )  # fmt: skip


def _counts(counters: Sequence[Counter], regions: Ints, blocks: Ints, kernels: Kernels) -> Counts:
    """Which runs each counter counts, found among them in the order of regions and blocks."""
    widest = int(kernels.blocks.max(initial=0)) + 1
    place = regions * widest + blocks
    by = np.argsort(place, kind="stable")
    there = kernels.numbered([one.region for one in counters]) * widest
    limits = [_ints([max(0, min(end, widest - 1)) for end in ends]) for ends in (
        [one.begin for one in counters], [one.end for one in counters]
    )]  # fmt: skip
    low, high = (np.searchsorted(place[by], there + limit) for limit in limits)
    high = np.maximum(low, high)
    which = np.repeat(np.arange(len(counters)), high - low)
    run = by[np.arange(len(which)) - np.repeat(_begins(high - low)[:-1] - low, high - low)]
    order = np.lexsort((which, run))
    return Counts(_begins(high - low), which[order], _begins(np.bincount(run, minlength=len(regions))))


def _add(wait: Wait, counters: int, target: list[int], value: list[int]) -> None:
    if not 0 <= wait.counter < counters:
        raise InvalidProgram(
            f"the program waits for counter {wait.counter}; the launch has {counters}, counted from 0."
        )
    target.append(wait.counter)
    value.append(max(0, min(wait.value, NEVER)))


def _begins(many: Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(many, dtype=np.int64)))


def _ints(values: list[Any]) -> Ints:
    return np.asarray(values, np.int64)
