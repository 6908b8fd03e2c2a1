"""The listing of a program that fetches weights: its runs in pieces, a ring in the arena, and the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from graphopt.program.ram.spill import AHEAD, Away
from graphopt.program.ram.units import Constant, Constants, Unit, filled, page, ranges
from kernels.emit.layout import fetched_at
from kernels.kernel import Kernel, Transforming
from kernels.listing import (
    Claim,
    Fetch,
    FetchRows,
    Follow,
    Listing,
    ListStep,
    Moved,
    Place,
    Run,
    Ticketed,
    Transformed,
    Wait,
)
from kernels.moves import Reload, Spill
from kernels.run import area

Bytes = npt.NDArray[np.uint8]


class Pieces:
    """The listing, made of its pieces in the order of claims."""

    def __init__(
        self, listing: Listing, kernels: Mapping[str, Kernel], constants: Constants,
        others: Sequence[tuple[int, int]], ring: int, workers: int, away: Sequence[Away] = (),
    ) -> None:  # fmt: skip
        assert listing.ticketed is not None, "one for several workers"
        self.listing, self.ticketed, self.kernels, self.constants = listing, listing.ticketed, kernels, constants
        self.ring, self.workers = ring, workers
        self.base = page(self.ticketed.arena_bytes)
        self.kept: dict[tuple[int, int], int] = {}  # where a constant that stays lies, or its first units
        self.copies: list[tuple[int, int, int]] = []  # from, to, bytes
        self.kept_bytes = 0
        staying = {pair: one.kept_bytes for pair, one in constants.items()} | {pair: pair[1] for pair in others}
        for pair, size in staying.items():
            self.kept[pair] = self.kept_bytes
            self.copies.append((pair[0], self.kept_bytes, size))
            self.kept_bytes += filled(size)
        self.pieces: list[Run] = []
        self.pieces_of: dict[int, list[int]] = {}  # by run
        self.fetches: list[Moved] = []
        self.needed: list[int] = []  # by piece: how many fetches
        self.most = 0  # of these so far: whoever comes later has waited for as many
        self.order = [run for run, _ in self.ticketed.waits]
        self.step_of = {run: step for step, run in enumerate(self.order)}
        self.away = sorted(away, key=lambda one: self.step_of[one.last])
        self.spilled: dict[Away, int] = {}  # which fetch
        self.reloaded: dict[Away, int] = {}
        self.sources: dict[tuple[int, Unit], int] = {}  # by the start of a constant and a unit: where the file has it
        self.fetched_bytes = 0
        self.next = 0  # in the ring
        self.users: list[tuple[int, int, list[int]]] = []  # bytes of the ring, and the pieces that read what is there

    def listing_of(self) -> Listing:
        """The listing; `file` then gives the file of its weights."""
        pieces_of = self.pieces_of
        for step, run in enumerate(self.order):
            for one in self.away:
                if self.step_of[one.next] - AHEAD == step:
                    self._reload(one)
            self._await_moves(step, run)
            pieces_of[run] = self._pieces(run)
            for one in self.away:
                if self.step_of[one.last] + AHEAD == step:
                    self._spill(one)
        arena = self.base + self.ring
        ticketed = Ticketed(
            tuple(self._steps(pieces_of)), tuple(self.pieces), arena, tuple(self.fetches), tuple(self.needed),
            self.fetched_bytes, self.workers,
        )  # fmt: skip
        return replace(
            self.listing, runs=ticketed.runs, arena_bytes=arena, weights_bytes=self.kept_bytes, ticketed=ticketed
        )

    def _spill(self, one: Away) -> None:
        if one not in self.spilled:
            self.spilled[one] = len(self.fetches)
            after = tuple(sorted(piece for run in one.users for piece in self.pieces_of[run]))
            self.fetches.append(Spill(one.offset, one.origin, one.bytes, after))

    def _reload(self, one: Away) -> None:
        """Behind the move that wrote the bytes, those that read what lies in their place, and the runs there."""
        self._spill(one)
        there = (other for other in self.spilled if _meet(one.target, one.bytes, other.origin, other.bytes))
        told = 1 + max(self.spilled[other] for other in (one, *there))
        after = {piece for run in self._touching(one.target, one.bytes) for piece in self.pieces_of[run]}
        self.reloaded[one] = len(self.fetches)
        self.fetches.append(Reload(one.offset, one.target, one.bytes, told, tuple(sorted(after))))

    def _await_moves(self, step: int, run: int) -> None:
        """A run comes behind the reloads of what it works on, and the spills of what lay where it writes."""
        for one in self.away:
            if self.step_of[one.last] < step and self._touches(run, one.origin, one.bytes):
                self._spill(one)
                self.most = max(self.most, self.spilled[one] + 1)
            if self.step_of[one.next] == step:
                self.most = max(self.most, self.reloaded[one] + 1)

    def _touches(self, run: int, begin: int, size: int) -> bool:
        given = self.ticketed.runs[run]
        pairs = zip(self.kernels[given.kernel].operands, given.operands, strict=True)
        return any(place.space == "arena" and _meet(begin, size, place.offset, one.bytes) for one, place in pairs)

    def _touching(self, begin: int, size: int) -> list[int]:
        """The runs so far that work on bytes of the arena."""
        return [run for run in self.pieces_of if self._touches(run, begin, size)]

    def _pieces(self, run: int) -> list[int]:
        """Add the pieces of a run; their numbers."""
        given = self.ticketed.runs[run]
        operands = list(given.operands)
        fetched: list[tuple[int, Constant]] = []
        for at, (operand, place) in enumerate(zip(self.kernels[given.kernel].operands, operands, strict=True)):
            if place.space != "weights":
                continue
            operands[at] = replace(place, offset=self.kept[place.offset, operand.bytes])
            one = self.constants.get((place.offset, operand.bytes))
            if one is not None and one.fetched:
                fetched.append((at, one))
        if not fetched:
            return [self._piece(replace(given, operands=tuple(operands)))]
        ((at, one), *rest) = fetched
        if rest or len(one.units) == 1:
            return self._in_ring(run, operands, [(at, one, one.units[0]) for at, one in fetched], None)
        found, before = [], len(one.units) - one.fetched
        if before:
            operands[at] = replace(operands[at], part=(0, one.kept_bytes))
            blocks = sorted(block for unit in one.units[:before] for block in unit.blocks)
            for some in ranges([number for begin, end in blocks for number in range(begin, end)]):
                found.append(self._piece(replace(given, operands=tuple(operands), blocks=some)))
        for unit in one.units[before:]:
            found += self._in_ring(run, operands, [(at, one, unit)], unit.blocks)
        return found

    def _in_ring(
        self, run: int, operands: list[Place], units: Sequence[tuple[int, Constant, Unit]],
        blocks: Sequence[tuple[int, int]] | None,
    ) -> list[int]:  # fmt: skip
        """Pieces that read units out of the ring, all of which are there at once."""
        if self.next + sum(unit.room for _, _, unit in units) > self.ring:
            self.next = 0
        readers: list[int] = []
        for at, one, unit in units:
            begin, size = self.next, unit.room
            self.next += size
            before = [user for user in self.users if user[0] < begin + size and begin < user[1]]
            self.users = [user for user in self.users if user not in before] + [(begin, begin + size, readers)]
            after = {piece for user in before for piece in user[2]}
            place, source = self.base + begin, self._source(one, unit)
            if unit.taps is not None:
                read, by = page(unit.fetched_bytes), unit.taps
                made = Transformed(by.sums, by.elements, by.groups, place + read)
                self.fetches.append(Fetch(source, place, read, tuple(sorted(after)), made))
                operands[at] = Place("arena", place + read)
                continue
            if unit.named is None:
                self.fetches.append(Fetch(source, place, size, tuple(sorted(after))))
                operands[at] = Place("arena", place, 0, (unit.begin, unit.end))
                continue
            named = unit.named
            indices, numbers = operands[named.operand], place + page(unit.fetched_bytes)
            after.update(self._writers(run, indices, named.count * named.dtype.bytes))
            self.fetches.append(
                FetchRows(
                    source, place, one.size // named.row_bytes, named.row_bytes, indices, named.dtype, named.count,
                    numbers, tuple(sorted(after)), named.run_count,
                )
            )  # fmt: skip
            operands[at] = Place("arena", place, 0, (0, unit.fetched_bytes))
            operands[named.operand] = Place("arena", numbers)
        self.most = len(self.fetches)
        for some in blocks or (None,):
            given = self.ticketed.runs[run]
            readers.append(self._piece(replace(given, operands=tuple(operands), blocks=some)))
        return list(readers)

    def _writers(self, run: int, place: Place, size: int) -> list[int]:
        """The pieces that write bytes of the arena which this run reads: the last ones before it, each byte's."""
        if place.space != "arena":
            return []
        found: list[int] = []
        for other in self.order[: self.step_of[run]]:
            given = self.ticketed.runs[other]
            for operand, there in zip(self.kernels[given.kernel].operands, given.operands, strict=True):
                meet = there.offset < place.offset + size and place.offset < there.offset + operand.bytes
                if operand.role == "output" and there.space == "arena" and meet:
                    found += self.pieces_of[other]
        return found

    def _piece(self, run: Run) -> int:
        self.pieces.append(run)
        self.needed.append(self.most)
        return len(self.pieces) - 1

    def _source(self, one: Constant, unit: Unit) -> int:
        key = one.start, unit
        if key not in self.sources:
            self.sources[key] = self.fetched_bytes
            self.fetched_bytes += page(unit.bytes if unit.taps is None else unit.taps.bytes)
        return self.sources[key]

    def _steps(self, pieces_of: Mapping[int, Sequence[int]]) -> list[ListStep]:
        """What waits for a run waits for its pieces; a chain with a run in pieces is no one worker's any more."""
        broken: set[int] = set()
        chain: list[int] = []
        following = self.ticketed.following
        for run, _ in self.ticketed.waits:
            chain = [*chain, run] if run in following else [run]
            if any(len(pieces_of[one]) > 1 for one in chain):
                broken.update(chain)
        steps: list[ListStep] = []
        for step in self.ticketed.steps:
            pieces = pieces_of[step.run]
            if isinstance(step, Wait):
                steps += [Wait(one) for one in pieces]
            elif isinstance(step, Follow) and step.run not in broken:
                steps.append(Follow(pieces[0]))
            else:
                if isinstance(step, Follow):
                    steps += [Wait(one) for one in pieces_of[self._before(step.run)]]
                whole = isinstance(step, Follow) or step.whole
                steps += [Claim(one, whole and len(pieces) == 1) for one in pieces]
        return steps

    def _before(self, run: int) -> int:
        return self.order[self.step_of[run] - 1]

    def file(self, weights: Bytes) -> Bytes:
        """What stays, and behind it the units, out of the block of all weights."""
        start = fetched_at(self.kept_bytes) if self.fetched_bytes else self.kept_bytes
        found = area(start + self.fetched_bytes)
        for source, target, size in self.copies:
            found[target : target + size] = weights[source : source + size]
        for (source, unit), offset in self.sources.items():
            content = weights[source + unit.begin : source + unit.end]
            if unit.taps is not None:
                packing, array = unit.taps.held.packing, unit.taps.held.array
                assert isinstance(packing, Transforming) and array is not None, "else it has no taps"
                content = np.ascontiguousarray(packing.taps(array)).reshape(-1).view(np.uint8)
            target = start + offset
            found[target : target + content.size] = content
        return found


def _meet(begin: int, size: int, other: int, taken: int) -> bool:
    return begin < other + taken and other < begin + size
