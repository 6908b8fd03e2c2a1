"""Whether a program that fetches weights computes what the program without does; it shares no code with the planner.

Everything is decided of the listing as it is emitted. What must have happened when a run begins follows from what is
waited for: all that is waited for at a claim has ended for every later claim too, since whoever comes to that has
claimed before, or has seen the claim of somebody who had waited. Fetches begin in their order, several may be under way
at the same time, and runs are told of them in their order. Then

- the runs are those of the program without, in blocks that are each there once, with the same operands but weights;
- of two accesses to the same bytes, of which one writes, one happens before the other, or both are of one run;
- what a fetch writes no other one writes that may be under way with it, nor is it where indices lie that one reads;
- a run that reads weights finds, where it reads, the bytes of the file that are these weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from graphopt.errors import VerificationError
from kernels.kernel import Kernel, Operand
from kernels.listing import Claim, Fetch, FetchRows, Listing, Place, Run, Ticketed, Wait

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.bool_]
_NOTHING = -1


def check_streamed(whole: Listing, weights: Bytes, listing: Listing, file: Bytes) -> None:
    """Raise VerificationError where a program with this file might compute anything else than the one without."""
    assert whole.ticketed is not None and listing.ticketed is not None, "programs for several workers"
    _Check(whole, whole.ticketed, weights, listing, listing.ticketed, file).check()


class _Check:
    def __init__(
        self, whole: Listing, before: Ticketed, weights: Bytes, listing: Listing, ticketed: Ticketed, file: Bytes
    ) -> None:
        self.whole, self.before, self.weights = whole, before, weights
        self.listing, self.ticketed, self.file = listing, ticketed, file
        self.kernels: Mapping[str, Kernel] = {one.name: one for one in listing.kernels}
        self.start = file.size - ticketed.fetched_bytes  # of what is fetched, in the file
        self.order = [step.run for step in ticketed.steps if not isinstance(step, Wait)]

    def check(self) -> None:
        """All of it."""
        of_run = self._of_runs()
        ended, fetched, freed = self._known()
        self._check_places(of_run, ended, fetched, freed)
        self._check_fetches(fetched, freed)
        for piece in self.order:
            self._check_weights(of_run[piece], piece, fetched[piece])

    # -- the same runs -------------------------------------------------------------------------------------------------

    def _of_runs(self) -> list[int]:
        """By piece its run; pieces stand in the order of runs, and have each block once."""
        found = [_NOTHING] * len(self.ticketed.runs)
        pieces = iter(self.order)
        for run, _ in self.before.waits:
            wanted = self.before.runs[run]
            blocks: list[tuple[int, int]] = []
            count = self.kernels[wanted.kernel].blocks
            while sum(end - first for first, end in blocks) < max(1, count):
                piece = next(pieces, None)
                given = None if piece is None else self.ticketed.runs[piece]
                if piece is None or given is None or given.kernel != wanted.kernel or not self._alike(wanted, given):
                    raise VerificationError(f"run {run} of the program is not there with all of its blocks.")
                found[piece] = run
                blocks.append(given.blocks or (0, max(1, count)))
            blocks.sort()
            if blocks[0][0] or any(one[1] != two[0] for one, two in pairwise(blocks)):
                raise VerificationError(f"run {run} of the program has a block twice, or not at all.")
        if next(pieces, None) is not None:
            raise VerificationError("there are runs that the program does not have.")
        return found

    def _alike(self, wanted: Run, given: Run) -> bool:
        """Whether operands are the same but for weights, and indices that are numbered anew."""
        numbers = {one.numbers for one in self.ticketed.fetches if isinstance(one, FetchRows)}
        for one, other in zip(wanted.operands, given.operands, strict=True):
            renumbered = other.space == "arena" and other.offset in numbers and other.part is None
            if one.space != "weights" and one != other and not renumbered:
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
            for number, begin, end in self._fetched_bytes():
                meets = (begins < end) & (begin < ends) & ~freed[number, pieces] & (before <= number)
                if meets.any():
                    raise VerificationError(f"fetch {number} writes where run {pieces[meets][0]} may be at work.")
            for number, (one, given) in enumerate(zip(self.ticketed.fetches, freed, strict=True)):
                if isinstance(one, FetchRows) and one.indices.space == "arena":
                    self._check_indices(number, one, given, fetched)

    def _check_fetches(self, fetched: Sequence[int], freed: Bits) -> None:
        """No two of them write the same bytes at once, and none where another one reads indices."""
        rows = list(self._fetched_bytes())
        numbers, begins, ends = (np.array([row[at] for row in rows]) for at in range(3))
        told = np.array([max((fetched[piece] for piece in np.flatnonzero(one).tolist()), default=0) for one in freed])
        for at, (number, begin, end) in enumerate(rows):
            meets = (begins < end) & (begin < ends) & (numbers <= number) & (numbers >= told[number])
            meets[at] = False
            if meets.any():
                raise VerificationError(f"fetches {numbers[meets][0]} and {number} may write the same bytes at once.")
        for number, one in enumerate(self.ticketed.fetches):
            if isinstance(one, FetchRows) and one.indices.space == "arena":
                begin, end = one.indices.offset, one.indices.offset + one.count * one.dtype.bytes
                if ((begins < end) & (begin < ends)).any():
                    raise VerificationError(f"a fetch writes where fetch {number} reads indices.")

    def _fetched_bytes(self) -> Iterator[tuple[int, int, int]]:
        for number, one in enumerate(self.ticketed.fetches):
            for place, size in one.writes:
                yield number, place, place + size

    def _check_indices(self, number: int, one: FetchRows, given: Bits, fetched: Sequence[int]) -> None:
        """Whoever writes the indices has ended, or begins when they have been read."""
        begin, end = one.indices.offset, one.indices.offset + one.count * one.dtype.bytes
        for piece, run in enumerate(self.ticketed.runs):
            for operand, place in zip(self.kernels[run.kernel].operands, run.operands, strict=True):
                meets = place.space == "arena" and place.offset < end and begin < place.offset + operand.bytes
                if operand.role == "output" and meets and not given[piece] and fetched[piece] <= number:
                    raise VerificationError(f"fetch {number} reads indices that run {piece} may be writing.")

    # -- weights -------------------------------------------------------------------------------------------------------

    def _check_weights(self, run: int, piece: int, fetched: int) -> None:
        given, wanted = self.ticketed.runs[piece], self.before.runs[run]
        kernel = self.kernels[given.kernel]
        for at, (operand, place, old) in enumerate(zip(kernel.operands, given.operands, wanted.operands, strict=True)):
            if old.space == "weights":
                self._check_operand(kernel, given, operand, place, old, fetched, f"operand {at} of run {piece}")
            elif place != old:  # indices that are numbered anew
                source = next((one for one in given.operands if one.part is not None), None)
                rows = None if source is None else self._last(source.offset, fetched)
                if not isinstance(rows, FetchRows) or rows.numbers != place.offset or rows.indices != old:
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
        if source is None or begin < from_byte or behind > to_byte:
            raise wrong
        there = self._brought(source)
        skipped = place.offset - source.place if source.transformed is None else place.offset - source.transformed.place
        there = there[skipped + begin - from_byte : skipped + behind - from_byte]
        if skipped < 0 or not np.array_equal(content, there):
            raise wrong

    def _last(self, place: int, fetched: int) -> Fetch | FetchRows | None:
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
        taps, points = len(made.matrix[0]), len(made.matrix)
        size = 4 * made.groups * taps**2 * made.elements
        source = raw[:size].view(np.float32).reshape(made.groups, taps, taps, made.elements).astype(np.float64)
        rows = np.stack([_sum(numbers, source, 1) for numbers in made.matrix], axis=1)
        found = np.stack([_sum(numbers, rows, 2) for numbers in made.matrix], axis=2).astype(np.float32)
        assert found.shape == (made.groups, points, points, made.elements)
        return found.reshape(-1).view(np.uint8)


def _sum(numbers: Sequence[float], terms: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    """Along an axis, product by product and without those with 0, as the kernels' packing is defined."""
    products: list[npt.NDArray[np.float64]] = [
        np.multiply(number, terms.take(at, axis)) for at, number in enumerate(numbers) if number
    ]
    total = products[0]
    for one in products[1:]:
        total += one
    return total
