"""Sublinear memory: what a segment of the forward pass makes is dropped behind it and computed again when asked for.

The forward pass is taken to end where the order's peak is: there everything that is saved for later is live. It is cut
into segments; what crosses a cut is kept, everything else that is used behind the peak is dropped. A cut belongs where
little crosses it: at articulation points a single value does. How large a segment may grow is searched for.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, algorithm 3 and the search over its budget.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memplan.ordering.arrays import Arrays, Ints
from memplan.remat.replay import uses_in

SIZES = 14  # segment sizes that are tried
LOOKAHEAD = 0.5  # of a segment's size: within so much more the best cut is taken
UNSAVED = 1_000  # how much worse it is when a value crosses that will not be there for computing again


def segment_plans(arrays: Arrays, order: Ints, needed: Ints) -> list[NDArray[np.bool_]]:
    """Gaps to drop, for segments from small to large; `needed` are the bytes of each step of the order."""
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
    # What is saved is charged to the step that made it; what a cut keeps is what is made before and used behind it.
    saved = np.zeros(arrays.count + 1, np.int64)
    np.add.at(saved, begin[crossing], arrays.size[value[crossing]])
    kept_by_cut = np.zeros(arrays.count + 1, np.int64)
    last_before_top = np.full(len(arrays.size), -1, np.int64)
    inner = uses <= top
    np.maximum.at(last_before_top, value[inner], uses[inner])
    makers = np.where(arrays.maker >= 0, position[arrays.maker], -1)
    is_saved = np.zeros(len(arrays.size), np.bool_)
    is_saved[value[crossing]] = True
    for one in np.flatnonzero((arrays.maker >= 0) & (last_before_top >= 0)):
        weight = int(arrays.size[one]) if is_saved[one] else UNSAVED * int(arrays.size[one])
        kept_by_cut[makers[one]] += weight
        kept_by_cut[last_before_top[one]] -= weight
    kept_by_cut = np.cumsum(kept_by_cut)
    total = int(saved.sum())
    plans = []
    for share in np.geomspace(1.0, 1.0 / max(2, min(top, 512)), SIZES):
        cuts = _cuts(saved, kept_by_cut, top, int(total * share))
        # A value is kept where a cut lies between its making and its last use of the forward pass.
        behind = np.searchsorted(cuts, makers[value], side="left")
        next_cut = np.concatenate([cuts, [arrays.count]])[behind]
        plans.append(crossing & ~(last_before_top[value] > next_cut))
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
