"""Programs of tasks on the PTX machine: what a GPU would give, and every fault on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernels.ptx.machine.buffers import Placed
from kernels.ptx.machine.launching import Adversary, Launch, Machine
from kernels.ptx.machine.reports import Outcome
from kernels.ptx.tables import TaskDescription

Array = npt.NDArray[Any]
RunWay = Literal["ticketed", "pinned", "launches"]
_TABLES = ("items", "waits", "lists", "pinned")
PATIENCE = 1 << 22  # instructions without a change of memory


@dataclass(frozen=True, slots=True)
class Ran:
    """What a call gave: the outputs, and the outcome of each launch, to the first with a fault.

    `moved` are the bytes of tensors and constants that each launch read and wrote, each byte once.
    """

    outputs: tuple[Array, ...]
    outcomes: tuple[Outcome, ...]
    moved: tuple[tuple[int, int], ...]
    stamps: Array | None = None  # by item, where they were asked for

    @property
    def faults(self) -> tuple[str, ...]:
        """All faults, as sentences."""
        return tuple(str(fault) for outcome in self.outcomes for fault in outcome.faults)


class EmulatedTasks:
    """A program in the memory of a PTX machine; `text` is the PTX of its module.

    `most` is how many instructions of warps a launch may have.
    """

    def __init__(
        self, text: str, program: TaskDescription, weights: npt.NDArray[np.uint8], most: int = 1 << 40
    ) -> None:  # fmt: skip
        self._program, self._machine, self._most = program, Machine(text), most
        memory = self._machine.memory
        self._arena = memory.reserve("arena", max(program.arena, 4))
        stored = memory.place("weights", weights if weights.size else np.zeros(4, np.uint8), constant=True)
        self._inputs = [memory.reserve(f"input {one.name}", max(one.bytes, 4)) for one in program.inputs]
        self._outputs = [memory.reserve(f"output {one.name}", max(one.bytes, 4)) for one in program.outputs]
        self._tensors = (self._arena, stored, *self._inputs, *self._outputs)
        bases: dict[tuple[str, int], int] = {("arena", 0): self._arena.address, ("weights", 0): stored.address}
        bases |= {("input", number): one.address for number, one in enumerate(self._inputs)}
        bases |= {("output", number): one.address for number, one in enumerate(self._outputs)}
        self._pointers = memory.place("pointers", program.pointers(bases), constant=True)
        self._words = {name: self._constant(name, getattr(program.tables, name)) for name in _TABLES}
        self._counters = memory.place("counters", np.zeros(max(1, len(program.order)), np.int32))
        self._seats = memory.place("seats", np.zeros(max(1, program.workers), np.int32))
        self._claimed = memory.place("claimed", np.zeros(1, np.int32))
        self._stamps = memory.reserve("stamps", 32 * max(1, program.items))
        self._errors = memory.place("errors", np.zeros(2, np.int32))
        self._epoch, self._base = 0, 0

    def _constant(self, name: str, words: Sequence[int]) -> Placed:
        return self._machine.memory.place(name, np.array(words or [0], np.int32), constant=True)

    def run(
        self, feeds: Sequence[Array], adversary: Adversary | None = None, *, blocks: int = 4, resident: int = 0,
        way: RunWay = "ticketed", stamped: bool = False,
    ) -> Ran:  # fmt: skip
        """One call: `blocks` that claim their items, the workers of a pinned program, or a launch for each run.

        Where it is `stamped`, blocks leave four words for each item (see `kernels.ptx.program`).

        So many blocks are `resident` at once; 0: all of them, and of launches as many as `blocks`.
        """
        memory = self._machine.memory
        memory.clear(self._arena)
        for placed in self._outputs:
            memory.clear(placed)
        for placed, feed in zip(self._inputs, feeds, strict=True):
            if feed.size:
                memory.write(placed, feed)
        outcomes, moved = list[Outcome](), list[tuple[int, int]]()
        match way:
            case "launches":
                launches = self._alone(resident or blocks)
            case "pinned":
                launches = [self._pinned(resident, self._stamps if stamped else 0)]
            case "ticketed":
                launches = [self._ticketed(blocks, resident, self._stamps if stamped else 0)]
        for launch in launches:
            outcomes.append(self._machine.run(launch, adversary or Adversary()))
            reads, writes = zip(*(memory.touches(one.address, one.size) for one in self._tensors), strict=True)
            moved.append((sum(reads), sum(writes)))
            if outcomes[-1].faults:
                break
        outputs = tuple(
            memory.read(placed, one.dtype)[: prod(one.shape)].reshape(one.shape)
            for placed, one in zip(self._outputs, self._program.outputs, strict=True)
        )
        stamps = memory.read(self._stamps, np.int64).reshape(-1, 4) if stamped else None
        return Ran(outputs, tuple(outcomes), tuple(moved), stamps)

    def _pinned(self, resident: int, stamps: Placed | int) -> Launch:
        self._epoch += 1
        words, workers = self._words, self._program.workers
        arguments = (
            words["lists"], words["pinned"], words["waits"], self._pointers, self._counters, self._seats, self._errors,
            self._epoch, stamps,
        )  # fmt: skip
        return self._launch("pinned", workers, arguments, resident or workers)

    def _ticketed(self, blocks: int, resident: int, stamps: Placed | int) -> Launch:
        self._epoch += 1
        words, items = self._words, self._program.items
        arguments = (
            words["items"], items, words["waits"], self._pointers, self._counters, self._claimed, self._base,
            self._errors, self._epoch, stamps,
        )  # fmt: skip
        self._base += items + blocks
        return self._launch("ticketed", blocks, arguments, resident or blocks)

    def _alone(self, resident: int) -> list[Launch]:
        found = []
        for number in self._program.order:
            task, first, blocks = self._program.run(number)
            if blocks:
                name, row = f"launch_{self._program.kernels[task]}", self._pointers.address + 8 * first
                found.append(self._launch(name, blocks, (row,), resident))
        return found

    def _launch(self, kernel: str, blocks: int, arguments: tuple[Placed | int, ...], resident: int) -> Launch:
        program = self._program
        shape = (blocks, 1, 1), (program.threads, 1, 1)
        return Launch(kernel, *shape, arguments, resident, program.shared, PATIENCE, self._most)
