"""The solution: launches one after the other, each a set of workers that run blocks and wait for each other.

*Pinned*: each worker has its own list of instructions, so all workers of the launch have to be resident at once.
*Ticketed*: workers claim the next item of one ordered list, and an item waits only for blocks of items before it, so
any number of workers makes progress. *Plain*: one region, as ever.

A launch has counters. Each counts the blocks of one region that have ended: all of its blocks, or those of a stripe,
where a neighbour needs only a part. A wait is for one counter to stand at a value, so that a need is one wait however
many workers there are. Which of its blocks have ended a counter tells only when all have.

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


class Counter(msgspec.Struct, frozen=True):
    """Counts the blocks `begin` to `end`, that one not included, of a region: those that have ended in its launch."""

    region: str
    begin: int
    end: int


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Until counter `counter` of this launch stands at `value` blocks (of this execution)."""

    counter: int
    value: int


Instruction = Run | Wait


class Item(msgspec.Struct, frozen=True):
    """One ticket: fulfil the waits, then run. Whoever has the ticket before has one that follows too."""

    run: Run
    waits: tuple[Wait, ...] = ()
    follows: bool = False


class Pinned(msgspec.Struct, frozen=True, tag="pinned"):
    """Instructions by worker. Every worker is one block of a persistent kernel with these resources."""

    workers: tuple[tuple[Instruction, ...], ...]
    counters: tuple[Counter, ...] = ()
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
    counters: tuple[Counter, ...] = ()
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
    schema: Literal["scheduler.program/2"] = "scheduler.program/2"


def write(program: Program) -> bytes:
    """JSON, the same bytes for the same program."""
    return msgspec.json.format(msgspec.json.encode(program), indent=1) + b"\n"


def read(data: bytes) -> Program:
    """Raises InvalidProgram."""
    try:
        return msgspec.json.decode(data, type=Program)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidProgram(f"this is no program: {error}.") from error


def write_graph(graph: TaskGraph) -> bytes:
    """JSON, the same bytes for the same task graph."""
    return msgspec.json.format(msgspec.json.encode(graph), indent=1) + b"\n"


def read_graph(data: bytes) -> TaskGraph:
    """A task graph from JSON; raises InvalidProgram for what is none, InvalidTaskGraph for one that means nothing."""
    try:
        graph = msgspec.json.decode(data, type=TaskGraph)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidProgram(f"this is no task graph: {error}.") from error
    graph.check()
    return graph


def count_waits(launch: Launch) -> int:
    """How many waits a launch has."""
    if isinstance(launch, Pinned):
        return sum(isinstance(one, Wait) for worker in launch.workers for one in worker)
    return 0 if isinstance(launch, Plain) else sum(len(item.waits) for item in launch.items)


def text(program: Program) -> str:
    """The program as a person reads it: one line per worker or ticket."""
    lines = [f"program {program.policy or '?'} of {program.graph} for {program.device}"]
    for number, launch in enumerate(program.launches):
        if isinstance(launch, Plain):
            lines.append(f"launch {number}: all blocks of {launch.region}")
        elif isinstance(launch, Ticketed):
            lines.append(f"launch {number}: {len(launch.items)} tickets for {launch.workers} workers")
            for ticket, item in enumerate(launch.items):
                waits = f"   after {_waited(item.waits, launch.counters)}" if item.waits else ""
                lines.append(f"  {ticket:>5} {item.run.region}[{item.run.block}]{waits}")
        else:
            lines.append(f"launch {number}: {len(launch.workers)} workers")
            for worker, instructions in enumerate(launch.workers):
                lines.append(f"  worker {worker}: {'  '.join(_said(instructions, launch.counters))}")
    return "\n".join(lines) + "\n"


def _said(instructions: Sequence[Instruction], counters: Sequence[Counter]) -> Iterator[str]:
    """Runs one by one; waits between two runs together: "wait(32 of conv1[0-31], 4 of pool[8-11])"."""
    for is_wait, group in groupby(instructions, key=lambda one: isinstance(one, Wait)):
        if is_wait:
            yield f"wait({_waited([one for one in group if isinstance(one, Wait)], counters)})"
        else:
            yield from (f"{one.region}[{one.block}]" for one in group if isinstance(one, Run))


def _waited(waits: Sequence[Wait], counters: Sequence[Counter]) -> str:
    return ", ".join(f"{one.value} of {named(counters[one.counter])}" for one in waits)


def named(counter: Counter) -> str:
    """The blocks of a counter as programs are printed: conv1[0-31], or conv1[3] for a single one."""
    last = counter.end - 1
    return (
        f"{counter.region}[{counter.begin}]" if last <= counter.begin else f"{counter.region}[{counter.begin}-{last}]"
    )
