"""Sorting inside compiled code.

Not numpy's: numba's quicksort does not keep equal keys in their order. Also, a search that used it and was read from
numba's cache, among files cached by older versions, has crashed; the cause was not found, and clean caches do not show
it.
"""

from __future__ import annotations

import numpy as np

from scheduler.compiling import compiled
from scheduler.lists.tasks import Floats, Ints

RUN = 12  # so many are sorted by insertion before merging begins


@compiled
def ascending(keys: Floats) -> Ints:
    """The positions of the keys from the smallest to the largest, equal ones in their order; merge sort."""
    count = len(keys)
    order, other = np.arange(count), np.empty(count, np.int64)
    for begin in range(0, count, RUN):
        for at in range(begin + 1, min(begin + RUN, count)):
            one = order[at]
            key = keys[one]
            to = at
            while to > begin and keys[order[to - 1]] > key:
                order[to] = order[to - 1]
                to -= 1
            order[to] = one
    wide = RUN
    while wide < count:
        for begin in range(0, count, 2 * wide):
            middle, end = min(begin + wide, count), min(begin + 2 * wide, count)
            left, right = begin, middle
            for to in range(begin, end):
                if left < middle and (right >= end or keys[order[left]] <= keys[order[right]]):
                    other[to] = order[left]
                    left += 1
                else:
                    other[to] = order[right]
                    right += 1
        order, other = other, order
        wide *= 2
    return order
