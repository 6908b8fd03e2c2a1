"""The hyperbolic tangent: x P(x^2) / Q(x^2), with x^2 held where the function is 1 and the result clamped."""

from __future__ import annotations

from kernels.llvm.function import Function, Value
from kernels.math.polynomial import clamp, horner
from kernels.math.quotient import quotient

_ONE_FROM = 9.02  # tanh rounds to 1 from here on
_NUMERATOR = (
    0.9999999791697203, 0.1337973777322277, 0.0034940574008081628, 2.0583829664937005e-05, 1.3319504446323673e-08,
)  # fmt: skip  # relative error 2^-25 with the denominator
_DENOMINATOR = (
    1.0, 0.46713053055734366, 0.025871161922016883, 0.00032831289975573155, 7.762207024683338e-07,
)  # fmt: skip


def tanh(f: Function, x: Value) -> Value:
    """tanh(x): at most 6 ULP, and never beyond -1 and 1."""
    square = f.minimum(f.mul(x, x), f.number(x.type, _ONE_FROM * _ONE_FROM))
    found = quotient(f, f.mul(x, horner(f, square, _NUMERATOR)), horner(f, square, _DENOMINATOR))
    return clamp(f, found, -1.0, 1.0)
