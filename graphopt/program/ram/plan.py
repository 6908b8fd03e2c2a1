"""Programs under a budget of the process: which weights stay in memory, and which are read in each run.

What a constant takes is a number of units. The first ones stay in memory, and the last ones are fetched into a ring in
the arena before the blocks that read them run. How many, water-filling says: all runs are given the same number of
bytes to fetch for each nanosecond that they compute, as long as they have so many. Then reading keeps up with
computing everywhere or nowhere: what is read is spread as evenly as it can be, whatever the disk's rate is. Rings of
several sizes are tried: what a ring takes is read in addition, and a small one makes the reader wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.errors import BudgetNotKept
from graphopt.program.ram.course import Rates, course
from graphopt.program.ram.pieces import Bytes, Pieces
from graphopt.program.ram.units import UNIT, Constant, Constants, constants_of, filled, others_of, page, together
from graphopt.program.weights import Held
from kernels.listing import Listing, Ticketed

RINGS = (2, 4, 8, 16, 32)  # units of a ring, or as many times what blocks need at once, that are tried
STACK = 64 << 10  # bytes of a thread's stack that are touched
CODE, CODE_OF_KERNEL = 256 << 10, 24 << 10  # bytes of a library, about: they count as they are touched


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
    nanoseconds: float  # of a run, by estimate


def streamed(
    listing: Listing, weights: Bytes, held: Sequence[Held], durations: Mapping[str, float], rates: Rates, budget: int,
    workers: int, unit: int = UNIT,
) -> Streamed:  # fmt: skip
    """A listing for several workers within `budget` bytes of the process, of which `workers` run it at the most.

    `weights` are the listing's, where `held` says what lies there; `durations` are nanoseconds of kernels on one core.
    Raises BudgetNotKept, with the least that is possible, where nothing more can be fetched.
    """
    ticketed = listing.ticketed
    assert ticketed is not None, "one for several workers"
    kernels = {kernel.name: kernel for kernel in listing.kernels}
    constants = constants_of(ticketed.runs, kernels, durations, held, unit)
    fixed = _fixed(listing, ticketed, workers)
    others = others_of(ticketed.runs, kernels, constants)
    small = sum(filled(size) for _, size in others)
    everything = small + sum(filled(one.size) for one in constants.values())
    if fixed.total + everything <= budget:
        nanoseconds = course(ticketed, kernels, durations, workers, rates)
        return Streamed(listing, weights, replace(fixed, kept=everything), workers, nanoseconds)
    most = together(ticketed.runs, kernels, constants)
    least = fixed.total + small + most
    if least > budget:
        raise BudgetNotKept(budget, least)
    room = budget - fixed.total - small
    found: list[tuple[float, int, int, Listing, Pieces]] = []
    for ring in _rings(most, unit, room):
        _choose(constants, room - ring)
        pieces = Pieces(listing, kernels, constants, others, ring)
        made = pieces.listing_of()
        assert made.ticketed is not None, "one for several workers"
        found.append((course(made.ticketed, kernels, durations, workers, rates), len(found), ring, made, pieces))
    nanoseconds, _, ring, made, pieces = min(found, key=lambda one: one[:2])
    parts = replace(fixed, kept=pieces.kept_bytes, ring=ring)
    return Streamed(made, pieces.file(weights), parts, workers, nanoseconds)


def _fixed(listing: Listing, ticketed: Ticketed, workers: int) -> RamParts:
    """What does not depend on which weights stay."""
    inputs = {one.cache for one in listing.outputs}
    arguments = sum(one.bytes for number, one in enumerate(listing.inputs) if number not in inputs)
    arguments += sum(one.bytes for one in listing.outputs)
    tables = 8 * sum(len(run.operands) + workers + 8 for run in listing.runs)
    code = CODE + CODE_OF_KERNEL * len(listing.kernels) + tables + STACK * (workers + 1)
    return RamParts(0, 0, page(ticketed.arena_bytes), workers * page(listing.scratch_bytes), arguments, code)


def _rings(most: int, unit: int, room: int) -> Iterator[int]:
    """Sizes of a ring within what weights may take, each once, the least possible one first."""
    sizes = {most, *(max(most, count * size) for count in RINGS for size in (unit, most))}
    return (page(size) for size in sorted(sizes) if page(size) <= room or size == most)


def _choose(constants: Constants, room: int) -> None:
    """Say of each constant how many units are fetched, so that the others take at most `room` bytes."""
    kept = 0
    waiting: list[tuple[float, int, Constant]] = []

    def push(one: Constant) -> None:
        if one.fetched < len(one.units):
            unit = one.units[len(one.units) - one.fetched - 1]
            size = one.size - unit.begin if unit.taps is None else unit.taps.bytes
            if unit.named is not None:  # hardly anything is read of a table
                size = 0
            heapq.heappush(waiting, (size * one.uses / max(one.nanoseconds, 1.0), one.start, one))

    for one in constants.values():
        one.fetched = 0
        kept += filled(one.size)
        push(one)
    while kept > room and waiting:
        _, _, one = heapq.heappop(waiting)
        before = filled(one.kept_bytes)
        one.fetched += 1
        kept += filled(one.kept_bytes) - before
        push(one)
