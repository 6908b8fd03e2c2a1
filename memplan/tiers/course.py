"""The course of a unit through tiers (its placement trajectory): its periods, and from what each holds to stays.

A unit's life is cut into periods: each use is one (a single step), and so is every gap between uses that is not empty.
During a period, the set of tiers that hold the unit does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memplan.tiers.placement import Unit, Use

WINDOW = 15  # operators after and before a use beside which a copy may run, as in AutoTM


@dataclass(frozen=True, slots=True)
class Period:
    """The half-open range of steps [begin, end); a use is one step long."""

    begin: int
    end: int
    use: Use | None = None  # None: a gap


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy from one tier (by number) to another, that makes the period hold the target."""

    source: int
    target: int
    step: int
    overlapped: bool


@dataclass(frozen=True, slots=True)
class Course:
    """Where a unit lies: by period the tiers that hold it (bit t: tier t), and the copies that lead into the period."""

    held: tuple[int, ...]
    copies: Mapping[int, tuple[Copy, ...]]


def periods(unit: Unit) -> tuple[Period, ...]:
    """The periods of a unit's life, in order."""
    found, last = [], unit.begin
    for use in unit.uses:
        if use.step > last:
            found.append(Period(last, use.step))
        found.append(Period(use.step, use.step + 1, use))
        last = use.step + 1
    if unit.end > last:
        found.append(Period(last, unit.end))
    return tuple(found)


def stays_in(unit: Unit, tier: int) -> Course:
    """The course that never leaves a tier."""
    return Course((1 << tier,) * len(periods(unit)), {})


def fastest(held: int) -> int:
    """The number of the fastest tier among those held: where an operator reads and writes."""
    return (held & -held).bit_length() - 1


def windows(gap: Period) -> tuple[range, range]:
    """The steps beside which a copy may run after the use before a gap, and before the use behind it; disjoint."""
    middle = (gap.begin + gap.end) // 2
    return range(gap.begin, min(gap.begin + WINDOW, middle)), range(max(gap.end - WINDOW, middle), gap.end)


def ranges(course: Course, cut: Sequence[Period], tiers: int) -> list[tuple[int, int, int]]:
    """The stays of a course: (tier, begin, end), by begin."""
    found = []
    for tier in range(tiers):
        begin: int | None = None
        for number, period in enumerate(cut):
            arrives = [copy.step for copy in course.copies.get(number, ()) if copy.target == tier]
            leaves = [
                copy.step + 1 for copy in course.copies.get(number, ()) if copy.source == tier and copy.overlapped
            ]
            stale = number > 0 and _stale(course.held[number - 1], cut[number - 1], tier)
            holds = bool(course.held[number] >> tier & 1)
            if begin is not None and (not holds or stale):
                end = max([period.begin, *leaves]) if not stale else period.begin
                found.append((tier, begin, end))
                begin = None
            if holds and begin is None:
                begin = min(arrives, default=period.begin)
        if begin is not None:
            found.append((tier, begin, cut[-1].end))
    return sorted(found, key=lambda stay: (stay[1], stay[0]))


def _stale(held: int, period: Period, tier: int) -> bool:
    """Whether the copy in `tier` is no longer valid after a period: the step wrote into a faster one."""
    return period.use is not None and period.use.changes and fastest(held) != tier
