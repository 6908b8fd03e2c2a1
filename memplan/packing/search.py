"""Exact packing under a capacity: a depth-first search over canonical packings, stopped and taken up at any node.

Rows are placed from the bottom up, each at the lowest offset that those placed before leave it. Every packing can be
pushed down into such a canonical one, so that an exhausted search proves that there is none. Cut away are:

- what would be placed below the last placement, or beside it against the preorder (the same packing comes up anyway);
- what would start where another row could have ended already: that one is placed first (dominance);
- a state with a section whose floor and unplaced rows exceed the capacity, where the floor is the top of what is
  placed, at least the lowest offset of an unplaced row and at least the last offset; likewise counted above the next
  distinct offset, where the rows that can lie below it do not count;
- alternatives to a placement that raises no other row;
- and where no unplaced row crosses from one section to the next, both sides are searched by themselves.

Source: Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023.
Pinned rows are not placed: they stand, and an offset that would run into one is raised above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit

from memplan.packing.reduced import Ints, Reduced

Outcome = Literal["found", "exhausted", "open"]
LENGTH, AREA, TOTAL, SIZE = 0, 1, 2, 3
# What decides first, second and third who is placed first of two rows at one offset; larger comes first.
PREORDERS = ((LENGTH, AREA, TOTAL), (TOTAL, AREA, LENGTH), (TOTAL, LENGTH, AREA))

# Scalars of a search that is stopped: see `_advance`.
_DEPTH, _OFF_TOP, _FLOOR_TOP, _LIST_TOP, _CANDIDATE_TOP, _CUT_TOP, _SIGNAL, _NODES = range(8)
_FRAME = 13  # numbers kept per level


@dataclass(frozen=True, slots=True)
class Sweep:
    """What clashes with what, once per problem: the free rows of each section, and of each row those it clashes with.

    Pairs are flat: those of x stand from `..._at[x]` to `..._at[x + 1]`.
    """

    reduced: Reduced
    section_at: Ints  # [sections + 1]
    section_rows: Ints  # free rows
    pin_at: Ints  # [sections + 1]
    pin_rows: Ints  # pinned rows
    clash_at: Ints  # [rows + 1]
    clash_rows: Ints  # free rows first, then pinned ones
    clash_free: Ints  # [rows], where the pinned ones begin
    begin: Ints  # [rows], the first section
    end: Ints  # [rows], behind the last


def sweep(reduced: Reduced) -> Sweep:
    """Sections and clashes of a problem."""
    rows, pinned = reduced.rows, reduced.pinned
    section_at, section_rows, pin_at, pin_rows, clash_at, clash_rows, clash_free = _sweep(
        reduced.pinned, reduced.range_at, reduced.range_begin, reduced.range_end, reduced.sections
    )
    return Sweep(
        reduced,
        section_at,
        section_rows,
        pin_at,
        pin_rows,
        clash_at,
        clash_rows,
        clash_free,
        reduced.range_begin[reduced.range_at[:-1]],
        reduced.range_end[reduced.range_at[1:] - 1],
    )


@njit(cache=True)  # type: ignore[untyped-decorator]
def _members(pinned, wanted, range_at, range_begin, range_end, sections):  # type: ignore[no-untyped-def]
    """Flat lists by section of the rows that are wanted."""
    at = np.zeros(sections + 1, dtype=np.int64)
    for row in range(len(pinned)):
        for spot in range(range_at[row], range_at[row + 1] if (pinned[row] >= 0) == wanted else range_at[row]):
            for section in range(range_begin[spot], range_end[spot]):
                at[section + 1] += 1
    for section in range(sections):
        at[section + 1] += at[section]
    rows = np.empty(at[sections], dtype=np.int64)
    free = np.empty(sections, dtype=np.int64)
    for section in range(sections):
        free[section] = at[section]
    for row in range(len(pinned)):
        for spot in range(range_at[row], range_at[row + 1] if (pinned[row] >= 0) == wanted else range_at[row]):
            for section in range(range_begin[spot], range_end[spot]):
                rows[free[section]] = row
                free[section] += 1
    return at, rows


@njit(cache=True)  # type: ignore[untyped-decorator]
def _meet(one, other, range_at, range_begin, range_end):  # type: ignore[no-untyped-def]
    first, second = range_at[one], range_at[other]
    while first < range_at[one + 1] and second < range_at[other + 1]:
        if range_begin[first] < range_end[second] and range_begin[second] < range_end[first]:
            return True
        if range_end[first] <= range_end[second]:
            first += 1
        else:
            second += 1
    return False


@njit(cache=True)  # type: ignore[untyped-decorator]
def _sweep(pinned, range_at, range_begin, range_end, sections):  # type: ignore[no-untyped-def]
    rows = len(pinned)
    section_at, section_rows = _members(pinned, False, range_at, range_begin, range_end, sections)
    pin_at, pin_rows = _members(pinned, True, range_at, range_begin, range_end, sections)
    meets = np.zeros((rows, rows), dtype=np.bool_)
    clash_at = np.zeros(rows + 1, dtype=np.int64)
    for row in range(rows):
        for other in range(row):
            if _meet(row, other, range_at, range_begin, range_end):
                meets[row, other] = meets[other, row] = True
                clash_at[row + 1] += 1
                clash_at[other + 1] += 1
    for row in range(rows):
        clash_at[row + 1] += clash_at[row]
    clash_rows = np.empty(clash_at[rows], dtype=np.int64)
    clash_free = np.empty(rows, dtype=np.int64)
    for row in range(rows):
        to = clash_at[row]
        for other in range(rows):
            if meets[row, other] and pinned[other] < 0:
                clash_rows[to] = other
                to += 1
        clash_free[row] = to
        for other in range(rows):
            if meets[row, other] and pinned[other] >= 0:
                clash_rows[to] = other
                to += 1
    return section_at, section_rows, pin_at, pin_rows, clash_at, clash_rows, clash_free


class Search:
    """One depth-first search with one preorder under one capacity, which can be continued."""

    def __init__(self, swept: Sweep, capacity: int, preorder: tuple[int, int, int]) -> None:
        reduced = swept.reduced
        rows, sections = reduced.rows, reduced.sections
        self.outcome: Outcome = "open"
        self.solution = np.where(reduced.pinned >= 0, reduced.pinned, -1).astype(np.int64)
        self._swept = swept
        self._capacity = capacity
        self._preorder = np.array(preorder, dtype=np.int64)
        self._keys = np.stack([reduced.length, reduced.length * reduced.size, np.zeros(rows, np.int64), reduced.size])
        self._offset = np.full(rows, -1, dtype=np.int64)
        self._least = np.zeros(rows, dtype=np.int64)
        self._floor = np.zeros(sections, dtype=np.int64)
        self._total = np.zeros(sections, dtype=np.int64)
        self._cuts = np.zeros(sections, dtype=np.int64)
        self._stamp = np.zeros(sections + 1, dtype=np.int64)
        self._scalars = np.zeros(8, dtype=np.int64)
        self._frames = np.zeros((2 * rows + 4, _FRAME), dtype=np.int64)
        self._logs = [np.zeros(64, dtype=np.int64) for _ in range(5)]
        if not _prepare(
            capacity, reduced.size, reduced.alignment, reduced.pinned, reduced.range_at, reduced.range_begin,
            reduced.range_end, swept.clash_at, swept.clash_rows, swept.clash_free, swept.begin, swept.end, self._least,
            self._total, self._cuts,
        ):  # fmt: skip
            self.outcome = "exhausted"

    def advance(self, nodes: int) -> Outcome:
        """Search at most so many nodes more."""
        if self.outcome != "open":
            return self.outcome
        swept, reduced = self._swept, self._swept.reduced
        code, *self._logs = _advance(
            nodes, self._capacity, reduced.size, reduced.alignment, reduced.pinned, reduced.range_at,
            reduced.range_begin, reduced.range_end, swept.section_at, swept.section_rows, swept.pin_at, swept.pin_rows,
            swept.clash_at, swept.clash_rows, swept.clash_free, swept.begin, swept.end, self._preorder, self._keys,
            self._offset, self.solution, self._least, self._floor, self._total, self._cuts, self._stamp, self._scalars,
            self._frames, *self._logs,
        )  # fmt: skip
        outcomes: tuple[Outcome, Outcome, Outcome] = ("open", "found", "exhausted")
        self.outcome = outcomes[code]
        return self.outcome


@njit(cache=True)  # type: ignore[untyped-decorator]
def _lifted(low, row, size, alignment, pinned, clash_at, clash_rows, clash_free):  # type: ignore[no-untyped-def]
    """The lowest offset from `low` on that suits the row's alignment and runs into no pinned row."""
    low = -(-low // alignment[row]) * alignment[row]
    again = True
    while again:
        again = False
        for spot in range(clash_free[row], clash_at[row + 1]):
            pin = clash_rows[spot]
            if low < pinned[pin] + size[pin] and pinned[pin] < low + size[row]:
                low = -(-(pinned[pin] + size[pin]) // alignment[row]) * alignment[row]
                again = True
    return low


@njit(cache=True)  # type: ignore[untyped-decorator]
def _prepare(
    capacity, size, alignment, pinned, range_at, range_begin, range_end, clash_at, clash_rows, clash_free, begin, end,
    least, total, cuts,
):  # type: ignore[no-untyped-def]  # fmt: skip
    for row in range(len(size)):
        if pinned[row] >= 0:
            if pinned[row] + size[row] > capacity:
                return False
            continue
        least[row] = _lifted(0, row, size, alignment, pinned, clash_at, clash_rows, clash_free)
        if least[row] + size[row] > capacity:
            return False
        for spot in range(range_at[row], range_at[row + 1]):
            for section in range(range_begin[spot], range_end[spot]):
                total[section] += size[row]
        for section in range(begin[row], end[row] - 1):
            cuts[section] += 1
    return True


@njit(cache=True)  # type: ignore[untyped-decorator]
def _grown(array, needed):  # type: ignore[no-untyped-def]
    if needed <= len(array):
        return array
    wider = np.zeros(max(needed, 2 * len(array)), dtype=np.int64)
    for spot in range(len(array)):
        wider[spot] = array[spot]
    return wider


@njit(cache=True)  # type: ignore[untyped-decorator]
def _sort_rows(rows, low, high, preorder, keys, total, range_at, range_begin, range_end):  # type: ignore[no-untyped-def]
    """Sort rows[low:high] by the preorder; nearly sorted mostly, so by insertion."""
    for spot in range(low, high):
        row, most = rows[spot], 0
        for one in range(range_at[row], range_at[row + 1]):
            for section in range(range_begin[one], range_end[one]):
                most = max(most, total[section])
        keys[2, row] = most
    first, second, third = keys[preorder[0]], keys[preorder[1]], keys[preorder[2]]
    for spot in range(low + 1, high):
        row, to = rows[spot], spot
        while to > low:
            other = rows[to - 1]
            if first[other] != first[row]:
                before = first[row] > first[other]
            elif second[other] != second[row]:
                before = second[row] > second[other]
            elif third[other] != third[row]:
                before = third[row] > third[other]
            else:
                before = row < other
            if not before:
                break
            rows[to] = other
            to -= 1
        rows[to] = row


@njit(cache=True)  # type: ignore[untyped-decorator]
def _fits(
    capacity, low, high, last, size, pinned, pin_at, pin_rows, floor, total
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Whether every section has room above its floor (or the last offset) for what is unplaced."""
    for section in range(low, high):
        bottom = max(floor[section], last)
        need = bottom + total[section]
        if need > capacity:
            return False
        for spot in range(pin_at[section], pin_at[section + 1]):
            pin = pin_rows[spot]
            need += max(0, pinned[pin] + size[pin] - max(bottom, pinned[pin]))
        if need > capacity and total[section] > 0:
            return False
    return True


@njit(cache=True)  # type: ignore[untyped-decorator]
def _advance(
    nodes, capacity, size, alignment, pinned, range_at, range_begin, range_end, section_at, section_rows, pin_at,
    pin_rows, clash_at, clash_rows, clash_free, begin, end, preorder, keys, offset, solution, least, floor, total,
    cuts, stamp, scalars, frames, off_log, floor_log, lists, candidates, points,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Search on. Returns 0 (stopped), 1 (found), 2 (exhausted), and the logs, which may have grown.

    A frame is a partition of rows at one state: which rows (`lists`), which sections, the candidates to be placed
    next, the one that is placed, where the logs of changed offsets and floors stood before, and the cut points of the
    parts that its placement leaves (`points`), of which some are done. Frame 0 places nothing; its parts are those of
    the problem. The signal says how the frame above ended: 0 none, 1 solved, 2 failed.
    """
    depth, off_top, floor_top = scalars[0], scalars[1], scalars[2]
    list_top, candidate_top, point_top, signal = scalars[3], scalars[4], scalars[5], scalars[6]
    sections = len(floor)
    outcome = 0
    if scalars[7] == 0:
        lists = _grown(lists, len(size))
        for row in range(len(size)):
            if pinned[row] < 0:
                lists[list_top] = row
                list_top += 1
        frames[0, 0], frames[0, 1], frames[0, 2], frames[0, 3] = 0, list_top, 0, sections
        frames[0, 5] = candidate_top
        frames[0, 6] = -1
        points = _grown(points, sections + 2)
        points[0] = 0
        point_top = 1
        for section in range(sections - 1):
            if cuts[section] == 0:
                points[point_top] = section + 1
                point_top += 1
        points[point_top] = sections
        point_top += 1
        frames[0, 9], frames[0, 10], frames[0, 11] = 0, point_top, 0
        depth, signal = 0, 1
    used = scalars[7]
    stop = used + nodes
    while True:
        if signal == 2:  # the placement of this frame does not work out: take it back
            if depth == 0:
                outcome = 2
                break
            signal = 0
            row = frames[depth, 6]
            while floor_top > frames[depth, 8]:
                floor_top -= 2
                floor[floor_log[floor_top]] = floor_log[floor_top + 1]
            raised = off_top > frames[depth, 7]
            while off_top > frames[depth, 7]:
                off_top -= 2
                least[off_log[off_top]] = off_log[off_top + 1]
            for one in range(range_at[row], range_at[row + 1]):
                for section in range(range_begin[one], range_end[one]):
                    total[section] += size[row]
            for section in range(begin[row], end[row] - 1):
                cuts[section] += 1
            offset[row] = -1
            frames[depth, 6] = -1
            point_top = frames[depth, 9]
            if not raised:
                frames[depth, 12] = frames[depth, 5]  # nothing was in its way: no other choice does better
        elif signal == 1:  # a part is solved, or (from frame 0 on) there are parts to be solved
            part, low, high = frames[depth, 11], np.int64(-1), np.int64(-1)
            count = frames[depth, 10] - frames[depth, 9]
            first = list_top
            while part + 1 < count and list_top == first:
                low, high = points[frames[depth, 9] + part], points[frames[depth, 9] + part + 1]
                part += 1
                lists = _grown(lists, list_top + frames[depth, 1] - frames[depth, 0])
                for spot in range(frames[depth, 0], frames[depth, 1]):
                    row = lists[spot]
                    if offset[row] < 0 and begin[row] < high and low < end[row]:
                        lists[list_top] = row
                        list_top += 1
            frames[depth, 11] = part
            if list_top > first:
                _sort_rows(lists, first, list_top, preorder, keys, total, range_at, range_begin, range_end)
                depth += 1
                frames[depth, 0], frames[depth, 1], frames[depth, 2], frames[depth, 3] = first, list_top, low, high
                frames[depth, 4], frames[depth, 5], frames[depth, 6] = 0, -1, -1
                frames[depth, 7], frames[depth, 8] = 0, 0  # the last offset and preorder, until candidates are chosen
                signal = 0
            elif depth == 0:
                outcome = 1
                break
            else:  # all parts are solved: so is this frame
                row = frames[depth, 6]
                while floor_top > frames[depth, 8]:
                    floor_top -= 2
                    floor[floor_log[floor_top]] = floor_log[floor_top + 1]
                while off_top > frames[depth, 7]:
                    off_top -= 2
                    least[off_log[off_top]] = off_log[off_top + 1]
                for one in range(range_at[row], range_at[row + 1]):
                    for section in range(range_begin[one], range_end[one]):
                        total[section] += size[row]
                for section in range(begin[row], end[row] - 1):
                    cuts[section] += 1
                offset[row] = -1
                point_top = frames[depth, 9]
                candidate_top = frames[depth, 4]
                if depth == 0 or frames[depth - 1, 1] < frames[depth, 1]:
                    list_top = max(frames[depth, 0], frames[depth - 1, 1])
                depth -= 1
            continue
        if frames[depth, 5] < 0:  # a frame that is entered: choose its candidates
            if used >= stop:
                break
            used += 1
            last, beside = frames[depth, 7], frames[depth, 8]
            height, unplaced = capacity + 1, 0
            for spot in range(frames[depth, 0], frames[depth, 1]):
                row = lists[spot]
                if offset[row] < 0:
                    unplaced += 1
                    height = min(height, least[row] + size[row])
            if unplaced == 0:
                frames[depth, 4] = candidate_top
                if frames[depth - 1, 1] < frames[depth, 1]:
                    list_top = frames[depth, 0]
                depth -= 1
                signal = 1
                continue
            candidates = _grown(candidates, candidate_top + unplaced)
            frames[depth, 4] = candidate_top
            for spot in range(frames[depth, 0], frames[depth, 1]):
                row = lists[spot]
                low = least[row]
                if offset[row] >= 0 or low >= height or low < last or (low == last and spot < beside):
                    continue
                to = candidate_top
                while to > frames[depth, 4] and least[lists[candidates[to - 1]]] > low:
                    candidates[to] = candidates[to - 1]
                    to -= 1
                candidates[to] = spot
                candidate_top += 1
            frames[depth, 5] = candidate_top
            frames[depth, 12] = frames[depth, 4]
        if frames[depth, 12] >= frames[depth, 5]:  # no candidate is left
            candidate_top = frames[depth, 4]
            if frames[depth - 1, 1] < frames[depth, 1]:
                list_top = frames[depth, 0]
            depth -= 1
            signal = 2
            continue
        spot = candidates[frames[depth, 12]]
        frames[depth, 12] += 1
        row = lists[spot]
        at = least[row]
        top = at + size[row]
        blocked = False
        for one in range(range_at[row], range_at[row + 1]):
            for section in range(range_begin[one], range_end[one]):
                if top + total[section] - size[row] > capacity:
                    blocked = True
        if blocked:  # what it leaves above itself is too little
            continue
        frames[depth, 6], frames[depth, 7], frames[depth, 8] = row, off_top, floor_top
        frames[depth, 9], frames[depth, 10], frames[depth, 11] = point_top, point_top, 0
        offset[row] = at
        solution[row] = at
        possible = True
        # Those that clash are raised.
        for one in range(clash_at[row], clash_free[row]):
            other = clash_rows[one]
            if offset[other] < 0 and least[other] < top:
                raised_to = _lifted(top, other, size, alignment, pinned, clash_at, clash_rows, clash_free)
                off_log = _grown(off_log, off_top + 2)
                off_log[off_top], off_log[off_top + 1] = other, least[other]
                off_top += 2
                least[other] = raised_to
                if raised_to + size[other] > capacity:
                    possible = False
                    break
        for one in range(range_at[row], range_at[row + 1]):
            for section in range(range_begin[one], range_end[one]):
                total[section] -= size[row]
                floor_log = _grown(floor_log, floor_top + 2)
                floor_log[floor_top], floor_log[floor_top + 1] = section, floor[section]
                floor_top += 2
                floor[section] = top
        for section in range(begin[row], end[row] - 1):
            cuts[section] -= 1
        possible = possible and _fits(
            capacity, frames[depth, 2], frames[depth, 3], at, size, pinned, pin_at, pin_rows, floor, total
        )
        if possible and off_top > frames[depth, 7]:
            # A section's floor is no lower than the lowest offset of what is unplaced in it.
            lowest_section, highest_section = sections, np.int64(0)
            for change in range(frames[depth, 7], off_top, 2):
                other = off_log[change]
                for one in range(range_at[other], range_at[other + 1]):
                    stamp[range_begin[one]] += 1
                    stamp[range_end[one]] -= 1
                lowest_section = min(lowest_section, begin[other])
                highest_section = max(highest_section, end[other])
            touched = 0
            for section in range(lowest_section, highest_section + 1):
                touched += stamp[section]
                stamp[section] = 0
                if touched == 0 or not possible:
                    continue
                bottom, lowest = floor[section], capacity + 1
                for member in range(section_at[section], section_at[section + 1]):
                    other = section_rows[member]
                    if offset[other] < 0 and least[other] < lowest:
                        lowest = least[other]
                        if lowest <= bottom:
                            break
                if bottom < lowest <= capacity:
                    floor_log = _grown(floor_log, floor_top + 2)
                    floor_log[floor_top], floor_log[floor_top + 1] = section, bottom
                    floor_top += 2
                    floor[section] = lowest
                    possible = _fits(
                        capacity, section, section + 1, at, size, pinned, pin_at, pin_rows, floor, total
                    )
        if not possible:
            signal = 2
            continue
        parts = 0
        for section in range(begin[row], end[row] - 1):
            if cuts[section] == 0:
                if parts == 0:
                    points = _grown(points, point_top + 2)
                    points[point_top] = frames[depth, 2]
                    point_top += 1
                points = _grown(points, point_top + 2)
                points[point_top] = section + 1
                point_top += 1
                parts += 1
        if parts:
            points[point_top] = frames[depth, 3]
            point_top += 1
            frames[depth, 10] = point_top
            signal = 1
        else:  # the same partition goes on
            frames[depth, 10], frames[depth, 11] = point_top, 0
            depth += 1
            for field in range(4):
                frames[depth, field] = frames[depth - 1, field]
            frames[depth, 4], frames[depth, 5], frames[depth, 6] = 0, -1, -1
            frames[depth, 7], frames[depth, 8] = at, spot
    scalars[0], scalars[1], scalars[2] = depth, off_top, floor_top
    scalars[3], scalars[4], scalars[5], scalars[6], scalars[7] = list_top, candidate_top, point_top, signal, used
    return outcome, off_log, floor_log, lists, candidates, points
