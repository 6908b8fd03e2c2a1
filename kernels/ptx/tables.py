"""What a program of tasks is on a device, in numbers: items, waits, runs, and where each operand lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.listing import Claim, Listing, Place, Wait

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tables:
    """The words of a program (see `kernels.ptx.program`), and the places that `pointers` becomes."""

    items: Words  # [item, 8]
    waits: Words  # [wait, 2]
    runs: Words  # [run, 3]: the task, its first place, its blocks
    places: tuple[Place, ...]

    @classmethod
    def of(cls, listing: Listing) -> Tables:
        """The tables of a listing for several workers: an item for each block of a run, in the order of the claims."""
        assert listing.ticketed is not None, "a program of tasks is for several workers"
        numbers = {kernel.name: number for number, kernel in enumerate(listing.kernels)}
        runs, places = list[tuple[int, ...]](), list[Place]()
        for run in listing.ticketed.runs:
            number = numbers[run.kernel]
            runs.append((number, len(places), listing.kernels[number].blocks))
            places += run.operands
        items, waits = list[tuple[int, ...]](), list[tuple[int, ...]]()
        begin = 0
        for step in listing.ticketed.steps:
            if isinstance(step, Wait):
                if runs[step.run][2]:
                    waits.append((step.run, runs[step.run][2]))
                continue
            assert isinstance(step, Claim) and not step.whole, "blocks are claimed one by one"
            task, first, blocks = runs[step.run]
            items += [(step.run, block, task, first, begin, len(waits), 0, 0) for block in range(blocks)]
            begin = len(waits)
        return cls(_words(items, 8), _words(waits, 2), _words(runs, 3), tuple(places))

    def pinned(self, workers: Sequence[npt.NDArray[np.int32]], count: int) -> tuple[Words, Words]:
        """Where each worker's items begin, and the items by worker; `workers` by run: of each of its blocks.

        The items of a worker are in the order of the claims, and each has all waits of its run: what others of the run
        have waited for before is no word to a worker.
        """
        mine = np.array([workers[run][block] for run, block in self.items[:, :2]], np.int32)
        order = np.argsort(mine, kind="stable")
        begins = np.searchsorted(mine[order], np.arange(count + 1)).astype(np.int32)
        return begins, self.items[order]

    def pointers(self, bases: Mapping[tuple[str, int], int]) -> npt.NDArray[np.uint64]:
        """The address of each operand, given where each space (and argument) begins."""
        found = [bases[place.space, place.argument] + place.offset for place in self.places]
        return np.array(found or [0], np.uint64)


def _words(rows: list[tuple[int, ...]], width: int) -> Words:
    return np.array(rows, np.int32).reshape(-1, width) if rows else np.zeros((0, width), np.int32)
