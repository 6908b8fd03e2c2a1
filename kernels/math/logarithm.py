"""The natural logarithm: x = 2^e m with m in [sqrt 1/2, sqrt 2), a polynomial in m - 1."""

from __future__ import annotations

import math

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.math.polynomial import horner

_LN2_HIGH = 0.693359375  # e * this is exact
_LN2_LOW = math.log(2) - _LN2_HIGH
_SQRT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL = 2.0**-126
# log(1 + x) = x - x^2 / 2 + x^3 * polynomial: relative error 2^-30
_COEFFICIENTS = (
    0.33333312602801557, -0.25000009603665657, 0.20002118732288035, -0.1666799566657177, 0.1421955090623531,
    -0.12405591424660936, 0.11888174619488087, -0.11675641268376023, 0.0674660124089555,
)  # fmt: skip


def log(f: Function, x: Value) -> Value:
    """ln x: at most 2 ULP. log(0) = -inf, log of what is below zero is NaN."""
    exponent, mantissa = split(f, x)
    return with_limits(f, x, of_parts(f, exponent, f.sub(mantissa, f.number(x.type, 1.0))))


def one_more(f: Function, x: Value, exponent: Value) -> Value:
    """ln(1 + x) + exponent ln 2 for 0 <= x < 2^100: relative to x where that is small, at most 2 ULP.

    1 + x is rounded to find its power of two alone; x is divided by that, which is exact, and then added.
    """
    kind = types.with_element(x.type, "i32")
    one = f.number(x.type, 1.0)
    bits = f.sub(f.convert("bitcast", kind, f.add(x, one)), f.number(kind, _SQRT_HALF_BITS))
    scale = f.sub(f.number(kind, 127 << 23), f.binary("and", bits, f.number(kind, -(1 << 23))))
    scale = f.convert("bitcast", x.type, scale)
    power = f.convert("sitofp", x.type, f.binary("ashr", bits, f.number(kind, 23)))
    return of_parts(f, f.add(power, exponent), f.fma(x, scale, f.sub(scale, one)))


def of_parts(f: Function, exponent: Value, m: Value) -> Value:
    """exponent ln 2 + ln(1 + m) for 1 + m in [sqrt 1/2, sqrt 2)."""
    square = f.mul(m, m)
    tail = f.mul(f.mul(horner(f, m, _COEFFICIENTS), m), square)
    tail = f.fma(exponent, f.number(m.type, _LN2_LOW), tail)
    tail = f.fma(square, f.number(m.type, -0.5), tail)
    return f.fma(exponent, f.number(m.type, _LN2_HIGH), f.add(m, tail))


def split(f: Function, x: Value) -> tuple[Value, Value]:
    """(e, m) with x = 2^e m and m in [sqrt 1/2, sqrt 2), for finite x > 0; e as a float."""
    kind = types.with_element(x.type, "i32")
    tiny = f.compare("olt", x, f.number(x.type, _SMALLEST_NORMAL))
    x = f.select(tiny, f.mul(x, f.number(x.type, 2.0**23)), x)
    bits = f.sub(f.convert("bitcast", kind, x), f.number(kind, _SQRT_HALF_BITS))
    power = f.binary("ashr", bits, f.number(kind, 23))
    mantissa = f.add(f.binary("and", bits, f.number(kind, 0x7FFFFF)), f.number(kind, _SQRT_HALF_BITS))
    exponent = f.convert("sitofp", x.type, power)
    exponent = f.select(tiny, f.sub(exponent, f.number(x.type, 23.0)), exponent)
    return exponent, f.convert("bitcast", x.type, mantissa)


def with_limits(f: Function, x: Value, found: Value) -> Value:
    """A logarithm's value where it has one, and what it gives for 0, infinity, NaN and numbers below zero."""
    infinity, zero = f.number(x.type, math.inf), f.number(x.type, 0.0)
    found = f.select(f.compare("ult", x, infinity), found, x)  # +inf; NaN goes the other way, and is caught below
    found = f.select(f.compare("oeq", x, zero), f.number(x.type, -math.inf), found)
    return f.select(f.compare("uge", x, zero), f.select(f.compare("uno", x, x), x, found), f.number(x.type, math.nan))
