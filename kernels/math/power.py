"""x to the power y: 2^(y log2 x) in f64, so that the product of a large exponent keeps all bits of f32."""

from __future__ import annotations

import math

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.math.logarithm import split
from kernels.math.polynomial import absolute, clamp, horner
from kernels.math.rounding import trunc

_ROUNDER = 6755399441055744.0  # 1.5 * 2^52
_LOG_TERMS = 9  # of atanh's series in s^2 <= 0.0295: relative error 2^-44
_EXP_TERMS = 11  # of e^r's series for |r| <= ln 2 / 2: relative error 2^-42


def power(f: Function, x: Value, y: Value) -> Value:
    """x^y as C's pow: at most 1 ULP.

    pow(x, 0) = pow(1, y) = 1 for NaN too; a negative x needs an integer y, else NaN; pow(-1, +-inf) = 1.
    """
    kind, wide = x.type, types.with_element(x.type, "double")
    zero, one, infinity = f.number(kind, 0.0), f.number(kind, 1.0), f.number(kind, math.inf)
    size = absolute(f, x)
    product = f.mul(_log2(f, size), f.convert("fpext", wide, y))
    found = f.convert("fptrunc", kind, _exp2(f, product))
    # 0 and infinity times nothing is NaN here; the cases where C has a value follow.
    whole = f.compare("oeq", trunc(f, y), y)
    half = f.mul(y, f.number(kind, 0.5))
    odd = f.binary("and", whole, f.compare("one", trunc(f, half), half))
    bits = types.with_element(kind, "i32")
    sign = f.binary("and", f.convert("bitcast", bits, x), f.number(bits, -(1 << 31)))
    negative = f.compare("ne", sign, f.number(bits, 0))
    found = f.select(f.binary("and", negative, odd), f.neg(found), found)
    fractional = f.binary("xor", whole, f.number(whole.type, True))
    impossible = f.binary("and", f.compare("olt", x, zero), fractional)
    impossible = f.binary("and", impossible, f.compare("olt", size, infinity))
    found = f.select(impossible, f.number(kind, math.nan), found)
    unit = f.binary("and", f.compare("oeq", size, one), f.compare("oeq", absolute(f, y), infinity))
    is_one = f.binary("or", f.compare("oeq", x, one), f.compare("oeq", y, zero))
    return f.select(f.binary("or", unit, is_one), one, found)


def _log2(f: Function, size: Value) -> Value:
    """log2 of numbers that are not negative, as f64; -inf for 0."""
    kind, wide = size.type, types.with_element(size.type, "double")
    exponent, mantissa = split(f, size)
    m, one = f.convert("fpext", wide, mantissa), f.number(wide, 1.0)
    s = f.div(f.sub(m, one), f.add(m, one))
    terms = [2 / math.log(2) / (2 * k + 1) for k in range(_LOG_TERMS)]
    found = f.fma(s, horner(f, f.mul(s, s), terms), f.convert("fpext", wide, exponent))
    found = f.select(f.compare("ult", size, f.number(kind, math.inf)), found, f.number(wide, math.inf))
    found = f.select(f.compare("oeq", size, f.number(kind, 0.0)), f.number(wide, -math.inf), found)
    return f.select(f.compare("uno", size, size), f.convert("fpext", wide, size), found)


def _exp2(f: Function, t: Value) -> Value:
    """2^t as f64, of what f32 can hold: 0 and infinity beyond."""
    t = clamp(f, t, -200.0, 200.0)
    rounded = f.add(t, f.number(t.type, _ROUNDER))
    n = f.sub(rounded, f.number(t.type, _ROUNDER))
    r = f.mul(f.sub(t, n), f.number(t.type, math.log(2)))
    mantissa = horner(f, r, [1 / math.factorial(k) for k in range(_EXP_TERMS)])
    long = types.with_element(t.type, "i64")
    power_bits = f.binary("shl", f.convert("bitcast", long, rounded), f.number(long, 52))
    bits = f.add(f.convert("bitcast", long, mantissa), power_bits)
    return f.convert("bitcast", t.type, bits)
