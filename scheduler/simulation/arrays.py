"""A launch as arrays: what the loops of the simulator read, and what they fill in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import InvalidProgram
from scheduler.program import Pinned, Plain, Run, Ticketed
from scheduler.tasks import Kernel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NO_RUN = -1
NEVER = 1 << 40  # runs: no worker has as many


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
class Lists:
    """A pinned launch. An instruction waits for `target` (`value` runs of it), or, where that is -1, runs a block."""

    instructions: Ints  # of each worker the first, and the end
    target: Ints
    value: Ints  # of a run the kernel's number
    runs: Ints  # of each worker the first, and the end
    regions: Ints  # by run, workers one after the other
    blocks: Ints


@dataclass(frozen=True, slots=True)
class Queue:
    """A ticketed launch, or a plain one as tickets that wait for nothing."""

    regions: Ints  # by ticket
    blocks: Ints
    waits: Ints  # the tickets waited for, one ticket's after the other
    waits_of: Ints  # of each ticket the first in `waits`, and the end
    waiters: Ints  # the same the other way round
    waiters_of: Ints
    workers: int


@dataclass(frozen=True, slots=True)
class Times:
    """What a loop fills in, by run of the launch; nanoseconds."""

    start: Floats
    end: Floats
    worker: Ints
    multiprocessor: Ints
    waited: Floats  # for the end of another worker's run
    signalled: Floats  # for the signal of it to arrive
    cause: Ints  # the run waited for last; NO_RUN: it did not wait

    @classmethod
    def empty(cls, runs: int) -> Times:
        """Nothing has run: starts and ends are infinite."""
        return cls(
            np.full(runs, np.inf), np.full(runs, np.inf), np.full(runs, -1), np.full(runs, -1), np.zeros(runs),
            np.zeros(runs), np.full(runs, NO_RUN),
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
                target.append(_known(instruction.worker, len(launch.workers), "worker"))
                value.append(max(0, min(instruction.runs, NEVER)))
        instructions.append(len(target))
        runs.append(len(blocks))
    numbers = kernels.numbered(regions)
    of_blocks = _ints(blocks)
    kernels.check(numbers, of_blocks)
    targets, values = _ints(target), _ints(value)
    values[targets < 0] = numbers
    return Lists(_ints(instructions), targets, values, _ints(runs), numbers, of_blocks)


def queue(launch: Ticketed | Plain, kernels: Kernels) -> Queue:
    """The arrays of a ticketed or plain launch; raises InvalidProgram for what it names that is not there."""
    if isinstance(launch, Plain):
        number = int(kernels.numbered([launch.region])[0])
        count = int(kernels.blocks[number])
        none, nothing = np.zeros(0, np.int64), np.zeros(count + 1, np.int64)
        return Queue(np.full(count, number), np.arange(count), none, nothing, none, nothing, count)
    count = len(launch.items)
    regions = kernels.numbered([item.run.region for item in launch.items])
    blocks = _ints([item.run.block for item in launch.items])
    kernels.check(regions, blocks)
    waits = _ints([_known(wait, count, "ticket") for item in launch.items for wait in item.waits])
    many = _ints([len(item.waits) for item in launch.items])
    waits_of = np.concatenate((np.zeros(1, np.int64), np.cumsum(many)))
    waiting = np.repeat(np.arange(count), many)
    by = np.argsort(waits, kind="stable")
    waiters_of = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(waits, minlength=count))))
    return Queue(regions, blocks, waits, waits_of, waiting[by], waiters_of, launch.workers)


def _known(number: int, count: int, what: str) -> int:
    if not 0 <= number < count:
        raise InvalidProgram(f"the program waits for {what} {number}; the launch has {count}, counted from 0.")
    return number


def _ints(values: list[Any]) -> Ints:
    return np.asarray(values, np.int64)
