"""Intermediate results that leave the arena for a while: which, and where everything lies then.

While nobody works on a buffer, its bytes may be away: its life is cut in two, and the second part lies wherever there
is room. Bytes of one part keep their distances.

Which lives are cut, the steps at which most bytes live decide, from the worst one on: of the buffers that nobody works
on around that step the one that is away the longest, of equals the largest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.memory.plan import PACK_WORK
from graphopt.program.ram.contents import Owned
from graphopt.program.ram.units import page
from graphopt.program.ticketed import ticketed
from kernels.emit.layout import FETCH_ALIGNMENT
from kernels.kernel import Kernel
from kernels.listing import ALIGNMENT, Follow, Listing, Run, Ticketed, Wait
from memplan.packing.solve import solve
from memplan.problem import Buffer, MemoryProblem
from memplan.verify.packing import verify
from scheduler.chains import Chain

AHEAD = 1  # steps that a value is there before it is used, and still there after: while it is moved others run
LEAST = 64 << 10  # bytes of a value that is worth a move


@dataclass(frozen=True, slots=True)
class Away:
    """Bytes that are written to a file after one run, and read back before another."""

    offset: int  # in the file
    bytes: int
    origin: int  # in the arena
    target: int
    last: int  # the run that works on them last before they go
    next: int  # and the first one after
    users: tuple[int, ...]  # the runs that work on them before


@dataclass(frozen=True, slots=True)
class _Access:
    step: int
    run: int
    operand: int
    begin: int
    end: int
    writes: bool


@dataclass(slots=True)
class _Part:
    """Accesses of a value between two stays away."""

    accesses: list[_Access]
    gap: tuple[int, int] | None = None  # behind it: begin and end of the bytes that go

    @property
    def first(self) -> int:
        return self.accesses[0].step

    @property
    def last(self) -> int:
        return self.accesses[-1].step


def spilled(listing: Listing, owned: Owned, target: int, least: int = LEAST) -> tuple[Listing, tuple[Away, ...]] | None:
    """The listing with an arena of about `target` bytes, and what is away when; None where no more can leave.

    Buffers that leave have at least `least` bytes; `owned` are those of the arena, by run and operand.
    """
    program = listing.ticketed
    assert program is not None, "one for several workers"
    kernels = {one.name: one for one in listing.kernels}
    order = [run for run, _ in program.waits]
    values = [[_Part(value)] for value in _values(program, kernels, order, owned)]
    while (peak := _peak(values, len(order)))[1] > target:
        if not _cut_one(values, peak[0], least):
            return None
    offsets, arena = _packed(values, len(order))
    return _moved(listing, program, kernels, order, values, offsets, arena)


def _values(
    program: Ticketed, kernels: Mapping[str, Kernel], order: Sequence[int], owned: Owned
) -> list[list[_Access]]:  # fmt: skip
    """The accesses of each buffer, by steps."""
    found: dict[str, list[_Access]] = defaultdict(list)
    for step, run in enumerate(order):
        given = program.runs[run]
        for at, (operand, place) in enumerate(zip(kernels[given.kernel].operands, given.operands, strict=True)):
            owner = owned[run][at]
            if owner is not None:
                begin, end = place.offset, place.offset + operand.bytes
                found[owner[0]].append(_Access(step, run, at, begin, end, operand.role == "output"))
    return list(found.values())


def _peak(values: Sequence[Sequence[_Part]], steps: int) -> tuple[int, int]:
    """The step at which most bytes live, and how many."""
    changes = [0] * (steps + 1)
    for parts in values:
        for number in range(len(parts)):
            begin, end = _life(parts, number)
            size = _size(parts, number)
            changes[begin] += size
            changes[min(end, steps)] -= size
    live, worst = 0, (0, 0)
    for step, change in enumerate(changes[:-1]):
        live += change
        worst = max(worst, (live, -step))
    return -worst[1], worst[0]


def _life(parts: Sequence[_Part], number: int) -> tuple[int, int]:
    """The half-open range of steps in which a part is there; some more while it goes or comes."""
    part = parts[number]
    begin = part.first - (AHEAD if number else 0)
    return begin, part.last + 1 + (AHEAD if part.gap is not None else 0)


def _bytes(parts: Sequence[_Part], number: int) -> tuple[int, int]:
    """Begin and end of a part's bytes, as they lay, with what fills the pages of those that move."""
    part = parts[number]
    begin, end = min(one.begin for one in part.accesses), max(one.end for one in part.accesses)
    for moved in (part.gap, parts[number - 1].gap if number else None):
        if moved is not None:
            end = max(end, moved[0] + page(moved[1] - moved[0]))
    return begin, end


def _size(parts: Sequence[_Part], number: int) -> int:
    begin, end = _bytes(parts, number)
    return end - begin


def _cut_one(values: Sequence[list[_Part]], peak: int, least: int) -> bool:
    """Cut the life of a value that nobody works on around a step; False where there is none."""
    found: list[tuple[int, int, int, int]] = []
    for at, parts in enumerate(values):
        for number, part in enumerate(parts):
            steps = [one.step for one in part.accesses]
            last = max((step for step in steps if step + AHEAD < peak), default=None)
            following = min((step for step in steps if step - AHEAD > peak), default=None)
            if last is None or following is None or any(abs(step - peak) <= AHEAD for step in steps):
                continue
            gap = _gap(part, last)
            if gap is not None and gap[1] - gap[0] >= least:
                found.append((following - last, gap[1] - gap[0], -at, number))
    if not found:
        return False
    _, _, at, number = max(found)
    parts = values[-at]
    part = parts[number]
    last = max(one.step for one in part.accesses if one.step < peak)
    before = _Part([one for one in part.accesses if one.step <= last], _gap(part, last))
    after = _Part([one for one in part.accesses if one.step > last], part.gap)
    parts[number : number + 1] = [before, after]
    return True


def _gap(part: _Part, last: int) -> tuple[int, int] | None:
    """The bytes that are worked on both before and after."""
    before = [one for one in part.accesses if one.step <= last]
    after = [one for one in part.accesses if one.step > last and not one.writes]
    if not after:
        return None
    begin = max(min(one.begin for one in before), min(one.begin for one in after))
    end = min(max(one.end for one in before), max(one.end for one in after))
    return (begin, end) if begin < end else None


def _packed(values: Sequence[Sequence[_Part]], steps: int) -> tuple[dict[tuple[int, int], int], int]:
    """By value and part where it starts, and the bytes of the arena."""
    buffers = []
    for at, parts in enumerate(values):
        for number, part in enumerate(parts):
            begin, end = _life(parts, number)
            moves = part.gap is not None or number > 0
            alignment = FETCH_ALIGNMENT if moves else ALIGNMENT
            buffers.append(Buffer(f"{at}.{number}", _size(parts, number), begin, min(end, steps), alignment))
    problem = MemoryProblem(tuple(buffers), ALIGNMENT)
    packing = solve(problem, work=PACK_WORK)
    verify(problem, packing)
    offsets = {
        (at, number): packing.offsets[f"{at}.{number}"]
        for at, parts in enumerate(values) for number in range(len(parts))
    }  # fmt: skip
    return offsets, packing.arena_size


def _moved(
    listing: Listing, program: Ticketed, kernels: Mapping[str, Kernel], order: Sequence[int],
    values: Sequence[Sequence[_Part]], offsets: Mapping[tuple[int, int], int], arena: int,
) -> tuple[Listing, tuple[Away, ...]]:  # fmt: skip
    """The listing with other places, and what waits for what anew."""
    runs = [list(run.operands) for run in program.runs]
    away: list[Away] = []
    offset = 0
    for at, parts in enumerate(values):
        for number, part in enumerate(parts):
            shift = offsets[at, number] - _bytes(parts, number)[0]
            for one in part.accesses:
                place = runs[one.run][one.operand]
                runs[one.run][one.operand] = replace(place, offset=place.offset + shift)
            if part.gap is None:
                continue
            begin, size = part.gap[0], page(part.gap[1] - part.gap[0])
            target = offsets[at, number + 1] + begin - _bytes(parts, number + 1)[0]
            users = tuple(dict.fromkeys(one.run for one in part.accesses))
            last, following = order[part.last], order[parts[number + 1].first]
            away.append(Away(offset, size, begin + shift, target, last, following, users))
            offset += size
    placed = tuple(
        Run(run.kernel, tuple(operands), run.blocks) for run, operands in zip(program.runs, runs, strict=True)
    )
    chains: list[Chain] = []
    for step in program.steps:
        if isinstance(step, Follow):
            chains[-1] = replace(chains[-1], runs=(*chains[-1].runs, step.run))
        elif not isinstance(step, Wait):
            chains.append(Chain((step.run,), step.whole))
    made = ticketed(placed, kernels, chains, arena)
    return replace(listing, runs=placed, arena_bytes=arena, ticketed=made), tuple(away)
