"""The runs of a program for several workers: in which order they are claimed, and what has to end before what.

What has to end before a run is decided by bytes alone: two runs that touch the same bytes, of which one writes them,
keep their order. So it is the same whether a value is handed on, a concatenation is written in pieces, or a dead
buffer's bytes are taken by another one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kernels.kernel import Kernel
from kernels.listing import Claim, Follow, ListStep, Run, Ticketed, Wait
from scheduler.chains import Chain


@dataclass(slots=True)
class _Piece:
    """Bytes that the same runs have touched last: who wrote them, and who has read them since."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Bytes:
    """One space: pieces from each start to the next one."""

    starts: list[int] = field(default_factory=lambda: [0])
    pieces: list[_Piece] = field(default_factory=lambda: [_Piece()])

    def between(self, begin: int, end: int) -> range:
        """The numbers of the pieces that are just these bytes."""
        return range(self._cut(begin), self._cut(end))

    def _cut(self, place: int) -> int:
        number = bisect_left(self.starts, place)
        if number == len(self.starts) or self.starts[number] != place:
            before = self.pieces[number - 1]
            self.starts.insert(number, place)
            self.pieces.insert(number, _Piece(before.writer, list(before.readers)))
        return number

    def write(self, begin: int, end: int, run: int) -> list[int]:
        """Who touched the bytes before, all of them; now the run has written them."""
        numbers = self.between(begin, end)
        before: list[int] = []
        for piece in self.pieces[numbers.start : numbers.stop]:
            before += piece.readers
            if piece.writer is not None:
                before.append(piece.writer)
        if numbers:
            self.starts[numbers.start + 1 : numbers.stop] = []
            self.pieces[numbers.start : numbers.stop] = [_Piece(run)]
        return before

    def read(self, begin: int, end: int, run: int) -> list[int]:
        """Who wrote the bytes."""
        before = []
        for number in self.between(begin, end):
            piece = self.pieces[number]
            piece.readers.append(run)
            if piece.writer is not None:
                before.append(piece.writer)
        return before


def needs_of(
    runs: Sequence[Run], kernels: Mapping[str, Kernel], order: Sequence[int], following: Container[int] = ()
) -> dict[int, list[int]]:
    """For each run those before it in `order` that must have ended, without those that follow from others.

    A worker that goes on with a run of `following` has ended the one before it.
    """
    spaces: dict[tuple[str, int], _Bytes] = {}
    place_of = {run: place for place, run in enumerate(order)}
    before: list[int] = []  # by place in the order: the places that have ended by then, as bits
    needs: dict[int, list[int]] = {}
    for number in order:
        found: set[int] = set()
        run = runs[number]
        pairs = [
            (operand.role == "output", where, where.offset, where.offset + operand.bytes)
            for operand, where in zip(kernels[run.kernel].operands, run.operands, strict=True)
            if where.space != "weights" and operand.bytes
        ]
        for written, where, begin, end in sorted(pairs, key=lambda pair: pair[0]):
            space = spaces.setdefault((where.space, where.argument), _Bytes())
            found.update((space.write if written else space.read)(begin, end, number))
        found.discard(number)
        known, kept = 0, []
        if number in following:
            known = before[-1] | 1 << len(before) - 1
        for earlier in sorted((place_of[one] for one in found), reverse=True):
            if not known >> earlier & 1:
                kept.append(order[earlier])
                known |= before[earlier] | 1 << earlier
        before.append(known)
        needs[number] = kept[::-1]
    return needs


def ticketed(runs: Sequence[Run], kernels: Mapping[str, Kernel], chains: Sequence[Chain], arena_bytes: int) -> Ticketed:
    """The program: what a run needs is waited for before it is claimed, and what nobody waited for at the end."""
    order = [run for chain in chains for run in chain.runs]
    following = frozenset(run for chain in chains for run in chain.runs[1:])
    needs = needs_of(runs, kernels, order, following)
    steps: list[ListStep] = []
    for chain in chains:
        for run in chain.runs:
            steps += [Wait(one) for one in needs[run]]
            steps.append(Follow(run) if run in following else Claim(run, chain.whole))
    awaited = {one for some in needs.values() for one in some}
    awaited |= {before for before, run in pairwise(order) if run in following}
    steps += [Wait(run) for run in order if run not in awaited]
    return Ticketed(tuple(steps), tuple(runs), arena_bytes)
