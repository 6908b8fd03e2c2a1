"""What clashes with what: the rows that each section has, and for each row those that it shares a section with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.compiling import compiled
from memplan.packing.reduced import Ints, Reduced


class Sections(NamedTuple):
    """Flat lists: those of x stand from `..._at[x]` to `..._at[x + 1]`. (A named tuple, which numba takes apart.)"""

    size: Ints  # [rows]
    length: Ints  # [rows], steps
    alignment: Ints  # [rows]
    pinned: Ints  # [rows], -1: free
    range_at: Ints  # [rows + 1]
    range_begin: Ints  # sections
    range_end: Ints
    begin: Ints  # [rows], the first section
    end: Ints  # [rows], behind the last
    section_at: Ints  # [sections + 1]
    section_rows: Ints  # free rows
    pin_at: Ints  # [sections + 1]
    pin_rows: Ints  # pinned rows
    clash_at: Ints  # [rows + 1]
    clash_rows: Ints  # free rows first, then pinned ones
    clash_pins: Ints  # [rows], where the pinned ones begin


def sections(reduced: Reduced) -> Sections:
    """Sections and clashes of a problem; quadratic in its rows."""
    ranges = (reduced.range_at, reduced.range_begin, reduced.range_end)
    section_at, section_rows = _members(reduced.pinned, False, *ranges, reduced.sections)
    pin_at, pin_rows = _members(reduced.pinned, True, *ranges, reduced.sections)
    clash_at, clash_rows, clash_pins = _clashes(reduced.pinned, *ranges)
    return Sections(
        reduced.size, reduced.length, reduced.alignment, reduced.pinned, *ranges,
        reduced.range_begin[reduced.range_at[:-1]], reduced.range_end[reduced.range_at[1:] - 1],
        section_at, section_rows, pin_at, pin_rows, clash_at, clash_rows, clash_pins,
    )  # fmt: skip


@compiled
def _members(
    pinned: Ints, wanted: bool, range_at: Ints, range_begin: Ints, range_end: Ints, sections: int
) -> tuple[Ints, Ints]:
    """By section, the pinned rows or those that are not."""
    at = np.zeros(sections + 1, dtype=np.int64)
    for row in range(len(pinned)):
        if (pinned[row] >= 0) == wanted:
            for spot in range(range_at[row], range_at[row + 1]):
                for section in range(range_begin[spot], range_end[spot]):
                    at[section + 1] += 1
    for section in range(sections):
        at[section + 1] += at[section]
    rows = np.empty(at[sections], dtype=np.int64)
    filled = np.zeros(sections, dtype=np.int64)
    for row in range(len(pinned)):
        if (pinned[row] >= 0) == wanted:
            for spot in range(range_at[row], range_at[row + 1]):
                for section in range(range_begin[spot], range_end[spot]):
                    rows[at[section] + filled[section]] = row
                    filled[section] += 1
    return at, rows


@compiled
def _meet(one: int, other: int, range_at: Ints, range_begin: Ints, range_end: Ints) -> bool:
    first, second = range_at[one], range_at[other]
    while first < range_at[one + 1] and second < range_at[other + 1]:
        if range_begin[first] < range_end[second] and range_begin[second] < range_end[first]:
            return True
        if range_end[first] <= range_end[second]:
            first += 1
        else:
            second += 1
    return False


@compiled
def _clashes(pinned: Ints, range_at: Ints, range_begin: Ints, range_end: Ints) -> tuple[Ints, Ints, Ints]:
    rows = len(pinned)
    meets = np.zeros((rows, rows), dtype=np.bool_)
    at = np.zeros(rows + 1, dtype=np.int64)
    for row in range(rows):
        for other in range(row):
            if _meet(row, other, range_at, range_begin, range_end):
                meets[row, other] = meets[other, row] = True
                at[row + 1] += 1
                at[other + 1] += 1
    for row in range(rows):
        at[row + 1] += at[row]
    found = np.empty(at[rows], dtype=np.int64)
    pins = np.empty(rows, dtype=np.int64)
    for row in range(rows):
        to = at[row]
        for turn in range(2):
            for other in range(rows):
                if meets[row, other] and (pinned[other] >= 0) == (turn == 1):
                    found[to] = other
                    to += 1
            if turn == 0:
                pins[row] = to
    return at, found, pins
