"""Programs of tasks on the PTX machine: what a GPU would give, and every fault on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernels.listing import Listing
from kernels.ptx.machine.buffers import Placed
from kernels.ptx.machine.launching import Adversary, Launch, Machine
from kernels.ptx.machine.reports import Outcome
from kernels.ptx.tables import Tables
from kernels.ptx.tasks.threads import THREADS

Array = npt.NDArray[Any]
Workers = npt.NDArray[np.int32]
RunWay = Literal["ticketed", "pinned", "launches"]
PATIENCE = 1 << 22  # instructions without a change of memory


@dataclass(frozen=True, slots=True)
class Ran:
    """What a call gave: the outputs, and the outcome of each launch, to the first with a fault."""

    outputs: tuple[Array, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """All faults, as sentences."""
        return tuple(str(fault) for outcome in self.outcomes for fault in outcome.faults)


class EmulatedTasks:
    """A program in the memory of a PTX machine; `text` is the PTX of its module.

    `most` is how many instructions of warps a launch may have.
    """

    def __init__(
        self, text: str, listing: Listing, weights: npt.NDArray[np.uint8], most: int = 1 << 40
    ) -> None:  # fmt: skip
        assert listing.ticketed is not None, "a program of tasks is for several workers"
        self._most = most
        self._listing, self._machine, tables = listing, Machine(text), Tables.of(listing)
        memory = self._machine.memory
        self._arena = memory.reserve("arena", max(listing.ticketed.arena_bytes, 4))
        stored = memory.place("weights", weights if weights.size else np.zeros(4, np.uint8), constant=True)
        self._inputs = [memory.reserve(f"input {one.name}", max(one.bytes, 4)) for one in listing.inputs]
        self._outputs = [memory.reserve(f"output {one.name}", max(one.bytes, 4)) for one in listing.outputs]
        bases: dict[tuple[str, int], int] = {("arena", 0): self._arena.address, ("weights", 0): stored.address}
        bases |= {("input", number): one.address for number, one in enumerate(self._inputs)}
        bases |= {("output", number): one.address for number, one in enumerate(self._outputs)}
        self._tables, self._items = tables, len(tables.items)
        self._pointers = self._constant("pointers", tables.pointers(bases))
        self._words = [self._constant(name, _filled(getattr(tables, name))) for name in ("items", "waits")]
        self._counters = memory.place("counters", np.zeros(max(1, len(tables.runs)), np.int32))
        self._claimed = memory.place("claimed", np.zeros(1, np.int32))
        self._errors = memory.place("errors", np.zeros(2, np.int32))
        self._epoch, self._base = 0, 0
        self._shared = max((kernel.scratch_bytes for kernel in listing.kernels), default=0)

    def _constant(self, name: str, array: Array) -> Placed:
        return self._machine.memory.place(name, array, constant=True)

    def run(
        self, feeds: Sequence[Array], adversary: Adversary | None = None, *, blocks: int = 4, resident: int = 0,
        way: RunWay = "ticketed",
        workers: Sequence[Workers] | None = None,
    ) -> Ran:  # fmt: skip
        """One call: `blocks` persistent ones of which as many are `resident` (0: all), or a launch for each run.

        `workers` are those of pinned blocks, by run; None: by turns.
        """
        memory = self._machine.memory
        memory.clear(self._arena)
        for placed in self._outputs:
            memory.clear(placed)
        for placed, feed in zip(self._inputs, feeds, strict=True):
            if feed.size:
                memory.write(placed, feed)
        outcomes: list[Outcome] = []
        if way == "launches":
            launches = self._alone(resident or blocks)
        else:
            launches = [self._ticketed(blocks, resident) if way == "ticketed" else self._pinned(blocks, resident, workers)]
        for launch in launches:
            outcomes.append(self._machine.run(launch, adversary or Adversary()))
            if outcomes[-1].faults:
                break
        outputs = tuple(
            memory.read(placed, one.dtype.numpy)[: int(np.prod(one.shape))].reshape(one.shape)
            for placed, one in zip(self._outputs, self._listing.outputs, strict=True)
        )
        return Ran(outputs, tuple(outcomes))

    def _pinned(self, blocks: int, resident: int, workers: Sequence[Workers] | None) -> Launch:
        self._epoch += 1
        if workers is None:  # by turns
            counts = self._tables.runs[:, 2].tolist()
            workers = [(np.arange(count, dtype=np.int32) + run) % blocks for run, count in enumerate(counts)]
        lists, items = self._tables.pinned(workers, blocks)
        placed = self._constant(f"lists {self._epoch}", lists), self._constant(f"pinned {self._epoch}", _filled(items))
        arguments = (*placed, self._words[1], self._pointers, self._counters, self._errors, self._epoch)
        return self._launch("pinned", blocks, arguments, resident or blocks)

    def _ticketed(self, blocks: int, resident: int) -> Launch:
        self._epoch += 1
        items, waits = self._words
        arguments = (
            items, self._items, waits, self._pointers, self._counters, self._claimed, self._base, self._errors,
            self._epoch,
        )  # fmt: skip
        self._base += self._items + blocks
        return self._launch("ticketed", blocks, arguments, resident or blocks)

    def _alone(self, resident: int) -> list[Launch]:
        found, ticketed = [], self._listing.ticketed
        assert ticketed is not None, "checked at creation"
        for number, _ in ticketed.waits:
            _, first, blocks = self._tables.runs[number].tolist()
            if blocks:
                name, row = f"launch_{ticketed.runs[number].kernel}", self._pointers.address + 8 * first
                found.append(self._launch(name, blocks, (row,), resident))
        return found

    def _launch(self, kernel: str, blocks: int, arguments: tuple[Placed | int, ...], resident: int) -> Launch:
        return Launch(kernel, (blocks, 1, 1), (THREADS, 1, 1), arguments, resident, self._shared, PATIENCE, self._most)


def _filled(words: Array) -> Array:
    """The words, or one that nobody reads."""
    return words if words.size else np.zeros(1, np.int32)
