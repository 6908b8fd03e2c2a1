"""Conversions between whole and real numbers, and how registers hold real ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine.whole import keep, ones, spread

F32, F64, F16, BF16, F16X2, BF16X2, TF32 = n.F32, n.F64, n.F16, n.BF16, n.F16X2, n.BF16X2, n.TF32
NEAREST, ZERO, DOWN, UP, AWAY = n.NEAREST, n.ZERO, n.DOWN, n.UP, n.AWAY
_A, _D, _X, _Y, _Z, _KIND = n.A, n.D, n.X, n.Y, n.Z, n.KIND
_BITS, _SIGNED, _D_BITS, _SLOTS = n.BITS, n.SIGNED, n.D_BITS, n.SLOTS
LEAST = 2.0**-126  # the least normal float32
_NONE = n.NONE
_7, _10, _15, _16, _32, _127 = (n.constant(one) for one in (7, 10, 15, 16, 32, 127))


@inner
def from_short(bits: int, mantissa: int, bias: int) -> float:
    """The number that the bits of a short type stand for."""
    fraction = bits & ((1 << mantissa) - 1)
    exponent = (bits >> mantissa) & ((1 << (15 - mantissa)) - 1)
    if exponent == (1 << (15 - mantissa)) - 1:
        value = math.nan if fraction else math.inf
    elif exponent == 0:
        value = math.ldexp(float(fraction), 1 - bias - mantissa)
    else:
        value = math.ldexp(float(fraction + (1 << mantissa)), exponent - bias - mantissa)
    return -value if bits >> 15 & 1 else value


@inner
def to_short(x: float, mantissa: int, bias: int, rounding: int) -> int:
    """The bits of a number in a short type, rounded to the nearest (even where two are), to zero, down or up."""
    top = ((1 << (15 - mantissa)) - 1) << mantissa
    sign = 32768 if math.copysign(1.0, x) < 0 else 0
    if math.isnan(x):
        return 0x7FFF
    size = abs(x)
    if math.isinf(x):
        return sign | top
    if size == 0.0:
        return sign
    _, exponent = math.frexp(size)
    exponent = max(exponent, 2 - bias)
    steps = math.ldexp(size, mantissa + 1 - exponent)
    whole = math.floor(steps)
    if rounding == NEAREST:
        whole = np.rint(steps)
    elif (rounding == UP and not sign) or (rounding == DOWN and sign):
        whole = math.ceil(steps)
    result = int(whole) + ((exponent - 1 + bias - 1) << mantissa)
    if result >= top:
        result = top if rounding == NEAREST or ((rounding == UP) != (sign > 0) and rounding != ZERO) else top - 1
    return sign | result


@inner
def cut(bits: int, rounding: int) -> int:
    """A float32's bits with ten of its mantissa."""
    if (bits >> 23) & 255 == 255:
        return bits
    if rounding == AWAY:
        bits += 0x1000
    elif rounding == NEAREST:
        bits += 0xFFF + (bits >> 13 & 1)
    return bits & 0xFFFFE000


@inner
def load_real(regs: Any, singles: Any, doubles: Any, at: int, kind: int, high: int, out: Any) -> None:
    """The lanes of a register as float64; of pairs the lower or the higher half."""
    if kind == F32:
        for lane in range(32):
            out[lane] = singles[2 * (at + lane)]
    elif kind == F64:
        for lane in range(32):
            out[lane] = doubles[at + lane]
    elif kind in (F16, F16X2):
        for lane in range(32):
            out[lane] = from_short((regs[at + lane] >> 16 * high) & 0xFFFF, _10, _15)
    else:
        for lane in range(32):
            out[lane] = from_short((regs[at + lane] >> 16 * high) & 0xFFFF, _7, _127)


@inner
def keep_real(
    regs: Any, singles: Any, doubles: Any, at: int, kind: int, high: int, z: int, active: int, values: Any
) -> None:
    """Write active lanes, rounded to the type; z says whether they are flushed and limited."""
    if z & 6:
        for lane in range(32):
            if z & 2:
                values[lane] = min(max(values[lane], 0.0), 1.0) if values[lane] == values[lane] else 0.0
            elif values[lane] < 0.0:
                values[lane] = 0.0
    if kind == F32:
        for lane in range(32):
            if active >> lane & 1:
                value = np.float32(values[lane])
                if z & 1 and abs(value) < LEAST:
                    value = np.float32(math.copysign(0.0, value))
                singles[2 * (at + lane)] = value
    elif kind == F64:
        for lane in range(32):
            if active >> lane & 1:
                doubles[at + lane] = values[lane]
    else:
        mantissa = 10 if kind in (F16, F16X2) else 7
        bias = 15 if mantissa == 10 else 127
        for lane in range(32):
            if active >> lane & 1:
                bits = to_short(values[lane], mantissa, bias, NEAREST)
                if kind in (F16X2, BF16X2):
                    bits = (regs[at + lane] & (0xFFFF if high else 0xFFFF0000)) | bits << 16 * high
                regs[at + lane] = bits


@inner
def flush(values: Any) -> None:
    """Zeros of the same sign in place of subnormal float32."""
    for lane in range(32):
        if abs(values[lane]) < LEAST:
            values[lane] = math.copysign(0.0, values[lane])


@inner
def _whole_part(x: float, rounding: int) -> float:
    if rounding == NEAREST:
        return np.rint(x)  # type: ignore[no-any-return]
    if rounding == DOWN:
        return np.floor(x)  # type: ignore[no-any-return]
    return np.ceil(x) if rounding == UP else np.trunc(x)  # type: ignore[no-any-return]


@inner
def _limited(x: float, bits: int, signed: bool) -> int:
    """A whole number as an integer of so many bits, the nearest that there is; 0 for NaN."""
    if x != x:
        return 0
    low = -(2.0 ** (bits - 1)) if signed else 0.0
    high = 2.0 ** (bits - 1) if signed else 2.0**bits
    if x <= low:
        return int(low)
    if x >= high:
        return ones(bits - 1) if signed else ones(bits)
    if x >= 9223372036854775808.0:
        return int(x - 9223372036854775808.0) ^ (-0x7FFFFFFFFFFFFFFF - 1)
    return int(x)


@inner
def _single(x: float, rounding: int) -> float:
    """The float32 of a number in a direction."""
    near = np.float32(x)
    if rounding == NEAREST or near == x or x != x:
        return float(near)
    toward_zero = rounding == ZERO
    up = rounding == UP or (toward_zero and x < 0.0)
    if up and near < x:
        return float(np.nextafter(near, np.float32(math.inf)))
    if not up and near > x:
        return float(np.nextafter(near, np.float32(-math.inf)))
    return float(near)


@inner
def converted(row: Any, regs: Any, singles: Any, doubles: Any, base: int, active: int, a: Any, f: Any) -> None:
    """Cvt: between whole and real numbers of all widths."""
    origin, to, out = row[_KIND], row[_SLOTS], row[_SLOTS + 1]
    bits, signs, rounding, integral, z = row[_BITS], row[_SIGNED], row[_X], row[_Y], row[_Z]
    d = base + row[_D]
    if origin < 0:
        spread(regs, base + row[_A], bits, signs & 1, a)
        if to < 0:
            _narrowed(a, out, signs, z)
            keep(regs, d, row[_D_BITS], active, a)
            return
        for lane in range(32):
            f[lane] = float(a[lane])
            if not signs & 1 and a[lane] < 0:  # 64 bits without a sign
                f[lane] = float((a[lane] >> 1 & 0x7FFFFFFFFFFFFFFF) | (a[lane] & 1)) * 2.0
            elif to == F32 and abs(a[lane]) > 1 << 53:  # more bits than float64 has: the rest is made to stick
                f[lane] = float(a[lane] >> 10 | int(a[lane] & 1023 != 0)) * 1024.0
    elif to == TF32:
        spread(regs, base + row[_A], _32, _NONE, a)
        for lane in range(32):
            a[lane] = cut(a[lane], rounding)
        keep(regs, d, _32, active, a)
        return
    else:
        load_real(regs, singles, doubles, base + row[_A], origin, _NONE, f)
        if z & 1:
            flush(f)
    if integral >= 0:
        for lane in range(32):
            f[lane] = _whole_part(f[lane], integral)
    if to < 0:
        for lane in range(32):
            a[lane] = _limited(f[lane], out, signs & 2 != 0)
        keep(regs, d, row[_D_BITS], active, a)
        return
    if rounding != NEAREST and (to in (F16, BF16)):
        for lane in range(32):
            a[lane] = to_short(f[lane], 10 if to == F16 else 7, 15 if to == F16 else 127, rounding)
        keep(regs, d, _16, active, a)
        return
    if to == F32 and rounding != NEAREST:
        for lane in range(32):
            f[lane] = _single(f[lane], rounding)
    keep_real(regs, singles, doubles, d, to, _NONE, z, active, f)


@inner
def _narrowed(a: Any, out: int, signs: int, z: int) -> None:
    """Whole numbers limited to a narrower type where that is asked for, and stretched to the register by its sign."""
    for lane in range(32):
        value = a[lane]
        if z & 2:
            low = -(1 << (out - 1)) if signs & 2 else 0
            high = ones(out - 1) if signs & 2 else ones(out)
            if not (out == 64 or (signs & 1 == 0 and value < 0)):
                value = min(max(value, low), high)
        value &= ones(out)
        if signs & 2 and out < 64 and value >> (out - 1) & 1:
            value |= ~ones(out)
        a[lane] = value
