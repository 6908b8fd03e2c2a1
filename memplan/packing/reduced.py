"""A packing problem as plain arrays: one row for every place that is to be found, sizes and times as small as they go.

What lies in another buffer goes with it, buffers of one layout share places, empty buffers need none; offsets of the
rows give those of all buffers back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memplan.bounds import alias_classes
from memplan.errors import MemplanError
from memplan.problem import MemoryProblem

Ints = NDArray[np.int64]
Ranges = tuple[tuple[int, int], ...]


class CannotFit(MemplanError):
    """No packing is there, or none was found in the time allowed: the message says which, and by how much."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """Rows to be placed. Sizes and offsets count in `unit` bytes, times in sections.

    A section is a largest set of rows that are needed at once: rows clash if and only if they share a section
    (Moffitt, "MiniMalloc", ASPLOS 2023).
    """

    unit: int  # bytes
    size: Ints  # [rows], at least 1
    alignment: Ints  # [rows]
    pinned: Ints  # [rows], -1: free
    length: Ints  # [rows], steps from the first need to the last
    range_at: Ints  # [rows + 1], where each row's ranges begin in the two arrays below
    range_begin: Ints  # sections, half-open
    range_end: Ints
    sections: int
    bound: int  # no packing is smaller
    exact: bool  # the least arena of the rows is the least arena of the problem
    names: tuple[tuple[str, ...], ...]  # [rows], the buffers that lie at the row's place

    @property
    def rows(self) -> int:
        """How many places are to be found."""
        return len(self.size)

    def height(self, offsets: Ints) -> int:
        """The arena that rows at these offsets take."""
        return max(int((offsets + self.size).max(initial=0)), self.lowest)

    @property
    def lowest(self) -> int:
        """The arena that pinned rows ask for by themselves."""
        tops = (self.pinned + self.size)[self.pinned >= 0]
        return int(tops.max(initial=0))


@dataclass(slots=True)
class _Row:
    """A row while rows are gathered; sizes in bytes, times in steps."""

    size: int
    alignment: int
    pinned: int
    ranges: Ranges
    names: list[str]


def reduce(problem: MemoryProblem) -> Reduced:
    """The rows of a problem. Raises CannotFit where two pinned buffers need the same bytes at one step."""
    by_name = {buffer.name: buffer for buffer in problem.buffers}
    granularity = problem.granularity
    free: list[_Row] = []
    groups: dict[tuple[str, int], list[_Row]] = {}
    for root, ranges in alias_classes(problem).items():
        buffer = by_name[root]
        if buffer.size == 0:
            continue
        size = -(-buffer.size // granularity) * granularity
        pinned = -1 if buffer.offset is None else buffer.offset
        row = _Row(size, problem.alignment_of(buffer), pinned, ranges, [root])
        if buffer.layout is None:
            free.append(row)
        else:
            groups.setdefault((buffer.layout, buffer.size), []).append(row)
    begin = min((row.ranges[0][0] for row in _all(free, groups)), default=0)
    end = max((row.ranges[-1][1] for row in _all(free, groups)), default=1)
    exact, spare = True, 0
    for _, group in sorted(groups.items()):
        slots, unneeded, alike = _slots(group, (begin, end))
        exact = exact and unneeded == 0 and alike
        spare += unneeded * group[0].size
        free.extend(slots)
    _refuse_clashes(free)
    return _arrays(free, exact, spare)


def expand(problem: MemoryProblem, reduced: Reduced, offsets: Ints) -> dict[str, int]:
    """The offsets of all buffers in bytes, from those of the rows."""
    found: dict[str, int] = {}
    for names, offset in zip(reduced.names, offsets.tolist(), strict=True):
        for name in names:
            found[name] = offset * reduced.unit
    by_name = {buffer.name: buffer for buffer in problem.buffers}
    for buffer in problem.buffers:
        chain = [buffer]
        while chain[-1].name not in found and chain[-1].alias is not None:
            chain.append(by_name[chain[-1].alias.of])
        found.setdefault(chain[-1].name, chain[-1].offset or 0)  # an empty one
        for inner, outer in zip(reversed(chain[:-1]), reversed(chain), strict=False):
            assert inner.alias is not None, "only an alias is followed"
            found[inner.name] = found[outer.name] + inner.alias.at
    return {buffer.name: found[buffer.name] for buffer in problem.buffers}


def empty_pins(problem: MemoryProblem) -> int:
    """Bytes that empty buffers ask for by where they are pinned: an arena reaches at least there."""
    return max((buffer.offset or 0 for buffer in problem.buffers if buffer.size == 0), default=0)


def rows_of(reduced: Reduced, offsets: Mapping[str, int]) -> Ints | None:
    """The rows' offsets from those of the buffers; None where they cannot be (one place is at two offsets)."""
    found = []
    for names in reduced.names:
        at = {offsets.get(name, -1) for name in names}
        if len(at) != 1 or min(at) < 0 or min(at) % reduced.unit:
            return None
        found.append(at.pop() // reduced.unit)
    return np.array(found, dtype=np.int64)


def _all(free: list[_Row], groups: Mapping[tuple[str, int], list[_Row]]) -> list[_Row]:
    return free + [row for group in groups.values() for row in group]


def _meet(one: Ranges, other: Ranges) -> bool:
    first = second = 0
    while first < len(one) and second < len(other):
        if one[first][0] < other[second][1] and other[second][0] < one[first][1]:
            return True
        if one[first][1] <= other[second][1]:
            first += 1
        else:
            second += 1
    return False


def _slots(group: list[_Row], whole: tuple[int, int]) -> tuple[list[_Row], int, bool]:
    """Places for the buffers of one layout and size, how many more than needed, and whether all want one alignment.

    Bytes under a layout stay under it, so that a place is taken from the first step to the last. Taken by when they
    begin, intervals need as many places as are live at once; with gaps or pins it may be one more.
    """
    slots: list[_Row] = []
    for row in sorted(group, key=lambda row: (row.pinned < 0, row.ranges[0][0], row.names)):
        for slot in slots:
            if row.pinned in (-1, slot.pinned) and not _meet(row.ranges, slot.ranges):
                break
        else:
            if row.pinned >= 0 and any(slot.pinned == row.pinned for slot in slots):
                other = next(slot for slot in slots if slot.pinned == row.pinned)
                raise CannotFit(f"{_pinned(row)} and {_pinned(other)} need the same bytes at one step.")
            slot = _Row(row.size, row.alignment, row.pinned, (), [])
            slots.append(slot)
        slot.ranges = tuple(sorted(slot.ranges + row.ranges))
        slot.names += row.names
        slot.alignment = math.lcm(slot.alignment, row.alignment)
    alike = len({row.alignment for row in group}) == 1
    pins = len({row.pinned for row in group} - {-1})
    for slot in slots:
        slot.ranges = (whole,)
    return slots, len(slots) - max(pins, _most_at_once(group)), alike


def _most_at_once(group: list[_Row]) -> int:
    changes: dict[int, int] = {}
    for row in group:
        for begin, end in row.ranges:
            changes[begin] = changes.get(begin, 0) + 1
            changes[end] = changes.get(end, 0) - 1
    most = live = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most


def _refuse_clashes(rows: list[_Row]) -> None:
    pinned = sorted((row for row in rows if row.pinned >= 0), key=lambda row: (row.pinned, row.names))
    active: list[_Row] = []
    for row in pinned:
        active = [other for other in active if other.pinned + other.size > row.pinned]
        for other in active:
            if _meet(row.ranges, other.ranges):
                raise CannotFit(f"{_pinned(other)} and {_pinned(row)} need the same bytes at one step.")
        active.append(row)


def _pinned(row: _Row) -> str:
    return f"buffer '{row.names[0]}' (pinned to {row.pinned})"


def _arrays(rows: list[_Row], exact: bool, spare: int) -> Reduced:
    unit = _unit(rows)
    ranges = [one for row in rows for one in row.ranges]
    counts = [len(row.ranges) for row in rows]
    begins = np.array([begin for begin, _ in ranges], dtype=np.int64)
    ends = np.array([end for _, end in ranges], dtype=np.int64)
    steps = np.unique(np.concatenate([begins, ends]))
    first, last = np.searchsorted(steps, begins), np.searchsorted(steps, ends)
    section = _closed(first, last, len(steps))
    size = np.array([row.size // unit for row in rows], dtype=np.int64)
    range_at = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
    range_begin, range_end = section[first], section[last]
    sections = int(range_end.max(initial=0))
    live = np.zeros(sections + 1, dtype=np.int64)
    sizes = np.repeat(size, counts)
    np.add.at(live, range_begin, sizes)
    np.add.at(live, range_end, -sizes)
    peak = int(np.cumsum(live).max(initial=0)) - spare // unit
    pinned = np.array([row.pinned // unit if row.pinned >= 0 else -1 for row in rows], dtype=np.int64)
    return Reduced(
        unit=unit,
        size=size,
        alignment=np.array([max(1, row.alignment // unit) for row in rows], dtype=np.int64),
        pinned=pinned,
        length=np.array([row.ranges[-1][1] - row.ranges[0][0] for row in rows], dtype=np.int64),
        range_at=range_at,
        range_begin=range_begin,
        range_end=range_end,
        sections=sections,
        bound=max(peak, int((pinned + size)[pinned >= 0].max(initial=0))),
        exact=exact,
        names=tuple(tuple(row.names) for row in rows),
    )


def _unit(rows: list[_Row]) -> int:
    """The largest number of bytes that all offsets may be counted in.

    Buffers pushed down as far as they go lie at sums of sizes, rounded up to alignments. All of these are multiples
    of a unit that divides sizes and pins, and every alignment or is divided by it.
    """
    unit = math.gcd(*(row.size for row in rows), *(row.pinned for row in rows if row.pinned >= 0)) or 1
    alignments = {row.alignment for row in rows}
    while odd := [one for one in sorted(alignments) if unit % one and one % unit]:
        unit = math.gcd(unit, odd[0])
    return unit


def _closed(first: Ints, last: Ints, steps: int) -> Ints:
    """By step: how many sections are over. One is over where a range ends after another has begun."""
    begins = np.zeros(steps, dtype=np.bool_)
    ends = np.zeros(steps, dtype=np.bool_)
    begins[first] = True
    ends[last] = True
    closed, count, fresh = [], 0, False
    for begun, ended in zip(begins.tolist(), ends.tolist(), strict=True):
        if ended and fresh:
            count, fresh = count + 1, False
        fresh = fresh or begun
        closed.append(count)
    return np.array(closed, dtype=np.int64)
