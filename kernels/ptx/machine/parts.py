"""Divergence: a warp in parts, each with a place and lanes of its own, that run in any order.

Lanes that part at a branch meet again at its immediate post-dominator: the part that they were waits there until each
of its children has come or ended. A branch that leads to where the part itself meets others makes a sibling, so that
loops that lanes leave one by one go no deeper.
"""

from __future__ import annotations

from typing import Any

from kernels.compiling import inner
from kernels.ptx.machine import state as s

STATE, PC, MASK, MEET, PARENT, CHILDREN = s.P_STATE, s.P_PC, s.P_MASK, s.P_MEET, s.P_PARENT, s.P_CHILDREN
SEEN, YIELDED, WAITS_AT = s.P_SEEN, s.P_YIELDED, s.P_WAITS_AT
FREE, RUNS, PARTED = s.FREE, s.RUNS, s.PARTED
PARTS = s.PARTS


@inner
def new_part(parts: Any, warp: int, pc: int, mask: int, meet: int, parent: int) -> int:
    """A part that runs."""
    one = 0
    while parts[warp, one, STATE] != FREE:
        one += 1
    parts[warp, one, STATE], parts[warp, one, PC], parts[warp, one, MASK] = RUNS, pc, mask
    parts[warp, one, MEET], parts[warp, one, PARENT], parts[warp, one, CHILDREN] = meet, parent, 0
    parts[warp, one, SEEN], parts[warp, one, YIELDED], parts[warp, one, WAITS_AT] = -1, -1, -1
    return one


@inner
def live(parts: Any, warp: int) -> int:
    """Lanes of a warp that have not ended."""
    mask = 0
    for one in range(PARTS):
        if parts[warp, one, STATE] != FREE:
            mask |= parts[warp, one, MASK]
    return mask


@inner
def settle(parts: Any, warp: int, part: int) -> None:
    """A part that has come to where it meets others joins them."""
    while parts[warp, part, MEET] >= 0 and parts[warp, part, PC] == parts[warp, part, MEET]:
        parent = parts[warp, part, PARENT]
        parts[warp, parent, MASK] |= parts[warp, part, MASK]
        parts[warp, part, STATE] = FREE
        parts[warp, parent, CHILDREN] -= 1
        if parts[warp, parent, CHILDREN] > 0:
            return
        parts[warp, parent, STATE] = RUNS
        part = parent


@inner
def end(parts: Any, warp: int, part: int) -> None:
    """All lanes of a part end."""
    while True:
        parent = parts[warp, part, PARENT]
        parts[warp, part, STATE] = FREE
        if parent < 0:
            return
        parts[warp, parent, CHILDREN] -= 1
        if parts[warp, parent, CHILDREN] > 0:
            return
        if parts[warp, parent, MASK] != 0:
            parts[warp, parent, STATE] = RUNS
            settle(parts, warp, parent)
            return
        part = parent


@inner
def split(parts: Any, warp: int, part: int, taken: int, target: int, otherwise: int, meet: int) -> None:
    """Some lanes of a part go to one place, the others elsewhere."""
    rest = parts[warp, part, MASK] & ~taken
    if meet == parts[warp, part, MEET]:
        parent = parts[warp, part, PARENT]
        if parent >= 0:
            parts[warp, parent, CHILDREN] += 1
        sibling = new_part(parts, warp, target, taken, meet, parent)
        parts[warp, part, MASK], parts[warp, part, PC] = rest, otherwise
        settle(parts, warp, sibling)
        settle(parts, warp, part)
        return
    parts[warp, part, STATE], parts[warp, part, PC], parts[warp, part, MASK] = PARTED, meet, 0
    parts[warp, part, CHILDREN] = 2
    first = new_part(parts, warp, target, taken, meet, part)
    second = new_part(parts, warp, otherwise, rest, meet, part)
    settle(parts, warp, first)
    settle(parts, warp, second)
