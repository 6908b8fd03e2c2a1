"""Asynchronous copies to shared memory: what they read and write, and when it is there.

A copy's target may be touched by nobody before its thread has waited for its group; the data comes when it is issued
or not before the wait, as the launch says.
"""

from __future__ import annotations

from typing import Any

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.memory import counted, fetched, located, put
from kernels.ptx.machine.races import drop_node, fault, new_node, reads, writes

OUTSIDE, MISALIGNED, GLOBAL, SHARED = n.OUTSIDE, n.MISALIGNED, n.GLOBAL, n.SHARED
_A, _B, _C, _X, _Y, _Z = n.A, n.B, n.C, n.X, n.Y, n.Z
COPIES, GROUPS, OWN = s.COPIES, s.GROUPS, s.OWN
C_NEXT, C_TO, C_FROM, C_SIZE, C_GIVEN, C_GROUP = s.C_NEXT, s.C_TO, s.C_FROM, s.C_SIZE, s.C_GIVEN, s.C_GROUP
_LATE, _SHIFT, _CHANGES = s.LATE, s.SHIFT, s.CHANGES
W_THREAD, W_TIME, UNFINISHED = s.W_THREAD, s.W_TIME, s.UNFINISHED
_32 = n.constant(32)
_HERE, _THERE, _READ = s.HERE, s.THERE, s.READ
_MINUS = n.MINUS
_NONE = n.NONE
_SOME = n.SOME


@inner
def _moved(state: s.State, to: int, origin: int, size: int, given: int) -> None:
    for one in range(0, size, 4):
        put(state, to + one, _32, fetched(state, origin + one, 32) if one < given else 0)
        if one < given < one + 4:  # the rest of a word is zeros
            put(state, to + one, _32, fetched(state, to + one, 32) & ((1 << 8 * (given - one)) - 1))
    state.scalars[_CHANGES] += 1


@inner
def issued(
    row: Any, state: s.State, regs: Any, base: int, active: int, pc: int, place: int, first: int, block: int,
    places: Any,
) -> None:  # fmt: skip
    """Cp.async: 4, 8 or 16 bytes for each lane, those behind what is given zeros."""
    size = row[_Z]
    for lane in range(32):
        places[lane] = -1
        if not active >> lane & 1:
            continue
        thread = block + first + lane
        target, source = regs[base + row[_A] + lane] + row[_X], regs[base + row[_B] + lane] + row[_Y]
        given = min(regs[base + row[_C] + lane], size)
        to = located(state.scalars, SHARED, target, size, place, first + lane)
        origin = located(state.scalars, GLOBAL, source, given, place, first + lane)
        if to < 0 or (origin < 0 and given > 0):
            fault(state, OUTSIDE, pc, thread, target if to < 0 else source, _MINUS, _MINUS)
            continue
        if target & (size - 1) or (source & (size - 1) and given > 0):
            fault(state, MISALIGNED, pc, thread, target if target & (size - 1) else source, _MINUS, _MINUS)
            continue
        if given > 0:
            reads(state, origin, given, thread, pc, _MINUS, _NONE)
            places[lane] = origin
        writes(state, to, size, thread, pc, _MINUS, _SOME)
        if not state.scalars[_LATE]:
            _moved(state, to, origin, size, given)
        copy, copies = new_node(state), state.nodes
        copies[copy, C_NEXT] = state.threads[thread, COPIES]
        copies[copy, C_TO], copies[copy, C_FROM], copies[copy, C_SIZE] = to, origin, size
        copies[copy, C_GIVEN], copies[copy, C_GROUP] = given, state.threads[thread, GROUPS]
        state.threads[thread, COPIES] = copy
    counted(state, pc, places, active, size, _HERE, _READ)
    for lane in range(32):
        if active >> lane & 1:
            target = regs[base + row[_A] + lane] + row[_X]
            places[lane] = located(state.scalars, SHARED, target, size, place, first + lane)
    counted(state, pc, places, active, size, _THERE, _READ)


@inner
def awaited(state: s.State, thread: int, left: int, everything: int) -> None:
    """A thread waits until all but the last `left` of its groups are there, or all of its copies."""
    copies, limit = state.nodes, state.threads[thread, GROUPS] - left
    before, copy = -1, state.threads[thread, COPIES]
    while copy >= 0:
        following = copies[copy, C_NEXT]
        if everything or copies[copy, C_GROUP] < limit:
            to, size = copies[copy, C_TO], copies[copy, C_SIZE]
            if state.scalars[_LATE]:
                _moved(state, to, copies[copy, C_FROM], size, copies[copy, C_GIVEN])
            shift = state.scalars[_SHIFT]
            for granule in range(to >> shift, (to + size) >> shift):
                if state.shadow[granule, W_THREAD] == thread and state.shadow[granule, W_TIME] == UNFINISHED:
                    state.shadow[granule, W_TIME] = state.threads[thread, OWN]
            if before < 0:
                state.threads[thread, COPIES] = following
            else:
                copies[before, C_NEXT] = following
            drop_node(state, copy)
        else:
            before = copy
        copy = following
