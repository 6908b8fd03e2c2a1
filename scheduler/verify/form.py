"""Whether a program is well formed for a task graph and a device, and then where it runs which block.

Blocks of all regions are numbered through, region by region; `first[region]` is the number of a region's first block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.device import Device
from scheduler.errors import InvalidProgram
from scheduler.program import Pinned, Plain, Program, Ticketed, Wait
from scheduler.tasks import Kernel, TaskGraph

Ints = npt.NDArray[np.int64]
UNPLACED = -1
MOST_RUNS = (1 << 31) - 1  # a counter has 32 bits


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
class Workers:
    """A pinned launch: an instruction runs block `block`, or, where that is -1, waits for `runs` runs of `other`."""

    of: Ints  # of each worker its first instruction, and the end
    block: Ints
    other: Ints
    runs: Ints
    has: Ints  # by worker, its runs


@dataclass(frozen=True, slots=True)
class Tickets:
    """A ticketed launch: by ticket the block, and the tickets it waits for."""

    block: Ints
    waits: Ints
    of: Ints  # of each ticket its first in `waits`, and the end


Flat = Workers | Tickets | None  # None: a plain launch


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
    return _workers(number, launch, numbers, blocks) if isinstance(launch, Pinned) else _tickets(
        number, launch, numbers, blocks
    )  # fmt: skip


def _workers(number: int, launch: Pinned, numbers: dict[str, int], blocks: Blocks) -> Workers:
    of, has = [0], []
    block: list[int] = []
    other: list[int] = []
    runs: list[int] = []
    for worker, instructions in enumerate(launch.workers):
        done = 0
        for instruction in instructions:
            if isinstance(instruction, Wait):
                if not 0 <= instruction.worker < len(launch.workers) or instruction.runs < 0:
                    raise InvalidProgram(
                        f"worker {worker} of launch {number} waits for {instruction.runs} runs of worker "
                        f"{instruction.worker}; the launch has workers 0 to {len(launch.workers) - 1}, and runs are "
                        "counted from its own start."
                    )
                if instruction.runs > MOST_RUNS:
                    raise InvalidProgram(
                        f"worker {worker} of launch {number} waits for {instruction.runs} runs; a counter holds at "
                        f"most {MOST_RUNS}."
                    )
                block.append(-1)
                other.append(instruction.worker)
                runs.append(instruction.runs)
                continue
            region = _region(number, instruction.region, numbers)
            block.append(_place(number, region, instruction.block, worker, done, blocks))
            other.append(-1)
            runs.append(0)
            done += 1
        of.append(len(block))
        has.append(done)
    return Workers(*(np.asarray(one, np.int64) for one in (of, block, other, runs, has)))


def _tickets(number: int, launch: Ticketed, numbers: dict[str, int], blocks: Blocks) -> Tickets:
    waits: list[int] = []
    of, block = [0], []
    for ticket, item in enumerate(launch.items):
        region = _region(number, item.run.region, numbers)
        block.append(_place(number, region, item.run.block, ticket, 0, blocks))
        for wait in item.waits:
            if not 0 <= wait < len(launch.items):
                raise InvalidProgram(
                    f"ticket {ticket} of launch {number} waits for ticket {wait}; there are {len(launch.items)}, "
                    "counted from 0."
                )
        waits += item.waits
        of.append(len(waits))
    return Tickets(*(np.asarray(one, np.int64) for one in (block, waits, of)))


def _region(number: int, name: str, numbers: dict[str, int]) -> int:
    if name not in numbers:
        raise InvalidProgram(f"launch {number} runs the region '{name}', which the task graph does not have.")
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
