"""Whether a program is well formed for a task graph and a device, and then where it runs which block.

Blocks of all regions are numbered through, region by region; `first[region]` is the number of a region's first block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.device import Device
from scheduler.errors import InvalidProgram
from scheduler.program import Counter, Instruction, Pinned, Plain, Program, Ticketed, Wait, named
from scheduler.tasks import Kernel, TaskGraph

Ints = npt.NDArray[np.int64]
UNPLACED = -1
MOST_COUNTED = (1 << 31) - 1  # a counter has 32 bits


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks of the chosen kernels, and where the program runs them."""

    regions: tuple[str, ...]
    kernels: tuple[Kernel, ...]  # by region
    first: Ints  # by region its first block, and the end
    region: Ints  # by block
    launch: Ints  # by block
    worker: Ints  # by block: its worker in a pinned launch, its ticket in a ticketed one
    position: Ints  # by block: how many runs its worker has finished before it, in a pinned launch

    def named(self, block: int) -> str:
        """A block as errors call it: `conv1[3]`."""
        region = int(self.region[block])
        return f"{self.regions[region]}[{block - int(self.first[region])}]"


@dataclass(frozen=True, slots=True)
class Lists:
    """A launch that waits: an instruction runs block `block`, or, where that is -1, waits for a counter.

    The lists are those of workers; of a ticketed launch those of tickets, each its waits and then its run.
    """

    of: Ints  # of each list its first instruction, and the end
    block: Ints
    counter: Ints
    value: Ints  # that a wait is for
    names: tuple[str, ...]  # by counter
    counts: Ints  # by counter, how many blocks it counts: those of its range that this launch runs
    counters_of: Ints  # by block its first in `counters`, and the end
    counters: Ints  # which count it


Flat = Lists | None  # None: a plain launch


def placed(graph: TaskGraph, program: Program, device: Device) -> tuple[Blocks, tuple[Flat, ...]]:
    """Where each block runs, and the launches as arrays; raises InvalidProgram naming what is wrong."""
    if program.graph != graph.name:
        raise InvalidProgram(f"the program was made for the task graph '{program.graph}', not for '{graph.name}'.")
    if program.device != device.name:
        raise InvalidProgram(
            f"the program was made for the device '{program.device}', not for '{device.name}'; schedule it again."
        )
    kernels = _kernels(graph, program)
    counts = np.asarray([kernel.blocks for kernel in kernels], np.int64)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    count = int(first[-1])
    names = tuple(region.name for region in graph.regions)
    blocks = Blocks(
        names, kernels, first, np.repeat(np.arange(len(names)), counts), np.full(count, UNPLACED),
        np.full(count, UNPLACED), np.full(count, UNPLACED),
    )  # fmt: skip
    numbers = {name: number for number, name in enumerate(names)}
    flat = tuple(_launch(number, launch, numbers, blocks) for number, launch in enumerate(program.launches))
    missing = np.flatnonzero(blocks.launch == UNPLACED)
    if len(missing):
        raise InvalidProgram(f"the program never runs {blocks.named(int(missing[0]))}; every block runs once.")
    return blocks, flat


def _kernels(graph: TaskGraph, program: Program) -> tuple[Kernel, ...]:
    names = {region.name for region in graph.regions}
    for name in program.choice:
        if name not in names:
            raise InvalidProgram(f"the program chooses a kernel of '{name}', which the task graph does not have.")
    kernels = []
    for region in graph.regions:
        number = program.choice.get(region.name)
        if number is None or not 0 <= number < len(region.kernels):
            chosen = "none" if number is None else f"number {number}"
            raise InvalidProgram(
                f"the program chooses {chosen} of the {len(region.kernels)} kernels of '{region.name}'; it is one of "
                f"0 to {len(region.kernels) - 1}."
            )
        kernels.append(region.kernels[number])
    return tuple(kernels)


def _launch(number: int, launch: Pinned | Ticketed | Plain, numbers: dict[str, int], blocks: Blocks) -> Flat:
    if isinstance(launch, Plain):
        region = _region(number, launch.region, numbers)
        every = slice(int(blocks.first[region]), int(blocks.first[region + 1]))
        again = np.flatnonzero(blocks.launch[every] != UNPLACED)
        if len(again):
            _place(number, region, int(again[0]), 0, 0, blocks)
        blocks.launch[every], blocks.worker[every], blocks.position[every] = number, 0, 0
        return None
    count = len(launch.workers) if isinstance(launch, Pinned) else launch.workers
    if count < 1:
        raise InvalidProgram(f"launch {number} has {count} workers; it needs at least one.")
    lists: Sequence[Sequence[Instruction]] = (
        launch.workers if isinstance(launch, Pinned) else [(*item.waits, item.run) for item in launch.items]
    )
    what = "worker" if isinstance(launch, Pinned) else "ticket"
    of = [0]
    block: list[int] = []
    counter: list[int] = []
    value: list[int] = []
    for place, instructions in enumerate(lists):
        done = 0
        for instruction in instructions:
            if isinstance(instruction, Wait):
                _check_wait(f"{what} {place} of launch {number}", instruction, len(launch.counters))
                block.append(-1)
                counter.append(instruction.counter)
                value.append(instruction.value)
                continue
            region = _region(number, instruction.region, numbers)
            block.append(_place(number, region, instruction.block, place, done, blocks))
            counter.append(-1)
            value.append(0)
            done += 1
        of.append(len(block))
    of_block, in_counters, counts = _counters(number, launch.counters, numbers, blocks)
    names = tuple(map(named, launch.counters))
    return Lists(_ints(of), _ints(block), _ints(counter), _ints(value), names, counts, of_block, in_counters)


def _ints(values: list[int]) -> Ints:
    return np.asarray(values, np.int64)


def _check_wait(where: str, wait: Wait, counters: int) -> None:
    if not 0 <= wait.counter < counters or wait.value < 0:
        raise InvalidProgram(
            f"{where} waits for counter {wait.counter} at {wait.value}; the launch has {counters} counters, from 0 on, "
            "and values are counted from its own start."
        )
    if wait.value > MOST_COUNTED:
        raise InvalidProgram(f"{where} waits for {wait.value} blocks; a counter holds at most {MOST_COUNTED}.")


def _counters(
    number: int, counters: tuple[Counter, ...], numbers: dict[str, int], blocks: Blocks
) -> tuple[Ints, Ints, Ints]:
    """By block where its counters begin; the counters, block after block; and how many blocks each counts."""
    low, high = [], []
    for counter in counters:
        first = int(blocks.first[_region(number, counter.region, numbers, "counts")])
        count = blocks.kernels[numbers[counter.region]].blocks
        if not 0 <= counter.begin < counter.end <= count:
            raise InvalidProgram(
                f"launch {number} counts the blocks {counter.begin} to {counter.end} of '{counter.region}', whose "
                f"kernel has {count} blocks, counted from 0."
            )
        low.append(first + counter.begin)
        high.append(first + counter.end)
    begin, size = _ints(low), _ints(high) - _ints(low)
    which = np.repeat(np.arange(len(counters)), size)
    block = np.arange(len(which)) + np.repeat(begin - (np.cumsum(size) - size), size)
    here = blocks.launch[block] == number
    which, block = which[here], block[here]
    of = np.searchsorted(np.sort(block), np.arange(len(blocks.launch) + 1))
    return of, which[np.argsort(block, kind="stable")], np.bincount(which, minlength=len(counters))


def _region(number: int, name: str, numbers: dict[str, int], verb: str = "runs") -> int:
    if name not in numbers:
        raise InvalidProgram(f"launch {number} {verb} the region '{name}', which the task graph does not have.")
    return numbers[name]


def _place(number: int, region: int, block: int, worker: int, position: int, blocks: Blocks) -> int:
    count = blocks.kernels[region].blocks
    if not 0 <= block < count:
        raise InvalidProgram(
            f"launch {number} runs block {block} of '{blocks.regions[region]}', whose kernel has {count} blocks, "
            "counted from 0."
        )
    one = int(blocks.first[region]) + block
    if blocks.launch[one] != UNPLACED:
        raise InvalidProgram(
            f"the program runs {blocks.named(one)} twice, in launch {blocks.launch[one]} and in launch {number}."
        )
    blocks.launch[one], blocks.worker[one], blocks.position[one] = number, worker, position
    return one
