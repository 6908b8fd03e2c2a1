"""The error function: x P(x^2) / Q(x^2), with x^2 held where the function is 1 and the result clamped."""

from __future__ import annotations

from kernels.llvm.function import Function, Value
from kernels.math.polynomial import clamp, horner
from kernels.math.quotient import quotient

ONE_FROM = 3.925  # erf rounds to 1 from here on
NUMERATOR = (
    1.1283791459090657, 0.19059040101323801, 0.05276886160711406, 0.0037724067554571277, 0.00028484040277554243,
    2.0460553440901294e-06,
)  # fmt: skip  # relative error 2^-25 with the denominator
DENOMINATOR = (
    1.0, 0.5022390768900344, 0.11418134037002232, 0.01498291288954004, 0.0011638230576056982, 3.80478984604336e-05,
)  # fmt: skip


def erf(f: Function, x: Value) -> Value:
    """erf(x): at most 6 ULP, and never beyond -1 and 1."""
    square = f.minimum(f.mul(x, x), f.number(x.type, ONE_FROM * ONE_FROM))
    found = quotient(f, f.mul(x, horner(f, square, NUMERATOR)), horner(f, square, DENOMINATOR))
    return clamp(f, found, -1.0, 1.0)
