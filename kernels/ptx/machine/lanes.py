"""What lanes of a warp do together: shuffles, votes, matches, reductions, products of tiles."""

from __future__ import annotations

from typing import Any

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.converting import from_short
from kernels.ptx.machine.memory import changed, counted, fetched, located
from kernels.ptx.machine.races import fault, reads
from kernels.ptx.machine.whole import keep

SHFL, VOTE, MATCH, REDUX, ACTIVE, MMA = n.SHFL, n.VOTE, n.MATCH, n.REDUX, n.ACTIVE, n.MMA
S_UP, S_DOWN, S_BFLY, ALL, ANY, UNI = n.S_UP, n.S_DOWN, n.S_BFLY, n.ALL, n.ANY, n.UNI
APART, OUTSIDE, MISALIGNED, TF32, F16 = n.APART, n.OUTSIDE, n.MISALIGNED, n.TF32, n.F16
_OP, _A, _B, _C, _D, _E, _X, _Y, _Z = n.OP, n.A, n.B, n.C, n.D, n.E, n.X, n.Y, n.Z
_KIND, _SLOTS, _D_BITS, _SIGNED = n.KIND, n.SLOTS, n.D_BITS, n.SIGNED
_FULL = 0xFFFFFFFF
_10 = n.constant(10)
_127 = n.constant(127)
_15 = n.constant(15)
_16 = n.constant(16)
_32 = n.constant(32)
_7 = n.constant(7)
_MINUS = n.MINUS
_NONE = n.NONE


@inner
def together(
    row: Any, state: s.State, regs: Any, base: int, active: int, live: int, pc: int, thread: int, a: Any
) -> None:  # fmt: skip
    """Run an instruction of several lanes; `live` are those of the warp that have not ended, `thread` is its first."""
    op = row[_OP]
    if op == ACTIVE:
        for lane in range(32):
            a[lane] = active
        keep(regs, base + row[_D], _32, active, a)
        return
    if op == MMA:
        if active != _FULL:
            fault(state, APART, pc, thread, _NONE, _MINUS, _MINUS)
        return
    first = _NONE
    while not active >> first & 1:
        first += 1
    named = regs[base + row[_Z] + first] & _FULL
    if named & live & ~active or not named & active:
        fault(state, APART, pc, thread + first, named, _MINUS, _MINUS)
    voters = named & active
    if op == SHFL:
        _shuffled(row, state, regs, base, voters, active, pc, thread, a)
        return
    if op == VOTE:
        yes = 0
        for lane in range(32):
            if voters >> lane & 1 and regs[base + row[_A] + lane] & 1:
                yes |= 1 << lane
        kind = row[_X]
        result = yes
        if kind == ALL:
            result = int(yes == voters)
        elif kind == ANY:
            result = int(yes != 0)
        elif kind == UNI:
            result = int(yes == 0 or yes == voters)
        for lane in range(32):
            a[lane] = result
        keep(regs, base + row[_D], row[_D_BITS], active, a)
    elif op == MATCH:
        for lane in range(32):
            a[lane] = 0
            for other in range(32):
                if voters >> other & 1 and regs[base + row[_A] + other] == regs[base + row[_A] + lane]:
                    a[lane] |= 1 << other
        keep(regs, base + row[_D], _32, active, a)
    else:
        total, begun = regs[base + row[_A] + first], False
        for lane in range(32):
            if voters >> lane & 1:
                value = regs[base + row[_A] + lane]
                total = changed(row[_X], 0, 32, row[_SIGNED], total, value, value, state) & _FULL if begun else value
                begun = True
        for lane in range(32):
            a[lane] = total
        keep(regs, base + row[_D], _32, active, a)


@inner
def _shuffled(
    row: Any, state: s.State, regs: Any, base: int, voters: int, active: int, pc: int, thread: int, a: Any
) -> None:  # fmt: skip
    kind = row[_X]
    for lane in range(32):
        a[lane] = regs[base + row[_A] + lane]
    for lane in range(32):
        if not active >> lane & 1:
            continue
        by, bounds = regs[base + row[_B] + lane] & 31, regs[base + row[_C] + lane]
        clamp, segment = bounds & 31, bounds >> 8 & 31
        most, least = (lane & segment) | (clamp & ~segment), lane & segment
        if kind == S_UP:
            source = lane - by
            inside = source >= most
        elif kind == S_DOWN:
            source = lane + by
            inside = source <= most
        elif kind == S_BFLY:
            source = lane ^ by
            inside = source <= most
        else:
            source = least | (by & ~segment)
            inside = source <= most
        if not inside:
            source = lane
        if not voters >> source & 1:
            fault(state, APART, pc, thread + lane, source, _MINUS, _MINUS)
        regs[base + row[_D] + lane] = a[source]
        if row[_E] >= 0:
            regs[base + row[_E] + lane] = int(inside)


@inner
def _entry(regs: Any, singles: Any, at: int, lane: int, kind: int, half: int) -> Any:
    """An element of A or B."""
    if kind == TF32:  # the lower bits of a float32 are not read
        cut = singles[2 * (at + lane)]
        low = regs[at + lane] & 0x1FFF
        if low:
            regs[at + lane] -= low
            cut = singles[2 * (at + lane)]
            regs[at + lane] += low
        return cut
    bits = regs[at + lane] >> 16 * half & 0xFFFF
    return from_short(bits, _10, _15) if kind == F16 else from_short(bits, _7, _127)


@inner
def multiplied(row: Any, regs: Any, singles: Any, base: int, room: Any) -> None:
    """A product of tiles, 16 by 8, whose sums are rounded once; `room` is for 384 numbers.

    How lanes hold the tiles is said in PTX's manual, under mma.
    """
    kind, depth, many_a, many_b = row[_KIND], row[_X], row[_Y], row[_Z]
    pair = 1 if kind == TF32 else 2
    left, right = room[:256], room[256:]
    for lane in range(32):
        group, inside = lane >> 2, lane & 3
        for register in range(many_a):
            for half in range(pair):
                r = group + 8 * (register & 1)
                c = inside * pair + half + (register >> 1) * 4 * pair
                left[16 * r + c] = _entry(regs, singles, base + row[_SLOTS + 4 + register], lane, kind, half)
        for register in range(many_b):
            for half in range(pair):
                r = inside * pair + half + register * 4 * pair
                right[8 * r + group] = _entry(
                    regs, singles, base + row[_SLOTS + 4 + many_a + register], lane, kind, half
                )
    for lane in range(32):
        group, inside = lane >> 2, lane & 3
        for register in range(4):
            r, c = group + 8 * (register >> 1), inside * 2 + (register & 1)
            total = float(singles[2 * (base + row[_SLOTS + 4 + many_a + many_b + register] + lane)])
            for k in range(depth):
                total += left[16 * r + k] * right[8 * k + c]
            singles[2 * (base + row[_SLOTS + register] + lane)] = total


@inner
def tiles_loaded(
    row: Any, state: s.State, regs: Any, base: int, active: int, pc: int, place: int, first: int, block: int,
    places: Any,
) -> None:  # fmt: skip
    """Ldmatrix: tiles of 8 by 8 halves; lane 8 i + r has the address of row r of tile i."""
    many = row[_Z]
    if active != _FULL:
        fault(state, APART, pc, block + first, _NONE, _MINUS, _MINUS)
    for lane in range(32):
        places[lane] = -1
        if lane < 8 * many:
            address = regs[base + row[_A] + lane] + row[_X]
            at = located(state.scalars, row[_Y], address, _16, place, first + lane)
            if at < 0:
                fault(state, OUTSIDE, pc, block + first + lane, address, _MINUS, _MINUS)
            elif address & 15:
                fault(state, MISALIGNED, pc, block + first + lane, address, _MINUS, _MINUS)
            else:
                places[lane] = at
                reads(state, at, _16, block + first + lane, pc, _MINUS, _NONE)
    counted(state, pc, places, active, _16, s.HERE, s.READ)
    for tile in range(many):
        for lane in range(32):
            value = 0
            for half in range(2):
                r, c = lane >> 2, 2 * (lane & 3) + half
                if row[_KIND]:
                    r, c = c, r
                at = places[8 * tile + r]
                if at >= 0:
                    value |= fetched(state, at + 2 * c, _16) << 16 * half
            regs[base + row[_SLOTS + tile] + lane] = value
