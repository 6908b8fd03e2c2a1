"""The solution: launches one after the other, each a set of workers that run blocks and wait for each other.

*Pinned*: each worker has its own list of instructions; it waits for another worker to have finished a number of runs.
So all workers of the launch have to be resident at once. *Ticketed*: workers claim the next item of one ordered list,
and an item waits only for items before it, so any number of workers makes progress. *Plain*: one region, as ever.

Counters are epoch based: a launch that is run for the e-th time waits for counter values that include e - 1 whole runs,
and nothing is cleared in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from scheduler.device import Resources
from scheduler.errors import InvalidProgram
from scheduler.tasks import TaskGraph


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Compute one block of a region with its kernel."""

    region: str
    block: int


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Until worker `worker` of this launch has finished `runs` runs (of this execution)."""

    worker: int
    runs: int


Instruction = Run | Wait


class Item(msgspec.Struct, frozen=True):
    """One ticket: wait until the items of these numbers are finished, then run."""

    run: Run
    waits: tuple[int, ...] = ()


class Pinned(msgspec.Struct, frozen=True, tag="pinned"):
    """Instructions by worker. Every worker is one block of a persistent kernel with these resources."""

    workers: tuple[tuple[Instruction, ...], ...]
    threads: int = 1
    registers: int = 0
    shared_memory: int = 0  # bytes
    opt_in: bool = False

    @property
    def resources(self) -> Resources:
        """What a worker takes of its multiprocessor: the most of what its kernels take."""
        return Resources(self.threads, self.registers, self.shared_memory, self.opt_in)


class Ticketed(msgspec.Struct, frozen=True, tag="ticketed"):
    """Items in the order in which `workers` workers claim them."""

    items: tuple[Item, ...]
    workers: int
    threads: int = 1
    registers: int = 0
    shared_memory: int = 0
    opt_in: bool = False

    @property
    def resources(self) -> Resources:
        """What a worker takes of its multiprocessor."""
        return Resources(self.threads, self.registers, self.shared_memory, self.opt_in)


class Plain(msgspec.Struct, frozen=True, tag="plain"):
    """One region as a launch of its own: its blocks are dispatched as multiprocessors become free, nothing waits."""

    region: str


Launch = Pinned | Ticketed | Plain


class Program(msgspec.Struct, frozen=True):
    """Launches in order: each begins when everything of the one before has ended."""

    graph: str  # the name of the task graph
    device: str
    choice: dict[str, int]  # region -> number of the kernel
    launches: tuple[Launch, ...]
    policy: str = ""
    schema: Literal["scheduler.program/1"] = "scheduler.program/1"


def write(program: Program) -> bytes:
    """JSON, the same bytes for the same program."""
    return msgspec.json.format(msgspec.json.encode(program), indent=1) + b"\n"


def read(data: bytes) -> Program:
    """Raises InvalidProgram."""
    try:
        return msgspec.json.decode(data, type=Program)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidProgram(f"this is no program: {error}.") from error


def read_graph(data: bytes) -> TaskGraph:
    """A task graph from JSON; raises InvalidProgram for what is none, InvalidTaskGraph for one that means nothing."""
    try:
        graph = msgspec.json.decode(data, type=TaskGraph)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidProgram(f"this is no task graph: {error}.") from error
    graph.check()
    return graph


def text(program: Program) -> str:
    """The program as a person reads it: one line per worker or ticket."""
    lines = [f"program {program.policy or '?'} of {program.graph} for {program.device}"]
    for number, launch in enumerate(program.launches):
        if isinstance(launch, Plain):
            lines.append(f"launch {number}: all blocks of {launch.region}")
        elif isinstance(launch, Ticketed):
            lines.append(f"launch {number}: {len(launch.items)} tickets for {launch.workers} workers")
            for ticket, item in enumerate(launch.items):
                waits = f"   after {', '.join(map(str, item.waits))}" if item.waits else ""
                lines.append(f"  {ticket:>5} {item.run.region}[{item.run.block}]{waits}")
        else:
            lines.append(f"launch {number}: {len(launch.workers)} workers")
            for worker, instructions in enumerate(launch.workers):
                lines.append(f"  worker {worker}: {'  '.join(_said(instructions))}")
    return "\n".join(lines) + "\n"


def _said(instructions: Sequence[Instruction]) -> Iterator[str]:
    """Runs one by one; waits between two runs together, by what is waited for: "wait(0-3,7 >= 1; 4 >= 2)".

    All of them have to be fulfilled before the next run, so their order says nothing.
    """
    for is_wait, group in groupby(instructions, key=lambda one: isinstance(one, Wait)):
        if not is_wait:
            yield from (f"{one.region}[{one.block}]" for one in group if isinstance(one, Run))
            continue
        workers: dict[int, list[int]] = {}
        for one in group:
            if isinstance(one, Wait):
                workers.setdefault(one.runs, []).append(one.worker)
        yield f"wait({'; '.join(f'{_ranges(workers[runs])} >= {runs}' for runs in sorted(workers))})"


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers with neighbours joined: 0-3,7."""
    said = []
    for _, near in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in near]
        said.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(said)
