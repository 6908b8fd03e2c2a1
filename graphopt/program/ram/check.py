"""Whether a program that fetches weights computes what the program without does; it shares no code with the planner.

Everything is decided of the listing as it is emitted. What must have happened when a run begins follows from what is
waited for: all that is waited for at a claim has ended for every later claim too, since whoever comes to that has
claimed before, or has seen the claim of somebody who had waited. Fetches begin in their order, several may be under way
at the same time, and runs are told of them in their order. Then

- the runs are those of the program without, in blocks that are each there once, with the same operands outside;
- of two accesses to the same bytes, of which one writes, one happens before the other, or both are of one run;
- of two moves that may be under way together none writes what the other one reads or writes;
- what a run reads of the arena has the values that it would have without moves (graphopt/program/ram/contents.py);
- a run that reads weights finds, where it reads, the bytes of the file that are these weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from graphopt.errors import VerificationError
from graphopt.program.ram.contents import Contents, Owned
from kernels.kernel import Kernel, Operand
from kernels.listing import Claim, Fetch, FetchRows, Listing, Moved, Place, Run, Ticketed, Wait
from kernels.moves import Reload, Spill

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.bool_]
_NOTHING = -1


def check_streamed(whole: Listing, weights: Bytes, listing: Listing, file: Bytes, owned: Owned) -> None:
    """Raise VerificationError where a program with this file might compute anything else than the one without.

    `owned` are the buffers of the arena, by run and operand of the program without.
    """
    assert whole.ticketed is not None and listing.ticketed is not None, "programs for several workers"
    checked = _Check(whole, whole.ticketed, weights, listing, listing.ticketed, file)
    of_run, begun = checked.check()
    contents = Contents(whole.ticketed, listing.ticketed, checked.kernels, owned)
    contents.check(checked.order, of_run, begun)


class _Check:
    def __init__(
        self, whole: Listing, before: Ticketed, weights: Bytes, listing: Listing, ticketed: Ticketed, file: Bytes
    ) -> None:
        self.whole, self.before, self.weights = whole, before, weights
        self.listing, self.ticketed, self.file = listing, ticketed, file
        self.kernels: Mapping[str, Kernel] = {one.name: one for one in listing.kernels}
        self.start = file.size - ticketed.fetched_bytes  # of what is fetched, in the file
        self.numbers = {one.numbers for one in ticketed.fetches if isinstance(one, FetchRows)}
        self.order = [step.run for step in ticketed.steps if not isinstance(step, Wait)]

    def check(self) -> tuple[list[int], list[int]]:
        """All but what values are. By piece its run, and how many moves have ended when it begins."""
        of_run = self._of_runs()
        ended, fetched, freed = self._known()
        self._check_places(of_run, ended, fetched, freed)
        self._check_moves(fetched, freed)
        for piece in self.order:
            self._check_weights(of_run[piece], piece, fetched[piece])
        return of_run, fetched

    # -- the same runs -------------------------------------------------------------------------------------------------

    def _of_runs(self) -> list[int]:
        """By piece its run; pieces stand in the order of runs, and have each block once."""
        found = [_NOTHING] * len(self.ticketed.runs)
        pieces = iter(self.order)
        for run, _ in self.before.waits:
            wanted = self.before.runs[run]
            blocks: list[tuple[int, int]] = []
            before: list[Place] = []  # of operands, but for weights
            count = self.kernels[wanted.kernel].blocks
            while sum(end - first for first, end in blocks) < max(1, count):
                piece = next(pieces, None)
                given = None if piece is None else self.ticketed.runs[piece]
                if piece is None or given is None or given.kernel != wanted.kernel or not self._alike(wanted, given):
                    raise VerificationError(f"run {run} of the program is not there with all of its blocks.")
                found[piece] = run
                places = [
                    place for place, old in zip(given.operands, wanted.operands, strict=True) if old.space != "weights"
                ]
                if blocks and places != before:
                    raise VerificationError(f"pieces of run {run} of the program work in several places.")
                before = places
                blocks.append(given.blocks or (0, max(1, count)))
            blocks.sort()
            if blocks[0][0] or any(one[1] != two[0] for one, two in pairwise(blocks)):
                raise VerificationError(f"run {run} of the program has a block twice, or not at all.")
        if next(pieces, None) is not None:
            raise VerificationError("there are runs that the program does not have.")
        return found

    def _alike(self, wanted: Run, given: Run) -> bool:
        """Whether operands are the same but for weights, the arena, and indices that are numbered anew."""
        for one, other in zip(wanted.operands, given.operands, strict=True):
            renumbered = other.space == "arena" and other.offset in self.numbers and other.part is None
            moved = one.space == other.space == "arena" and one.part == other.part
            if one.space != "weights" and one != other and not moved and not renumbered:
                return False
        return True

    # -- what has happened ---------------------------------------------------------------------------------------------

    def _known(self) -> tuple[Bits, list[int], Bits]:
        """By piece which pieces have ended when it begins and how many fetches; by fetch which pieces have ended."""
        count, fetches = len(self.ticketed.runs), self.ticketed.fetches
        ended, freed = np.zeros((count, count), bool), np.zeros((len(fetches), count), bool)
        begun = [0] * count
        passed = np.zeros(count, bool)  # what has ended for whoever claims from here on
        done = 0  # fetches, likewise
        free = 0  # fetches of which it is known what they wait for
        waited: list[int] = []
        last: int | None = None
        for step in self.ticketed.steps:
            if isinstance(step, Wait):
                waited.append(step.run)
                continue
            piece = step.run
            need = self.ticketed.fetched[piece] if fetches else 0
            while free < need:
                if free:
                    freed[free] = freed[free - 1]
                for one in fetches[free].after:
                    freed[free] |= ended[one]
                    freed[free, one] = True
                free += 1
            here = passed.copy()
            for one in waited:
                here |= ended[one]
                here[one] = True
            begun[piece] = max(done, need)
            if not isinstance(step, Claim):
                assert last is not None, "the listing is checked"
                here |= ended[last]
                here[last] = True
                begun[piece] = max(begun[piece], begun[last])
            if begun[piece]:
                here |= freed[begun[piece] - 1]
            ended[piece] = here
            if isinstance(step, Claim):
                passed, done = here, begun[piece]
            waited, last = [], piece
        for number in range(free, len(fetches)):
            freed[number] = freed[number - 1] if number else False
            for one in fetches[number].after:
                freed[number] |= ended[one]
                freed[number, one] = True
        return ended, begun, freed

    # -- places --------------------------------------------------------------------------------------------------------

    def _check_places(self, of_run: Sequence[int], ended: Bits, fetched: Sequence[int], freed: Bits) -> None:
        """No two accesses of the arena, or of an argument, meet."""
        spaces: dict[tuple[str, int], list[tuple[int, int, bool, int]]] = {}
        for piece, run in enumerate(self.ticketed.runs):
            for operand, place in zip(self.kernels[run.kernel].operands, run.operands, strict=True):
                if place.space in ("arena", "output", "input"):
                    begin, end = place.part or (0, operand.bytes)
                    rows = spaces.setdefault((place.space, place.argument), [])
                    rows.append((place.offset, place.offset + end - begin, operand.role == "output", piece))
        runs = np.array(of_run)
        for (space, _), rows in spaces.items():
            begins, ends = (np.array([row[at] for row in rows]) for at in (0, 1))
            writes, pieces = np.array([row[2] for row in rows]), np.array([row[3] for row in rows])
            for begin, end, is_write, piece in rows:
                meets = (begins < end) & (begin < ends) & (runs[pieces] != of_run[piece]) & (writes | is_write)
                others = pieces[meets]
                loose = others[~(ended[piece, others] | ended[others, piece])]
                if loose.size:
                    raise VerificationError(f"runs {piece} and {loose[0]} may meet in bytes of the {space}.")
            if space != "arena":
                continue
            before = np.array(fetched)[pieces]
            for number, begin, end, is_write in self._moved_bytes():
                meets = (begins < end) & (begin < ends) & ~freed[number, pieces] & (before <= number)
                meets &= writes | is_write
                if meets.any():
                    verb = "writes" if is_write else "reads"
                    raise VerificationError(f"fetch {number} {verb} where run {pieces[meets][0]} may be at work.")

    def _check_moves(self, fetched: Sequence[int], freed: Bits) -> None:
        """Of two that may be under way together none writes what the other one reads or writes."""
        known: list[int] = []  # by move: how many have ended when it begins
        for number, one in enumerate(self.ticketed.fetches):
            told = max((fetched[piece] for piece in np.flatnonzero(freed[number]).tolist()), default=0)
            known.append(max(told, one.told if isinstance(one, Reload) else 0, known[-1] if known else 0))
        for rows in (list(self._moved_bytes()), list(self._filed_bytes())):
            numbers, begins, ends, writes = (np.array([row[at] for row in rows], np.int64) for at in range(4))
            for at, (number, begin, end, is_write) in enumerate(rows):
                meets = (begins < end) & (begin < ends) & (numbers <= number) & (numbers >= known[number])
                meets &= (writes > 0) | is_write
                meets[at] = False
                if isinstance(self.ticketed.fetches[number], FetchRows) and not is_write:
                    meets[:] = False  # indices are read when all before have ended
                if meets.any():
                    raise VerificationError(f"fetches {numbers[meets][0]} and {number} may meet in the same bytes.")

    def _moved_bytes(self) -> Iterator[tuple[int, int, int, bool]]:
        """Of the arena: the number of a move, begin, end, and whether it writes there."""
        for number, one in enumerate(self.ticketed.fetches):
            for place, size in one.writes:
                yield number, place, place + size, True
            if isinstance(one, Spill):
                yield number, one.place, one.place + one.bytes, False
            elif isinstance(one, FetchRows) and one.indices.space == "arena":
                yield number, one.indices.offset, one.indices.offset + one.count * one.dtype.bytes, False

    def _filed_bytes(self) -> Iterator[tuple[int, int, int, bool]]:
        """Likewise of the temporary file."""
        for number, one in enumerate(self.ticketed.fetches):
            if isinstance(one, Spill | Reload):
                yield number, one.offset, one.offset + one.bytes, isinstance(one, Spill)

    # -- weights -------------------------------------------------------------------------------------------------------

    def _check_weights(self, run: int, piece: int, fetched: int) -> None:
        given, wanted = self.ticketed.runs[piece], self.before.runs[run]
        kernel = self.kernels[given.kernel]
        for at, (operand, place, old) in enumerate(zip(kernel.operands, given.operands, wanted.operands, strict=True)):
            if old.space == "weights":
                self._check_operand(kernel, given, operand, place, old, fetched, f"operand {at} of run {piece}")
            elif old.space != place.space or place.offset in self.numbers:  # indices that are numbered anew
                source = next((one for one in given.operands if one.part is not None), None)
                rows = None if source is None else self._last(source.offset, fetched)
                if not isinstance(rows, FetchRows) or rows.numbers != place.offset or not _same(rows.indices, old):
                    raise VerificationError(f"operand {at} of run {piece} holds other indices than the program's.")

    def _check_operand(
        self, kernel: Kernel, given: Run, operand: Operand, place: Place, old: Place, fetched: int, what: str
    ) -> None:
        first, end = given.blocks or (0, kernel.blocks)
        begin, behind = 0, operand.bytes
        if operand.parts is not None and given.blocks is not None:
            read = operand.parts[first:end]
            begin, behind = min(one[0] for one in read), max(one[1] for one in read)
        wrong = VerificationError(f"{what} is not what the program reads there.")
        content = self.weights[old.offset + begin : old.offset + behind]
        from_byte, to_byte = place.part or (0, operand.bytes)
        if place.space == "weights":
            there = self.file[place.offset + begin - from_byte : place.offset + behind - from_byte]
            if begin < from_byte or behind > to_byte or not np.array_equal(content, there):
                raise wrong
            return
        source = self._last(place.offset, fetched)
        if isinstance(source, FetchRows):
            table = self.file[self.start + source.source : self.start + source.source + source.stored_bytes]
            whole = self.weights[old.offset : old.offset + operand.bytes]
            inside = (from_byte, to_byte) == (0, source.bytes) and source.row_bytes == operand.rows
            if source.place != place.offset or not inside or not np.array_equal(table, whole):
                raise wrong
            return
        if not isinstance(source, Fetch) or begin < from_byte or behind > to_byte:
            raise wrong
        there = self._brought(source)
        skipped = place.offset - source.place if source.transformed is None else place.offset - source.transformed.place
        there = there[skipped + begin - from_byte : skipped + behind - from_byte]
        if skipped < 0 or not np.array_equal(content, there):
            raise wrong

    def _last(self, place: int, fetched: int) -> Moved | None:
        """The fetch, of so many first ones, that wrote the byte at a place last."""
        for one in reversed(self.ticketed.fetches[:fetched]):
            if any(start <= place < start + size for start, size in one.writes):
                return one
        return None

    def _brought(self, one: Fetch) -> Bytes:
        """The bytes that a fetch leaves."""
        raw = self.file[self.start + one.source : self.start + one.source + one.bytes]
        made = one.transformed
        if made is None:
            return raw
        down, across = made.sums.down, made.sums.across
        shape = made.groups, len(down[0]), len(across[0]), made.elements
        found = raw[: 4 * math.prod(shape)].view(np.float32).reshape(shape).astype(np.float64)
        for axis, matrix in ((1, down), (2, across)):
            if matrix != ((1.0,),):
                found = np.stack([_sum(numbers, found, axis) for numbers in matrix], axis=axis)
        return found.astype(np.float32).reshape(-1).view(np.uint8)


def _same(one: Place, other: Place) -> bool:
    """Whether two places are one, where they may lie differently in the arena."""
    return one == other or one.space == other.space == "arena"


def _sum(numbers: Sequence[float], terms: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    """Along an axis, product by product and without those with 0, as the kernels' packing is defined."""
    products: list[npt.NDArray[np.float64]] = [
        np.multiply(number, terms.take(at, axis)) for at, number in enumerate(numbers) if number
    ]
    total = np.zeros_like(terms.take(0, axis)) if not products else products[0]
    for one in products[1:]:
        total += one
    return total
