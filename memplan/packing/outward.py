"""Packing outward from the peak: the rows live at the peak are stacked without a hole, then time runs both ways.

On each side rows come one after the other, and each goes to that end of a hole where the least room is left over and
the neighbour leaves at nearly the same time: what leaves together leaves one large hole. Runs are cheap (each row looks
at those live with it), so that many are made. Under a limit a run goes in pieces; a piece that exceeds the limit is
repeated with other weights and noise, then the pieces before it, further back each time.

That buffers which end together should lie together is the idea behind the boxes of Buchsbaum et al., "OPT versus LOAD
in dynamic storage allocation", 2003; here it is a weight in a fit. The weights were found by measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memplan.compiling import compiled
from memplan.packing.greedy import Placed, first_sections, last_sections, live
from memplan.packing.reduced import Ints, Reduced
from memplan.work import Work

SOLVER = "outward from the peak"
_WEIGHTS = (1.0, 0.3, 3.0, 0.1, 1.0, 2.0, 0.5, 10.0)  # of the neighbour's end, against what is left over
_NOISE = (0.0, 0.2, 0.5, 1.0)  # a score's largest increase by chance
_PIECES_PER_STACK = 4
_PLAIN_STACKS, _PERTURB = 32, 0.05  # runs before stacks are perturbed; by how much of their spread
_REPEATS = 6  # of one piece, before those before it are repeated too
_STEPS_PER_LOOK = 7


@dataclass(frozen=True, slots=True)
class Side:
    """One direction of time: rows in the order in which they come; times count away from the peak."""

    arrivals: Ints
    begin: Ints  # [rows]
    end: Ints  # [rows]


def at_peak(reduced: Reduced) -> Ints:
    """The rows that are live at the peak; in their gaps too."""
    peak = int(np.argmax(live(reduced)))
    return np.flatnonzero((first_sections(reduced) <= peak) & (peak < last_sections(reduced))).astype(np.int64)


def sides(reduced: Reduced) -> tuple[Side, Side]:
    """What comes after the peak, and what comes before it with time running backward; the largest first at a time."""
    begin, end = first_sections(reduced), last_sections(reduced)
    peak = int(np.argmax(live(reduced)))
    right, left = np.flatnonzero(begin > peak), np.flatnonzero(end <= peak)
    return (
        Side(right[np.lexsort((-reduced.size[right], begin[right]))], begin, end),
        Side(left[np.lexsort((-reduced.size[left], -end[left]))], -end, -begin),
    )


class Outward:
    """Runs over one problem, which has no pinned row. A row is taken to need its bytes in its gaps too."""

    def __init__(self, reduced: Reduced) -> None:
        assert not (reduced.pinned >= 0).any(), "pinned rows cannot be stacked"
        self._reduced = reduced
        self._stack = at_peak(reduced)
        self._sides = sides(reduced)
        self._slack = 1.0 / float(reduced.size.mean())
        self._life = 1.0 / float((self._sides[0].end - self._sides[0].begin).mean())
        self._runs = 0

    def runs(self, count: int, work: Work) -> Iterator[Placed]:
        """Packings without a limit, each with weights, noise and a stack of its own."""
        for _ in range(count):
            offsets = np.full(self._reduced.rows, -1, dtype=np.int64)
            stacked = self._stacked(offsets)
            height = self._reduced.bound
            for side in self._sides:
                rows = np.empty(self._reduced.rows, dtype=np.int64)
                rows[: len(stacked)] = stacked
                _, height = self._run(side, 0, len(side.arrivals), offsets, rows, len(stacked), height, work, grow=True)
            self._runs += 1
            yield self._placed(offsets)

    def under(self, limit: int, budget: int, work: Work) -> Placed | None:
        """A packing no higher than the limit; None when `budget` times all rows were placed, or no work is left."""
        offsets = np.full(self._reduced.rows, -1, dtype=np.int64)
        stacked = self._stacked(offsets)
        if self._reduced.height(np.maximum(offsets, 0)) > limit:
            return None
        for side in self._sides:
            if not self._climb(side, offsets, stacked, limit, budget, work):
                return None
        return self._placed(offsets)

    def _placed(self, offsets: Ints) -> Placed:
        return Placed(offsets, self._reduced.height(offsets), SOLVER)

    def _stacked(self, offsets: Ints) -> Ints:
        """The rows at the peak, stacked: the longest at the bottom, or what ends last, or what begins first.

        After the first runs they are perturbed a little: how they lie decides much of what comes on both sides.
        """
        keys = (-self._reduced.length, -self._sides[0].end, self._sides[0].begin)
        key = keys[self._runs % 3][self._stack].astype(np.float64)
        if self._runs >= _PLAIN_STACKS:
            key += _PERTURB * float(key.std()) * np.random.default_rng(self._runs).normal(size=len(key))
        rows = self._stack[np.argsort(key, kind="stable")]
        low = 0
        for row in rows.tolist():
            step = int(self._reduced.alignment[row])
            low = -(-low // step) * step
            offsets[row] = low
            low += int(self._reduced.size[row])
        return rows.astype(np.int64)

    def _climb(self, side: Side, offsets: Ints, stacked: Ints, limit: int, budget: int, work: Work) -> bool:
        piece = max(16, len(stacked) // _PIECES_PER_STACK)
        count = -(-len(side.arrivals) // piece)
        before: list[Ints] = [stacked]
        at = furthest = failed = 0
        left = budget * count
        while at < count:
            if left <= 0 or work.over():
                return False
            left -= 1
            rows = np.empty(self._reduced.rows, dtype=np.int64)
            rows[: len(before[at])] = before[at]
            found, _ = self._run(
                side, at * piece, min(len(side.arrivals), (at + 1) * piece), offsets, rows, len(before[at]), limit,
                work, grow=False,
            )  # fmt: skip
            self._runs += 1
            if found >= 0:
                at += 1
                del before[at:]
                before.append(rows[:found].copy())
                if at > furthest:
                    furthest, failed = at, 0
            else:
                failed += 1
                at = max(0, min(at, furthest - (failed // _REPEATS)))
        return True

    def _run(
        self, side: Side, first: int, last: int, offsets: Ints, rows: Ints, count: int, limit: int, work: Work,
        *, grow: bool,
    ) -> tuple[int, int]:  # fmt: skip
        turn = self._runs
        weight = _WEIGHTS[turn % len(_WEIGHTS)]
        noise = _NOISE[(turn // len(_WEIGHTS)) % len(_NOISE)]
        reduced = self._reduced
        found, height, looks = _sweep(
            side.arrivals, first, last, side.begin, side.end, reduced.size, reduced.alignment, offsets, rows, count,
            limit, grow, self._slack, weight * self._life, noise, turn + 1,
        )  # fmt: skip
        work.spend(_STEPS_PER_LOOK * looks)
        return found, height


@compiled
def _sweep(
    arrivals: Ints, first: int, last: int, begin: Ints, end: Ints, size: Ints, alignment: Ints, offsets: Ints,
    rows: Ints, count: int, limit: int, grow: bool, slack_weight: float, end_weight: float, noise: float, seed: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Place arrivals[first:last] among the live `rows[:count]`, which lie by rising offset.

    Returns how many are live afterwards, -1 where the limit was not enough and must not grow; the limit; and how often
    a live row was looked at.
    """
    looks = 0
    chance = (seed * 40503 + 12345) & 0x7FFFFFFF
    alone = 1.0 / end_weight if end_weight > 0 else 0.0  # without a neighbour: as if it left a mean life apart
    for arrival in range(first, last):
        row = arrivals[arrival]
        need, step = size[row], alignment[row]
        kept, low, until = 0, np.int64(0), np.int64(0)
        best, offset, place = 1e300, np.int64(-1), 0
        looks += count + 1
        for spot in range(count + 1):
            if spot < count:
                other = rows[spot]
                if end[other] <= begin[row]:
                    continue
                high = offsets[other]
            else:
                other, high = -1, limit
            bottom = -(-low // step) * step
            if high - bottom >= need:
                left_over = slack_weight * (high - low - need)
                apart = end_weight * abs(end[row] - until) if kept else end_weight * alone
                score = left_over + apart
                if noise > 0:
                    chance = (chance * 1103515245 + 12345) & 0x7FFFFFFF
                    score *= 1 + noise * (chance / 0x7FFFFFFF)
                exact = high - low == need  # first of all; which of those, by chance where there is noise
                if exact:
                    score = score - 1e9 if noise > 0 else -1.0
                if score < best:
                    best, offset, place = score, bottom, kept
                if other >= 0:
                    score = left_over + end_weight * abs(end[row] - end[other])
                    if noise > 0:
                        chance = (chance * 1103515245 + 12345) & 0x7FFFFFFF
                        score *= 1 + noise * (chance / 0x7FFFFFFF)
                    if exact and noise > 0:
                        score -= 1e9
                    if score < best:
                        best, offset, place = score, (high - need) // step * step, kept
            if other >= 0:
                rows[kept] = other
                kept += 1
                low, until = high + size[other], end[other]
        count = kept
        if offset < 0:
            if not grow:
                return -1, limit, looks
            offset, place = -(-low // step) * step, count
            limit = offset + need
        for spot in range(count, place, -1):
            rows[spot] = rows[spot - 1]
        rows[place] = row
        count += 1
        offsets[row] = offset
    return count, limit, looks
