"""Sublinear memory: what a segment of the forward pass makes is dropped behind it and computed again when asked for.

The forward pass is taken to end where the order's peak is: there everything that is saved for later is live. It is cut
into segments; what crosses a cut is held until the segment behind it has been made again, everything else that is used
behind the peak is dropped. A cut belongs where little crosses it: at articulation points a single value does.

While a segment is there again, so is what the cuts before it hold, and what those behind it held is not. So a segment
may be as large as what is held before it leaves room for, and later segments are smaller: a chain of n equal layers
has a peak of sqrt(2 n) of them, where equal segments need 2 sqrt(n). Where that is too much, a segment is cut once
more: its own cuts hold nothing until it is made again, for another run of what lies before them. How high the peak may
be is searched for.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, algorithm 3, its recursion, and the search
over its budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled
from memplan.ordering.arrays import Arrays, Ints
from memplan.remat.replay import uses_in

PEAKS = 10  # that are tried, at equal ratios from the least with which the end is reached to all that is saved
DEPTHS = (1, 2)  # how often a segment may be cut
EARLIEST = 0.5  # of a segment's room: behind it the cut is taken where least crosses it
SMALL = 1 / 512  # of what is saved: so much stays of the smallest values, as means and counts are
HALVINGS = 24  # of the interval in which the least peak is looked for


@dataclass(frozen=True, slots=True)
class Segments:
    """What a plan drops and makes again together."""

    dropped: NDArray[np.bool_]  # by gap, as `memplan.remat.replay.uses_in` orders them
    of: Ints  # by value, the segment that makes it; -1 for one that nobody makes
    held: NDArray[np.bool_]  # by value, whether it crosses an outer cut
    holding: NDArray[np.bool_]  # by value, whether it crosses any cut: once it is made again it stays


@dataclass(frozen=True, slots=True)
class _Pass:
    """The forward pass of an order, by its steps and by values."""

    top: int  # its last step
    before: Ints  # by step: bytes of what steps before it make and the backward pass reads
    needed: Ints  # by step: bytes, the most that it needs, or steps back that read what it saved
    made: Ints  # by step: bytes of what it makes and the forward pass reads
    ends: Ints  # values, by the step of their last use
    end_start: Ints  # by step, where its values begin in `ends`
    makers: Ints  # by value, the step that makes it
    last: Ints  # by value, the step of the forward pass that reads it last; -1 for one that none reads
    size: Ints  # by value, bytes

    def crossing(self, cut: int, since: int) -> Ints:
        """The values made behind step `since` that are read behind `cut`."""
        return np.flatnonzero((self.makers > since) & (self.makers <= cut) & (self.last > cut))


def segment_plans(arrays: Arrays, order: Ints, needed: Ints, depth: int = 1) -> list[Segments]:
    """Plans with segments from large to small, cut `depth` times; `needed` are the bytes of each step of the order."""
    top = int(np.argmax(needed))
    start, uses = uses_in(arrays, order)
    position = np.empty(arrays.count, np.int64)
    position[order] = np.arange(arrays.count)
    value = np.repeat(np.arange(len(arrays.size)), np.diff(start))
    begin = np.where(arrays.maker[value] >= 0, position[arrays.maker[value]], 0)
    first = np.zeros(len(uses), np.bool_)
    first[start[:-1][np.diff(start) > 0]] = True
    opened = np.where(first, begin, np.concatenate([[0], uses[:-1]]))  # the step at which a gap begins
    crossing = (opened <= top) & (uses > top) & (arrays.maker[value] >= 0)
    crossing &= ~_small(arrays.size, value[crossing])[value]
    if not crossing.any():
        return []
    forward = _forward(arrays, position, value, uses, begin, crossing, top, needed)
    total = int(forward.needed.max())
    plans, known = [], set()
    low, high = 0, total
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches(forward, middle, depth) else (middle, high)
    for peak in np.geomspace(total, max(high, 1), PEAKS):
        outer, cuts = _cuts(forward, int(np.ceil(peak)), depth)
        if (key := (outer.tobytes(), cuts.tobytes())) not in known:
            known.add(key)
            behind = np.searchsorted(cuts, forward.makers, side="left")
            held = _crosses(forward, outer)
            of = np.where(forward.makers >= 0, behind, -1)
            plans.append(Segments(crossing & ~held[value], of, held, _crosses(forward, cuts)))
    return plans


def _small(size: Ints, saved: Ints) -> NDArray[np.bool_]:
    """By value, whether it is among the smallest that are saved, which are not worth a run even together."""
    values = np.unique(saved)
    values = values[np.argsort(size[values], kind="stable")]
    small = np.zeros(len(size), np.bool_)
    small[values[np.cumsum(size[values]) <= SMALL * size[values].sum()]] = True
    return small


def _forward(
    arrays: Arrays, position: Ints, value: Ints, uses: Ints, begin: Ints, crossing: NDArray[np.bool_], top: int,
    needed: Ints,
) -> _Pass:  # fmt: skip
    saved, made = np.zeros(arrays.count + 1, np.int64), np.zeros(arrays.count + 1, np.int64)
    np.add.at(saved, begin[crossing], arrays.size[value[crossing]])
    reached = np.full(arrays.count, top, np.int64)  # by step back: the earliest step of what was read until then
    np.minimum.at(reached, uses[crossing], begin[crossing])
    reached[top + 1 :] = np.minimum.accumulate(reached[top + 1 :])
    most = np.zeros(arrays.count + 1, np.int64)
    most[: top + 1] = needed[: top + 1]
    np.maximum.at(most, reached[top + 1 :], needed[top + 1 :])
    last = np.full(len(arrays.size), -1, np.int64)
    inner = uses <= top
    np.maximum.at(last, value[inner], uses[inner])
    makers = np.where(arrays.maker >= 0, position[arrays.maker], -1)
    crosses = np.flatnonzero((makers >= 0) & (last >= 0))
    ends = crosses[np.argsort(last[crosses], kind="stable")]
    np.add.at(made, makers[crosses], arrays.size[crosses])
    end_start = np.searchsorted(last[ends], np.arange(arrays.count + 2))
    before = np.cumsum(saved) - saved
    return _Pass(top, before, most, made, ends, end_start, makers, last, arrays.size)


def _crosses(forward: _Pass, cuts: Ints) -> NDArray[np.bool_]:
    """By value, whether a cut lies between its making and its last use of the forward pass."""
    following = np.concatenate([cuts, [len(forward.needed)]])[np.searchsorted(cuts, forward.makers, side="left")]
    return np.asarray((forward.makers >= 0) & (forward.last > following))


def _reaches(forward: _Pass, peak: int, depth: int) -> bool:
    outer, _ = _cut(forward, -1, peak, depth)
    return bool(outer) and outer[-1] >= forward.top


def _cuts(forward: _Pass, peak: int, depth: int) -> tuple[Ints, Ints]:
    """The outer cuts, and all, with which no segment needs more than `peak` bytes."""
    outer, cuts = _cut(forward, -1, peak, depth)
    return tuple(np.array([cut for cut in some if cut < forward.top], np.int64) for some in (outer, cuts))  # type: ignore[return-value]


def _cut(forward: _Pass, since: int, peak: int, depth: int) -> tuple[list[int], list[int]]:
    """Cuts behind step `since`, the outer ones and all, until what they hold leaves no room for a segment."""
    if depth == 1:
        cuts = _simple(
            since, peak, forward.top, forward.before, forward.needed, forward.made, forward.ends, forward.end_start,
            forward.makers, forward.size,
        ).tolist()  # fmt: skip
        return cuts, cuts
    outer: list[int] = []
    everything: list[int] = []
    kept, before = 0, since
    while before < forward.top:
        _, inner = _cut(forward, before, peak - kept, depth - 1)
        if not inner:
            break
        kept += int(forward.size[forward.crossing(inner[-1], before)].sum())
        before = inner[-1]
        outer.append(before)
        everything += inner
    return outer, everything


@compiled
def _simple(
    since: int, peak: int, top: int, earlier: Ints, needed: Ints, made: Ints, ends: Ints, end_start: Ints,
    makers: Ints, size: Ints,
) -> Ints:  # fmt: skip
    """Steps behind which a segment ends, each where least crosses it, until there is no room for another.

    A segment is as large as what the cuts before it hold leaves of `peak` bytes. Its steps need what they need in the
    whole order, but for what is saved before the segment: there what is saved behind a step back is gone again.
    """
    cuts = np.empty(top + 2, np.int64)
    count, kept, before = 0, 0, since
    while before < top:
        room = peak - kept
        most, crossing, best, least, step = 0, 0, -1, 0, before + 1
        while step <= top:
            most = max(most, needed[step] - earlier[before + 1])
            if most > room:
                break
            crossing += made[step]
            for at in range(end_start[step], end_start[step + 1]):
                if makers[ends[at]] > before:
                    crossing -= size[ends[at]]
            if most >= EARLIEST * room and (best < 0 or crossing <= least):
                best, least = step, crossing
            step += 1
        if step > top:
            best, least = top, 0
        if best < 0:
            break
        cuts[count] = best
        count += 1
        kept += least
        before = best
    return cuts[:count].copy()
