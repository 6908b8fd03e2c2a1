"""What the checker of programs that fetch weights refuses: all that an adversary of the scheduler can break."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench.fetching.__main__ import tally
from bench.fetching.adversary import broken
from bench.fetching.subject import Subject, subject
from graphopt.errors import VerificationError
from graphopt.program.ram.check import check_streamed
from kernels.listing import Fetch, InvalidListing, Ticketed
from kernels.moves import Reload, Spill


def _subject(seed: int, least: int = 6) -> Subject:
    """A program with at least so many fetches of which one waits for a run."""
    draw = random.Random(seed)
    while True:
        given = subject(draw)
        if given is not None and given.listing.ticketed is not None:
            fetches = given.listing.ticketed.fetches
            if len(fetches) >= least and any(one.after for one in fetches):
                return given


def _with(given: Subject, **changes: object) -> Subject:
    ticketed = given.listing.ticketed
    assert ticketed is not None
    changed: Ticketed = replace(ticketed, **changes)  # type: ignore[arg-type]
    return replace(given, listing=replace(given.listing, runs=changed.runs, ticketed=changed))


def _check(given: Subject) -> None:
    check_streamed(given.whole, given.weights, given.listing, given.file, given.owned)


def test_nothing_that_breaks_is_missed() -> None:
    found = tally(400, seed=11)
    assert sum(row.missed for row in found.values()) == 0
    assert sum(row.refused for row in found.values()) > 250 and all(row.made for row in found.values())


def test_the_adversary_finds_a_read_into_a_place_that_a_kernel_uses() -> None:
    given = _subject(1)
    ticketed = given.listing.ticketed
    assert ticketed is not None
    hasty = tuple(replace(one, after=()) for one in ticketed.fetches)
    other = _with(given, fetches=hasty)
    assert broken(other, random.Random(0), 60) is not None
    with pytest.raises(VerificationError, match="writes where run"):
        _check(other)


def test_a_fetch_that_waits_for_a_run_behind_it_is_no_listing() -> None:
    given = _subject(2)
    ticketed = given.listing.ticketed
    assert ticketed is not None
    first = ticketed.fetches[0]
    assert isinstance(first, Fetch)
    last = ticketed.waits[-1][0]
    with pytest.raises(InvalidListing, match="they would wait for ever"):
        _with(given, fetches=(replace(first, after=(last,)), *ticketed.fetches[1:]))


def test_other_bytes_in_the_file_are_seen() -> None:
    given = _subject(3)
    ticketed = given.listing.ticketed
    assert ticketed is not None
    file = given.file.copy()
    file[file.size - ticketed.fetched_bytes + ticketed.fetches[-1].source] ^= 1
    with pytest.raises(VerificationError, match="is not what the program reads there"):
        _check(replace(given, file=file))


def test_sentences_of_listings_that_cannot_be() -> None:
    given = _subject(4)
    ticketed = given.listing.ticketed
    assert ticketed is not None
    one = ticketed.fetches[0]
    assert isinstance(one, Fetch)
    for changes, sentence in (
        ({"fetches": (replace(one, place=ticketed.arena_bytes), *ticketed.fetches[1:])}, "of the arena, which has"),
        ({"fetches": (replace(one, source=ticketed.fetched_bytes), *ticketed.fetches[1:])}, "fetch 0 takes"),
        ({"fetched": ticketed.fetched[1:]}, "runs say what is fetched before them"),
        ({"fetched": (len(ticketed.fetches) + 1, *ticketed.fetched[1:])}, "waits for"),
        ({"runs": (replace(ticketed.runs[0], blocks=(0, 10_000)), *ticketed.runs[1:])}, "runs blocks 0 to 10000"),
    ):
        with pytest.raises(InvalidListing, match=sentence):
            _with(given, **changes)


def _spilling() -> tuple[Subject, int, int]:
    """A program that spills, and the numbers of a spill that waits for runs and of its reload."""
    draw = random.Random(9)
    while True:
        given = subject(draw)
        moves = () if given is None or given.listing.ticketed is None else given.listing.ticketed.fetches
        for number, one in enumerate(moves):
            if isinstance(one, Reload) and given is not None:
                (spill,) = (
                    at for at, other in enumerate(moves) if isinstance(other, Spill) and other.offset == one.offset
                )
                return given, spill, number


def _changed(given: Subject, number: int, **changes: object) -> Subject:
    assert given.listing.ticketed is not None
    moves = list(given.listing.ticketed.fetches)
    moves[number] = replace(moves[number], **changes)  # type: ignore[arg-type]
    return _with(given, fetches=tuple(moves))


def test_other_bytes_of_the_temporary_file_are_seen() -> None:
    given, spill, reload = _spilling()
    _check(given)
    moves = given.listing.ticketed.fetches if given.listing.ticketed is not None else ()
    for other, sentence in (
        (_changed(given, reload, offset=moves[reload].offset + 1), "another value"),  # type: ignore[union-attr]
        (_changed(given, spill, bytes=moves[spill].bytes // 8), "another value"),
    ):
        with pytest.raises(VerificationError, match=sentence):
            _check(other)
