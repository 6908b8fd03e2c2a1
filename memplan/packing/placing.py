"""Placing rows one after the other, each in a hole that those placed before leave: the hot loop of greedy packing.

A tree over the sections keeps, for every node, the bytes taken through the whole of the node's time (`cover`) and
the bytes taken at any of it (`any`), both as joined intervals. Few intervals are left when they are joined, so that a
row costs about as many steps as the tree is high: n log n in all, where comparing with every placed row is n squared.
"""

from __future__ import annotations

import numpy as np

from memplan.compiling import compiled, inner
from memplan.packing.reduced import Ints, Reduced


def place(reduced: Reduced, order: Ints, *, best_fit: bool) -> Ints:
    """Offsets of all rows; pinned rows first, then in `order`, in the lowest hole or the tightest one."""
    pinned = np.flatnonzero(reduced.pinned >= 0)
    free = order[reduced.pinned[order] < 0]
    return _place(
        np.concatenate([pinned, free]).astype(np.int64), best_fit, reduced.size, reduced.alignment, reduced.pinned,
        reduced.range_at, reduced.range_begin, reduced.range_end, reduced.sections,
        int(reduced.size.min(initial=1 << 60)),
    )  # fmt: skip


@inner
def _insert(
    which: int, low: int, high: int, least: int, at: Ints, count: Ints, room: Ints, pool: Ints, used: int
) -> tuple[Ints, int]:
    """Add [low, high) to the list `which`; gaps smaller than `least` are closed. Returns the pool and its use."""
    base, length = at[which], count[which]
    left, right = 0, length
    while left < right:  # the first interval that ends near or behind `low`
        middle = (left + right) >> 1
        if pool[2 * (base + middle) + 1] + least > low:
            right = middle
        else:
            left = middle + 1
    stop = left
    while stop < length and pool[2 * (base + stop)] < high + least:
        stop += 1
    if stop > left:
        first, final = 2 * (base + left), 2 * (base + stop - 1)
        low, high = min(low, pool[first]), max(high, pool[final + 1])
        pool[first], pool[first + 1] = low, high
        gone = stop - left - 1
        if gone:
            for spot in range(2 * (base + left + 1), 2 * (base + length - gone)):
                pool[spot] = pool[spot + 2 * gone]
            count[which] = length - gone
        return pool, used
    if length == room[which]:
        more = max(4, 2 * length)
        if 2 * (used + more) > len(pool):
            wider = np.empty(max(2 * len(pool), 2 * (used + more)), dtype=np.int64)
            for spot in range(2 * used):
                wider[spot] = pool[spot]
            pool = wider
        for spot in range(2 * length):
            pool[2 * used + spot] = pool[2 * base + spot]
        at[which], room[which] = used, more
        base = used
        used += more
    for spot in range(2 * (base + length) - 1, 2 * (base + left) - 1, -1):
        pool[spot + 2] = pool[spot]
    pool[2 * (base + left)], pool[2 * (base + left) + 1] = low, high
    count[which] = length + 1
    return pool, used


@inner
def _join(one: Ints, length: int, pool: Ints, base: int, count: int, least: int, out: Ints) -> int:
    """The union of the first `length` intervals of `one` and of a list of the pool, into `out`; returns its length."""
    first = second = made = 0
    while first < length or second < count:
        if second >= count or (first < length and one[2 * first] <= pool[2 * (base + second)]):
            low, high = one[2 * first], one[2 * first + 1]
            first += 1
        else:
            low, high = pool[2 * (base + second)], pool[2 * (base + second) + 1]
            second += 1
        if made and low < out[2 * made - 1] + least:
            out[2 * made - 1] = max(out[2 * made - 1], high)
        else:
            out[2 * made], out[2 * made + 1] = low, high
            made += 1
    return made


@inner
def _around(begin: int, end: int, height: int, lists: Ints) -> tuple[int, int]:
    """Nodes for the sections [begin, end), into `lists`: first those partly inside, then from the second number
    returned on those that make it up."""
    left, right, found = begin + (1 << height), end + (1 << height), 0
    for up in range(height, 0, -1):
        above, beyond = left >> up, (right - 1) >> up
        cut = (above << up) != left
        if cut:
            lists[found] = above
            found += 1
        if ((right >> up) << up) != right and not (cut and beyond == above):
            lists[found] = beyond
            found += 1
    partly = found
    while left < right:
        if left & 1:
            lists[found] = left
            found += 1
            left += 1
        if right & 1:
            right -= 1
            lists[found] = right
            found += 1
        left >>= 1
        right >>= 1
    return found, partly


@inner
def _hole(taken: Ints, length: int, need: int, step: int, best_fit: bool) -> int:
    """Where `need` fits between the first `length` intervals of `taken`: the tightest place, or the lowest."""
    offset, tightest, low = -1, -1, 0
    for one in range(length):
        start = -(-low // step) * step
        space = int(taken[2 * one]) - start
        if space >= need and (tightest < 0 or space < tightest):
            tightest, offset = space, start
            if not best_fit:
                break
        low = max(low, int(taken[2 * one + 1]))
    return offset if offset >= 0 else -(-low // step) * step


@compiled
def _place(
    order: Ints, best_fit: bool, size: Ints, alignment: Ints, pinned: Ints, range_at: Ints, range_begin: Ints,
    range_end: Ints, sections: int, least: int,
) -> Ints:  # fmt: skip
    height = 0
    while (1 << height) < sections:
        height += 1
    nodes = 2 << height  # the lists of `cover`; those of `any` come behind
    at = np.zeros(2 * nodes, dtype=np.int64)
    count = np.zeros(2 * nodes, dtype=np.int64)
    room = np.zeros(2 * nodes, dtype=np.int64)
    pool = np.empty(16 * len(size) + 64, dtype=np.int64)
    none = int(count[0])  # not a literal 0: numba would compile what it is passed to once more
    used = none
    offsets = np.empty(len(size), dtype=np.int64)
    taken = np.empty(2 * len(size) + 4, dtype=np.int64)
    other = np.empty(2 * len(size) + 4, dtype=np.int64)
    lists = np.empty(4 * (height + 2), dtype=np.int64)
    for row in order:
        offset, need = int(pinned[row]), int(size[row])
        if offset < 0:
            length = none
            for spot in range(range_at[row], range_at[row + 1]):
                found, partly = _around(range_begin[spot], range_end[spot], height, lists)
                for one in range(found):
                    which = lists[one] if one < partly else nodes + lists[one]
                    if count[which]:
                        length = _join(taken, length, pool, int(at[which]), int(count[which]), least, other)
                        taken, other = other, taken
            offset = _hole(taken, length, need, int(alignment[row]), best_fit)
        offsets[row] = offset
        for spot in range(range_at[row], range_at[row + 1]):
            found, partly = _around(range_begin[spot], range_end[spot], height, lists)
            for one in range(partly, 2 * found):  # `cover` of what makes it up, `any` of all
                which = lists[one] if one < found else nodes + lists[one - found]
                pool, used = _insert(which, offset, offset + need, least, at, count, room, pool, used)
    return offsets
