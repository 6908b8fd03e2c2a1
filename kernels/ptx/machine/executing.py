"""One instruction of a part of a warp, whatever it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.clocks import drop_clock, gathered, snapshot
from kernels.ptx.machine.copying import awaited, issued
from kernels.ptx.machine.lanes import multiplied, tiles_loaded, together
from kernels.ptx.machine.memory import accessed
from kernels.ptx.machine.messages import fence, meet
from kernels.ptx.machine.parts import end, live, settle, split
from kernels.ptx.machine.races import fault
from kernels.ptx.machine.real import real
from kernels.ptx.machine.whole import ones_in, whole

WHOLE_END, REAL_END, LANES_END = n.WHOLE_END, n.REAL_END, n.LANES_END
CLOCK_READ, MMA, WARP_SYNC = n.CLOCK, n.MMA, n.WARP_SYNC
LD, ST, ATOM, LDMATRIX, FENCE = n.LD, n.ST, n.ATOM, n.LDMATRIX, n.FENCE
CP_ASYNC, CP_COMMIT, CP_WAIT = n.CP_ASYNC, n.CP_COMMIT, n.CP_WAIT
BRA, BRX, CALL, RET, EXIT, BARRIER, NANOSLEEP, TRAP = (
    n.BRA,
    n.BRX,
    n.CALL,
    n.RET,
    n.EXIT,
    n.BARRIER,
    n.NANOSLEEP,
    n.TRAP,
)
DIVERGENT, TRAPPED, APART, TABLE = n.DIVERGENT, n.TRAPPED, n.APART, n.TABLE
ARRIVE, RED_POPC, RED_AND, RED_OR, WEAK = n.ARRIVE, n.RED_POPC, n.RED_AND, n.RED_OR, n.WEAK
_OP, _GUARD, _NEGATED, _A, _B, _C, _D, _X, _Y = n.OP, n.GUARD, n.NEGATED, n.A, n.B, n.C, n.D, n.X, n.Y
_MEET = n.MEET
_KIND, _ORDER, _D_BITS = n.KIND, n.ORDER, n.D_BITS
STATE, PC, MASK, MEET, BARRIER_OF = s.P_STATE, s.P_PC, s.P_MASK, s.P_MEET, s.P_BARRIER
FREE_CLOCKS, FREE_NODES = s.FREE_CLOCKS, s.FREE_NODES
CLOCKS_LEFT, NODES_LEFT = 256, 4096  # more than one instruction takes
SEEN, YIELDED, WAITS_AT = s.P_SEEN, s.P_YIELDED, s.P_WAITS_AT
FREE, RUNS, WAITS, PARTS = s.FREE, s.RUNS, s.WAITS, s.PARTS
B_HERE, B_FOR, B_CLOCK, B_VALUE = s.B_HERE, s.B_FOR, s.B_CLOCK, s.B_VALUE
S_BLOCK, S_LIVE = s.S_BLOCK, s.S_LIVE
N_WARPS, N_LANES = s.N_WARPS, s.N_LANES
THREADS, WARPS, CHANGES, STEPS, STOPPED, ROUNDS = s.THREADS, s.WARPS, s.CHANGES, s.STEPS, s.STOPPED, s.ROUNDS
GROUPS, SLOT_COUNT = s.GROUPS, s.SLOTS
_FULL = 0xFFFFFFFF


class Engine(NamedTuple):
    """What runs: code, registers in three views, parts of warps, blocks, barriers; `setup` is how blocks begin.

    `ints` and `reals` are one scratch of rows of 32 numbers, `members` is room for a block's threads.
    """

    rows: Any
    regs: Any
    singles: Any
    doubles: Any
    parts: Any
    places: Any
    barriers: Any
    setup: Any
    ints: Any
    reals: Any
    members: Any


_MINUS = n.MINUS
_NONE = n.NONE


@inner
def executed(engine: Engine, state: s.State, warp: int, part: int, most: int) -> int:
    """Run instructions of a part, so many at most, until it waits, ends or lets others run; whether it may go on."""
    parts, regs, scalars = engine.parts, engine.regs, state.scalars
    base = warp * scalars[SLOT_COUNT] * 32
    ints, reals = engine.ints, engine.reals
    goes_on = 1
    while goes_on and most > 0 and scalars[FREE_CLOCKS] >= CLOCKS_LEFT and scalars[FREE_NODES] >= NODES_LEFT:
        most -= 1
        pc = parts[warp, part, PC]
        active = parts[warp, part, MASK]
        row = engine.rows[pc]
        op = row[_OP]
        if row[_GUARD] >= 0:
            for lane in range(32):
                if regs[base + row[_GUARD] + lane] & 1 == row[_NEGATED]:
                    active &= ~(1 << lane)
        scalars[STEPS] += 1
        state.counts[pc, N_WARPS] += 1
        state.counts[pc, N_LANES] += ones_in(active) if active != _FULL else 32
        if op >= BRA:
            goes_on = _course(engine, state, warp, part, pc, row, base, active)
            continue
        if active:
            if op == CLOCK_READ:
                for lane in range(32):
                    if active >> lane & 1:
                        regs[base + row[_D] + lane] = scalars[STEPS]
            elif op < WHOLE_END:
                whole(row, regs, base, active, ints[0], ints[1], ints[2])
            elif op < REAL_END:
                real(
                    row, regs, engine.singles, engine.doubles, base, active, ints[0], ints[1], ints[2], reals[3],
                    reals[4], reals[5], reals[6], ints[6],
                )  # fmt: skip
            else:
                goes_on = _outward(engine, state, warp, part, pc, row, base, active)
        parts[warp, part, PC] = pc + 1
        if pc + 1 == parts[warp, part, MEET]:
            settle(parts, warp, part)
            goes_on &= int(parts[warp, part, STATE] == RUNS)
    return goes_on


@inner
def _outward(
    engine: Engine, state: s.State, warp: int, part: int, pc: int, row: Any, base: int, active: int
) -> int:  # fmt: skip
    """Lanes, memory, fences, copies."""
    op, regs = row[_OP], engine.regs
    warps = state.scalars[WARPS]
    place, first = warp // warps, warp % warps * 32
    block = engine.places[place, S_BLOCK] * state.scalars[THREADS]
    if op in (LD, ST, ATOM):
        before = state.scalars[CHANGES]
        accessed(row, state, regs, base, active, pc, place, first, block, engine.ints[0])
        if row[_ORDER] != WEAK and op != ST:
            return _looked(engine, state, warp, part, before)
    elif op == WARP_SYNC:
        _warp_met(engine, state, warp, pc, row, base, active, block + first)
    elif op < LANES_END:
        together(row, state, regs, base, active, live(engine.parts, warp), pc, block + first, engine.ints[0])
        if op == MMA:
            multiplied(row, regs, engine.singles, base, engine.reals.reshape(-1)[256:])
    elif op == LDMATRIX:
        tiles_loaded(row, state, regs, base, active, pc, place, first, block, engine.ints[0])
    elif op == CP_ASYNC:
        issued(row, state, regs, base, active, pc, place, first, block, engine.ints[0])
    else:
        for lane in range(32):
            if active >> lane & 1:
                thread = block + first + lane
                if op == FENCE:
                    fence(state, thread, row[_X], row[_Y])
                elif op == CP_COMMIT:
                    state.threads[thread, GROUPS] += 1
                else:
                    awaited(state, thread, row[_X], row[_Y])
    return 1


@inner
def _looked(engine: Engine, state: s.State, warp: int, part: int, before: int) -> int:
    """A part that looks again and finds nothing changed lets others run."""
    parts = engine.parts
    seen = parts[warp, part, SEEN]
    parts[warp, part, SEEN] = state.scalars[CHANGES]
    if seen != before or state.scalars[CHANGES] != before:
        return 1
    parts[warp, part, YIELDED] = state.scalars[ROUNDS]
    parts[warp, part, WAITS_AT] = parts[warp, part, PC]
    return 0


@inner
def _warp_met(
    engine: Engine, state: s.State, warp: int, pc: int, row: Any, base: int, active: int, thread: int
) -> None:  # fmt: skip
    first = _NONE
    while not active >> first & 1:
        first += 1
    named = engine.regs[base + row[_A] + first] & _FULL
    if named & live(engine.parts, warp) != active:
        fault(state, APART, pc, thread + first, named, _MINUS, _MINUS)
    count = _NONE
    for lane in range(32):
        if active >> lane & 1:
            engine.members[count] = thread + lane
            count += 1
    meet(state, engine.members, count, _MINUS)


@inner
def _course(
    engine: Engine, state: s.State, warp: int, part: int, pc: int, row: Any, base: int, active: int
) -> int:  # fmt: skip
    """Branches, calls, ends, barriers."""
    parts, regs, op = engine.parts, engine.regs, row[_OP]
    mask = parts[warp, part, MASK]
    warps = state.scalars[WARPS]
    place, first = warp // warps, warp % warps * 32
    thread = engine.places[place, S_BLOCK] * state.scalars[THREADS] + first
    if op == BARRIER and active:
        return _arrived(engine, state, warp, part, pc, row, base, active)
    if op == BRA:
        if active == mask:
            parts[warp, part, PC] = row[_X]
        elif active:
            split(parts, warp, part, active, row[_X], pc + 1, row[_MEET])
            return int(parts[warp, part, STATE] == RUNS)
        else:
            parts[warp, part, PC] = pc + 1
    elif op == BRX and not active:
        parts[warp, part, PC] = pc + 1 + row[_X]
    elif op == BRX:
        lane = _NONE
        while not active >> lane & 1:
            lane += 1
        index = regs[base + row[_A] + lane] & _FULL
        if index >= row[_X]:
            fault(state, TABLE, pc, thread + lane, index, _MINUS, _MINUS)
            index = 0
        same = 0
        for other in range(32):
            if active >> other & 1 and regs[base + row[_A] + other] == regs[base + row[_A] + lane]:
                same |= 1 << other
        if same == mask:
            parts[warp, part, PC] = pc + 1 + index
        else:  # those with another target, or none, come here again
            split(parts, warp, part, same, pc + 1 + index, pc, row[_MEET])
            return int(parts[warp, part, STATE] == RUNS)
    elif op == CALL:
        for lane in range(32):
            if active >> lane & 1:
                regs[base + row[_D] + lane] = pc + 1
        if active == mask:
            parts[warp, part, PC] = row[_X]
        elif active:
            split(parts, warp, part, active, row[_X], pc + 1, pc + 1)
            return int(parts[warp, part, STATE] == RUNS)
        else:
            parts[warp, part, PC] = pc + 1
    elif op == RET:
        lane = _NONE
        while not mask >> lane & 1:
            lane += 1
        parts[warp, part, PC] = regs[base + row[_A] + lane]
    elif op == EXIT or (op == TRAP and active):
        if op == TRAP:
            fault(state, TRAPPED, pc, thread, _NONE, _MINUS, _MINUS)
        engine.places[place, S_LIVE] -= ones_in(mask)
        end(parts, warp, part)
        state.scalars[CHANGES] += 1
        return 0
    else:
        parts[warp, part, PC] = pc + 1
        if op == NANOSLEEP:
            parts[warp, part, YIELDED] = state.scalars[ROUNDS]
            settle(parts, warp, part)
            return 0
    settle(parts, warp, part)
    return int(parts[warp, part, STATE] == RUNS)


@inner
def _arrived(
    engine: Engine, state: s.State, warp: int, part: int, pc: int, row: Any, base: int, active: int
) -> int:  # fmt: skip
    parts, regs = engine.parts, engine.regs
    warps, mask = state.scalars[WARPS], parts[warp, part, MASK]
    place = warp // warps
    thread = engine.places[place, S_BLOCK] * state.scalars[THREADS] + warp % warps * 32
    first = _NONE
    while not active >> first & 1:
        first += 1
    number = regs[base + row[_A] + first] & 15
    threads = regs[base + row[_B] + first]
    whole_block = threads == 0
    if whole_block:
        threads = state.scalars[THREADS]
    barrier = engine.barriers[place, number]
    if active != mask or (row[_X] and active != live(parts, warp)):
        fault(state, DIVERGENT, pc, thread + first, number, _MINUS, _MINUS)
        state.scalars[STOPPED] = 1
        return 0
    if barrier[B_HERE] and barrier[B_FOR] != threads:
        fault(state, DIVERGENT, pc, thread + first, number, _MINUS, _MINUS)
    barrier[B_FOR] = threads
    count = ones_in(active) if whole_block or row[_X] == 0 else 32  # a count is of whole warps
    barrier[B_HERE] += count
    if row[_KIND] == ARRIVE:
        for lane in range(32):
            if active >> lane & 1:
                mine = snapshot(state, thread + lane)
                barrier[B_CLOCK] = gathered(state, barrier[B_CLOCK], mine)
                drop_clock(state.scalars, state.clocks, mine)
        parts[warp, part, PC] = pc + 1
    else:
        if row[_KIND] >= RED_POPC:
            for lane in range(32):
                if active >> lane & 1:
                    yes = regs[base + row[_C] + lane] & 1
                    barrier[B_VALUE] += yes  # and: all of them, or: any
        parts[warp, part, STATE], parts[warp, part, BARRIER_OF] = WAITS, number
    if barrier[B_HERE] < threads:
        return int(row[_KIND] == ARRIVE)
    if barrier[B_HERE] > threads:
        fault(state, DIVERGENT, pc, thread + first, number, _MINUS, _MINUS)
    _opened(engine, state, place, number)
    if row[_KIND] == ARRIVE:
        settle(parts, warp, part)
    return 1


@inner
def _opened(engine: Engine, state: s.State, place: int, number: int) -> None:
    """All are there: those that wait go on, and know what all have done."""
    parts, barrier, warps = engine.parts, engine.barriers[place, number], state.scalars[WARPS]
    block = engine.places[place, S_BLOCK] * state.scalars[THREADS]
    count = _NONE
    for warp in range(place * warps, (place + 1) * warps):
        for part in range(PARTS):
            if parts[warp, part, STATE] == WAITS and parts[warp, part, BARRIER_OF] == number:
                for lane in range(32):
                    if parts[warp, part, MASK] >> lane & 1:
                        engine.members[count] = block + (warp - place * warps) * 32 + lane
                        count += 1
    if count:
        meet(state, engine.members, count, barrier[B_CLOCK])
    for warp in range(place * warps, (place + 1) * warps):
        for part in range(PARTS):
            if parts[warp, part, STATE] == WAITS and parts[warp, part, BARRIER_OF] == number:
                row = engine.rows[parts[warp, part, PC]]
                if row[_KIND] >= RED_POPC:
                    value = barrier[B_VALUE]
                    if row[_KIND] == RED_AND:
                        value = int(value == barrier[B_HERE])
                    elif row[_KIND] == RED_OR:
                        value = int(value > 0)
                    for lane in range(32):
                        if parts[warp, part, MASK] >> lane & 1:
                            engine.regs[warp * state.scalars[SLOT_COUNT] * 32 + row[_D] + lane] = value
                parts[warp, part, STATE] = RUNS
                parts[warp, part, PC] += 1
                settle(parts, warp, part)
    drop_clock(state.scalars, state.clocks, barrier[B_CLOCK])
    barrier[B_HERE], barrier[B_CLOCK], barrier[B_VALUE] = 0, -1, 0
    state.scalars[CHANGES] += 1
