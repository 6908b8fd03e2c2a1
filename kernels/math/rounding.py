"""Rounding, roots, signs: functions that processors have, correctly rounded in f32 and f64 alike.

A microcontroller has no instructions that round to integers. There a number that is added and taken away leaves the
nearest one, as far as numbers have fractions at all.
"""

from __future__ import annotations

import math

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.math.polynomial import absolute


def floor(f: Function, x: Value) -> Value:
    """The next integer towards minus infinity: exact."""
    if not f.module.target.architecture.is_bare:
        return f.intrinsic("llvm.floor", x.type, x)
    nearest = round_half_even(f, x)
    return f.select(f.compare("ogt", nearest, x), f.sub(nearest, f.number(x.type, 1.0)), nearest)


def ceil(f: Function, x: Value) -> Value:
    """The next integer towards infinity: exact."""
    if not f.module.target.architecture.is_bare:
        return f.intrinsic("llvm.ceil", x.type, x)
    return f.neg(floor(f, f.neg(x)))


def round_half_even(f: Function, x: Value) -> Value:
    """The nearest integer, of two the even one: exact."""
    if not f.module.target.architecture.is_bare:
        return f.intrinsic("llvm.roundeven", x.type, x)
    whole = f.number(x.type, 2.0 ** (23 if types.element(x.type) == "float" else 52))  # from here on all are integers
    size = absolute(f, x)
    nearest = f.select(f.compare("olt", size, whole), f.sub(f.add(size, whole), whole), size)
    return f.intrinsic("llvm.copysign", x.type, nearest, x)


def trunc(f: Function, x: Value) -> Value:
    """The next integer towards zero: exact."""
    if not f.module.target.architecture.is_bare:
        return f.intrinsic("llvm.trunc", x.type, x)
    return f.intrinsic("llvm.copysign", x.type, floor(f, absolute(f, x)), x)


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
