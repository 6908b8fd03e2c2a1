"""exp and sigmoid: x = n ln 2 + r, a polynomial in r, times 2^n.

Where e^x would be subnormal it is 0, and no step on the way is subnormal: many cores take a hundred cycles or more for
such a number, and the exponential of what an attention mask shuts out would be one in every row. The steps of -inf are
NaN or zero, and its result is selected.
"""

from __future__ import annotations

import math

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.math.polynomial import absolute, has_avx512, horner
from kernels.math.quotient import quotient

_LOWEST = -87.33654022216797  # exp is 0 below: the least f32 whose exponential is a normal number
_HIGHEST = 89.0  # exp is infinite above
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147182464599609375  # ln 2 as f32: x - n * this is exact, as |r| < 1/2
_LN2_SHORT = 0.693359375  # so short that n * this is exact without a fused multiply-add
_ROUNDER = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_ROUNDER_BITS = 0x4B400000
_COEFFICIENTS = (
    1.0, 1.0, 0.4999999343189171, 0.16666520396767104, 0.041668390831160085, 0.008368745320387129,
    0.0013814537903137885,
)  # fmt: skip  # relative error 2^-28 on |r| <= ln 2 / 2


def exp(f: Function, x: Value) -> Value:
    """e^x: at most 1 ULP. Below -87.3365, where it would be subnormal, 0; beyond 88.72 infinite."""
    return _exp(f, f.minimum(x, f.number(x.type, _HIGHEST)), above_one=True)


def exp_nonpositive(f: Function, x: Value) -> Value:
    """e^x for x <= 0 (or NaN), a few instructions shorter: at most 1 ULP, and 0 below -87.3365."""
    return _exp(f, x, above_one=False)


def sigmoid(f: Function, x: Value) -> Value:
    """1 / (1 + e^-x): at most 3 ULP, for large negative x too, where the result is e^x, or 0 as above."""
    small = exp_nonpositive(f, f.neg(absolute(f, x)))
    one = f.number(x.type, 1.0)
    negative = f.compare("olt", x, f.number(x.type, 0.0))
    return quotient(f, f.select(negative, small, one), f.add(small, one))


def _exp(f: Function, x: Value, *, above_one: bool) -> Value:
    lowest = f.number(x.type, _LOWEST)
    there = f.compare("uge", x, lowest)  # NaN is there, too
    scales_itself = has_avx512(f, types.lanes(x.type))
    if not scales_itself:  # an exponent is put together from bits, and must be one
        x = f.maximum(x, lowest)
    rounded, n, r = reduced(f, x)
    mantissa = horner(f, r, _COEFFICIENTS)
    if scales_itself:
        found = _scalef(f, mantissa, n, types.lanes(x.type))
    else:
        found = _scale(f, mantissa, rounded, above_one=above_one)
    return f.select(there, found, f.number(x.type, 0.0))


def reduced(f: Function, x: Value) -> tuple[Value, Value, Value]:
    """(rounded, n, r) with x = n ln 2 + r and |r| <= ln 2 / 2; `rounded` has n in its low bits."""
    rounded = f.fma(x, f.number(x.type, _LOG2_E), f.number(x.type, _ROUNDER))
    n = f.sub(rounded, f.number(x.type, _ROUNDER))
    high = _LN2_HIGH if f.module.target.architecture.is_fused else _LN2_SHORT
    r = f.fma(n, f.number(x.type, -high), x)
    return rounded, n, f.fma(n, f.number(x.type, high - math.log(2)), r)


def _scale(f: Function, mantissa: Value, rounded: Value, *, above_one: bool) -> Value:
    """mantissa * 2^n for -126 <= n <= 129 (0, when not above one); `rounded` has n in its low bits."""
    kind = types.with_element(mantissa.type, "i32")

    def integer(value: int) -> Value:
        return f.number(kind, value)

    power = f.sub(f.convert("bitcast", kind, rounded), integer(_ROUNDER_BITS))
    # Two factors where 2^n alone may lie beyond the largest number; only the last product rounds.
    half = f.binary("ashr", power, integer(1))
    for one in (half, f.sub(power, half)) if above_one else (power,):
        bits = f.binary("shl", f.add(one, integer(127)), integer(23))
        mantissa = f.mul(mantissa, f.convert("bitcast", mantissa.type, bits))
    return mantissa


def _scalef(f: Function, mantissa: Value, n: Value, lanes: int) -> Value:
    """AVX-512 has the whole step as one instruction."""
    name = f"llvm.x86.avx512.mask.scalef.ps.{32 * lanes}"
    mask = "i16" if lanes == 16 else "i8"
    rounding = ", i32 4" if lanes == 16 else ""  # 4: as the processor is set
    kind = mantissa.type
    f.module.declare(name, kind, [kind, kind, kind, mask, *(["i32"] if rounding else [])])
    return f.each(
        kind,
        lambda a, b: f"call {kind} @{name}({kind} {a}, {kind} {b}, {kind} zeroinitializer, {mask} -1{rounding})",
        mantissa,
        n,
    )
