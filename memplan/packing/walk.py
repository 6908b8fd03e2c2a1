"""Branch and bound over placements, depth first: the compiled part of the exact search.

Everything compiled stands in this file together: numba's cache looks for changes only there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled, inner
from memplan.packing.reduced import Ints
from memplan.packing.sections import Sections

Floats = NDArray[np.float64]
Preorder = tuple[int, int, int]
OPEN, FOUND, EXHAUSTED = range(3)  # how a walk ended

LENGTH, AREA, TOTAL = range(3)  # what rows are sorted by: preorders name what decides first, second and third
# A frame is a partition of rows at one state of the search, and one row of it that is placed next. Frame 0 places
# nothing; its parts are those of the problem.
_FIRST, _LAST = 0, 1  # the partition's rows, in `lists`; in preorder
_BEGIN, _END = 2, 3  # its sections
_LOWEST, _BESIDE = 4, 5  # the last placement in it: the offset, and where in `lists` its row stands
_LISTS, _CANDIDATES = 6, 7  # how much of these stacks is below the frame
_NEXT, _STOP = 8, 9  # candidates that are not tried; -1: not chosen yet
_ROW = 10  # which is placed
_OFFSETS, _FLOORS, _POINTS = 11, 12, 13  # how much of these stacks was there before it was
_PART, _PARTS = 14, 15  # parts into which it cuts the partition: those done, and all (0: it cuts nothing)
FIELDS = 16

# How much of a stack is in use, by scalar of a state; then where the search is.
_IN_LISTS, _IN_CANDIDATES, _IN_OFFSETS, _IN_FLOORS, _IN_POINTS, _DEPTH, SIGNAL = range(7)
_GO_ON, _SOLVED, _FAILED, FRESH = range(4)  # what the frame above told; nothing is set up yet


class State(NamedTuple):
    """A search that stands still. What grows is allocated for the worst case; untouched pages cost nothing."""

    offset: Ints  # [rows], -1: not placed
    solution: Ints  # [rows], the last offset
    least: Ints  # [rows], the lowest offset that what is placed leaves
    keys: Floats  # [3, rows], by which preorders sort
    weight: Floats  # [rows], what a row's keys count for
    floor: Ints  # [sections]
    total: Ints  # [sections], sizes of unplaced rows
    cuts: Ints  # [sections], unplaced rows that go on into the next section
    touched: Ints  # [sections + 1], zero between calls
    frames: Ints  # [depth, fields]
    lists: Ints  # rows of partitions
    candidates: Ints  # places in `lists`
    offsets: Ints  # (row, least offset before)
    floors: Ints  # (section, floor before)
    points: Ints  # sections at which partitions are cut
    scalars: Ints


@inner
def _lifted(low: int, row: int, rows: Sections) -> int:
    """The lowest offset from `low` on that suits the row's alignment and runs into no pinned row."""
    step = rows.alignment[row]
    low = -(-low // step) * step
    again = True
    while again:
        again = False
        for spot in range(rows.clash_pins[row], rows.clash_at[row + 1]):
            pin = rows.clash_rows[spot]
            top = rows.pinned[pin] + rows.size[pin]
            if low < top and rows.pinned[pin] < low + rows.size[row]:
                low = -(-top // step) * step
                again = True
    return low


@inner
def _count(row: int, rows: Sections, state: State) -> None:
    """Count the row among the unplaced ones or no longer, whichever it has just become."""
    sign = 1 if state.offset[row] < 0 else -1
    for spot in range(rows.range_at[row], rows.range_at[row + 1]):
        for section in range(rows.range_begin[spot], rows.range_end[spot]):
            state.total[section] += sign * rows.size[row]
    for section in range(rows.begin[row], rows.end[row] - 1):
        state.cuts[section] += sign


@inner
def _begin(capacity: int, rows: Sections, state: State) -> bool:
    """Set up frame 0 with the parts of the problem; False where a row by itself does not fit."""
    for row in range(len(rows.size)):
        if rows.pinned[row] >= 0:
            if rows.pinned[row] + rows.size[row] > capacity:
                return False
            continue
        state.least[row] = _lifted(int(state.least[row]), row, rows)
        if state.least[row] + rows.size[row] > capacity:
            return False
        _count(row, rows, state)
        state.lists[state.scalars[_IN_LISTS]] = row
        state.scalars[_IN_LISTS] += 1
    sections, used = len(state.floor), 1
    state.points[0] = 0
    for section in range(sections):
        if section + 1 == sections or state.cuts[section] == 0:
            state.points[used] = section + 1
            used += 1
    root = state.frames[0]
    root[_LAST], root[_END] = state.scalars[_IN_LISTS], sections
    root[_ROW], root[_PARTS] = -1, used - 1
    state.scalars[_IN_POINTS] = used
    state.scalars[SIGNAL] = _SOLVED
    return True


@inner
def _sort(first: int, last: int, preorder: Preorder, rows: Sections, state: State) -> None:
    """Sort rows in `lists` by the preorder; they come nearly sorted mostly, so by insertion."""
    lists = state.lists
    for spot in range(first, last):
        row, most = lists[spot], 0
        for one in range(rows.range_at[row], rows.range_at[row + 1]):
            for section in range(rows.range_begin[one], rows.range_end[one]):
                most = max(most, state.total[section])
        state.keys[TOTAL, row] = most * state.weight[row]
    one, two, three = state.keys[preorder[0]], state.keys[preorder[1]], state.keys[preorder[2]]
    for spot in range(first + 1, last):
        row, to = lists[spot], spot
        while to > first:
            other = lists[to - 1]
            if one[other] != one[row]:
                before = one[row] > one[other]
            elif two[other] != two[row]:
                before = two[row] > two[other]
            elif three[other] != three[row]:
                before = three[row] > three[other]
            else:
                before = row < other
            if not before:
                break
            lists[to] = other
            to -= 1
        lists[to] = row


@inner
def _enter(depth: int, first: int, last: int, begin: int, end: int, frames: Ints, scalars: Ints) -> None:
    """A new frame, whose candidates are not chosen yet."""
    frame = frames[depth]
    frame[_FIRST], frame[_LAST], frame[_BEGIN], frame[_END] = first, last, begin, end
    frame[_LOWEST], frame[_BESIDE] = 0, 0
    frame[_LISTS], frame[_CANDIDATES] = scalars[_IN_LISTS], scalars[_IN_CANDIDATES]
    frame[_STOP], frame[_ROW] = -1, -1


@inner
def _next_part(depth: int, preorder: Preorder, rows: Sections, state: State) -> bool:
    """Enter the next part of a frame that has rows to be placed; False where there is none."""
    frame, scalars = state.frames[depth], state.scalars
    first = scalars[_IN_LISTS]
    while frame[_PART] < frame[_PARTS]:
        point = frame[_POINTS] + frame[_PART]
        begin, end, last = state.points[point], state.points[point + 1], first
        frame[_PART] += 1
        for spot in range(frame[_FIRST], frame[_LAST]):
            row = state.lists[spot]
            if state.offset[row] < 0 and rows.begin[row] < end and begin < rows.end[row]:
                state.lists[last] = row
                last += 1
        if last > first:
            _sort(first, last, preorder, rows, state)
            _enter(depth + 1, first, last, begin, end, state.frames, scalars)
            scalars[_IN_LISTS] = last
            return True
    return False


@inner
def _choose(depth: int, capacity: int, rows: Sections, state: State) -> bool:
    """Choose the candidates of a frame, by offset and then by preorder; False where every row is placed."""
    frame, used = state.frames[depth], state.scalars[_IN_CANDIDATES]
    height = capacity + 1
    for spot in range(frame[_FIRST], frame[_LAST]):
        row = state.lists[spot]
        if state.offset[row] < 0:
            height = min(height, state.least[row] + rows.size[row])
    if height > capacity:
        return False
    for spot in range(frame[_FIRST], frame[_LAST]):
        row = state.lists[spot]
        low = state.least[row]
        if state.offset[row] >= 0 or low >= height:
            continue
        if low < frame[_LOWEST] or (low == frame[_LOWEST] and spot < frame[_BESIDE]):
            continue
        to = used
        while to > frame[_CANDIDATES] and state.least[state.lists[state.candidates[to - 1]]] > low:
            state.candidates[to] = state.candidates[to - 1]
            to -= 1
        state.candidates[to] = spot
        used += 1
    state.scalars[_IN_CANDIDATES] = used
    frame[_NEXT], frame[_STOP] = frame[_CANDIDATES], used
    return True


@inner
def _fits(capacity: int, begin: int, end: int, last: int, rows: Sections, state: State) -> bool:
    """Whether every section has room above its floor, or the last offset, for what is unplaced."""
    for section in range(begin, end):
        bottom = max(state.floor[section], last)
        need = bottom + state.total[section]
        if state.total[section] > 0:
            for spot in range(rows.pin_at[section], rows.pin_at[section + 1]):
                pin = rows.pin_rows[spot]
                need += max(0, rows.pinned[pin] + rows.size[pin] - max(bottom, rows.pinned[pin]))
        if need > capacity:
            return False
    return True


@inner
def _leaves_room(row: int, capacity: int, rows: Sections, state: State) -> bool:
    """Whether what is unplaced beside the row fits above it; asked before anything is changed."""
    top = state.least[row]
    for spot in range(rows.range_at[row], rows.range_at[row + 1]):
        for section in range(rows.range_begin[spot], rows.range_end[spot]):
            if top + state.total[section] > capacity:
                return False
    return True


@inner
def _set_floor(section: int, height: int, floor: Ints, floors: Ints, scalars: Ints) -> None:
    used = scalars[_IN_FLOORS]
    floors[used], floors[used + 1] = section, floor[section]
    scalars[_IN_FLOORS] = used + 2
    floor[section] = height


@inner
def _place(depth: int, row: int, capacity: int, rows: Sections, state: State) -> bool:
    """Place the row of a frame at its least offset; False where the state that follows is cut away."""
    frame, scalars = state.frames[depth], state.scalars
    low = state.least[row]
    top = low + rows.size[row]
    frame[_ROW], frame[_OFFSETS], frame[_FLOORS] = row, scalars[_IN_OFFSETS], scalars[_IN_FLOORS]
    frame[_POINTS], frame[_PART], frame[_PARTS] = scalars[_IN_POINTS], 0, 0
    state.offset[row] = state.solution[row] = low
    _count(row, rows, state)
    for spot in range(rows.range_at[row], rows.range_at[row + 1]):
        for section in range(rows.range_begin[spot], rows.range_end[spot]):
            _set_floor(section, top, state.floor, state.floors, scalars)
    for spot in range(rows.clash_at[row], rows.clash_pins[row]):
        other = rows.clash_rows[spot]
        if state.offset[other] < 0 and state.least[other] < top:
            used = scalars[_IN_OFFSETS]
            state.offsets[used], state.offsets[used + 1] = other, state.least[other]
            scalars[_IN_OFFSETS] = used + 2
            state.least[other] = _lifted(top, other, rows)
            if state.least[other] + rows.size[other] > capacity:
                return False
    return _fits(capacity, frame[_BEGIN], frame[_END], low, rows, state) and _raise_floors(
        depth, low, capacity, rows, state
    )


@inner
def _raise_floors(depth: int, low: int, capacity: int, rows: Sections, state: State) -> bool:
    """Raise floors to the lowest offset of what is unplaced, where rows have just been raised; False: too high."""
    first, last = len(state.floor), 0
    for change in range(state.frames[depth, _OFFSETS], state.scalars[_IN_OFFSETS], 2):
        row = state.offsets[change]
        for spot in range(rows.range_at[row], rows.range_at[row + 1]):
            state.touched[rows.range_begin[spot]] += 1
            state.touched[rows.range_end[spot]] -= 1
        first, last = min(first, rows.begin[row]), max(last, rows.end[row])
    inside, fits = 0, True
    for section in range(first, last + 1):
        inside += state.touched[section]
        state.touched[section] = 0
        if inside == 0 or not fits:
            continue
        floor, lowest = state.floor[section], capacity + 1
        for spot in range(rows.section_at[section], rows.section_at[section + 1]):
            row = rows.section_rows[spot]
            if state.offset[row] < 0 and state.least[row] < lowest:
                lowest = state.least[row]
                if lowest <= floor:
                    break
        if floor < lowest <= capacity:
            _set_floor(section, lowest, state.floor, state.floors, state.scalars)
            fits = _fits(capacity, section, section + 1, low, rows, state)
    return fits


@inner
def _cut(depth: int, row: int, rows: Sections, state: State) -> int:
    """The parts into which the placed row cuts its partition; 0 where something crosses everywhere."""
    frame, used = state.frames[depth], state.scalars[_IN_POINTS]
    parts = 0
    for section in range(rows.begin[row], rows.end[row] - 1):
        if state.cuts[section] == 0:
            if parts == 0:
                state.points[used] = frame[_BEGIN]
                used, parts = used + 1, 1
            state.points[used] = section + 1
            used, parts = used + 1, parts + 1
    if parts:
        state.points[used] = frame[_END]
        state.scalars[_IN_POINTS] = used + 1
    frame[_PARTS] = parts
    return parts


@inner
def _take_back(depth: int, rows: Sections, state: State) -> bool:
    """Undo a frame's placement. Returns whether it had raised another row."""
    frame, scalars = state.frames[depth], state.scalars
    row = frame[_ROW]
    raised = bool(scalars[_IN_OFFSETS] > frame[_OFFSETS])
    while scalars[_IN_FLOORS] > frame[_FLOORS]:
        used = scalars[_IN_FLOORS] - 2
        state.floor[state.floors[used]] = state.floors[used + 1]
        scalars[_IN_FLOORS] = used
    while scalars[_IN_OFFSETS] > frame[_OFFSETS]:
        used = scalars[_IN_OFFSETS] - 2
        state.least[state.offsets[used]] = state.offsets[used + 1]
        scalars[_IN_OFFSETS] = used
    state.offset[row] = -1
    _count(row, rows, state)
    frame[_ROW] = -1
    scalars[_IN_POINTS] = frame[_POINTS]
    return raised


@compiled
def walk(nodes: int, capacity: int, preorder: Preorder, rows: Sections, state: State) -> int:
    """Search on from where it stands, through so many nodes at most."""
    frames, scalars = state.frames, state.scalars
    if scalars[SIGNAL] == FRESH and not _begin(capacity, rows, state):
        return EXHAUSTED
    depth, signal = scalars[_DEPTH], scalars[SIGNAL]
    outcome = OPEN
    while True:
        if signal == _SOLVED:
            if _next_part(depth, preorder, rows, state):
                depth, signal = depth + 1, _GO_ON
                continue
            if depth == 0:
                outcome = FOUND
                break
            if frames[depth, _ROW] >= 0:
                _take_back(depth, rows, state)
        elif signal == _FAILED:
            if depth == 0:
                outcome = EXHAUSTED
                break
            if not _take_back(depth, rows, state):
                frames[depth, _NEXT] = frames[depth, _STOP]  # nothing was in its way: no other choice does better
            signal = _GO_ON
        elif frames[depth, _STOP] < 0:
            if nodes == 0:
                break
            nodes -= 1
            if not _choose(depth, capacity, rows, state):
                signal = _SOLVED
        if signal == _GO_ON and frames[depth, _NEXT] < frames[depth, _STOP]:
            spot = state.candidates[frames[depth, _NEXT]]
            frames[depth, _NEXT] += 1
            row = state.lists[spot]
            if not _leaves_room(row, capacity, rows, state):
                continue
            low = state.least[row]
            if not _place(depth, row, capacity, rows, state):
                signal = _FAILED
            elif _cut(depth, row, rows, state):
                signal = _SOLVED  # what is left of it are its parts
            else:
                frame = frames[depth]
                depth += 1
                _enter(depth, frame[_FIRST], frame[_LAST], frame[_BEGIN], frame[_END], frames, scalars)
                frames[depth, _LOWEST], frames[depth, _BESIDE] = low, spot
            continue
        if signal == _GO_ON:
            signal = _FAILED  # no candidate is left
        scalars[_IN_LISTS], scalars[_IN_CANDIDATES] = frames[depth, _LISTS], frames[depth, _CANDIDATES]
        depth -= 1
    scalars[_DEPTH], scalars[SIGNAL] = depth, signal
    return outcome
