"""Which accesses conflict: a shadow of memory that knows for each granule who wrote and read it, and when.

Two accesses of which one writes race unless one happens before the other or they are morally strong: both strong, each
in the scope of the other. A weak write clears what came before it, as everything that conflicts with one of these
conflicts with it too. Readers at the same time, strong accesses and messages stand in a list of the granule: an entry
for each block, with its lanes where they are of one warp, or with its warps.
"""

from __future__ import annotations

from typing import Any

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.clocks import drop_clock, known

RACE, REUSE, UNWRITTEN, OUTSIDE = n.RACE, n.REUSE, n.UNWRITTEN, n.OUTSIDE
NON_COHERENT, PENDING, READ_ONLY = n.NON_COHERENT, n.PENDING, n.READ_ONLY
W_THREAD, W_TIME, W_PC, R_THREAD, R_TIME, R_PC = s.W_THREAD, s.W_TIME, s.W_PC, s.R_THREAD, s.R_TIME, s.R_PC
LIST, FLAGS, NEVER, HOST, NOWHERE, UNFINISHED = s.LIST, s.FLAGS, s.NEVER, s.HOST, s.NOWHERE, s.UNFINISHED
NEXT, KIND, BLOCK, MASK, WARP, TIME, PC = s.NEXT, s.KIND, s.BLOCK, s.MASK, s.WARP, s.TIME, s.PC
WEAK_READ, STRONG_READ, STRONG_WRITE, MESSAGE = s.WEAK_READ, s.STRONG_READ, s.STRONG_WRITE, s.MESSAGE
NC_READ, CONSTANT = s.NC_READ, s.CONSTANT
CTA = n.CTA
_THREADS, _CLOCK, _OWN, _FREE, _HEAD = s.THREADS, s.CLOCK, s.OWN, s.FREE_NODES, s.NODE_HEAD
_FAULTS, _MOST, _SHARED_AT, _SHIFT, _STOPPED = s.FAULTS, s.MOST_FAULTS, s.SHARED_AT, s.SHIFT, s.STOPPED
_MINUS = n.MINUS
_NONE = n.NONE
_SOME = n.SOME


@inner
def fault(state: s.State, kind: int, pc: int, thread: int, at: int, other: int, other_pc: int) -> None:
    """Note a fault, once for each kind, place and counterpart; what follows is counted."""
    faults, count = state.faults, state.scalars[_FAULTS]
    for one in range(count):
        if faults[one, 0] == kind and faults[one, 1] == pc and faults[one, 5] == other_pc:
            faults[one, 6] += 1
            return
    if count < _MOST:
        faults[count, 0], faults[count, 1], faults[count, 2], faults[count, 3] = kind, pc, thread, at
        faults[count, 4], faults[count, 5], faults[count, 6] = other, other_pc, 1
        state.scalars[_FAULTS] = count + 1


@inner
def new_node(state: s.State) -> int:
    """An entry that is free."""
    node = state.scalars[_HEAD]
    state.scalars[_HEAD] = state.nodes[node, NEXT]
    state.scalars[_FREE] -= 1
    return node  # type: ignore[no-any-return]


@inner
def drop_node(state: s.State, node: int) -> None:
    """An entry is free again."""
    state.nodes[node, NEXT] = state.scalars[_HEAD]
    state.scalars[_HEAD] = node
    state.scalars[_FREE] += 1


@inner
def _all_known(state: s.State, node: int, thread: int) -> bool:
    nodes, per_block = state.nodes, state.scalars[_THREADS]
    clock, time, mask = state.threads[thread, _CLOCK], nodes[node, TIME], nodes[node, MASK]
    first = nodes[node, BLOCK] * per_block
    if nodes[node, WARP] >= 0:
        first += nodes[node, WARP] * 32
        for lane in range(32):
            if mask >> lane & 1 and first + lane != thread and state.clocks[clock, first + lane] < time:
                return False
        return True
    for warp in range(32):
        if mask >> warp & 1:
            for one in range(warp * 32, min(warp * 32 + 32, per_block)):
                if first + one != thread and state.clocks[clock, first + one] < time:
                    return False
    return True


@inner
def _one_of(state: s.State, node: int) -> Any:
    """A thread of an entry."""
    nodes, mask, at = state.nodes, state.nodes[node, MASK], 0
    while not mask >> at & 1:
        at += 1
    first = nodes[node, BLOCK] * state.scalars[_THREADS]
    return first + nodes[node, WARP] * 32 + at if nodes[node, WARP] >= 0 else first + 32 * at


@inner
def _enter(state: s.State, granule: int, kind: int, thread: int, time: int, pc: int) -> None:
    """Add an access to a granule's list."""
    nodes, shadow, per_block = state.nodes, state.shadow, state.scalars[_THREADS]
    block, place = thread // per_block, thread % per_block
    warp, lane = place // 32, place % 32
    node = shadow[granule, LIST]
    while node >= 0:
        if nodes[node, KIND] == kind and nodes[node, BLOCK] == block:
            if nodes[node, TIME] == time:
                if nodes[node, WARP] == warp:
                    nodes[node, MASK] |= 1 << lane
                elif nodes[node, WARP] >= 0:
                    nodes[node, MASK] = 1 << nodes[node, WARP] | 1 << warp
                    nodes[node, WARP] = -1
                else:
                    nodes[node, MASK] |= 1 << warp
                return
            if _all_known(state, node, thread):
                nodes[node, WARP], nodes[node, MASK] = warp, 1 << lane
                nodes[node, TIME], nodes[node, PC] = time, pc
                return
        node = nodes[node, NEXT]
    node = new_node(state)
    nodes[node, NEXT], nodes[node, KIND], nodes[node, BLOCK] = shadow[granule, LIST], kind, block
    nodes[node, WARP], nodes[node, MASK], nodes[node, TIME], nodes[node, PC] = warp, 1 << lane, time, pc
    shadow[granule, LIST] = node


@inner
def _last_write(state: s.State, granule: int, thread: int, pc: int, at: int) -> bool:
    """Whether the last weak write happens before this access; false where the granule is outside of memory."""
    shadow = state.shadow
    writer = shadow[granule, W_THREAD]
    if writer < 0:
        if writer == NOWHERE:
            fault(state, OUTSIDE, pc, thread, at, _MINUS, _MINUS)
            return False
        return True
    if shadow[granule, W_TIME] == UNFINISHED:
        fault(state, PENDING, pc, thread, at, writer, shadow[granule, W_PC])
    elif not known(state.clocks, state.threads, thread, writer, shadow[granule, W_TIME]):
        fault(state, RACE, pc, thread, at, writer, shadow[granule, W_PC])
    return True


@inner
def _others(state: s.State, granule: int, thread: int, pc: int, at: int, writing: int, strength: int) -> None:
    """Compare with the list. `strength` is -1 for a weak access, else its scope."""
    nodes = state.nodes
    block = thread // state.scalars[_THREADS]
    node = state.shadow[granule, LIST]
    while node >= 0:
        kind = nodes[node, KIND]
        if kind != MESSAGE and (writing or kind >= STRONG_WRITE):
            apart = nodes[node, BLOCK] != block
            narrow = kind in (STRONG_READ, STRONG_WRITE)
            if (strength < 0 or kind == WEAK_READ or (apart and (strength == CTA or narrow))) and not _all_known(
                state, node, thread
            ):
                shared = kind == WEAK_READ and at >= state.scalars[_SHARED_AT]
                fault(state, REUSE if shared else RACE, pc, thread, at, _one_of(state, node), nodes[node, PC])
        node = nodes[node, NEXT]


@inner
def _last_reader(state: s.State, granule: int, thread: int, pc: int, at: int) -> None:
    shadow = state.shadow
    reader = shadow[granule, R_THREAD]
    if reader >= 0 and not known(state.clocks, state.threads, thread, reader, shadow[granule, R_TIME]):
        shared = at >= state.scalars[_SHARED_AT]
        fault(state, REUSE if shared else RACE, pc, thread, at, reader, shadow[granule, R_PC])


@inner
def reads(state: s.State, at: int, size: int, thread: int, pc: int, strength: int, non_coherent: int) -> None:
    """Check a read of bytes of memory and note it; `strength` is -1 for a weak one, else the scope of a strong one."""
    shadow, shift = state.shadow, state.scalars[_SHIFT]
    own = state.threads[thread, _OWN]
    for granule in range(at >> shift, (at + size + (1 << shift) - 1) >> shift):
        if shadow[granule, W_THREAD] == NEVER:
            fault(state, UNWRITTEN, pc, thread, at, _MINUS, _MINUS)
            continue
        if shadow[granule, FLAGS] & CONSTANT:
            continue
        if not _last_write(state, granule, thread, pc, at):
            continue
        if shadow[granule, LIST] >= 0:
            _others(state, granule, thread, pc, at, _NONE, strength)
        if non_coherent:
            shadow[granule, FLAGS] |= NC_READ
            if shadow[granule, W_THREAD] >= 0:
                fault(state, NON_COHERENT, pc, thread, at, shadow[granule, W_THREAD], shadow[granule, W_PC])
        if strength >= 0:
            _enter(state, granule, STRONG_READ + strength, thread, own, pc)
            continue
        reader = shadow[granule, R_THREAD]
        if reader >= 0 and not known(state.clocks, state.threads, thread, reader, shadow[granule, R_TIME]):
            _enter(state, granule, WEAK_READ, reader, shadow[granule, R_TIME], shadow[granule, R_PC])
        shadow[granule, R_THREAD], shadow[granule, R_TIME], shadow[granule, R_PC] = thread, own, pc


@inner
def writes(state: s.State, at: int, size: int, thread: int, pc: int, strength: int, unfinished: int) -> None:
    """Check a write of bytes of memory and note it."""
    shadow, shift = state.shadow, state.scalars[_SHIFT]
    own = state.threads[thread, _OWN]
    for granule in range(at >> shift, (at + size + (1 << shift) - 1) >> shift):
        if not _last_write(state, granule, thread, pc, at):
            continue
        if shadow[granule, FLAGS] & CONSTANT:
            fault(state, READ_ONLY, pc, thread, at, _MINUS, _MINUS)
        if shadow[granule, FLAGS] & NC_READ:
            fault(state, NON_COHERENT, pc, thread, at, shadow[granule, R_THREAD], shadow[granule, R_PC])
        _last_reader(state, granule, thread, pc, at)
        if shadow[granule, LIST] >= 0:
            _others(state, granule, thread, pc, at, _SOME, strength)
        if strength >= 0:
            if shadow[granule, W_THREAD] == NEVER:
                shadow[granule, W_THREAD] = HOST
            _enter(state, granule, STRONG_WRITE + strength, thread, own, pc)
            continue
        if shadow[granule, LIST] >= 0:
            clear(state, granule)
        shadow[granule, W_THREAD], shadow[granule, W_TIME], shadow[granule, W_PC] = thread, own, pc
        shadow[granule, R_THREAD] = -1
        if unfinished:
            shadow[granule, W_TIME] = UNFINISHED


@inner
def clear(state: s.State, granule: int) -> None:
    """Throw a granule's list away."""
    nodes = state.nodes
    node = state.shadow[granule, LIST]
    while node >= 0:
        if nodes[node, KIND] == MESSAGE:
            drop_clock(state.scalars, state.clocks, nodes[node, MASK])
            drop_clock(state.scalars, state.clocks, nodes[node, TIME])
        following = nodes[node, NEXT]
        drop_node(state, node)
        node = following
    state.shadow[granule, LIST] = -1
