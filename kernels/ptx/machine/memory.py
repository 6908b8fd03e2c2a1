"""Loads, stores and atomics of a warp: addresses, checks, the data, and how many transactions they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.messages import observe, publish
from kernels.ptx.machine.races import fault, reads, writes
from kernels.ptx.machine.whole import below, ones

GENERIC, GLOBAL, SHARED, LOCAL = n.GENERIC, n.GLOBAL, n.SHARED, n.LOCAL
GLOBAL_BASE, SHARED_BASE, LOCAL_BASE = n.GLOBAL_BASE, n.SHARED_BASE, n.LOCAL_BASE
OUTSIDE, MISALIGNED = n.OUTSIDE, n.MISALIGNED
LD, ST, ATOM = n.LD, n.ST, n.ATOM
A_ADD, A_AND, A_OR, A_XOR, A_EXCH = n.A_ADD, n.A_AND, n.A_OR, n.A_XOR, n.A_EXCH
A_MIN, A_MAX, A_INC, A_DEC, A_CAS = n.A_MIN, n.A_MAX, n.A_INC, n.A_DEC, n.A_CAS
WEAK = n.WEAK
_OP, _A, _B, _X, _Y, _Z, _BITS, _SIGNED, _D_BITS = n.OP, n.A, n.B, n.X, n.Y, n.Z, n.BITS, n.SIGNED, n.D_BITS
_ORDER, _SCOPE, _KIND, _SLOTS = n.ORDER, n.SCOPE, n.KIND, n.SLOTS
GLOBAL_SIZE, SHARED_AT, SHARED_SIZE = s.GLOBAL_SIZE, s.SHARED_AT, s.SHARED_SIZE
LOCAL_AT, LOCAL_SIZE, SHIFT, CHANGES, THREADS = s.LOCAL_AT, s.LOCAL_SIZE, s.SHIFT, s.CHANGES, s.THREADS
CLOCK, OWN, NEVER, NOWHERE, UNFINISHED = s.CLOCK, s.OWN, s.NEVER, s.NOWHERE, s.UNFINISHED
W_THREAD, W_TIME, W_PC, R_THREAD, R_TIME, R_PC = s.W_THREAD, s.W_TIME, s.W_PC, s.R_THREAD, s.R_TIME, s.R_PC
LIST, FLAGS, CONSTANT = s.LIST, s.FLAGS, s.CONSTANT
N_PARTS, N_LEAST, N_BYTES, HERE, THERE = s.N_PARTS, s.N_LEAST, s.N_BYTES, s.HERE, s.THERE
READ, WRITTEN = s.READ, s.WRITTEN
_MINUS = n.MINUS
_NONE = n.NONE
_SOME = n.SOME


@inner
def located(scalars: Any, space: int, address: int, size: int, place: int, thread: int) -> Any:
    """Where an address lies in the machine's memory; -1 where it is outside. `thread` is that of the block."""
    if space == GENERIC:
        if address >= GLOBAL_BASE:
            space = GLOBAL
        elif address >= LOCAL_BASE:
            space, address = LOCAL, address - LOCAL_BASE
        elif address >= SHARED_BASE:
            space, address = SHARED, address - SHARED_BASE
        else:
            return -1
    if space == GLOBAL:
        at = address - GLOBAL_BASE
        return at if at >= 0 and at + size <= scalars[GLOBAL_SIZE] else -1
    if space == SHARED:
        if address < 0 or address + size > scalars[SHARED_SIZE]:
            return -1
        return scalars[SHARED_AT] + place * scalars[SHARED_SIZE] + address
    if address < 0 or address + size > scalars[LOCAL_SIZE]:
        return -1
    return scalars[LOCAL_AT] + (place * scalars[THREADS] + thread) * scalars[LOCAL_SIZE] + address


@inner
def fetched(state: s.State, at: int, bits: int) -> Any:
    """The bits that lie at a place."""
    word = np.int64(state.words[at >> 2])
    if bits == 32:
        return word
    if bits == 64:
        return np.int64(state.words[(at >> 2) + 1]) << 32 | word
    return word >> 8 * (at & 3) & ((1 << bits) - 1)


@inner
def put(state: s.State, at: int, bits: int, value: int) -> None:
    """Write bits to a place; a change is counted."""
    word = np.int64(state.words[at >> 2])
    new: Any = value & 0xFFFFFFFF
    if bits < 32:
        mask = ((1 << bits) - 1) << 8 * (at & 3)
        new = (word & ~mask) | (value << 8 * (at & 3) & mask)
    if new != word:
        state.words[at >> 2] = new
        state.scalars[CHANGES] += 1
    if bits == 64:
        upper = value >> 32 & 0xFFFFFFFF
        if np.int64(state.words[(at >> 2) + 1]) != upper:
            state.words[(at >> 2) + 1] = upper
            state.scalars[CHANGES] += 1


@inner
def counted(state: s.State, pc: int, places: Any, active: int, size: int, column: int, touch: int) -> None:
    """Add what an access of a warp takes: sectors of 32 bytes, or passes over the banks of shared memory.

    It is added to the counts from a column on; granules of global memory are marked as touched.

    `places` are those in the machine's memory, -1 where none is. 64 bits go in half warps over the banks, 128 in
    quarters; lanes that read the same word share it. An asynchronous copy of 16 bytes goes past the first cache by
    whole lines of shared memory: a quarter whose 128 bytes lie in two of them reads the second cache twice.
    """
    counts = state.counts
    lanes = parts = least = distinct = 0
    shared, before = False, -1
    for lane in range(32):
        if active >> lane & 1 and places[lane] >= 0:
            lanes += 1
            distinct += int(places[lane] != before)
            before = places[lane]
            shared = before >= state.scalars[SHARED_AT]
    if lanes == 0:
        return
    if shared:
        step = 32 if size <= 4 else 16 if size == 8 else 8
        for first in range(0, 32, step):
            passes = _passes(places, active, first, step, max(size >> 2, 1), state.room)
            if column == THERE and size == 16:
                passes = max(passes, _lines(places, active, first, step, state.scalars[SHARED_AT]))
            parts += passes
            least += int(passes > 0)
    else:
        for lane in range(32):
            if active >> lane & 1 and places[lane] >= 0:
                new = 1
                for other in range(lane - 1, -1, -1):
                    if active >> other & 1 and places[other] >> 5 == places[lane] >> 5:
                        new = 0
                        break
                parts += new
        least = (distinct * size + 31) >> 5
        shift = state.scalars[SHIFT]
        for lane in range(32):
            if active >> lane & 1 and 0 <= places[lane] < state.scalars[GLOBAL_SIZE]:
                for granule in range(places[lane] >> shift, (places[lane] + size - 1 >> shift) + 1):
                    state.touched[granule] |= touch
    counts[pc, N_PARTS + column] += parts
    counts[pc, N_LEAST + column] += least
    counts[pc, N_BYTES + column] += lanes * size


@inner
def _passes(places: Any, active: int, first: int, step: int, span: int, room: Any) -> int:
    """How many different words lanes want of one bank, at most; each wants `span` words."""
    for bank in range(32):
        room[bank, 32] = 0
    most = 0
    for lane in range(first, first + step):
        if active >> lane & 1 and places[lane] >= 0:
            for word in range(places[lane] >> 2, (places[lane] >> 2) + span):
                bank, many = word & 31, room[word & 31, 32]
                new = 1
                for one in range(many):
                    new &= int(room[bank, one] != word)
                if new:
                    room[bank, many] = word
                    room[bank, 32] = many + 1
                    most = max(most, many + 1)
    return most


@inner
def _lines(places: Any, active: int, first: int, step: int, begin: int) -> int:
    """Lines of 128 bytes of shared memory that lanes write."""
    lines, before = 0, -1
    for lane in range(first, first + step):
        if active >> lane & 1 and places[lane] >= 0:
            line = (places[lane] - begin) >> 7
            lines += int(line != before)
            before = line
    return lines


@inner
def accessed(
    row: Any, state: s.State, regs: Any, base: int, active: int, pc: int, place: int, first: int, block: int,
    places: Any,
) -> None:  # fmt: skip
    """Run a load, a store or an atomic. `first` is the warp's first thread in its block, `block` the block's first
    thread in the grid; `places` is room for 32."""
    op, bits, many = row[_OP], row[_BITS], row[_Z]
    size = bits >> 3
    if op == ATOM:
        many = 1
    total = size * many
    for lane in range(32):
        places[lane] = -1
        if active >> lane & 1:
            address = regs[base + row[_A] + lane] + row[_X]
            thread = block + first + lane
            at = located(state.scalars, row[_Y], address, total, place, first + lane)
            if at < 0:
                fault(state, OUTSIDE, pc, thread, address, _MINUS, _MINUS)
            elif address & (total - 1):
                fault(state, MISALIGNED, pc, thread, address, _MINUS, _MINUS)
            else:
                places[lane] = at
    counted(state, pc, places, active, total, HERE, READ if op == LD else WRITTEN if op == ST else READ | WRITTEN)
    if op == LD:
        _loaded(row, state, regs, base, active, pc, first + block, places, size, many)
    elif op == ST:
        _stored(row, state, regs, base, active, pc, first + block, places, size, many)
    else:
        _atomics(row, state, regs, base, active, pc, first + block, places, size)


@inner
def _loaded(
    row: Any, state: s.State, regs: Any, base: int, active: int, pc: int, thread: int, places: Any, size: int, many: int
) -> None:  # fmt: skip
    order, bits = row[_ORDER], row[_BITS]
    strength = row[_SCOPE] if order else -1
    shift = 64 - bits
    mask = ones(row[_D_BITS])
    shadow, clocks, threads, words = state.shadow, state.clocks, state.threads, state.words
    span = (size * many) >> state.scalars[SHIFT]
    for lane in range(32):
        if not active >> lane & 1:
            continue
        at = places[lane]
        if at >= 0:
            first = at >> state.scalars[SHIFT]
            own, clock = thread + lane, threads[thread + lane, CLOCK]
            plain = strength < 0 and row[_KIND] == 0
            for granule in range(first, first + span):  # the most frequent case of `reads`, in place
                writer, reader = shadow[granule, W_THREAD], shadow[granule, R_THREAD]
                plain = plain and shadow[granule, LIST] < 0 and writer != NEVER and writer != NOWHERE
                if not plain or shadow[granule, FLAGS]:
                    plain = plain and shadow[granule, FLAGS] == CONSTANT
                    continue
                if writer >= 0 and clocks[clock, writer] < shadow[granule, W_TIME]:
                    plain = writer == own and shadow[granule, W_TIME] != UNFINISHED
                if reader >= 0 and reader != own and clocks[clock, reader] < shadow[granule, R_TIME]:
                    plain = False
                if plain:
                    shadow[granule, R_THREAD], shadow[granule, R_TIME] = own, threads[own, OWN]
                    shadow[granule, R_PC] = pc
            if not plain:
                reads(state, at, size * many, own, pc, strength, row[_KIND])
            if order:
                observe(state, at >> state.scalars[SHIFT], thread + lane, order, row[_SCOPE])
        for member in range(many):
            slot = row[_SLOTS + member]
            if slot >= 0:
                value = np.int64(0)
                if at >= 0 and bits == 32:
                    value = np.int64(words[(at >> 2) + member])
                elif at >= 0:
                    value = np.int64(fetched(state, at + member * size, bits))
                if at >= 0 and row[_SIGNED]:
                    value = (value << shift) >> shift & mask
                regs[base + slot + lane] = value


@inner
def _stored(
    row: Any, state: s.State, regs: Any, base: int, active: int, pc: int, thread: int, places: Any, size: int, many: int
) -> None:  # fmt: skip
    order, bits = row[_ORDER], row[_BITS]
    strength = row[_SCOPE] if order else -1
    shadow, clocks, threads = state.shadow, state.clocks, state.threads
    span = (size * many) >> state.scalars[SHIFT]
    for lane in range(32):
        at = places[lane]
        if active >> lane & 1 and at >= 0:
            own, clock = thread + lane, threads[thread + lane, CLOCK]
            plain = strength < 0
            first = at >> state.scalars[SHIFT]
            for granule in range(first, first + span):  # the most frequent case of `writes`, in place
                writer, reader = shadow[granule, W_THREAD], shadow[granule, R_THREAD]
                plain = plain and shadow[granule, LIST] < 0 and writer != NOWHERE and shadow[granule, FLAGS] == 0
                if writer >= 0 and clocks[clock, writer] < shadow[granule, W_TIME]:
                    plain = plain and writer == own and shadow[granule, W_TIME] != UNFINISHED
                if reader >= 0 and reader != own and clocks[clock, reader] < shadow[granule, R_TIME]:
                    plain = False
                if plain:
                    shadow[granule, W_THREAD], shadow[granule, W_TIME] = own, threads[own, OWN]
                    shadow[granule, W_PC], shadow[granule, R_THREAD] = pc, -1
            if not plain:
                writes(state, at, size * many, own, pc, strength, _NONE)
            for member in range(many):
                put(state, at + member * size, bits, regs[base + row[_SLOTS + member] + lane])
            if order:
                publish(state, at >> state.scalars[SHIFT], thread + lane, order, row[_SCOPE], _NONE)


@inner
def _atomics(
    row: Any, state: s.State, regs: Any, base: int, active: int, pc: int, thread: int, places: Any, size: int
) -> None:  # fmt: skip
    order, scope, bits = row[_ORDER], row[_SCOPE], row[_BITS]
    target, source, other = row[_SLOTS], row[_SLOTS + 1], row[_SLOTS + 2]
    for lane in range(32):
        if not active >> lane & 1:
            continue
        at = places[lane]
        old: Any = np.int64(0)
        if at >= 0:
            reads(state, at, size, thread + lane, pc, scope, _NONE)
            observe(state, at >> state.scalars[SHIFT], thread + lane, order, scope)
            old = np.int64(fetched(state, at, bits))
            operand = regs[base + source + lane]
            swapped: Any = regs[base + other + lane] if other >= 0 else np.int64(0)
            writes(state, at, size, thread + lane, pc, scope, _NONE)
            new = changed(row[_Z], row[_KIND], bits, row[_SIGNED], old, operand, swapped, state)
            put(state, at, bits, new)
            publish(state, at >> state.scalars[SHIFT], thread + lane, order, scope, _SOME)
        if target >= 0:
            regs[base + target + lane] = old


@inner
def changed(op: int, real: int, bits: int, signed: int, old: int, x: int, y: int, state: s.State) -> int:
    """What an atomic writes."""
    if op == A_EXCH:
        return x
    if op == A_CAS:
        return y if (old ^ x) & ones(bits) == 0 else old
    if real:
        return added(old, x, bits)
    if op == A_ADD:
        return old + x
    if op == A_AND:
        return old & x
    if op == A_OR:
        return old | x
    if op == A_XOR:
        return old ^ x
    if op == A_INC:
        return 0 if not below(old, x) else old + 1
    if op == A_DEC:
        return x if old == 0 or below(x, old) else old - 1
    first, second = old, x
    if signed:
        first, second = (old << 64 - bits) >> 64 - bits, (x << 64 - bits) >> 64 - bits
    less = first < second if signed else below(old, x)
    return old if less == (op == A_MIN) else x


@inner
def added(old: int, x: int, bits: int) -> int:
    """The bits of a sum of real numbers."""
    if bits == 32:
        pair = np.empty(2, np.int32)
        pair[0], pair[1] = old, x
        reals = pair.view(np.float32)
        reals[0] = reals[0] + reals[1]
        return int(pair[0]) & 0xFFFFFFFF
    long = np.empty(2, np.int64)
    long[0], long[1] = old, x
    doubles = long.view(np.float64)
    doubles[0] = doubles[0] + doubles[1]
    return int(long[0])
