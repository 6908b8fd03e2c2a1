"""Whole numbers and bits over the lanes of a warp.

Registers are 64 bits for each lane, those of fewer bits with zeros above. Everything is computed in 64 bits and cut.
"""

from __future__ import annotations

from typing import Any

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n

_ALL = -1  # 64 ones
# Names that numba takes as constants.
MOV, ADD, SUB, MUL, MUL_HI, MUL_WIDE = n.MOV, n.ADD, n.SUB, n.MUL, n.MUL_HI, n.MUL_WIDE
MAD, MAD_HI, MAD_WIDE, DIV, REM, MIN, MAX = n.MAD, n.MAD_HI, n.MAD_WIDE, n.DIV, n.REM, n.MIN, n.MAX
ABS, NEG, AND, OR, XOR, NOT, SHL, SHR = n.ABS, n.NEG, n.AND, n.OR, n.XOR, n.NOT, n.SHL, n.SHR
FUNNEL_L, FUNNEL_R, BFE, BFI, BREV, CLZ, POPC = n.FUNNEL_L, n.FUNNEL_R, n.BFE, n.BFI, n.BREV, n.CLZ, n.POPC
PRMT, SAD, LOP3, SELP, SETP, PACK, UNPACK, SPACEP = n.PRMT, n.SAD, n.LOP3, n.SELP, n.SETP, n.PACK, n.UNPACK, n.SPACEP
EQ, NE, LT, LE, GT = n.EQ, n.NE, n.LT, n.LE, n.GT
_A, _B, _C, _D, _E, _X, _Y = n.A, n.B, n.C, n.D, n.E, n.X, n.Y
_BITS, _SIGNED, _D_BITS, _SLOTS = n.BITS, n.SIGNED, n.D_BITS, n.SLOTS
_GLOBAL, _SHARED, _LOCAL = n.GLOBAL, n.SHARED, n.LOCAL
_SHARED_BASE, _LOCAL_BASE, _GLOBAL_BASE = n.SHARED_BASE, n.LOCAL_BASE, n.GLOBAL_BASE
_32 = n.constant(32)
_64 = n.constant(64)
_NONE = n.NONE
_SOME = n.SOME


@inner
def ones(bits: int) -> int:
    """A mask of so many bits."""
    return _ALL if bits >= 64 else (1 << bits) - 1


@inner
def spread(regs: Any, at: int, bits: int, signed: int, out: Any) -> None:
    """The lanes of a register as numbers of 64 bits."""
    if bits >= 64:
        for lane in range(32):
            out[lane] = regs[at + lane]
    elif signed:
        shift = 64 - bits
        for lane in range(32):
            out[lane] = (regs[at + lane] << shift) >> shift
    else:
        mask = (1 << bits) - 1
        for lane in range(32):
            out[lane] = regs[at + lane] & mask


@inner
def keep(regs: Any, at: int, bits: int, active: int, values: Any) -> None:
    """Write the active lanes of a register, cut to its bits."""
    mask = ones(bits)
    if active == 0xFFFFFFFF:
        for lane in range(32):
            regs[at + lane] = values[lane] & mask
    else:
        for lane in range(32):
            if active >> lane & 1:
                regs[at + lane] = values[lane] & mask


@inner
def below(x: int, y: int) -> bool:
    """Whether x < y as unsigned numbers of 64 bits."""
    return (x ^ (-0x7FFFFFFFFFFFFFFF - 1)) < (y ^ (-0x7FFFFFFFFFFFFFFF - 1))


@inner
def upper(x: int, y: int, signed: int) -> int:
    """The upper 64 bits of a product of 128."""
    x0, x1 = x & 0xFFFFFFFF, (x >> 32) & 0xFFFFFFFF
    y0, y1 = y & 0xFFFFFFFF, (y >> 32) & 0xFFFFFFFF
    low = x0 * y0
    middle = x1 * y0 + ((low >> 32) & 0xFFFFFFFF)
    other = x0 * y1 + (middle & 0xFFFFFFFF)
    high = x1 * y1 + ((middle >> 32) & 0xFFFFFFFF) + ((other >> 32) & 0xFFFFFFFF)
    if signed:
        if x < 0:
            high -= y
        if y < 0:
            high -= x
    return high


@inner
def divided(x: int, y: int, signed: int) -> int:
    """Quotient, towards zero; all ones for a division by zero, as NVIDIA's processors give."""
    if y == 0:
        return _ALL
    negative = signed and (x < 0) != (y < 0)
    if signed:
        x, y = abs(x), abs(y)  # the least number stays itself, and is right without a sign
    quotient = _unsigned(x, y)
    return -quotient if negative else quotient


@inner
def _unsigned(x: int, y: int) -> int:
    if y < 0:
        return 0 if below(x, y) else 1
    if x >= 0:
        return x // y
    quotient = (((x >> 1) & 0x7FFFFFFFFFFFFFFF) // y) << 1
    if not below(x - quotient * y, y):
        quotient += 1
    return quotient


@inner
def ones_in(x: int) -> int:
    """How many bits are one."""
    count = 0
    while x != 0:
        x &= x - 1
        count += 1
    return count


@inner
def compared(comparison: int, x: int, y: int, signed: int) -> int:
    """A comparison of numbers of 64 bits."""
    if comparison == EQ:
        return int(x == y)
    if comparison == NE:
        return int(x != y)
    less, more = x < y, y < x
    if not signed:
        less, more = below(x, y), below(y, x)
    if comparison == LT:
        return int(less)
    if comparison == LE:
        return int(not more)
    if comparison == GT:
        return int(more)
    return int(not less)


@inner
def combined(how: int, x: int, y: int) -> int:
    """A predicate with another one: as it is, and, or, xor."""
    if how == 1:
        return x & y
    if how == 2:
        return x | y
    return x ^ y if how == 3 else x


@inner
def permuted(x: int, y: int, selection: int) -> int:
    """Prmt: four bytes out of eight."""
    result = 0
    for place in range(4):
        choice = (selection >> 4 * place) & 15
        byte = ((x if choice & 7 < 4 else y) >> 8 * (choice & 3)) & 255
        if choice & 8:
            byte = 255 if byte & 128 else 0
        result |= byte << 8 * place
    return result


@inner
def whole(row: Any, regs: Any, base: int, active: int, a: Any, b: Any, c: Any) -> None:
    """Run an instruction on the active lanes of a warp; a, b and c are room for 32 numbers each."""
    op, bits, signed = row[n.OP], row[_BITS], row[_SIGNED]
    x, y = row[_X], row[_Y]
    d = base + row[_D]
    if op == MOV:
        spread(regs, base + row[_A], _64, _NONE, a)
    elif op == PACK:
        for lane in range(32):
            a[lane] = 0
        for member in range(x):
            spread(regs, base + row[_SLOTS + member], bits, _NONE, b)
            for lane in range(32):
                a[lane] |= b[lane] << bits * member
    elif op == UNPACK:
        spread(regs, base + row[_A], _64, _NONE, a)
        for member in range(x):
            if row[_SLOTS + member] >= 0:
                for lane in range(32):
                    b[lane] = a[lane] >> bits * member
                keep(regs, base + row[_SLOTS + member], bits, active, b)
        return
    elif op == SELP:
        for lane in range(32):
            a[lane] = regs[base + row[_A] + lane] if regs[base + row[_C] + lane] & 1 else regs[base + row[_B] + lane]
    elif op == SETP:
        spread(regs, base + row[_A], bits, signed, a)
        spread(regs, base + row[_B], bits, signed, b)
        for lane in range(32):
            a[lane] = compared(x, a[lane], b[lane], signed)
        if y:
            spread(regs, base + row[_C], _SOME, _NONE, c)
            for lane in range(32):
                b[lane] = combined(y, 1 - a[lane], c[lane])
                a[lane] = combined(y, a[lane], c[lane])
        else:
            for lane in range(32):
                b[lane] = 1 - a[lane]
        if row[_E] >= 0:
            keep(regs, base + row[_E], _SOME, active, b)
    elif op <= SHR or op == SAD:
        spread(regs, base + row[_A], bits, signed, a)
        spread(regs, base + row[_B], bits, signed, b)
        _plain(op, bits, signed, regs, base + row[_C], a, b, c)
    else:
        _rare(op, row, regs, base, a, b, c)
    keep(regs, d, row[_D_BITS], active, a)


@inner
def _plain(op: int, bits: int, signed: int, regs: Any, third: int, a: Any, b: Any, c: Any) -> None:
    if op == ADD:
        for lane in range(32):
            a[lane] += b[lane]
    elif op == SUB:
        for lane in range(32):
            a[lane] -= b[lane]
    elif op in (MUL, MUL_WIDE):
        for lane in range(32):
            a[lane] *= b[lane]
    elif op in (MAD, MAD_WIDE):
        spread(regs, third, _64, _NONE, c)
        for lane in range(32):
            a[lane] = a[lane] * b[lane] + c[lane]
    elif op in (MUL_HI, MAD_HI):
        spread(regs, third, _64, _NONE, c)
        for lane in range(32):
            high = upper(a[lane], b[lane], signed) if bits == 64 else (a[lane] * b[lane]) >> bits
            a[lane] = high + (c[lane] if op == MAD_HI else 0)
    elif op == DIV:
        for lane in range(32):
            a[lane] = divided(a[lane], b[lane], signed)
    elif op == REM:
        for lane in range(32):
            if b[lane] != 0:
                a[lane] -= divided(a[lane], b[lane], signed) * b[lane]
    elif op in (MIN, MAX):
        for lane in range(32):
            less = a[lane] < b[lane] if signed else below(a[lane], b[lane])
            if less != (op == MIN):
                a[lane] = b[lane]
    elif op == ABS:
        for lane in range(32):
            a[lane] = abs(a[lane])
    elif op == NEG:
        for lane in range(32):
            a[lane] = -a[lane]
    elif op == AND:
        for lane in range(32):
            a[lane] &= b[lane]
    elif op == OR:
        for lane in range(32):
            a[lane] |= b[lane]
    elif op == XOR:
        for lane in range(32):
            a[lane] ^= b[lane]
    elif op == NOT:
        for lane in range(32):
            a[lane] = ~a[lane]
    elif op == SAD:
        spread(regs, third, _64, _NONE, c)
        for lane in range(32):
            less = a[lane] < b[lane] if signed else below(a[lane], b[lane])
            a[lane] = c[lane] + (b[lane] - a[lane] if less else a[lane] - b[lane])
    else:
        _shifted(op, bits, signed, a, b)


@inner
def _shifted(op: int, bits: int, signed: int, a: Any, b: Any) -> None:
    """Shifts by more than the bits shift all of them out."""
    for lane in range(32):
        by = b[lane] & 0xFFFFFFFF
        if op == SHL:
            a[lane] = a[lane] << by if by < bits else 0
        elif by >= bits:
            a[lane] = -1 if signed and a[lane] < 0 else 0
        elif signed or by == 0:
            a[lane] = a[lane] >> by
        else:
            a[lane] = (a[lane] >> by) & ((1 << (64 - by)) - 1)


@inner
def _rare(op: int, row: Any, regs: Any, base: int, a: Any, b: Any, c: Any) -> None:
    bits, signed, x = row[_BITS], row[_SIGNED], row[_X]
    if op == SPACEP:
        for lane in range(32):
            at = regs[base + row[_A] + lane]
            space = (
                _SHARED if _SHARED_BASE <= at < _LOCAL_BASE else _LOCAL if _LOCAL_BASE <= at < _GLOBAL_BASE else _GLOBAL
            )
            a[lane] = int(space == x)
        return
    spread(regs, base + row[_A], bits if bits else 32, _NONE, a)
    if op in (CLZ, POPC, BREV):
        for lane in range(32):
            value, result = a[lane], 0
            if op == POPC:
                result = ones_in(value)
            elif op == CLZ:
                result = bits
                for place in range(bits):
                    if value >> place & 1:
                        result = bits - 1 - place
            else:
                for place in range(bits):
                    if value >> place & 1:
                        result |= 1 << (bits - 1 - place)
            a[lane] = result
        return
    spread(regs, base + row[_B], bits if bits and op != BFE else 32, _NONE, b)
    spread(regs, base + row[_C], _32, _NONE, c)
    for lane in range(32):
        first, second, third = a[lane], b[lane], c[lane]
        if op in (FUNNEL_L, FUNNEL_R):
            by = min(third, 32) if x else third & 31
            joined = second << 32 | first
            if op == FUNNEL_L:
                a[lane] = second << by | (first >> (32 - by) if by else 0)
            else:
                a[lane] = second if by == 32 else (joined >> by) & 0xFFFFFFFF if by else first
        elif op == BFE:
            start, length = second & 255, third & 255
            value = 0 if start >= bits else (first >> start) & ones(bits - start)
            value &= ones(length)
            if signed and length:
                top = min(start + length - 1, bits - 1)
                if first >> top & 1:
                    width = min(length, max(bits - start, 0))
                    value |= ~ones(width)
            a[lane] = value
        elif op == BFI:
            start, length = third & 255, regs[base + row[_E] + lane] & 255
            mask = 0 if start >= bits else ones(length) << start
            a[lane] = (second & ~mask) | ((first << start if start < bits else 0) & mask)
        elif op == PRMT:
            a[lane] = permuted(first, second, third)
        else:  # lop3
            result = 0
            for place in range(8):
                if x >> place & 1:
                    one = first if place & 4 else ~first
                    two = second if place & 2 else ~second
                    three = third if place & 1 else ~third
                    result |= one & two & three
            a[lane] = result
