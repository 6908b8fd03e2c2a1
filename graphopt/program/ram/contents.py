"""What bytes hold when the moves and runs of a program are done one after the other; and what they should hold.

Every byte that a run writes gets a *mark*: of the run, the operand, and what the byte held before, where that was of
the same buffer; for a run may leave bytes of its operand alone. Where a run reads the marks that it would find without
moves, at the same distances, it reads the same values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graphopt.errors import VerificationError
from kernels.kernel import Kernel
from kernels.listing import FetchRows, Moved, Place, Run, Ticketed
from kernels.moves import Reload, Spill

Owned = Sequence[Sequence[tuple[str, int] | None]]  # by run and operand the buffer in the arena, and where in it
_Row = tuple[int, int, int, int]  # begin, end, the mark, and where the buffer would begin
_FETCHED, _NOTHING = -1, 0


@dataclass(slots=True)
class _Space:
    """Marks of bytes."""

    rows: list[_Row] = field(default_factory=list)

    def get(self, begin: int, end: int) -> list[_Row]:
        """Those of some bytes, in their order."""
        found = [row for row in self.rows if row[0] < end and begin < row[1]]
        merged: list[_Row] = []
        for one, two, mark, base in sorted(found):
            one, two = max(one, begin), min(two, end)
            if merged and merged[-1][1:] == (one, mark, base):
                one = merged.pop()[0]
            merged.append((one, two, mark, base))
        return merged

    def put(self, begin: int, end: int, rows: Sequence[_Row]) -> None:
        """These in place of what was there."""
        kept: list[_Row] = []
        for one, two, mark, base in self.rows:
            parts = ((one, min(two, begin)), (max(one, end), two))
            kept += [(first, last, mark, base) for first, last in parts if first < last]
        self.rows = [*kept, *rows]


@dataclass(slots=True)
class _Marks:
    """Numbers of marks, and the buffer of each."""

    numbers: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    buffers: list[str] = field(default_factory=lambda: [""])

    def write(self, space: _Space, begin: int, end: int, base: int, buffer: str, run: int, at: int) -> None:
        """A run writes an operand, all or some of it."""
        rows: list[_Row] = []
        last = begin
        for one, two, mark, there in [*space.get(begin, end), (end, end, _NOTHING, 0)]:
            if last < one:
                rows.append((last, one, self._of(buffer, run, at, _NOTHING), base))
            if one < two:
                same = mark > 0 and self.buffers[mark] == buffer and there == base
                rows.append((one, two, self._of(buffer, run, at, mark if same else _NOTHING), base))
            last = two
        space.put(begin, end, rows)

    def _of(self, *key: str | int) -> int:
        found = self.numbers.setdefault(key, len(self.buffers))  # type: ignore[arg-type]
        if found == len(self.buffers):
            self.buffers.append(str(key[0]))
        return found


class Contents:
    """A program without moves, `before`, and one with them, in whose pieces the runs come; `owned` are its buffers."""

    def __init__(self, before: Ticketed, after: Ticketed, kernels: Mapping[str, Kernel], owned: Owned) -> None:
        self.before, self.after, self.kernels, self.owned = before, after, kernels, owned
        self.marks = _Marks()
        self.arena, self.file = _Space(), _Space()
        self.rows_of: dict[int, list[_Row]] = {}  # by fetch of rows: what its indices hold
        self.expected: dict[tuple[int, int], list[_Row]] = {}  # by run and operand: what it reads

    def check(self, order: Sequence[int], of_run: Sequence[int], begun: Sequence[int]) -> None:
        """Raise VerificationError where a run reads anything else; `begun` moves have ended before a piece begins."""
        self._expect()
        done = 0
        for piece, following in zip(order, [*order[1:], None], strict=True):
            run, given = of_run[piece], self.after.runs[piece]
            while done < begun[piece]:
                self._move(done)
                done += 1
            self._read(run, piece, begun[piece])
            if following is not None and of_run[following] == run:
                self._keep(run, given, range(done, begun[following]))
                continue
            for at, place, size, (buffer, offset) in self._places(run, given, "output"):
                start = place.offset
                self.marks.write(self.arena, start, start + size, start - offset, buffer, run, at)

    def _places(self, number: int, run: Run, role: str) -> list[tuple[int, Place, int, tuple[str, int]]]:
        """Operands in the arena: which, where, how many bytes, and what of a buffer they are."""
        pairs = enumerate(zip(self.kernels[run.kernel].operands, run.operands, strict=True))
        return [
            (at, place, operand.bytes, owner)
            for at, (operand, place) in pairs
            if operand.role == role and (owner := self.owned[number][at]) is not None
        ]

    def _expect(self) -> None:
        spaces: dict[str, _Space] = defaultdict(_Space)
        for number, _ in self.before.waits:
            run = self.before.runs[number]
            for at, _, size, (buffer, offset) in self._places(number, run, "input"):
                self.expected[number, at] = spaces[buffer].get(offset, offset + size)
            for at, _, size, (buffer, offset) in self._places(number, run, "output"):
                self.marks.write(spaces[buffer], offset, offset + size, 0, buffer, number, at)

    def _keep(self, number: int, run: Run, moves: Iterable[int]) -> None:
        """None of these moves, which come between two pieces of a run, writes what that writes."""
        for move in moves:
            for place, size in self.after.fetches[move].writes:
                for _, there, full, _ in self._places(number, run, "output"):
                    if there.offset < place + size and place < there.offset + full:
                        raise VerificationError(f"fetch {move} writes what pieces of run {number} write.")

    def _move(self, number: int) -> None:
        one = self.after.fetches[number]
        if isinstance(one, Spill):
            found = self.arena.get(one.place, one.place + one.bytes)
            self.file.put(one.offset, one.offset + one.bytes, _shifted(found, one.offset - one.place))
        elif isinstance(one, Reload):
            found = self.file.get(one.offset, one.offset + one.bytes)
            self.arena.put(one.place, one.place + one.bytes, _shifted(found, one.place - one.offset))
        else:
            if isinstance(one, FetchRows) and one.indices.space == "arena":
                begin = one.indices.offset
                self.rows_of[number] = self.arena.get(begin, begin + one.count * one.dtype.bytes)
            for place, size in one.writes:
                self.arena.put(place, place + size, [(place, place + size, _FETCHED - number, 0)])

    def _read(self, number: int, piece: int, begun: int) -> None:
        run = self.after.runs[piece]
        for at, (operand, place) in enumerate(zip(self.kernels[run.kernel].operands, run.operands, strict=True)):
            if operand.role == "constant" and place.space == "arena":
                begin, end = place.part or (0, operand.bytes)
                if len(found := self.arena.get(place.offset, place.offset + end - begin)) != 1 or found[0][2] >= 0:
                    raise VerificationError(f"operand {at} of run {piece} is no weights that were fetched.")
        for at, place, size, (buffer, offset) in self._places(number, run, "input"):
            begin, found = place.offset, self.arena.get(place.offset, place.offset + size)
            moves = [one for one in range(begun) if _numbers(self.after.fetches[one]) == place.offset]
            rows = self.after.fetches[moves[-1]] if moves else None
            if isinstance(rows, FetchRows):
                if [row[2] for row in found] != [_FETCHED - moves[-1]]:
                    raise VerificationError(f"operand {at} of run {piece} holds other numbers than those of its rows.")
                begin, found = rows.indices.offset, self.rows_of.get(moves[-1], [])
            base = begin - offset
            mine = [row for row in found if row[2] > 0 and self.marks.buffers[row[2]] == buffer and row[3] == base]
            if mine != [(*row[:3], base) for row in _shifted(self.expected[number, at], base)]:
                raise VerificationError(f"operand {at} of run {piece} holds another value than without moves.")


def _numbers(one: Moved) -> int | None:
    return one.numbers if isinstance(one, FetchRows) else None


def _shifted(rows: Iterable[_Row], by: int) -> list[_Row]:
    return [(begin + by, end + by, mark, base + by) for begin, end, mark, base in rows]
