"""Sublinear memory: what a segment of the forward pass makes is dropped behind it and computed again when asked for.

The forward pass is taken to end where the order's peak is: there everything that is saved for later is live. It is cut
into segments; what crosses a cut is held until the segment behind it has been made again, everything else that is used
behind the peak is dropped. A cut belongs where little crosses it: at articulation points a single value does. How large
a segment may grow is searched for.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, algorithm 3 and the search over its budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memplan.ordering.arrays import Arrays, Ints
from memplan.remat.replay import uses_in

SIZES = 14  # segment sizes that are tried
LOOKAHEAD = 0.5  # of a segment's size: within so much more the best cut is taken


@dataclass(frozen=True, slots=True)
class Segments:
    """What a plan drops and makes again together."""

    dropped: NDArray[np.bool_]  # by gap, as `memplan.remat.replay.uses_in` orders them
    of: Ints  # by value, the segment that makes it; -1 for one that nobody makes
    held: NDArray[np.bool_]  # by value, whether it crosses a cut


def segment_plans(arrays: Arrays, order: Ints, needed: Ints) -> list[Segments]:
    """Plans with segments from large to small; `needed` are the bytes of each step of the order."""
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
    if not crossing.any():
        return []
    # What is saved is charged to the step that made it; what a cut holds is what is made before and used behind it.
    saved = np.zeros(arrays.count + 1, np.int64)
    np.add.at(saved, begin[crossing], arrays.size[value[crossing]])
    held_by_cut = np.zeros(arrays.count + 1, np.int64)
    last_before_top = np.full(len(arrays.size), -1, np.int64)
    inner = uses <= top
    np.maximum.at(last_before_top, value[inner], uses[inner])
    makers = np.where(arrays.maker >= 0, position[arrays.maker], -1)
    crosses = (arrays.maker >= 0) & (last_before_top >= 0)
    np.add.at(held_by_cut, makers[crosses], arrays.size[crosses])
    np.subtract.at(held_by_cut, last_before_top[crosses], arrays.size[crosses])
    held_by_cut = np.cumsum(held_by_cut)
    total = int(saved.sum())
    plans = []
    for share in np.geomspace(1.0, 1.0 / max(2, min(top, 512)), SIZES):
        cuts = _cuts(saved, held_by_cut, top, int(total * share))
        # A value is held where a cut lies between its making and its last use of the forward pass.
        behind = np.searchsorted(cuts, makers, side="left")
        held = crosses & (last_before_top > np.concatenate([cuts, [arrays.count]])[behind])
        plans.append(Segments(crossing & ~held[value], np.where(makers >= 0, behind, -1), held))
    return plans


def _cuts(saved: Ints, kept: Ints, top: int, size: int) -> Ints:
    """Steps behind which a segment ends: the one that keeps least once `size` bytes have come together."""
    cuts: list[int] = []
    gathered, best = 0, -1
    for step in range(top):
        gathered += int(saved[step])
        if gathered >= size:
            if best < 0 or kept[step] < kept[best]:
                best = step
            if gathered >= size * (1 + LOOKAHEAD):
                cuts.append(best)
                gathered = int(saved[best + 1 : step + 1].sum())
                best = -1
    return np.array(cuts, np.int64)
