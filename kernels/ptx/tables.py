"""What a program of tasks is on a device, in numbers: arguments, items, waits, runs, and where each operand lies.

It is a bundle's program.json, and all that whoever runs the program has to know beside its PTX and its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt

from kernels.errors import KernelsError
from kernels.kernel import Kernel
from kernels.listing import Argument, Claim, Listing, Place, Run, Wait
from kernels.ptx.tasks.threads import THREADS
from kernels.ptx.tasks.touched import TouchedBytes
from kernels.target import Target

Words = npt.NDArray[np.int32]
Lists = Sequence[Sequence[tuple[int, int]]]  # by worker its blocks in their order, each a run and a number


class NoDescription(KernelsError):
    """A text that describes no program of tasks."""


class TaskArgument(msgspec.Struct, frozen=True):
    """An input or output: dense, row-major; `dtype` is NumPy's name of what a caller gives."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The size of its data."""
        return np.dtype(self.dtype).itemsize * prod(self.shape)


class RunBytes(msgspec.Struct, frozen=True):
    """Bytes of tensors and constants that a run reads and writes, each once; `exact`: just these, or at most these."""

    read: int
    written: int
    exact: bool


class TaskTables(msgspec.Struct, frozen=True):
    """The words that kernels read, one after the other (see `kernels.ptx.program`)."""

    items: tuple[int, ...]  # eight words each
    waits: tuple[int, ...]  # two words each
    runs: tuple[int, ...]  # three words each: the task, its first place, its blocks
    lists: tuple[int, ...]  # of a pinned program: where each worker's items begin
    pinned: tuple[int, ...]  # eight words each: the items by worker


class TaskDescription(msgspec.Struct, frozen=True):
    """A program of tasks."""

    name: str
    processor: str
    capability: tuple[int, int]
    threads: int  # of a block
    shared: int  # bytes of shared memory of a block
    arena: int  # bytes
    inputs: tuple[TaskArgument, ...]
    outputs: tuple[TaskArgument, ...]
    kernels: tuple[str, ...]
    order: tuple[int, ...]  # of the runs, as they are claimed
    tables: TaskTables
    places: tuple[tuple[str, int, int], ...]  # of operands: space, argument, bytes from its start
    moved: tuple[RunBytes, ...] = ()  # by run, where it is known
    schema: str = "graphopt.tasks/1"

    @classmethod
    def of(
        cls, listing: Listing, target: Target, lists: Lists | int = 0,
        bytes_of: Mapping[str, TouchedBytes] | None = None,
    ) -> TaskDescription:  # fmt: skip
        """A listing for several workers: an item for each block of a run, in the order of the claims.

        `lists` are the blocks of each worker where they are pinned; or so many workers, by turns.
        `bytes_of` says by kernel what its runs touch of each operand.
        """
        ticketed = listing.ticketed
        assert ticketed is not None, "a program of tasks is for several workers"
        numbers = {kernel.name: number for number, kernel in enumerate(listing.kernels)}
        runs, places = list[tuple[int, ...]](), list[Place]()
        for run in ticketed.runs:
            number = numbers[run.kernel]
            runs.append((number, len(places), listing.kernels[number].blocks))
            places += run.operands
        items, waits = list[tuple[int, ...]](), list[tuple[int, ...]]()
        begin = 0
        for step in ticketed.steps:
            if isinstance(step, Wait):
                if runs[step.run][2]:
                    waits.append((step.run, runs[step.run][2]))
                continue
            assert isinstance(step, Claim) and not step.whole, "blocks are claimed one by one"
            task, first, blocks = runs[step.run]
            places_of = len(ticketed.runs[step.run].operands)
            items += [(step.run, block, task, first, begin, len(waits), places_of, 0) for block in range(blocks)]
            begin = len(waits)
        if isinstance(lists, int):
            lists = by_turns(items, lists)
        begins, pinned = _by_worker(items, lists)
        return cls(
            listing.name, target.cpu, _capability(target), THREADS,
            max((kernel.scratch_bytes for kernel in listing.kernels), default=0), ticketed.arena_bytes,
            tuple(map(_argument, listing.inputs)), tuple(map(_argument, listing.outputs)), tuple(numbers),
            tuple(run for run, _ in ticketed.waits),
            TaskTables(_flat(items), _flat(waits), _flat(runs), tuple(begins), _flat(pinned)),
            tuple((one.space, one.argument, one.offset) for one in places),
            tuple(_moved(listing.kernels[numbers[run.kernel]], run, bytes_of[run.kernel]) for run in ticketed.runs)
            if bytes_of is not None else (),
        )  # fmt: skip

    @classmethod
    def read(cls, data: bytes) -> TaskDescription:
        """The description that a bundle has; raises NoDescription."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoDescription(f"this describes no program of tasks: {error}.") from error

    def written(self) -> bytes:
        """As a bundle has it."""
        return msgspec.json.encode(self)

    @property
    def items(self) -> int:
        """How many items there are."""
        return len(self.tables.items) // 8

    @property
    def workers(self) -> int:
        """Blocks of the pinned program."""
        return max(0, len(self.tables.lists) - 1)

    def run(self, number: int) -> tuple[int, int, int]:
        """A run: the number of its task, its first place, its blocks."""
        task, first, blocks = self.tables.runs[3 * number : 3 * number + 3]
        return task, first, blocks

    def pointers(self, bases: Mapping[tuple[str, int], int]) -> npt.NDArray[np.uint64]:
        """The address of each operand, given where each space (and argument) begins."""
        return np.array([bases[space, argument] + offset for space, argument, offset in self.places] or [0], np.uint64)


def _moved(kernel: Kernel, run: Run, touched: TouchedBytes) -> RunBytes:
    """An operand that lies where another one does is no more to read."""
    read: dict[Place, int] = {}
    written = 0
    for operand, place, size in zip(kernel.operands, run.operands, touched.operands, strict=True):
        if operand.role == "output":
            written += size
        else:
            read[place] = max(size, read.get(place, 0))
    return RunBytes(sum(read.values()), written, touched.exact)


def by_turns(items: Sequence[tuple[int, ...]], workers: int) -> Lists:
    """The blocks of each worker in the order of the items: those of a run one after the other."""
    lists: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
    for run, block, *_ in items if workers else ():
        lists[(run + block) % workers].append((run, block))
    return lists


def _by_worker(items: Sequence[tuple[int, ...]], lists: Lists) -> tuple[list[int], list[tuple[int, ...]]]:
    """Where each worker's items begin, and the items by worker.

    Each item has all waits of its run: what others of the run have waited for is no word to a worker.
    """
    by_block = {item[:2]: item for item in items}
    begins = [0, *accumulate(map(len, lists))]
    return begins if lists else [], [by_block[one] for some in lists for one in some]


def _argument(one: Argument) -> TaskArgument:
    return TaskArgument(one.name, np.dtype(one.dtype.numpy).name, one.shape)


def _capability(target: Target) -> tuple[int, int]:
    major, _, minor = target.capability.partition(".")
    return int(major), int(minor)


def _flat(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(word for row in rows for word in row)
