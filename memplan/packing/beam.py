"""Packing outward from the peak, many packings side by side: after each row those that waste least are kept.

A packing is judged by its holes and by who lies beside whom. A hole counts for itself and for as long as both its
neighbours stay, hardly by its size: what is placed in it leaves another, until it is filled exactly. Neighbours count
that leave at different times, the more the nearer they lie: what leaves together leaves one large hole. A row goes to
either end of the hole that adds least to this sum.

Side by side, packings differ by a row or two at first; a little chance in what is chosen keeps them from becoming one.
The weights were found by measurement. On 16 evenly drawn instances of 20,000 buffers, the side that a stack was sorted
for rose to 0.51 % above the bound on average with one packing, 0.39 % with 8 side by side and 0.24 % with 32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled, inner
from memplan.packing.greedy import Placed
from memplan.packing.outward import Side, at_peak, sides
from memplan.packing.reduced import Ints, Reduced
from memplan.work import Work

SOLVER = "beam outward from the peak"
_HALF = 0.08  # mean sizes: a hole of this size counts half as much as the largest
_STAYING = 0.36  # of what a hole counts: the share that grows with its time
_APART = 0.5  # neighbours that leave at quite different times, against a hole
_HALF_APART = 0.06  # mean lives: neighbours that leave so far apart count half as much
_NEAR = 0.5  # mean sizes: neighbours with such a hole between them count half as much
_CHANCE = 0.15  # of a hole: what chance adds to a choice at most
_ENDS = 2  # best places for a row, of each packing
_LOOKS_PER_STEP, _STEPS_PER_FIT = 3, 15  # a slot that is looked at; a hole that a row fits in
_MIXES = (32.0, 8.0, 1.0, 1 / 8, 1 / 32)  # a row lies low if its begin, times this, is nearer to the peak than its end
_ANY_HEIGHT = 1 << 62
_BOTTOM, _TOP, _FIRST = 0, 1, 2  # slots: the arena's ends, and those of rows

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Half:
    """What a stack and one direction of time have given: the offsets of the rows that come there."""

    height: int
    near: int  # of the arrivals near the peak; what comes later has little to do with the stack
    offsets: Ints  # [arrivals]


class Beam:
    """Packings of one problem, which has no pinned row. A row is taken to need its bytes in its gaps too."""

    def __init__(self, reduced: Reduced) -> None:
        assert not (reduced.pinned >= 0).any(), "pinned rows cannot be stacked"
        self._reduced = reduced
        self._sides = sides(reduced)
        self._stacks, self._mixes = _stacks(reduced, self._sides[0])
        self._halves: dict[tuple[int, int], _Half] = {}  # the best by stack and side
        self._runs = 0

    def stacks(self) -> list[int]:
        """The stacks to begin with, first those whose higher side has been lowest so far, near the peak and then on."""
        highest = dict.fromkeys(range(len(self._stacks)), (0, 0))
        for (stack, _), half in self._halves.items():
            near, height = highest[stack]
            highest[stack] = max(near, half.near), max(height, half.height)
        return sorted(highest, key=lambda stack: (highest[stack], stack))

    def mixed(self) -> int | None:
        """A new stack, halfway between the two mixes where the higher side changes; None where it does not, or where a
        stack is at the bound near the peak on both sides.

        With a larger mix the side behind the peak gets lower, and the one before it higher. Mixes count that have been
        packed on both sides.
        """
        heights = {
            mix: [(half.near, half.height) for half in (self._halves[stack, 0], self._halves[stack, 1])]
            for stack, mix in self._mixes.items()
            if (stack, 0) in self._halves and (stack, 1) in self._halves
        }
        between = [
            (min(max(heights[low]), max(heights[high])), low, high)
            for low, high in pairwise(sorted(heights))
            if heights[low][0] > heights[low][1] and heights[high][0] < heights[high][1]
        ]
        met = any(max(near for near, _ in sides) <= self._reduced.bound for sides in heights.values())
        if met or not between:
            return None
        _, low, high = min(between)
        mix = math.sqrt(low * high)
        stack = at_peak(self._reduced)
        self._mixes[len(self._stacks)] = mix
        self._stacks.append(_sorted(stack, _mixed(stack, self._sides[0], mix)))
        return len(self._stacks) - 1

    def below(self, height: int | None, stack: int, width: int, work: Work, back: int | None = None) -> Placed | None:
        """A packing lower than `height` from one stack, with `width` packings side by side; None where none is found.

        Each side keeps its best: where one side has been low enough before, only the other one is packed again: all of
        it, or from so many arrivals `back` on before the first that lies too high. With no height, any packing will do.
        """
        most = _ANY_HEIGHT if height is None else height - 1
        offsets = np.full(self._reduced.rows, -1, dtype=np.int64)
        _pile(self._stacks[stack], self._reduced, offsets)
        for number, side in enumerate(self._sides):
            half = self._halves.get((stack, number))
            if half is None or half.height > most:
                self._runs += 1
                kept = 0
                if half is not None and back is not None:
                    tops = half.offsets + self._reduced.size[side.arrivals]
                    kept = max(0, int(np.argmax(tops > most)) - back)
                    offsets[side.arrivals[:kept]] = half.offsets[:kept]
                half = self._half(side, self._stacks[stack], offsets, kept, most, width, work)
                if half is None:
                    return None
                self._halves[stack, number] = half
            offsets[side.arrivals] = half.offsets
        return Placed(offsets, self._reduced.height(offsets), SOLVER)

    def _half(
        self, side: Side, stack: Ints, offsets: Ints, kept: int, most: int, width: int, work: Work
    ) -> _Half | None:
        """Pack one side of a stack; its first arrivals, as many as are `kept`, lie where `offsets` have them."""
        reduced = self._reduced
        before, arrivals = np.concatenate([stack, side.arrivals[:kept]]), side.arrivals[kept:]
        top = int((offsets[before] + reduced.size[before]).max(initial=0))
        if top > most:
            return None
        live = before[side.end[before] > side.begin[arrivals[0]]] if kept else before
        live = live[np.argsort(offsets[live], kind="stable")]
        rows = np.concatenate([live, arrivals])
        leaving = rows[np.argsort(side.end[rows], kind="stable")].astype(np.int64)
        found, height, steps = _grow(
            arrivals, leaving, side.begin, side.end, reduced.size, reduced.alignment, live, offsets[live],
            max(top, reduced.bound), most, width, 1.0 / float(reduced.size.mean()),
            1.0 / float((side.end - side.begin).mean()), self._runs, work.left,
        )  # fmt: skip
        work.spend(steps)
        if height > most:
            return None
        found = np.concatenate([offsets[side.arrivals[:kept]], found])
        first = slice(0, len(stack))
        near = int((found[first] + reduced.size[side.arrivals[first]]).max(initial=reduced.bound))
        return _Half(height, near, found)


def _stacks(reduced: Reduced, right: Side) -> tuple[list[Ints], dict[int, float]]:
    """The rows at the peak in several orders, the first at the bottom; and which of these are mixed, and how.

    Sorted by when they begin, rows leave one hole that grows on the left side, and many on the right; sorted by when
    they end, the other way round.
    """
    stack = at_peak(reduced)
    keys = [right.begin[stack], -right.end[stack], -reduced.length[stack]]
    found = [_sorted(stack, key) for key in keys]
    mixes: dict[int, float] = {}
    for mix in _MIXES:
        order = _sorted(stack, _mixed(stack, right, mix))
        if not mixes or (order != found[-1]).any():  # the small ones may give the same
            mixes[len(found)] = mix
            found.append(order)
    return found, mixes


def _mixed(stack: Ints, right: Side, mix: float) -> Ints:
    """Keys that put what begins shortly before the peak at the bottom, the latest lowest, and what ends shortly behind
    it at the top: both sides find one hole near the peak."""
    begin, end = right.begin[stack], right.end[stack]
    since, until = begin.max(initial=0) - begin, end - end.min(initial=0)
    latest = since.max(initial=0) + until.max(initial=0)
    key: Ints = np.where(since * mix < until, since, latest - until)
    return key


def _sorted(stack: Ints, key: Ints) -> Ints:
    return stack[np.argsort(key, kind="stable")].astype(np.int64)


def _pile(stack: Ints, reduced: Reduced, offsets: Ints) -> None:
    """Put the rows of a stack one on the other, the first at the bottom."""
    low = 0
    for row in stack.tolist():
        step = int(reduced.alignment[row])
        offsets[row] = -(-low // step) * step
        low = int(offsets[row] + reduced.size[row])


@inner
def _apart(one: int, other: int, life: float) -> float:
    """What neighbours count that touch and leave at these times."""
    lives = abs(one - other) * life
    return _APART * lives / (lives + _HALF_APART)


@inner
def _hole(size: float, ends: int, now: int, life: float) -> float:
    """What a hole of so many mean sizes counts whose first neighbour leaves at `ends`."""
    return size / (size + _HALF) * (1.0 - _STAYING + _STAYING * (ends - now) * life)


@inner
def _waste(below: int, above: int, size: float, now: int, life: float) -> float:
    """What two neighbours count, by when they leave, with a hole of so many mean sizes between them."""
    return _hole(size, min(below, above), now, life) + _apart(below, above, life) * _NEAR / (_NEAR + size)


@inner
def _slots(arrivals: Ints, leaving: Ints, begin: Ints, end: Ints, live: int) -> int:
    """How many rows are live at once at most, of which `live` are at first."""
    most, left = live, 0
    for row in arrivals:
        while end[leaving[left]] <= begin[row]:
            left += 1
            live -= 1
        live += 1
        most = max(most, live)
    return most


@inner
def _keep(values: Floats, judged: Floats, count: int, width: int, kept: Ints) -> int:
    """The `width` least of the first `count` values into `kept`; of packings that waste the same, one is kept."""
    order = np.argsort(values[:count], kind="mergesort")
    used = 0
    for choice in order:
        if used == width:
            break
        same = False
        for other in range(used):
            if abs(judged[kept[other]] - judged[choice]) < 1e-9:
                same = True
                break
        if not same:
            kept[used] = choice
            used += 1
    return used


@compiled
def _grow(
    arrivals: Ints, leaving: Ints, begin: Ints, end: Ints, size: Ints, alignment: Ints, stack: Ints, stacked: Ints,
    limit: int, most: int, width: int, slack: float, life: float, seed: int, steps: int,
) -> tuple[Ints, int, int]:  # fmt: skip
    """Offsets of the arrivals, the height, which grows where a row fits nowhere, and the steps done.

    The height is above `most` where that or the steps were not enough.
    """
    count = len(arrivals)
    slots = _FIRST + _slots(arrivals, leaving, begin, end, len(stack))
    slot = np.zeros(len(size), dtype=np.int64)
    ends = np.zeros(slots, dtype=np.int64)  # by slot: when its row leaves
    sizes = np.zeros(slots, dtype=np.int64)
    free = np.arange(slots - 1, _FIRST - 1, -1)
    unused = len(free)
    # By packing and slot: the slots above and below, the bytes free above, the offset.
    above = np.zeros((2 * width, slots), dtype=np.int32)
    below = np.zeros((2 * width, slots), dtype=np.int32)
    hole = np.full((2 * width, slots), -1, dtype=np.int64)
    at = np.zeros((2 * width, slots), dtype=np.int64)
    last, low = _BOTTOM, np.int64(0)
    for spot in range(len(stack)):
        row = stack[spot]
        unused -= 1
        new = free[unused]
        slot[row], ends[new], sizes[new], at[0, new] = new, end[row], size[row], stacked[spot]
        hole[0, last], above[0, last], below[0, new] = stacked[spot] - low, new, last
        last, low = new, stacked[spot] + size[row]
    hole[0, last], above[0, last], below[0, _TOP] = limit - low, _TOP, last
    ends[_BOTTOM] = ends[_TOP] = end[leaving[-1]] + int(20 / life)  # the arena's ends leave with nobody

    waste = np.zeros(2 * width)
    packings = np.zeros(width, dtype=np.int64)  # where the kept ones stand
    children = np.zeros(width, dtype=np.int64)
    spare = np.arange(2 * width - 1, 0, -1)
    spares, live = len(spare), 1
    parents = np.zeros((count, width), dtype=np.int32)
    offsets = np.zeros((count, width), dtype=np.int64)
    values, judged = np.empty(width * _ENDS), np.empty(width * _ENDS)  # by choice: with chance, and without
    parent, under = np.empty(width * _ENDS, dtype=np.int64), np.empty(width * _ENDS, dtype=np.int64)
    offset = np.empty(width * _ENDS, dtype=np.int64)
    kept, made = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.int64)
    found = np.full(count, -1, dtype=np.int64)
    chance, left, done = (seed * 40503 + 12345) & 0x7FFFFFFF, 0, 0
    for arrival in range(count):
        row = arrivals[arrival]
        now, until, need, step = begin[row], end[row], size[row], alignment[row]
        while end[leaving[left]] <= now:
            old = slot[leaving[left]]
            left += 1
            for number in range(live):
                one = packings[number]
                lower, upper = below[one, old], above[one, old]
                under_it, over_it = hole[one, lower], hole[one, old]
                joined = under_it + sizes[old] + over_it
                waste[one] += (
                    _waste(ends[lower], ends[upper], joined * slack, now, life)
                    - _waste(ends[lower], ends[old], under_it * slack, now, life)
                    - _waste(ends[old], ends[upper], over_it * slack, now, life)
                )
                hole[one, lower], hole[one, old] = joined, -1
                above[one, lower], below[one, upper] = upper, lower
            free[unused] = old
            unused += 1
        unused -= 1
        new = free[unused]
        slot[row], ends[new], sizes[new] = new, until, need

        choices = 0
        while choices == 0:
            for number in range(live):
                one, first = packings[number], choices
                done += slots // _LOOKS_PER_STEP
                for lower in range(slots):
                    space = hole[one, lower]
                    if space < need:
                        continue
                    bottom = at[one, lower] + sizes[lower]
                    lowest = -(-bottom // step) * step
                    if lowest + need > bottom + space:
                        continue
                    done += _STEPS_PER_FIT
                    upper = above[one, lower]
                    before, after = ends[lower], ends[upper]
                    rest = (space - need) * slack
                    near = _NEAR / (_NEAR + rest)
                    with_lower, with_upper = _apart(before, until, life), _apart(until, after, life)
                    value = with_lower + with_upper * near + _hole(rest, min(until, after), now, life)
                    place = lowest
                    other = with_upper + with_lower * near + _hole(rest, min(until, before), now, life)
                    if other < value and upper != _TOP:
                        value, place = other, (bottom + space - need) // step * step
                    value += waste[one] - _waste(before, after, space * slack, now, life)
                    chance = (chance * 1103515245 + 12345) & 0x7FFFFFFF
                    shaken = value + _CHANCE * (chance / 0x7FFFFFFF) if width > 1 else value
                    if choices - first < _ENDS:
                        choices += 1
                    elif shaken >= values[choices - 1]:
                        continue
                    spot = choices - 1
                    while spot > first and values[spot - 1] > shaken:
                        values[spot], judged[spot] = values[spot - 1], judged[spot - 1]
                        parent[spot], under[spot], offset[spot] = parent[spot - 1], under[spot - 1], offset[spot - 1]
                        spot -= 1
                    values[spot], judged[spot] = shaken, value
                    parent[spot], under[spot], offset[spot] = number, lower, place
            if choices == 0:  # the arena grows by as little as any packing needs
                least = 1 << 60
                for number in range(live):
                    last = below[packings[number], _TOP]
                    low = at[packings[number], last] + sizes[last]
                    least = min(least, int(-(-low // step) * step + need) - limit)
                for number in range(live):
                    hole[packings[number], below[packings[number], _TOP]] += least
                limit += least
            if limit > most or done > steps:
                return found, most + 1, done

        chosen = _keep(values, judged, choices, width, kept)
        children[:live] = 0
        for number in range(chosen):
            children[parent[kept[number]]] += 1
        for number in range(live):
            if children[number] == 0:
                spare[spares] = packings[number]
                spares += 1
        for number in range(chosen):
            choice = kept[number]
            one = packings[parent[choice]]
            children[parent[choice]] -= 1
            if children[parent[choice]] > 0:  # the last child takes over its parent's place
                spares -= 1
                copy = spare[spares]
                hole[copy], above[copy], below[copy], at[copy] = hole[one], above[one], below[one], at[one]
                done += slots
                one = copy
            made[number] = one
            lower, place = under[choice], offset[choice]
            upper = above[one, lower]
            gap = place - at[one, lower] - sizes[lower]
            hole[one, new] = hole[one, lower] - gap - need
            hole[one, lower], at[one, new] = gap, place
            above[one, lower], below[one, new], above[one, new], below[one, upper] = new, lower, upper, new
            parents[arrival, number], offsets[arrival, number] = parent[choice], place
        live = chosen
        for number in range(live):
            packings[number] = made[number]
            waste[made[number]] = judged[kept[number]] - judged[kept[0]]
    number = 0
    for arrival in range(count - 1, -1, -1):
        found[arrival] = offsets[arrival, number]
        number = parents[arrival, number]
    return found, limit, done
