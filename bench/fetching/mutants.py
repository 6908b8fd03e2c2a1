"""Programs that fetch weights, with one thing changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from bench.fetching.subject import PAGE, PART, VALUE, Subject
from kernels.listing import Claim, FetchRows, InvalidListing, Moved, Run, Ticketed, Wait
from kernels.moves import Reload, Spill


def mutant(given: Subject, draw: random.Random) -> tuple[str, Subject | None]:
    """What was changed; None where the listing itself refuses it."""
    ticketed = given.listing.ticketed
    assert ticketed is not None
    kind, make = draw.choice(CHANGES)
    try:
        changed = make(ticketed, draw)
        listing = replace(given.listing, runs=changed.runs, ticketed=changed)
    except InvalidListing:
        return kind, None
    return kind, replace(given, listing=listing)


def _shift(draw: random.Random) -> int:
    return draw.choice([-2, -1, 1, 2]) * PAGE


def _fetch(ticketed: Ticketed, draw: random.Random, change: Callable[[Moved], Moved]) -> Ticketed:
    fetches = list(ticketed.fetches)
    at = draw.randrange(len(fetches))
    fetches[at] = change(fetches[at])
    return replace(ticketed, fetches=tuple(fetches))


def _from(one: Moved, shift: int) -> Moved:
    """The same from, or to, elsewhere in its file."""
    if isinstance(one, Spill | Reload):
        return replace(one, offset=max(0, one.offset + shift))
    return replace(one, source=max(0, one.source + shift))


def _resized(one: Moved) -> Moved:
    assert not isinstance(one, FetchRows), "there are no tables"
    return replace(one, bytes=one.bytes - PAGE)


def _untold(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    """A move that begins before those have ended which it has to wait for."""
    reloads = [at for at, one in enumerate(ticketed.fetches) if isinstance(one, Reload)]
    if not reloads:
        return _hasty(ticketed, draw)
    at = draw.choice(reloads)
    fetches = list(ticketed.fetches)
    one = fetches[at]
    assert isinstance(one, Reload)
    fetches[at] = replace(one, told=max(0, one.told - draw.choice([1, 2, 9])))
    return replace(ticketed, fetches=tuple(fetches))


def _moved(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    return _fetch(ticketed, draw, lambda one: replace(one, place=one.place + _shift(draw)))


def _from_elsewhere(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    return _fetch(ticketed, draw, lambda one: _from(one, _shift(draw)))


def _shorter(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    return _fetch(ticketed, draw, _resized)


def _hasty(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    return _fetch(ticketed, draw, lambda one: replace(one, after=tuple(sorted(one.after)[:-1])))


def _swapped(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    fetches = list(ticketed.fetches)
    one, other = draw.randrange(len(fetches)), draw.randrange(len(fetches))
    fetches[one], fetches[other] = fetches[other], fetches[one]
    return replace(ticketed, fetches=tuple(fetches))


def _another_below(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    """Other bytes into the same place just before: what comes last is not known."""
    at = draw.randrange(len(ticketed.fetches))
    one = ticketed.fetches[at]
    other = _from(one, _shift(draw))
    fetches = (*ticketed.fetches[:at], other, *ticketed.fetches[at:])
    return replace(ticketed, fetches=fetches, fetched=tuple(count + (count > at) for count in ticketed.fetched))


def _early(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    fetched = list(ticketed.fetched)
    at = draw.randrange(len(fetched))
    fetched[at] = max(0, fetched[at] - draw.choice([1, 1, 2, 5]))
    return replace(ticketed, fetched=tuple(fetched))


def _without_wait(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    waits = [at for at, step in enumerate(ticketed.steps) if isinstance(step, Wait)]
    at = draw.choice(waits)
    return replace(ticketed, steps=ticketed.steps[:at] + ticketed.steps[at + 1 :])


def _reordered(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    claims = [at for at, step in enumerate(ticketed.steps) if isinstance(step, Claim)]
    steps = list(ticketed.steps)
    one, other = draw.choice(claims), draw.choice(claims)
    steps[one], steps[other] = steps[other], steps[one]
    return replace(ticketed, steps=tuple(steps))


def _piece(ticketed: Ticketed, draw: random.Random, change: Callable[[Run], Run]) -> Ticketed:
    runs = list(ticketed.runs)
    at = draw.randrange(len(runs))
    runs[at] = change(runs[at])
    return replace(ticketed, runs=tuple(runs))


def _other_blocks(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    def change(run: Run) -> Run:
        first, end = run.blocks or (0, 1)
        by = draw.choice([-1, 1])
        return replace(run, blocks=draw.choice([(first + by, end + by), (first, end + by), (first + by, end)]))

    return _piece(ticketed, draw, change)


def _other_place(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    def change(run: Run) -> Run:
        at = draw.randrange(len(run.operands))
        one = run.operands[at]
        by = _shift(draw) if one.part is not None else draw.choice([-VALUE, VALUE])
        return replace(
            run, operands=(*run.operands[:at], replace(one, offset=one.offset + by), *run.operands[at + 1 :])
        )

    return _piece(ticketed, draw, change)


def _other_part(ticketed: Ticketed, draw: random.Random) -> Ticketed:
    def change(run: Run) -> Run:
        operands = list(run.operands)
        for at, one in enumerate(operands):
            if one.part is not None:
                by = draw.choice([-PART, PART])
                operands[at] = replace(one, part=(one.part[0] + by, one.part[1] + by))
        return replace(run, operands=tuple(operands))

    return _piece(ticketed, draw, change)


CHANGES: tuple[tuple[str, Callable[[Ticketed, random.Random], Ticketed]], ...] = (
    ("a fetch to another place", _moved), ("a fetch from elsewhere", _from_elsewhere), ("a shorter fetch", _shorter),
    ("a fetch that waits for less", _hasty), ("two fetches swapped", _swapped),
    ("two fetches to one place", _another_below), ("a reload before its spill", _untold),
    ("a run before its fetch", _early),
    ("a wait left out", _without_wait), ("two claims swapped", _reordered), ("other blocks", _other_blocks),
    ("an operand elsewhere", _other_place), ("another part", _other_part),
)  # fmt: skip
