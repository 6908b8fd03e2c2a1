"""What a program of tasks is on a device, in numbers: items, waits, runs, and where each operand lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.listing import Claim, Follow, Listing, Place, Wait

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tables:
    """The words of a program (see `kernels.ptx.program`), and the places that `pointers` becomes."""

    items: Words  # [item, 4]
    waits: Words  # [wait, 2]
    runs: Words  # [run, 2]
    totals: Words  # blocks of each run
    places: tuple[Place, ...]

    @classmethod
    def of(cls, listing: Listing) -> Tables:
        """The tables of a listing for several workers: an item for each block of a run, in the order of the claims."""
        assert listing.ticketed is not None, "a program of tasks is for several workers"
        numbers = {kernel.name: number for number, kernel in enumerate(listing.kernels)}
        runs, places, totals = list[tuple[int, int]](), list[Place](), list[int]()
        for run in listing.ticketed.runs:
            runs.append((numbers[run.kernel], len(places)))
            places += run.operands
            totals.append(listing.kernels[numbers[run.kernel]].blocks)
        items, waits = list[tuple[int, int, int, int]](), list[tuple[int, int]]()
        begin = 0
        for step in listing.ticketed.steps:
            if isinstance(step, Wait):
                if totals[step.run]:
                    waits.append((step.run, totals[step.run]))
                continue
            assert isinstance(step, Claim) and not isinstance(step, Follow), "blocks are claimed one by one"
            items += [(step.run, block, begin, len(waits)) for block in range(totals[step.run])]
            begin = len(waits)
        return cls(_words(items, 4), _words(waits, 2), _words(runs, 2), _words(totals, 1).reshape(-1), tuple(places))

    def pointers(self, bases: Mapping[tuple[str, int], int]) -> npt.NDArray[np.uint64]:
        """The address of each operand, given where each space (and argument) begins."""
        found = [bases[place.space, place.argument] + place.offset for place in self.places]
        return np.array(found or [0], np.uint64)


def _words(rows: list[tuple[int, ...]] | list[tuple[int, int]] | list[tuple[int, int, int, int]] | list[int], width: int) -> Words:
    return np.array(rows, np.int32).reshape(-1, width) if rows else np.zeros((1, width), np.int32)
