"""sinh and cosh from exp's reduction, asinh and acosh from the logarithm of 1 + x, atanh from a quotient.

sinh(n ln 2 + r) and cosh of it are sums of products of both functions of n ln 2, which are exact halves of 2^n +- 2^-n,
and of r, which are polynomials: a small argument has n = 0, and nothing is cancelled.
"""

from __future__ import annotations

import math

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.math.exponential import reduced
from kernels.math.logarithm import one_more
from kernels.math.polynomial import absolute, horner
from kernels.math.quotient import quotient

_HIGHEST = 89.7  # sinh and cosh are infinite from 89.416 on; n = 129 here
_SMALL = 2.0**-12  # sinh(x) = x below
_SINH = (0.16666666754550127, 0.008333288922150952, 0.00019904999410626679)  # r + r^3 p(r^2): relative error 2^-37
_COSH = (0.5000000078303749, 0.041666269022037274, 0.001394613123005586)  # 1 + r^2 p(r^2): relative error 2^-34
_HUGE = 2.0**60  # x^2 + 1 = x^2 long before, and x^2 is still a number
_ATANH = (
    0.33333300071512517, 0.2000251827752318, 0.14222762185262774, 0.11823729452793912, 0.05135825762360398,
    0.17669116678845515,
)  # fmt: skip  # q + q^3 p(q^2): relative error 2^-29 on |q| <= 1/2


def sinh(f: Function, x: Value) -> Value:
    """sinh x: at most 2 ULP; infinite from where it rounds to that."""
    size = absolute(f, x)
    of_power, of_rest = _factors(f, size)
    (a, b), (odd, even) = of_power, of_rest
    half = f.add(a, f.fma(a, even, f.mul(b, odd)))
    found = f.intrinsic("llvm.copysign", x.type, f.add(half, half), x)
    return f.select(f.compare("olt", size, f.number(x.type, _SMALL)), x, found)  # a half may be too small a number


def cosh(f: Function, x: Value) -> Value:
    """cosh x: at most 2 ULP; infinite from where it rounds to that."""
    (a, b), (odd, even) = _factors(f, absolute(f, x))
    half = f.add(b, f.fma(b, even, f.mul(a, odd)))
    return f.add(half, half)


def asinh(f: Function, x: Value) -> Value:
    """asinh x = ln(1 + |x| + x^2 / (1 + sqrt(x^2 + 1))) with the sign of x: at most 2 ULP."""
    size, one = absolute(f, x), f.number(x.type, 1.0)
    root = f.intrinsic("llvm.sqrt", x.type, f.fma(size, size, one))
    more = f.add(size, quotient(f, f.mul(size, size), f.add(root, one)))
    return f.intrinsic("llvm.copysign", x.type, _logarithm(f, size, more), x)


def acosh(f: Function, x: Value) -> Value:
    """acosh x = ln(1 + t + sqrt(t (x + 1))) with t = x - 1: at most 3 ULP, near 1 too; NaN below."""
    one = f.number(x.type, 1.0)
    t = f.sub(x, one)
    product = f.mul(t, f.add(absolute(f, x), one))  # below 0 for every x < 1: NaN
    return _logarithm(f, x, f.add(t, f.intrinsic("llvm.sqrt", x.type, product)))


def atanh(f: Function, x: Value) -> Value:
    """atanh x: at most 2 ULP, infinite for -1 and 1, NaN beyond.

    From 1/2 on it is e ln 2 / 2 + atanh q, where (1 + x) / (1 - x) = 2^e (1 + q) / (1 - q); both sums are exact or
    rounded once, and e is such that |q| is about 1/6 at most (1/5, as the power is read off the bits).
    """
    kind = types.with_element(x.type, "i32")
    size, one, zero = absolute(f, x), f.number(x.type, 1.0), f.number(x.type, 0.0)
    far = f.compare("oge", size, f.number(x.type, 0.5))
    above, below = f.add(one, size), f.sub(one, size)
    ratio = f.sub(f.convert("bitcast", kind, above), f.convert("bitcast", kind, below))
    ratio = f.add(ratio, f.number(kind, 1 << 22))
    power = f.select(far, f.convert("sitofp", x.type, f.binary("ashr", ratio, f.number(kind, 23))), zero)
    scale = f.add(f.binary("and", ratio, f.number(kind, -(1 << 23))), f.number(kind, 127 << 23))
    below = f.mul(below, f.convert("bitcast", x.type, scale))
    q = f.select(far, quotient(f, f.sub(above, below), f.add(above, below)), size)
    square = f.mul(q, q)
    found = f.fma(f.mul(q, square), horner(f, square, _ATANH), q)
    found = f.fma(power, f.number(x.type, math.log(2) / 2), found)
    outside = f.select(f.compare("oeq", size, one), f.number(x.type, math.inf), f.number(x.type, math.nan))
    found = f.select(f.compare("ult", size, one), found, outside)
    return f.intrinsic("llvm.copysign", x.type, found, x)


def _factors(f: Function, size: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """(sinh, cosh) of n ln 2, half of each, and (sinh, cosh - 1) of r, for n ln 2 + r = size >= 0."""
    rounded, _, r = reduced(f, f.minimum(size, f.number(size.type, _HIGHEST)))
    kind = types.with_element(size.type, "i32")
    power = f.binary("shl", f.convert("bitcast", kind, rounded), f.number(kind, 23))
    quarter = f.number(kind, 125 << 23)  # 2^-2
    up = f.convert("bitcast", size.type, f.add(quarter, power))
    down = f.convert("bitcast", size.type, f.maximum(f.sub(quarter, power), f.number(kind, 0)))
    square = f.mul(r, r)
    odd = f.fma(f.mul(r, square), horner(f, square, _SINH), r)
    return (f.sub(up, down), f.add(up, down)), (odd, f.mul(square, horner(f, square, _COSH)))


def _logarithm(f: Function, size: Value, more: Value) -> Value:
    """ln(1 + more), or ln(2 size) for those of which the square is no number."""
    huge = f.compare("ogt", size, f.number(size.type, _HUGE))
    more = f.select(huge, f.mul(size, f.number(size.type, 2.0**-32)), more)
    found = one_more(f, more, f.select(huge, f.number(size.type, 33.0), f.number(size.type, 0.0)))
    return f.select(f.compare("oeq", size, f.number(size.type, math.inf)), size, found)
