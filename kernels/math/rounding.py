"""Rounding, roots, signs: functions that processors have, correctly rounded in f32 and f64 alike."""

from __future__ import annotations

import math

from kernels.llvm.function import Function, Value
from kernels.math.polynomial import absolute


def floor(f: Function, x: Value) -> Value:
    """The next integer towards minus infinity: exact."""
    return f.intrinsic("llvm.floor", x.type, x)


def ceil(f: Function, x: Value) -> Value:
    """The next integer towards infinity: exact."""
    return f.intrinsic("llvm.ceil", x.type, x)


def round_half_even(f: Function, x: Value) -> Value:
    """The nearest integer, of two the even one: exact."""
    return f.intrinsic("llvm.roundeven", x.type, x)


def trunc(f: Function, x: Value) -> Value:
    """The next integer towards zero: exact."""
    return f.intrinsic("llvm.trunc", x.type, x)


def sign(f: Function, x: Value) -> Value:
    """-1, 0 or 1; NaN for NaN."""
    zero = f.number(x.type, 0.0)
    twice = f.add(x, x)  # of 0 and NaN the same; of a subnormal number, which compares as zero, zero
    below = f.select(f.compare("olt", x, zero), f.number(x.type, -1.0), twice)
    return f.select(f.compare("ogt", x, zero), f.number(x.type, 1.0), below)


def sqrt(f: Function, x: Value) -> Value:
    """The square root, correctly rounded."""
    return f.intrinsic("llvm.sqrt", x.type, x)


def rsqrt(f: Function, x: Value) -> Value:
    """1 / sqrt(x): two roundings, at most 2 ULP."""
    return f.div(f.number(x.type, 1.0), sqrt(f, x))


def reciprocal(f: Function, x: Value) -> Value:
    """1 / x, correctly rounded."""
    return f.div(f.number(x.type, 1.0), x)


def is_nan(f: Function, x: Value) -> Value:
    """An i1 per lane."""
    return f.compare("uno", x, x)


def is_inf(f: Function, x: Value) -> Value:
    """An i1 per lane."""
    return f.compare("oeq", absolute(f, x), f.number(x.type, math.inf))
