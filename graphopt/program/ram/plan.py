"""Programs under a budget of the process: which weights stay in memory, and which are read in each run.

What a constant takes is a number of units. The first ones stay in memory, and the last ones are fetched into a ring in
the arena before the blocks that read them run. How many, water-filling says: all runs are given the same number of
bytes to fetch for each nanosecond that they compute, as long as they have so many. Then reading keeps up with
computing everywhere or nowhere: what is read is spread as evenly as it can be, whatever the disk's rate is. Where the
disk cannot keep up, what frees the most bytes for its time may go first, and what must be transformed may stay. Rings
of several sizes are tried with each order: what a ring takes is read in addition, and a small one makes the reader
wait. A simulation says which is fastest, or nearly so, with disks of several rates.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import truediv

from graphopt.errors import BudgetNotKept
from graphopt.memory.share import Budget, in_bytes
from graphopt.program.ram.contents import Owned
from graphopt.program.ram.course import Rates, course
from graphopt.program.ram.pieces import Bytes, Pieces
from graphopt.program.ram.spill import Away, spilled
from graphopt.program.ram.units import UNIT, Constant, Constants, Unit, constants_of, filled, others_of, page, rooms_of
from graphopt.program.weights import Held
from kernels.listing import Fetch, FetchRows, Listing, Moved, Ticketed
from kernels.moves import Spill

RINGS = (1, 2, 4, 8, 16)  # units of a ring that are tried, where that is more than some blocks need at once
DISKS = (1.0, 2.0)  # times the known rate: a disk's is not known better, and a program has to be fast with each
EQUAL = 1.01  # of the fastest time: the smallest ring so fast is taken, which caches hold best
FEW = 3  # of what blocks need at once, the least and the most
ARENAS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # of the arena without spills that are tried, where it has to shrink
STACK = 64 << 10  # bytes of a thread's stack that are touched
CODE, CODE_OF_KERNEL = 256 << 10, 12 << 10  # bytes of a library, about: they count as they are touched


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

    @property
    def fetched_bytes(self) -> int:
        """Of weights, that each run reads."""
        return sum(one.bytes for one in self._moves if isinstance(one, Fetch | FetchRows))

    @property
    def spilled_bytes(self) -> int:
        """Of intermediate results, that each run writes to a temporary file and reads back."""
        return sum(one.bytes for one in self._moves if isinstance(one, Spill))

    @property
    def _moves(self) -> tuple[Moved, ...]:
        return () if self.listing.ticketed is None else self.listing.ticketed.fetches


def streamed(
    listing: Listing, weights: Bytes, held: Sequence[Held], owned: Owned, durations: Mapping[str, float], rates: Rates,
    budget: Budget, workers: int, unit: int = UNIT,
) -> Streamed:  # fmt: skip
    """A listing for several workers within a `budget` of the process, of which `workers` run it at the most.

    `weights` are the listing's, where `held` says what lies there, `owned` the buffers of its arena by run and operand;
    `durations` are nanoseconds of kernels on one core. Where weights alone do not keep the budget, intermediate results
    leave the arena too. Raises BudgetNotKept, with the least that is possible, where nothing more can leave.
    """
    asked = Asked(weights, held, durations, rates, sys.maxsize, workers, unit)
    found = asked.within(listing, ())
    assert isinstance(found, Timed), "everything is kept"
    asked = replace(asked, budget=in_bytes(budget, found.program.parts.total))
    found = asked.within(listing, ())
    if isinstance(found, Timed):
        return found.program
    least, timed = found, []
    for share in ARENAS:
        smaller = spilled(listing, owned, int(share * _arena(listing)))
        if smaller is None:
            break
        found = asked.within(*smaller)
        if isinstance(found, Timed):
            timed.append(found)
        else:
            least = min(least, found)
    if not timed:
        raise BudgetNotKept(asked.budget, least, "the process takes")
    return min(timed, key=lambda one: one.nanoseconds).program


@dataclass(frozen=True, slots=True)
class Timed:
    """A program that keeps a budget, and how long a run of it takes."""

    nanoseconds: float
    program: Streamed


@dataclass(frozen=True, slots=True)
class Asked:
    """What all listings of a program are planned for, as `streamed` says."""

    weights: Bytes
    held: Sequence[Held]
    durations: Mapping[str, float]
    rates: Rates
    budget: int
    workers: int
    unit: int

    def within(self, listing: Listing, away: Sequence[Away]) -> Timed | int:
        """The fastest program that was found; the least bytes that the process takes where none keeps the budget."""
        ticketed = listing.ticketed
        assert ticketed is not None, "one for several workers"
        kernels = {kernel.name: kernel for kernel in listing.kernels}
        constants = constants_of(ticketed.runs, kernels, self.durations, self.held, self.unit)
        fixed = _fixed(listing, ticketed, self.workers)
        others = others_of(ticketed.runs, kernels, constants)
        small = sum(filled(size) for _, size in others)
        everything = small + sum(filled(one.size) for one in constants.values())
        if fixed.total + everything <= self.budget and not away:
            kept = replace(listing, ticketed=replace(ticketed, most_workers=self.workers))
            return Timed(0.0, Streamed(kept, self.weights, replace(fixed, kept=everything), self.workers))
        rooms = rooms_of(ticketed.runs, kernels, constants)
        room = self.budget - fixed.total - small
        disks = [replace(self.rates, disk=times * self.rates.disk) for times in DISKS]
        found: list[tuple[list[float], int, Listing, Pieces]] = []
        for ring in _rings(rooms, self.unit) if everything - small > room else [0]:
            movable = [one for pair, one in constants.items() if rooms[pair] <= ring]
            stays = sum(filled(one.size) for pair, one in constants.items() if rooms[pair] > ring)
            for order in _ORDERS if ring else _ORDERS[:1]:
                if not _choose(constants.values(), movable, room - ring - stays, partial(order, self.rates)):
                    break
                pieces = Pieces(listing, kernels, constants, others, ring, self.workers, away)
                made = pieces.listing_of()
                assert made.ticketed is not None, "one for several workers"
                times = [course(made.ticketed, kernels, self.durations, self.workers, one) for one in disks]
                found.append((times, ring, made, pieces))
        if not found:
            return fixed.total + small + _least(constants, rooms)
        fastest = [min(times) for times in zip(*(one[0] for one in found), strict=True)]
        worst = [max(map(truediv, one[0], fastest)) for one in found]  # times the fastest with a disk
        times, ring, made, pieces = found[next(at for at, one in enumerate(worst) if one <= EQUAL * min(worst))]
        parts = replace(fixed, kept=pieces.kept_bytes, ring=ring)
        return Timed(times[0], Streamed(made, pieces.file(self.weights), parts, self.workers))


def _arena(listing: Listing) -> int:
    assert listing.ticketed is not None, "one for several workers"
    return listing.ticketed.arena_bytes


def _least(constants: Constants, rooms: Mapping[tuple[int, int], int]) -> int:
    """The least bytes of a ring and of what stays because it does not fit into that."""
    sizes = (
        page(ring) + sum(filled(one.size) for pair, one in constants.items() if rooms[pair] > ring)
        for ring in rooms.values()
    )
    return min(sizes, default=0)


def _fixed(listing: Listing, ticketed: Ticketed, workers: int) -> RamParts:
    """What does not depend on which weights stay."""
    lent = {one.cache for one in listing.outputs}  # inputs in whose memory an output lies
    arguments = sum(one.bytes for number, one in enumerate(listing.inputs) if number not in lent)
    arguments += sum(one.bytes for one in listing.outputs)
    tables = 8 * sum(len(run.operands) + workers + 8 for run in listing.runs)
    code = CODE + CODE_OF_KERNEL * len(listing.kernels) + tables + STACK * (workers + 1)
    return RamParts(0, 0, page(ticketed.arena_bytes), workers * page(listing.scratch_bytes), arguments, code)


def _rings(rooms: Mapping[tuple[int, int], int], unit: int) -> list[int]:
    """Sizes of a ring: what constants need at once, and for some of them a few times as much."""
    needed = set(rooms.values())
    some = {*heapq.nsmallest(FEW, needed), *heapq.nlargest(FEW, needed)}
    larger = {max(one, count * unit) for one in some for count in RINGS} | {2 * one for one in some}
    return sorted({page(one) for one in needed | larger})


def _spread(rates: Rates, one: Constant, unit: Unit) -> tuple[float, ...]:
    """Bytes that are read for each nanosecond that is computed, once this unit is."""
    return (_read(one, unit) / max(one.nanoseconds, 1.0),)


def _cheapest(rates: Rates, one: Constant, unit: Unit) -> tuple[float, ...]:
    """Seconds of the reader for each byte that is freed."""
    seconds = unit.fetched_bytes / rates.disk + (unit.bytes / rates.transforming if unit.taps is not None else 0.0)
    return seconds * one.uses / unit.bytes, *_spread(rates, one, unit)


def _as_it_is(rates: Rates, one: Constant, unit: Unit) -> tuple[float, ...]:
    """What need not be transformed first."""
    return float(unit.taps is not None), *_spread(rates, one, unit)


def _read(one: Constant, unit: Unit) -> int:
    """Bytes of a constant that a run reads once this unit, and those behind it, are fetched; of tables next to none."""
    size = one.size - unit.begin if unit.taps is None else unit.taps.bytes
    return 0 if unit.named is not None else size * one.uses


_ORDERS = (_spread, _cheapest, _as_it_is)
Order = Callable[[Constant, Unit], tuple[float, ...]]


def _choose(constants: Iterable[Constant], movable: Sequence[Constant], room: int, order: Order) -> bool:
    """Say how many units of movable constants are fetched, so that what stays of them takes at most `room` bytes."""
    for one in constants:
        one.fetched = 0
    kept = sum(filled(one.size) for one in movable)
    waiting: list[tuple[tuple[float, ...], int, Constant]] = []

    def push(one: Constant) -> None:
        if one.fetched < len(one.units):
            heapq.heappush(waiting, (order(one, one.units[len(one.units) - one.fetched - 1]), one.start, one))

    for one in movable:
        push(one)
    while kept > room and waiting:
        _, _, one = heapq.heappop(waiting)
        before = filled(one.kept_bytes)
        one.fetched += 1
        kept += filled(one.kept_bytes) - before
        push(one)
    return kept <= room
