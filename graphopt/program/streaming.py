"""Programs under a budget of the process: weights beyond it are read while the program runs, in the order of use.

What a constant takes is a number of units: stretches of blocks of its kernel, where each block reads its own bytes,
else all of it. Of each constant the first units stay in memory, and the last ones are fetched into a ring in the arena
before the blocks that read them run. How many, water-filling says: all runs are given the same number of bytes to
fetch for each nanosecond that they compute, as long as they have so many. Then reading keeps up with computing
everywhere or nowhere: what is read is spread as evenly as it can be, whatever the disk's rate is, and a ring of a few
units serves.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from graphopt.errors import BudgetNotKept
from kernels.dtype import DType
from kernels.emit.layout import FETCH_ALIGNMENT, fetched_at
from kernels.kernel import Kernel, Operand
from kernels.listing import ALIGNMENT, Claim, Fetch, FetchRows, Follow, Listing, ListStep, Place, Run, Ticketed, Wait
from kernels.run import area

UNIT = 1 << 20  # bytes that are fetched at once, about: as many as a disk needs to be at its rate
KEPT = 64 << 10  # bytes of a constant that is never fetched: it would save nothing
RINGS = (8, 4, 2)  # units in a ring: the first that leaves weights room in memory
RING_SHARE = 0.25  # of what weights may take, that a ring takes at most, where a smaller one is possible
STACK = 64 << 10  # bytes of a thread's stack that are touched
CODE, CODE_OF_KERNEL = 256 << 10, 24 << 10  # bytes of a library, about: they count as they are touched
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RamParts:
    """What a process takes, in bytes, by what it is for."""

    kept: int  # weights that stay in memory
    ring: int  # room of those that are fetched
    arena: int
    scratch: int  # of all workers
    arguments: int  # inputs and outputs
    code: int  # library, tables and stacks, about

    @property
    def total(self) -> int:
        """All of them."""
        return self.kept + self.ring + self.arena + self.scratch + self.arguments + self.code


@dataclass(frozen=True, slots=True)
class Streamed:
    """A listing that keeps a budget, the bytes of its file of weights, and what it takes."""

    listing: Listing
    file: Bytes
    parts: RamParts
    workers: int


@dataclass(frozen=True, slots=True)
class _Named:
    """The operand with indices of rows."""

    operand: int
    dtype: DType
    count: int
    row_bytes: int


@dataclass(slots=True)
class _Unit:
    """Bytes [begin, end) of a constant, and the blocks that read them."""

    begin: int
    end: int
    blocks: tuple[tuple[int, int], ...]
    named: _Named | None = None  # where only rows are fetched that indices name

    @property
    def bytes(self) -> int:
        """Of the constant."""
        return self.end - self.begin

    @property
    def fetched_bytes(self) -> int:
        """That a run reads."""
        return self.bytes if self.named is None else self.named.count * self.named.row_bytes

    @property
    def room(self) -> int:
        """That it takes of a ring."""
        numbers = 0 if self.named is None else self.named.count * self.named.dtype.bytes
        return _page(self.fetched_bytes) + _page(numbers)


@dataclass(slots=True)
class _Constant:
    """An operand in the block of all weights, the runs that read it, and the units that it is fetched in."""

    start: int
    size: int
    units: list[_Unit]
    nanoseconds: float = 0.0  # that all its runs compute
    uses: int = 0
    fetched: int = 0  # units, the last ones

    @property
    def kept_bytes(self) -> int:
        """Of those that stay in memory."""
        return self.units[len(self.units) - self.fetched].begin if self.fetched else self.size


def streamed(
    listing: Listing, weights: Bytes, durations: Mapping[str, float], budget: int, workers: int, units: int = UNIT
) -> Streamed:
    """A listing for several workers within `budget` bytes of the process, of which `workers` run it at the most.

    `weights` are the listing's; `durations` are nanoseconds by kernel. Raises BudgetNotKept, with the least that is
    possible, where nothing more can be fetched.
    """
    ticketed = listing.ticketed
    assert ticketed is not None, "one for several workers"
    kernels = {kernel.name: kernel for kernel in listing.kernels}
    constants = _constants(ticketed.runs, kernels, durations, units)
    fixed = _fixed(listing, ticketed, workers)
    others = _others(ticketed.runs, kernels, constants)
    small = sum(_filled(size) for _, size in others)
    everything = small + sum(_filled(one.size) for one in constants.values())
    if fixed.total + everything <= budget:
        parts = replace(fixed, kept=everything)
        return Streamed(listing, weights, parts, workers)
    most = _together(ticketed.runs, kernels, constants)
    least = fixed.total + small + most
    if least > budget:
        raise BudgetNotKept(budget, least)
    room = budget - fixed.total - small
    wanted = max(max((unit.room for one in constants.values() for unit in one.units), default=0), units)
    ring = next((size for count in RINGS if (size := max(most, count * wanted)) <= RING_SHARE * room), most)
    ring = -(-ring // FETCH_ALIGNMENT) * FETCH_ALIGNMENT
    while not _choose(constants, room - ring):  # what is left cannot be kept beside a ring as large
        ring = max(most, ring // 2 // FETCH_ALIGNMENT * FETCH_ALIGNMENT)
    return _Writing(listing, kernels, constants, others, weights, ring).written(fixed, workers)


def _fixed(listing: Listing, ticketed: Ticketed, workers: int) -> RamParts:
    """What does not depend on which weights stay."""
    arguments = sum(one.bytes for one in (*listing.inputs, *listing.outputs) if getattr(one, "cache", -1) < 0)
    tables = 8 * sum(len(run.operands) + workers + 8 for run in listing.runs)
    code = CODE + CODE_OF_KERNEL * len(listing.kernels) + tables + STACK * (workers + 1)
    return RamParts(0, 0, _page(ticketed.arena_bytes), workers * _page(listing.scratch_bytes), arguments, code)


def _constants(
    runs: Sequence[Run], kernels: Mapping[str, Kernel], durations: Mapping[str, float], units: int
) -> dict[tuple[int, int], _Constant]:
    """The constants that can be fetched, by start and size."""
    found: dict[tuple[int, int], _Constant] = {}
    for run in runs:
        kernel = kernels[run.kernel]
        large = [
            (operand, place.offset) for operand, place in zip(kernel.operands, run.operands, strict=True)
            if place.space == "weights" and operand.bytes > KEPT
        ]  # fmt: skip
        for operand, start in large:
            cut = _units(operand, kernel.blocks, units) if len(large) == 1 else [_whole(operand, kernel.blocks)]
            named = _named(kernel, operand)
            if named is not None and run.operands[named.operand].space in ("arena", "input"):
                cut = [replace(cut[0], named=named)]
            known = found.setdefault((start, operand.bytes), _Constant(start, operand.bytes, cut))
            if known.units != cut:  # by another kernel
                known.units = [_whole(operand, kernel.blocks)]
            known.nanoseconds += durations[run.kernel]
            known.uses += 1
    taken = sorted(found)
    apart = [pair for pair, other in zip(taken, [*taken[1:], (1 << 62, 0)], strict=True) if sum(pair) <= other[0]]
    return {pair: found[pair] for pair in apart}  # what overlaps another one stays


def _others(
    runs: Sequence[Run], kernels: Mapping[str, Kernel], constants: Mapping[tuple[int, int], _Constant]
) -> list[tuple[int, int]]:
    """Start and size of what always stays, each once."""
    found: dict[int, int] = {}
    for run in runs:
        for operand, place in zip(kernels[run.kernel].operands, run.operands, strict=True):
            if place.space == "weights" and (place.offset, operand.bytes) not in constants:
                found[place.offset] = max(found.get(place.offset, 0), operand.bytes)
    return sorted(found.items())


def _named(kernel: Kernel, operand: Operand) -> _Named | None:
    """The indices by which a kernel takes rows of an operand, where those are few of its rows."""
    if not operand.rows:
        return None
    at, indices = next((at, one) for at, one in enumerate(kernel.operands) if one.name == "indices")
    if indices.dtype not in (DType.I32, DType.I64) or 2 * indices.elements * operand.rows > operand.bytes:
        return None
    return _Named(at, indices.dtype, indices.elements, operand.rows)


def _whole(operand: Operand, blocks: int) -> _Unit:
    return _Unit(0, operand.bytes, ((0, blocks),))


def _units(operand: Operand, blocks: int, size: int) -> list[_Unit]:
    """Stretches of the operand's parts of about so many bytes; one of all where blocks have no parts."""
    if operand.parts is None:
        return [_whole(operand, blocks)]
    parts = sorted(set(operand.parts))
    if parts[0][0] or parts[-1][1] != operand.bytes or any(one[1] != two[0] for one, two in pairwise(parts)):
        return [_whole(operand, blocks)]
    count = min(len(parts), max(1, round(operand.bytes / size)))
    ends = [parts[len(parts) * (one + 1) // count - 1][1] for one in range(count)]
    found = []
    for begin, end in pairwise([0, *ends]):
        read = [number for number, part in enumerate(operand.parts) if begin <= part[0] and part[1] <= end]
        found.append(_Unit(begin, end, tuple(_stretches(read))))
    return found


def _stretches(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges."""
    found: list[tuple[int, int]] = []
    for one in numbers:
        if found and found[-1][1] == one:
            found[-1] = found[-1][0], one + 1
        else:
            found.append((one, one + 1))
    return found


def _together(
    runs: Sequence[Run], kernels: Mapping[str, Kernel], constants: Mapping[tuple[int, int], _Constant]
) -> int:
    """Bytes of a ring that holds what any piece needs at once."""
    most = 0
    for run in runs:
        needed = 0
        for operand, place in zip(kernels[run.kernel].operands, run.operands, strict=True):
            one = constants.get((place.offset, operand.bytes)) if place.space == "weights" else None
            if one is not None:
                needed += max(unit.room for unit in one.units)
        most = max(most, needed)
    return most


def _choose(constants: Mapping[tuple[int, int], _Constant], room: int) -> bool:
    """Say of each constant how many units are fetched, so that the others take at most `room` bytes."""
    if room < 0:
        return False
    kept = 0
    waiting: list[tuple[float, int, _Constant]] = []

    def push(one: _Constant) -> None:
        if one.fetched < len(one.units):
            unit = one.units[len(one.units) - one.fetched - 1]
            size = one.size - unit.begin if unit.named is None else 0  # hardly anything is read of a table
            heapq.heappush(waiting, (size * one.uses / max(one.nanoseconds, 1.0), one.start, one))

    for one in constants.values():
        one.fetched = 0
        kept += _filled(one.size)
        push(one)
    while kept > room:
        _, _, one = heapq.heappop(waiting)
        before = _filled(one.kept_bytes)
        one.fetched += 1
        kept += _filled(one.kept_bytes) - before
        push(one)
    return True


class _Writing:
    """The listing, made of its pieces in the order of claims."""

    def __init__(
        self, listing: Listing, kernels: Mapping[str, Kernel], constants: Mapping[tuple[int, int], _Constant],
        others: Sequence[tuple[int, int]], weights: Bytes, ring: int,
    ) -> None:  # fmt: skip
        assert listing.ticketed is not None, "one for several workers"
        self.listing, self.ticketed, self.kernels, self.constants = listing, listing.ticketed, kernels, constants
        self.weights, self.ring = weights, ring
        self.base = _page(self.ticketed.arena_bytes)
        self.kept: dict[int, int] = {}  # where bytes that stay lie, by where they lay
        self.copies: list[tuple[int, int, int]] = []  # from, to, bytes
        self.kept_bytes = 0
        for start, size in (*others, *((one.start, one.kept_bytes) for one in constants.values())):
            self.kept[start] = self.kept_bytes
            self.copies.append((start, self.kept_bytes, size))
            self.kept_bytes += _filled(size)
        self.pieces: list[Run] = []
        self.pieces_of: dict[int, list[int]] = {}  # by run
        self.fetches: list[Fetch | FetchRows] = []
        self.needed: list[int] = []  # by piece: how many fetches
        self.sources: dict[tuple[int, int], int] = {}  # by the bytes of a unit: where the file has them
        self.fetched_bytes = 0
        self.next = 0  # in the ring
        self.users: list[tuple[int, int, list[int]]] = []  # bytes of the ring, and the pieces that read what is there

    def written(self, fixed: RamParts, workers: int) -> Streamed:
        """All that there is to say."""
        pieces_of = self.pieces_of
        for run, _ in self.ticketed.waits:
            pieces_of[run] = self._pieces(run)
        arena = self.base + self.ring
        ticketed = Ticketed(
            tuple(self._steps(pieces_of)), tuple(self.pieces), arena, tuple(self.fetches), tuple(self.needed),
            self.fetched_bytes,
        )  # fmt: skip
        listing = replace(
            self.listing, runs=ticketed.runs, arena_bytes=arena, weights_bytes=self.kept_bytes, ticketed=ticketed
        )
        parts = replace(fixed, kept=self.kept_bytes, ring=self.ring)
        return Streamed(listing, self._file(), parts, workers)

    def _pieces(self, run: int) -> list[int]:
        """Add the pieces of a run; their numbers."""
        given = self.ticketed.runs[run]
        operands = list(given.operands)
        fetched: list[tuple[int, _Constant]] = []
        for at, (operand, place) in enumerate(zip(self.kernels[given.kernel].operands, operands, strict=True)):
            if place.space != "weights":
                continue
            operands[at] = replace(place, offset=self.kept[place.offset])
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
            for some in _joined(blocks):
                found.append(self._piece(replace(given, operands=tuple(operands), blocks=some)))
        for unit in one.units[before:]:
            found += self._in_ring(run, operands, [(at, one, unit)], unit.blocks)
        return found

    def _in_ring(
        self, run: int, operands: list[Place], units: Sequence[tuple[int, _Constant, _Unit]],
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
            if unit.named is None:
                self.fetches.append(Fetch(source, place, size, tuple(sorted(after))))
                operands[at] = Place("arena", place, 0, (unit.begin, unit.end))
                continue
            named = unit.named
            indices, numbers = operands[named.operand], place + _page(unit.fetched_bytes)
            after.update(self._writers(run, indices, named.count * named.dtype.bytes))
            self.fetches.append(
                FetchRows(
                    source, place, one.size // named.row_bytes, named.row_bytes, indices, named.dtype, named.count,
                    numbers, tuple(sorted(after)),
                )
            )  # fmt: skip
            operands[at] = Place("arena", place, 0, (0, unit.fetched_bytes))
            operands[named.operand] = Place("arena", numbers)
        for some in blocks or (None,):
            given = self.ticketed.runs[run]
            readers.append(self._piece(replace(given, operands=tuple(operands), blocks=some)))
        return list(readers)

    def _writers(self, run: int, place: Place, size: int) -> list[int]:
        """The pieces that write bytes of the arena which this run reads: the last ones before it, each byte's."""
        if place.space != "arena":
            return []
        order = [one for one, _ in self.ticketed.waits]
        found: list[int] = []
        for other in order[: order.index(run)]:
            given = self.ticketed.runs[other]
            for operand, there in zip(self.kernels[given.kernel].operands, given.operands, strict=True):
                meet = there.offset < place.offset + size and place.offset < there.offset + operand.bytes
                if operand.role == "output" and there.space == "arena" and meet:
                    found += self.pieces_of[other]
        return found

    def _piece(self, run: Run) -> int:
        self.pieces.append(run)
        self.needed.append(len(self.fetches))
        return len(self.pieces) - 1

    def _source(self, one: _Constant, unit: _Unit) -> int:
        key = one.start + unit.begin, unit.bytes
        if key not in self.sources:
            self.sources[key] = self.fetched_bytes
            self.fetched_bytes += _page(unit.bytes)
        return self.sources[key]

    def _steps(self, pieces_of: Mapping[int, Sequence[int]]) -> list[ListStep]:
        """What waits for a run waits for its pieces; a chain with a run in pieces is no one worker's any more."""
        broken: set[int] = set()
        chain: list[int] = []
        for run, _ in self.ticketed.waits:
            chain = [*chain, run] if run in self.ticketed.following else [run]
            if any(len(pieces_of[one]) > 1 for one in chain):
                broken.update(chain)
        for run, _ in reversed(self.ticketed.waits):  # the first of a chain is found to be broken last
            if run in broken and run in self.ticketed.following:
                broken.add(self._before(run))
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
        order = [one for one, _ in self.ticketed.waits]
        return order[order.index(run) - 1]

    def _file(self) -> Bytes:
        """What stays, and behind it the units."""
        start = fetched_at(self.kept_bytes)
        found = area(start + self.fetched_bytes)
        found[self.kept_bytes : start] = 0
        for source, target, size in self.copies:
            found[target : target + size] = self.weights[source : source + size]
            found[target + size : target + _filled(size)] = 0
        for (source, size), offset in self.sources.items():
            target = start + offset
            found[target : target + size] = self.weights[source : source + size]
            found[target + size : target + _page(size)] = 0
        return found


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges, those that touch as one."""
    return _stretches([number for begin, end in ranges for number in range(begin, end)])


def _filled(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _page(size: int) -> int:
    return -(-size // FETCH_ALIGNMENT) * FETCH_ALIGNMENT
