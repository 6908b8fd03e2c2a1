"""Which part of which warp runs next, and until when: blocks that are resident, interleaved by an adversary."""

from __future__ import annotations

from typing import Any

from kernels.compiling import compiled, inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.clocks import drop_clock, new_clock, use_clock
from kernels.ptx.machine.executing import CLOCKS_LEFT, NODES_LEFT, Engine, executed
from kernels.ptx.machine.parts import new_part
from kernels.ptx.machine.races import clear, drop_node, fault

IN_ORDER, REVERSED, RANDOM, STARVED, EVERY = range(5)  # the adversaries
FINISHED, GROW, HALTED = range(3)  # why a run returns

STATE, PC, MASK, YIELDED, WAITS_AT = s.P_STATE, s.P_PC, s.P_MASK, s.P_YIELDED, s.P_WAITS_AT
FREE, RUNS, WAITS, PARTS = s.FREE, s.RUNS, s.WAITS, s.PARTS
S_BLOCK, S_LIVE, S_ORDER = s.S_BLOCK, s.S_LIVE, s.S_ORDER
THREADS, BLOCKS, RESIDENT, WARPS, SHIFT = s.THREADS, s.BLOCKS, s.RESIDENT, s.WARPS, s.SHIFT
SHARED_AT, SHARED_SIZE, LOCAL_AT, LOCAL_SIZE = s.SHARED_AT, s.SHARED_SIZE, s.LOCAL_AT, s.LOCAL_SIZE
CHANGES, STEPS, SINCE, DRAWN, POLICY, ROUNDS = s.CHANGES, s.STEPS, s.SINCE, s.DRAWN, s.POLICY, s.ROUNDS
VICTIM, LAST_SEEN, SLOTS = s.VICTIM, s.LAST_SEEN, s.SLOTS
AGAIN, CURRENT, LEFT, STOPPED, NEXT_BLOCK, DONE = s.AGAIN, s.CURRENT, s.LEFT, s.STOPPED, s.NEXT_BLOCK, s.DONE
FREE_CLOCKS, FREE_NODES = s.FREE_CLOCKS, s.FREE_NODES
W_THREAD, R_THREAD, LIST, FLAGS, NEVER = s.W_THREAD, s.R_THREAD, s.LIST, s.FLAGS, s.NEVER
CLOCK, OWN, REL_CTA, PEND_GPU, COPIES, GROUPS = s.CLOCK, s.OWN, s.REL_CTA, s.PEND_GPU, s.COPIES, s.GROUPS
B_HERE, B_CLOCK, B_VALUE, BARRIERS = s.B_HERE, s.B_CLOCK, s.B_VALUE, s.BARRIERS
MISSING, ENDLESS, TOO_LONG = n.MISSING, n.ENDLESS, n.TOO_LONG
SHAPE = 8  # numbers of `setup`: threads and blocks in three dims, dynamic and all shared memory
_PATIENCE = 200  # rounds in which all look and nothing changes
_MINUS = n.MINUS
_NONE = n.NONE


@inner
def drawn(scalars: Any, below: int) -> int:
    """A number below another one, by xorshift."""
    word = scalars[DRAWN]
    word ^= (word << 13) & 0x7FFFFFFFFFFFFFFF
    word ^= word >> 7
    word ^= (word << 17) & 0x7FFFFFFFFFFFFFFF
    word &= 0x7FFFFFFFFFFFFFFF
    scalars[DRAWN] = word
    return (word >> 11) % below  # type: ignore[no-any-return]


@inner
def _begin(engine: Engine, state: s.State, place: int) -> None:
    """The next block takes a place."""
    scalars = state.scalars
    threads, warps = scalars[THREADS], scalars[WARPS]
    setup = engine.setup
    block = setup[SHAPE + scalars[NEXT_BLOCK]]
    scalars[NEXT_BLOCK] += 1
    engine.places[place, S_BLOCK], engine.places[place, S_LIVE] = block, threads
    _forgotten(state, scalars[SHARED_AT] + place * scalars[SHARED_SIZE], scalars[SHARED_SIZE])
    size = threads * scalars[LOCAL_SIZE]
    _forgotten(state, scalars[LOCAL_AT] + place * size, size)
    clock = new_clock(scalars, state.clocks, _MINUS)
    use_clock(state.clocks, clock, threads - 1)
    for thread in range(block * threads, (block + 1) * threads):
        state.threads[thread, CLOCK], state.threads[thread, OWN] = clock, 1
        for one in range(REL_CTA, PEND_GPU + 1):
            state.threads[thread, one] = -1
        state.threads[thread, COPIES], state.threads[thread, GROUPS] = -1, 0
    for barrier in range(BARRIERS):
        engine.barriers[place, barrier, B_HERE], engine.barriers[place, barrier, B_VALUE] = 0, 0
        engine.barriers[place, barrier, B_CLOCK] = -1
    slots = scalars[SLOTS]
    for one in range(warps):
        warp = place * warps + one
        mask = 0
        for lane in range(min(32, threads - 32 * one)):
            mask |= 1 << lane
        first = SHAPE + scalars[BLOCKS]
        for slot in range(slots):
            value = setup[first + slot]
            for lane in range(32):
                engine.regs[(warp * slots + slot) * 32 + lane] = value
        for at in range(first + slots, setup.shape[0], 2):
            for lane in range(32):
                value = _special(setup, scalars, setup[at + 1], block, place, 32 * one + lane)
                engine.regs[(warp * slots + setup[at]) * 32 + lane] = value
        for part in range(PARTS):
            engine.parts[warp, part, STATE] = FREE
        new_part(engine.parts, warp, _NONE, mask, _MINUS, _MINUS)
    scalars[CHANGES] += 1


@inner
def _forgotten(state: s.State, at: int, size: int) -> None:
    """Memory that nobody has written."""
    shift = state.scalars[SHIFT]
    for granule in range(at >> shift, (at + size) >> shift):
        if state.shadow[granule, LIST] >= 0:
            clear(state, granule)
        state.shadow[granule, W_THREAD], state.shadow[granule, R_THREAD] = NEVER, -1
        state.shadow[granule, FLAGS] = 0


@inner
def _special(shape: Any, scalars: Any, which: int, block: int, place: int, thread: int) -> int:
    x, y = shape[0], shape[1]
    if which == 0:
        return thread % x  # type: ignore[no-any-return]
    if which == 1:
        return thread // x % y  # type: ignore[no-any-return]
    if which == 2:
        return thread // (x * y)  # type: ignore[no-any-return]
    if which < 6:
        return shape[which - 3]  # type: ignore[no-any-return]
    if which == 6:
        return block % shape[3]  # type: ignore[no-any-return]
    if which == 7:
        return block // shape[3] % shape[4]  # type: ignore[no-any-return]
    if which == 8:
        return block // (shape[3] * shape[4])  # type: ignore[no-any-return]
    if which < 12:
        return shape[which - 6]  # type: ignore[no-any-return]
    lane = thread & 31
    if which == 12:
        return lane
    if which == 13:
        return thread >> 5
    if which == 14:
        return scalars[WARPS]  # type: ignore[no-any-return]
    if which == 15:
        return place
    if which == 16:
        return scalars[RESIDENT]  # type: ignore[no-any-return]
    if which == 17:
        return 1
    if which == 18:
        return 1 << lane
    if which == 19:
        return (1 << lane) - 1
    if which == 20:
        return (2 << lane) - 1
    if which == 21:
        return 0xFFFFFFFF & ~((2 << lane) - 1)
    if which == 22:
        return 0xFFFFFFFF & ~((1 << lane) - 1)
    return shape[which - 17]  # type: ignore[no-any-return]


@inner
def _ended(engine: Engine, state: s.State, place: int) -> None:
    """A block leaves its place."""
    scalars, block = state.scalars, engine.places[place, S_BLOCK]
    for thread in range(block * scalars[THREADS], (block + 1) * scalars[THREADS]):
        for one in (CLOCK, 2, 3, 4, 5):
            drop_clock(scalars, state.clocks, state.threads[thread, one])
        copy = state.threads[thread, COPIES]
        while copy >= 0:
            following = state.nodes[copy, s.C_NEXT]
            drop_node(state, copy)
            copy = following
    for barrier in range(BARRIERS):
        drop_clock(scalars, state.clocks, engine.barriers[place, barrier, B_CLOCK])
        engine.barriers[place, barrier, B_CLOCK] = -1
    engine.places[place, S_BLOCK] = -1
    scalars[DONE] += 1
    scalars[CHANGES] += 1


@inner
def _ready(engine: Engine, state: s.State, warp: int, backwards: int) -> int:
    """A part of a warp that may run; -1 where none may."""
    parts, now = engine.parts, state.scalars[ROUNDS]
    for one in range(PARTS):
        part = PARTS - 1 - one if backwards else one
        if parts[warp, part, STATE] == RUNS and parts[warp, part, YIELDED] != now:
            return part
    return -1


@inner
def _chosen(engine: Engine, state: s.State) -> Any:
    """A part that may run, as warp * PARTS + part; -1 where none may."""
    scalars = state.scalars
    policy, resident, warps = scalars[POLICY], scalars[RESIDENT], scalars[WARPS]
    total = resident * warps
    if policy in (RANDOM, EVERY):
        first = drawn(scalars, total)
        for one in range(total):
            warp = (first + one) % total
            if engine.places[warp // warps, S_BLOCK] >= 0:
                part = _ready(engine, state, warp, drawn(scalars, 2))
                if part >= 0:
                    return warp * PARTS + part
        return -1
    best, found = 1 << 62, -1
    for place in range(resident):
        block = engine.places[place, S_BLOCK]
        rank = block if policy != REVERSED else -block
        if policy == STARVED and block == scalars[VICTIM]:
            rank = 1 << 40
        if block >= 0 and rank < best:
            for one in range(warps):
                warp = place * warps + (warps - 1 - one if policy == REVERSED else one)
                part = _ready(engine, state, warp, int(policy == REVERSED))
                if part >= 0:
                    best, found = rank, warp * PARTS + part
                    break
    return found


@compiled
def run(engine: Engine, state: s.State, patience: int, most: int) -> int:
    """Run blocks until all have ended, more room is needed, or a fault ends the run.

    `patience` is how many instructions may pass in which nothing in memory changes, `most` how many at all.
    """
    scalars = state.scalars
    while True:
        if scalars[FREE_CLOCKS] < CLOCKS_LEFT or scalars[FREE_NODES] < NODES_LEFT:
            return GROW
        if scalars[CURRENT] < 0:
            for place in range(scalars[RESIDENT]):
                if engine.places[place, S_BLOCK] >= 0 and engine.places[place, S_LIVE] == 0:
                    _ended(engine, state, place)
                if engine.places[place, S_BLOCK] < 0 and scalars[NEXT_BLOCK] < scalars[BLOCKS]:
                    if scalars[FREE_CLOCKS] < CLOCKS_LEFT:
                        return GROW
                    _begin(engine, state, place)
            if scalars[DONE] == scalars[BLOCKS]:
                return FINISHED
            found = _chosen(engine, state)
            if found < 0:
                if not _another_round(engine, state):
                    return HALTED
                continue
            scalars[CURRENT] = found
            scalars[LEFT] = 1 << 30
            if scalars[POLICY] == RANDOM:
                scalars[LEFT] = 1 + drawn(scalars, 1 + drawn(scalars, 200))
            elif scalars[POLICY] == EVERY:
                scalars[LEFT] = 1
        warp, part = scalars[CURRENT] // PARTS, scalars[CURRENT] % PARTS
        before, seen = scalars[STEPS], scalars[CHANGES]
        goes_on = executed(engine, state, warp, part, min(scalars[LEFT], 65536))
        scalars[LEFT] -= scalars[STEPS] - before
        if not goes_on or scalars[LEFT] <= 0:
            scalars[CURRENT] = -1
        if scalars[STOPPED]:
            return HALTED
        scalars[SINCE] = 0 if scalars[CHANGES] != seen else scalars[SINCE] + scalars[STEPS] - before
        if scalars[SINCE] > patience:
            _note(engine, state, warp, part, ENDLESS, engine.parts[warp, part, PC])
            return HALTED
        if scalars[STEPS] > most:
            _note(engine, state, warp, part, TOO_LONG, engine.parts[warp, part, PC])
            return HALTED


@inner
def _another_round(engine: Engine, state: s.State) -> bool:
    """All parts wait or have let others run; whether it makes sense that they look again."""
    scalars, parts = state.scalars, engine.parts
    total = scalars[RESIDENT] * scalars[WARPS]
    looking = 0
    for warp in range(total):
        if engine.places[warp // scalars[WARPS], S_BLOCK] >= 0:
            for part in range(PARTS):
                looking += int(parts[warp, part, STATE] == RUNS)
    scalars[AGAIN] = scalars[AGAIN] + 1 if scalars[CHANGES] == scalars[LAST_SEEN] else 0
    scalars[LAST_SEEN] = scalars[CHANGES]
    scalars[ROUNDS] += 1
    if looking and scalars[AGAIN] < _PATIENCE:
        return True
    for warp in range(total):
        if engine.places[warp // scalars[WARPS], S_BLOCK] >= 0:
            for part in range(PARTS):
                if parts[warp, part, STATE] == RUNS:
                    at = parts[warp, part, WAITS_AT]
                    _note(engine, state, warp, part, ENDLESS, at if at >= 0 else parts[warp, part, PC])
                elif parts[warp, part, STATE] == WAITS:
                    _note(engine, state, warp, part, MISSING, parts[warp, part, PC])
    return False


@inner
def _note(engine: Engine, state: s.State, warp: int, part: int, kind: int, pc: int) -> None:
    scalars = state.scalars
    lane = _NONE
    while lane < 31 and not engine.parts[warp, part, MASK] >> lane & 1:
        lane += 1
    block = engine.places[warp // scalars[WARPS], S_BLOCK]
    thread = block * scalars[THREADS] + warp % scalars[WARPS] * 32 + lane
    row = engine.rows[pc]
    at = -1
    if row[n.OP] == n.LD or row[n.OP] == n.ATOM:
        at = engine.regs[warp * scalars[SLOTS] * 32 + row[n.A] + lane] + row[n.X]
    fault(state, kind, pc, thread, at, _MINUS, _MINUS)
