"""An adversary of a scheduler: it runs a program in any order that its waits allow, and looks at every byte."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from bench.fetching.subject import Subject
from kernels.listing import Fetch, Listing, Ticketed
from kernels.moves import Reload, Spill

SCHEDULES, WORKERS = 12, 3
BROKEN = -1
Values = npt.NDArray[np.int64]


class Adversary:
    """Runs a program in a random order; `faults` are what a block found that it should not have."""

    def __init__(self, given: Subject, draw: random.Random) -> None:
        assert given.whole.ticketed is not None and given.listing.ticketed is not None
        self.given, self.draw = given, draw
        self.ticketed: Ticketed = given.listing.ticketed
        self.kernels = {one.name: one for one in given.listing.kernels}
        self.rows = [(run, list(before)) for run, before in self.ticketed.waits]
        self.run_of = _runs_of(given)
        self.expected = _expected(given.whole)
        self.arena: Values = np.full(self.ticketed.arena_bytes, BROKEN, np.int64)
        self.spilled: Values = np.full(self.ticketed.spilled_bytes, BROKEN, np.int64)
        self.start = given.file.size - self.ticketed.fetched_bytes
        self.left = {piece: self._blocks(piece) for piece in self.run_of}
        self.open = {piece: len(blocks) for piece, blocks in self.left.items()}
        self.unfinished = Counter(self.run_of.values())
        self.begun: set[int] = set()  # runs
        self.fetched = 0  # that runs know of
        self.asked = 0  # that have begun
        self.landed: set[int] = set()  # whose bytes are there
        self.faults: list[str] = []

    def _blocks(self, piece: int) -> list[int]:
        run = self.ticketed.runs[piece]
        return list(range(*(run.blocks or (0, self.kernels[run.kernel].blocks))))

    def run(self) -> list[str]:
        """What was wrong."""
        row = [0] * WORKERS  # where each worker stands
        waited: list[int | None] = [None] * WORKERS  # the row in which it has waited
        working: list[tuple[int, int] | None] = [None] * WORKERS
        while any(self.open.values()) and not self.faults:
            moves: list[Callable[[], None]] = []
            moves += self._fetching()
            for worker in range(WORKERS):
                busy = working[worker]
                if busy is not None:
                    moves.append(self._ending(worker, working, *busy))
                    continue
                while row[worker] < len(self.rows) and not self.left[self.rows[row[worker]][0]]:
                    row[worker] += 1
                if row[worker] == len(self.rows):
                    continue
                piece, before = self.rows[row[worker]]
                if waited[worker] == row[worker] or self._may_begin(piece, before):
                    moves.append(self._beginning(worker, working, waited, row[worker], piece))
            if not moves:
                return ["everybody waits"]
            self.draw.choice(moves)()
        return self.faults

    def _may_begin(self, piece: int, before: Sequence[int]) -> bool:
        return not any(self.open[one] for one in before) and self.ticketed.fetched[piece] <= self.fetched

    def _fetching(self) -> list[Callable[[], None]]:
        """What the reader may do: ask for the next bytes, have any that it asked for, tell the runs of the next."""
        fetches = self.ticketed.fetches
        moves: list[Callable[[], None]] = [
            partial(self._land, one) for one in range(self.fetched, self.asked) if one not in self.landed
        ]
        if self.fetched in self.landed:
            moves.append(self._tell)
        if self.asked < len(fetches):
            one = fetches[self.asked]
            told = one.told if isinstance(one, Reload) else 0
            if told <= self.fetched and not any(self.open[run] for run in one.after):
                moves.append(self._ask)
        return moves

    def _ask(self) -> None:
        for place, size in self.ticketed.fetches[self.asked].writes:
            self.arena[place : place + size] = BROKEN
        self.asked += 1

    def _land(self, number: int) -> None:
        one = self.ticketed.fetches[number]
        here = slice(one.place, one.place + one.bytes)
        if isinstance(one, Spill):
            self.spilled[one.offset : one.offset + one.bytes] = self.arena[here]
        elif isinstance(one, Reload):
            self.arena[here] = self.spilled[one.offset : one.offset + one.bytes]
        else:
            assert isinstance(one, Fetch), "tables and transforms are for tests of programs"
            self.arena[here] = self.given.file[self.start + one.source :][: one.bytes]
        self.landed.add(number)

    def _tell(self) -> None:
        self.fetched += 1

    def _beginning(
        self, worker: int, working: list[tuple[int, int] | None], waited: list[int | None], row: int, piece: int
    ) -> Callable[[], None]:
        def begin() -> None:
            waited[worker] = row
            block = self.left[piece].pop(0)
            working[worker] = piece, block
            self._look(piece, block, first=self.run_of[piece] not in self.begun)
            self.begun.add(self.run_of[piece])
            for place, size in self._outputs(piece):
                self.arena[place : place + size] = BROKEN

        return begin

    def _ending(self, worker: int, working: list[tuple[int, int] | None], piece: int, block: int) -> Callable[[], None]:
        def end() -> None:
            self._look(piece, block, first=False)
            working[worker] = None
            self.open[piece] -= 1
            run = self.run_of[piece]
            if not self.open[piece]:
                self.unfinished[run] -= 1
                if not self.unfinished[run]:
                    for place, size in self._outputs(piece):
                        self.arena[place : place + size] = 1000 + run

        return end

    def _outputs(self, piece: int) -> list[tuple[int, int]]:
        run = self.ticketed.runs[piece]
        pairs = zip(self.kernels[run.kernel].operands, run.operands, strict=True)
        return [(place.offset, operand.bytes) for operand, place in pairs if operand.role == "output"]

    def _look(self, piece: int, block: int, *, first: bool) -> None:
        """Compare what a block reads with what it should read."""
        run, number = self.ticketed.runs[piece], self.run_of[piece]
        kernel = self.kernels[run.kernel]
        own = self._outputs(piece)
        assert self.given.whole.ticketed is not None
        wanted = self.given.whole.ticketed.runs[number]
        for at, (operand, place) in enumerate(zip(kernel.operands, run.operands, strict=True)):
            if operand.role == "constant":
                begin, end = operand.parts[block] if operand.parts is not None else (0, operand.bytes)
                start = wanted.operands[at].offset
                source: npt.NDArray[np.uint8] | Values = self.given.file if place.space == "weights" else self.arena
                there = source[max(0, place.origin + begin) : max(0, place.origin + end)]
                if not np.array_equal(there, self.given.weights[start + begin : start + end]):
                    self.faults.append(f"block {block} of run {number} reads other weights")
            elif operand.role == "input":
                mine = any(start < place.offset + operand.bytes and place.offset < start + size for start, size in own)
                there = self.arena[place.offset : place.offset + operand.bytes]
                if (first or not mine) and not (there == self.expected[number, at]).all():
                    self.faults.append(f"block {block} of run {number} reads another value")


def _expected(whole: Listing) -> dict[tuple[int, int], int]:
    """By run and operand the value that is there when the runs follow one another."""
    assert whole.ticketed is not None
    kernels = {one.name: one for one in whole.kernels}
    arena: dict[int, int] = {}
    found = {}
    for run, _ in whole.ticketed.waits:
        given = whole.ticketed.runs[run]
        pairs = list(enumerate(zip(kernels[given.kernel].operands, given.operands, strict=True)))
        for at, (operand, place) in pairs:
            if operand.role == "input":
                found[run, at] = arena.get(place.offset, BROKEN)
        for _, (operand, place) in pairs:
            if operand.role == "output":
                arena[place.offset] = 1000 + run
    return found


def _runs_of(given: Subject) -> dict[int, int]:
    """By piece its run, told by the kernel: each is run once."""
    assert given.whole.ticketed is not None and given.listing.ticketed is not None
    runs = {run.kernel: number for number, run in enumerate(given.whole.ticketed.runs)}
    return {piece: runs[run.kernel] for piece, run in enumerate(given.listing.ticketed.runs)}


def broken(given: Subject, draw: random.Random, schedules: int = SCHEDULES) -> str | None:
    """What some order of the program's blocks does wrong; None where nothing was found."""
    for _ in range(schedules):
        faults = Adversary(given, draw).run()
        if faults:
            return faults[0]
    return None
