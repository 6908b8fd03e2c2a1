"""Real numbers over the lanes of a warp.

Operands become float64, and a result is rounded once, to the type: for sums, products, quotients and roots of float32
and shorter types that is what IEEE 754 asks for (float64 has more than twice their bits and two more). A fused
multiply-add of float32 is a sum of an exact product; where that sum lies between two float32, its rounding error
decides. Functions that PTX calls approximate are computed as well as float64 has them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels.compiling import inner
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine.converting import LEAST, converted, flush, keep_real, load_real
from kernels.ptx.machine.whole import combined, keep, spread

F_ADD, F_SUB, F_MUL, F_FMA, F_DIV, F_RCP = n.F_ADD, n.F_SUB, n.F_MUL, n.F_FMA, n.F_DIV, n.F_RCP
F_SQRT, F_RSQRT, F_SIN, F_COS, F_EX2, F_LG2 = n.F_SQRT, n.F_RSQRT, n.F_SIN, n.F_COS, n.F_EX2, n.F_LG2
F_TANH, F_MIN, F_MAX, F_MIN_NAN, F_MAX_NAN = n.F_TANH, n.F_MIN, n.F_MAX, n.F_MIN_NAN, n.F_MAX_NAN
F_ABS, F_NEG, F_COPYSIGN, F_TEST, F_SETP, CVT = n.F_ABS, n.F_NEG, n.F_COPYSIGN, n.F_TEST, n.F_SETP, n.CVT
CVT_PAIR = n.CVT_PAIR
F32, F64, F16, BF16, F16X2, BF16X2, TF32 = n.F32, n.F64, n.F16, n.BF16, n.F16X2, n.BF16X2, n.TF32
EQ, NE, LT, LE, GT, GE, NUM, NAN, UNORDERED = n.EQ, n.NE, n.LT, n.LE, n.GT, n.GE, n.NUM, n.NAN, n.UNORDERED
NEAREST, ZERO, DOWN, UP, AWAY = n.NEAREST, n.ZERO, n.DOWN, n.UP, n.AWAY
_A, _B, _C, _D, _E, _X, _Y, _Z, _KIND = n.A, n.B, n.C, n.D, n.E, n.X, n.Y, n.Z, n.KIND
_OP, _BITS, _SIGNED, _D_BITS, _SLOTS = n.OP, n.BITS, n.SIGNED, n.D_BITS, n.SLOTS
_10 = n.constant(10)
_127 = n.constant(127)
_15 = n.constant(15)
_16 = n.constant(16)
_32 = n.constant(32)
_7 = n.constant(7)
_NONE = n.NONE
_SOME = n.SOME


@inner
def _fused_singles(
    singles: Any, a: int, b: int, c: int, d: int, active: int, f: Any, g: Any, h: Any, doubles: Any, whole: Any
) -> None:  # fmt: skip
    """The instruction that kernels have most of, in fewer steps."""
    odd = 0
    for lane in range(32):
        doubles[lane] = np.float64(singles[a + 2 * lane]) * singles[b + 2 * lane] + singles[c + 2 * lane]
    for lane in range(32):
        odd |= int(whole[lane] & 0x1FFFFFFF == 0x10000000) | int(abs(doubles[lane]) < LEAST)
    if odd:
        for lane in range(32):
            f[lane], g[lane], h[lane] = singles[a + 2 * lane], singles[b + 2 * lane], singles[c + 2 * lane]
        _fused(f, g, h, doubles, whole)
    if active == 0xFFFFFFFF:
        for lane in range(32):
            singles[d + 2 * lane] = doubles[lane]
    else:
        for lane in range(32):
            if active >> lane & 1:
                singles[d + 2 * lane] = doubles[lane]


@inner
def _fused(f: Any, g: Any, h: Any, doubles: Any, whole: Any) -> None:
    """f * g + h, so that rounding to float32 is right; `doubles` is room for 32, `whole` the same as bits."""
    for lane in range(32):
        doubles[lane] = f[lane] * g[lane] + h[lane]
    for lane in range(32):
        # Between two float32, or below the normal ones: the sum is made odd, so that it is rounded but once.
        if whole[lane] & 0x1FFFFFFF == 0x10000000 or abs(doubles[lane]) < LEAST:
            product, total = f[lane] * g[lane], doubles[lane]
            back = total - product
            error = (product - (total - back)) + (h[lane] - back)
            if error != 0.0 and error == error and whole[lane] & 1 == 0 and abs(total) != math.inf:
                whole[lane] += 1 if (error > 0.0) == (total > 0.0) else -1
    for lane in range(32):
        f[lane] = doubles[lane]


@inner
def ordered(comparison: int, x: float, y: float) -> int:
    """A comparison of real numbers."""
    unknown = x != x or y != y
    if comparison == NUM:
        return int(not unknown)
    if comparison == NAN:
        return int(unknown)
    if unknown:
        return int(comparison >= UNORDERED)
    comparison %= UNORDERED
    if comparison == EQ:
        return int(x == y)
    if comparison == NE:
        return int(x != y)
    if comparison == LT:
        return int(x < y)
    if comparison == LE:
        return int(x <= y)
    return int(x > y) if comparison == GT else int(x >= y)


@inner
def real(
    row: Any, regs: Any, singles: Any, doubles: Any, base: int, active: int, a: Any, b: Any, c: Any, f: Any, g: Any,
    h: Any, sums: Any, sum_bits: Any,
) -> None:  # fmt: skip
    """Run an instruction on the active lanes of a warp; a to h are room for 32 numbers each."""
    op, kind, z = row[_OP], row[_KIND], row[_Z]
    if op == F_FMA and kind == F32 and z == 0:
        _fused_singles(
            singles, 2 * (base + row[_A]), 2 * (base + row[_B]), 2 * (base + row[_C]), 2 * (base + row[_D]), active,
            f, g, h, sums, sum_bits,
        )  # fmt: skip
        return
    if op == CVT:
        converted(row, regs, singles, doubles, base, active, a, f)
        return
    if op == CVT_PAIR:
        for half in range(2):
            load_real(regs, singles, doubles, base + (row[_A] if half else row[_B]), F32, _NONE, f)
            keep_real(regs, singles, doubles, base + row[_D], kind, half, z, active, f)
        return
    for half in range(2 if kind in (F16X2, BF16X2) else 1):
        load_real(regs, singles, doubles, base + row[_A], kind, half, f)
        if op != F_TEST and op != F_ABS and op != F_NEG and not F_RCP <= op <= F_TANH:
            load_real(regs, singles, doubles, base + row[_B], kind, half, g)
        if op == F_FMA:
            load_real(regs, singles, doubles, base + row[_C], kind, half, h)
        if z & 1:
            flush(f)
            flush(g)
            flush(h)
        if op in (F_SETP, F_TEST):
            _tested(row, regs, base, active, a, b, c, f, g)
            return
        _computed(op, kind, f, g, h, sums, sum_bits)
        keep_real(regs, singles, doubles, base + row[_D], kind, half, z, active, f)


@inner
def _tested(row: Any, regs: Any, base: int, active: int, a: Any, b: Any, c: Any, f: Any, g: Any) -> None:
    x, y = row[_X], row[_Y]
    if row[_OP] == F_TEST:
        least = LEAST if row[_KIND] == F32 else 2.0**-1022
        for lane in range(32):
            value, size = f[lane], abs(f[lane])
            finite = size < math.inf
            if x == 0:
                a[lane] = int(finite)
            elif x == 1:
                a[lane] = int(size == math.inf)
            elif x == 2:
                a[lane] = int(value == value)
            elif x == 3:
                a[lane] = int(value != value)
            elif x == 4:
                a[lane] = int(finite and size >= least)
            else:
                a[lane] = int(size < least and size > 0.0)
        keep(regs, base + row[_D], _SOME, active, a)
        return
    if y:
        spread(regs, base + row[_C], _SOME, _NONE, c)
    for lane in range(32):
        first = ordered(x, f[lane], g[lane])
        a[lane] = combined(y, first, c[lane]) if y else first
        b[lane] = combined(y, 1 - first, c[lane]) if y else 1 - first
    if row[_E] >= 0:
        keep(regs, base + row[_E], _SOME, active, b)
    keep(regs, base + row[_D], _SOME, active, a)


@inner
def _computed(op: int, kind: int, f: Any, g: Any, h: Any, sums: Any, sum_bits: Any) -> None:
    if op == F_FMA and kind == F32:
        _fused(f, g, h, sums, sum_bits)
        return
    if op == F_ADD:
        for lane in range(32):
            f[lane] += g[lane]
        return
    if op == F_SUB:
        for lane in range(32):
            f[lane] -= g[lane]
        return
    if op == F_MUL:
        for lane in range(32):
            f[lane] *= g[lane]
        return
    for lane in range(32):
        x, y = f[lane], g[lane]
        if op == F_FMA:
            x = _multiplied(x, y, h[lane])
        elif op == F_DIV:
            x = _quotient(x, y)
        elif op == F_RCP:
            x = _quotient(1.0, x)
        elif op == F_SQRT:
            x = math.sqrt(x) if x >= 0.0 else x if x == 0.0 else math.nan
        elif op == F_RSQRT:
            x = _quotient(1.0, math.sqrt(x)) if x > 0.0 else math.copysign(math.inf, x) if x == 0.0 else math.nan
        elif op in (F_MIN, F_MAX, F_MIN_NAN, F_MAX_NAN):
            x = _extreme(x, y, op in (F_MIN, F_MIN_NAN), op >= F_MIN_NAN)
        elif op == F_ABS:
            x = abs(x)
        elif op == F_NEG:
            x = -x
        elif op == F_COPYSIGN:
            x = math.copysign(x, y)
        elif op == F_EX2:
            x = 2.0**x
        elif op == F_LG2:
            x = math.log2(x) if x > 0.0 else -math.inf if x == 0.0 else math.nan
        elif op == F_TANH:
            x = math.tanh(x)
        else:
            x = math.nan if abs(x) == math.inf else math.sin(x) if op == F_SIN else math.cos(x)
        f[lane] = x


@inner
def _multiplied(x: float, y: float, z: float) -> float:
    """x * y + z; of float64 the product's error is added to the sum (Dekker), which may still be rounded twice."""
    product = x * y
    if not abs(product) < 1e300 or abs(x) > 1e150 or abs(y) > 1e150:
        return product + z
    split = 134217729.0
    x1 = x * split - (x * split - x)
    y1 = y * split - (y * split - y)
    x2, y2 = x - x1, y - y1
    rest = ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2
    total = product + z
    back = total - product
    return total + ((product - (total - back)) + (z - back) + rest) if abs(total) < math.inf else total


@inner
def _quotient(x: float, y: float) -> float:
    if y != 0.0:
        return x / y
    if x == 0.0 or x != x or y != y:
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, y)


@inner
def _extreme(x: float, y: float, least: bool, keeps_nan: bool) -> float:
    if x != x or y != y:
        if keeps_nan:
            return math.nan
        return y if x != x else x
    if x == y:  # -0 is less than +0
        return x if (math.copysign(1.0, x) < 0.0) == least else y
    return x if (x < y) == least else y
