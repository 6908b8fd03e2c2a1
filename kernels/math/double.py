"""exp, sigmoid, log, erf and tanh of f64: the forms of f32 with longer polynomials, at most so many ULP of f64.

Integers of 64 bits are added, shifted and masked only: AVX2 neither converts them nor keeps their sign in a shift.
"""

from __future__ import annotations

import math

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.math.logarithm import with_limits
from kernels.math.polynomial import absolute, horner

_LOWEST = -708.3964185322641  # exp is 0 below: the least f64 whose exponential is a normal number
_HIGHEST = 709.782712893384  # exp is infinite above
_LN2_HIGH = 0.6931471803691238  # 33 bits: n * this is exact
_LN2_LOW = 1.9082149292705877e-10  # ln 2 without it
_ROUNDER = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the nearest integer in the low bits
_EXP = (
    0.5000000000000011, 0.16666666666666413, 0.041666666666530155, 0.008333333333494466, 0.0013888888943630372,
    0.0001984126950657235, 2.4801493098632217e-05, 2.7557586378063306e-06, 2.763024847658922e-07,
    2.5000060571192997e-08,
)  # fmt: skip  # 1 + r + r^2 p(r): relative error 2^-57 on |r| <= ln 2 / 2
_LOG = (
    0.6666666666666735, 0.39999999999411096, 0.2857142874326231, 0.22222198476003313, 0.18183569739718125,
    0.1531390323346369, 0.14797507961979034,
)  # fmt: skip  # ln((1 + s) / (1 - s)) = 2 s + s^3 p(s^2): relative error 2^-59
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_FRACTION = (1 << 52) - 1
_BIAS = 1024  # keeps exponents from being negative
_ERF_ONE_FROM = 5.93  # erf rounds to 1 from here on
_ERF_LARGE = 1.25
_ERF_CENTRE = 2.5
_ERF_SMALL = (
    1.1283791670955126, -0.37612638903183726, 0.11283791670954087, -0.026866170644963785, 0.005223977624028633,
    -0.0008548326951741799, 0.00012055330617284175, -1.4925597247548613e-05, 1.646127942735356e-06,
    -1.635654498674868e-07, 1.4733884544160613e-08, -1.188798137911282e-09, 7.936503584535152e-11,
    -3.2615737928887072e-12,
)  # fmt: skip  # x p(x^2): relative error 2^-59 below the large ones
_ERF_ROOT = (
    1.6289342303314511, 0.5449478062073717, 0.18725041428884806, 0.043418720541851794, 0.009211517280816484,
    0.0017009904173870968, 0.00027792388754790856, 4.384282187025313e-05, 5.979692948107313e-06,
    8.31303890121808e-07, 1.017488187515992e-07, 1.1765112134969207e-08, 1.5737743056609753e-09,
    1.0072310518746837e-10, 2.888032661087259e-11, 1.5496357126912314e-13,
)  # fmt: skip  # (1 - erf x)^(-1/16) = p(x - 2.5): so exact that erf's relative error is 2^-59
_TANH_ONE_FROM = 20.0  # tanh rounds to 1 from here on


def exp(f: Function, x: Value) -> Value:
    """e^x: at most 2 ULP. Below -708.396, where it would be subnormal, 0; beyond 709.78 infinite."""
    power, less_one = _reduced(f, x)
    found = _scaled(f, f.add(less_one, f.number(x.type, 1.0)), power)
    found = f.select(f.compare("ult", x, f.number(x.type, _LOWEST)), f.number(x.type, 0.0), found)
    found = f.select(f.compare("ogt", x, f.number(x.type, _HIGHEST)), f.number(x.type, math.inf), found)
    return f.select(f.compare("uno", x, x), x, found)


def sigmoid(f: Function, x: Value) -> Value:
    """1 / (1 + e^-x): at most 3 ULP, for large negative x too, where the result is e^x, or 0 as above."""
    small = exp(f, f.neg(absolute(f, x)))
    one = f.number(x.type, 1.0)
    negative = f.compare("olt", x, f.number(x.type, 0.0))
    return f.div(f.select(negative, small, one), f.add(small, one))


def log(f: Function, x: Value) -> Value:
    """ln x: at most 1 ULP. log(0) = -inf, log of what is below zero is NaN.

    With m = 1 + t and s = t / (2 + t) it is t - (t^2 / 2 - s (t^2 / 2 + s^2 p(s^2))), of which the first term is exact.
    """
    exponent, mantissa = _split(f, x)
    t = f.sub(mantissa, f.number(x.type, 1.0))
    s = f.div(t, f.add(t, f.number(x.type, 2.0)))
    square = f.mul(s, s)
    half = f.mul(f.mul(t, t), f.number(x.type, 0.5))
    tail = f.mul(exponent, f.number(x.type, _LN2_LOW))
    tail = f.fma(s, f.fma(square, horner(f, square, _LOG), half), tail)
    rest = f.sub(t, f.sub(half, tail))
    return with_limits(f, x, f.fma(exponent, f.number(x.type, _LN2_HIGH), rest))


def erf(f: Function, x: Value) -> Value:
    """erf(x): at most 4 ULP, and never beyond -1 and 1.

    Large ones are 1 - 1 / p^16, p being a polynomial: what is subtracted is below 0.08, and its error as much smaller.
    """
    size, one = absolute(f, x), f.number(x.type, 1.0)
    small = f.mul(x, horner(f, f.mul(x, x), _ERF_SMALL))
    place = f.sub(f.minimum(size, f.number(x.type, _ERF_ONE_FROM)), f.number(x.type, _ERF_CENTRE))
    power = horner(f, place, _ERF_ROOT)
    for _ in range(4):
        power = f.mul(power, power)
    large = f.intrinsic("llvm.copysign", x.type, f.sub(one, f.div(one, power)), x)
    return f.select(f.compare("ogt", size, f.number(x.type, _ERF_LARGE)), large, small)


def tanh(f: Function, x: Value) -> Value:
    """tanh(x) = t / (t + 2) with t = e^2x - 1: at most 3 ULP, and never beyond -1 and 1.

    t = (2^n - 1) + 2^n (e^r - 1), of which nothing but the last term is rounded; a small x has n = 0.
    """
    size = f.minimum(absolute(f, x), f.number(x.type, _TANH_ONE_FROM))
    power, less_one = _reduced(f, f.add(size, size))
    scale = _scaled(f, f.number(x.type, 1.0), power)
    t = f.fma(scale, less_one, f.sub(scale, f.number(x.type, 1.0)))
    return f.intrinsic("llvm.copysign", x.type, f.div(t, f.add(t, f.number(x.type, 2.0))), x)


def _reduced(f: Function, x: Value) -> tuple[Value, Value]:
    """(n, e^r - 1) with x = n ln 2 + r and |r| <= ln 2 / 2; n as `_scaled` takes it."""
    kind = types.with_element(x.type, "i64")
    rounded = f.fma(x, f.number(x.type, 1 / math.log(2)), f.number(x.type, _ROUNDER))
    n = f.sub(rounded, f.number(x.type, _ROUNDER))
    r = f.fma(n, f.number(x.type, -_LN2_HIGH), x)
    r = f.fma(n, f.number(x.type, -_LN2_LOW), r)
    power = f.binary("shl", f.convert("bitcast", kind, rounded), f.number(kind, 52))
    return power, f.fma(f.mul(r, r), horner(f, r, _EXP), r)


def _scaled(f: Function, x: Value, power: Value) -> Value:
    """x 2^n, by adding n to the exponent among the bits."""
    return f.convert("bitcast", x.type, f.add(f.convert("bitcast", power.type, x), power))


def _split(f: Function, x: Value) -> tuple[Value, Value]:
    """(e, m) with x = 2^e m and m in [sqrt 1/2, sqrt 2), for finite x > 0; e as a float, made of its bits."""
    kind = types.with_element(x.type, "i64")
    tiny = f.compare("olt", x, f.number(x.type, 2.0**-1022))
    x = f.select(tiny, f.mul(x, f.number(x.type, 2.0**54)), x)
    bits = f.sub(f.convert("bitcast", kind, x), f.number(kind, _SQRT_HALF_BITS))
    mantissa = f.add(f.binary("and", bits, f.number(kind, _FRACTION)), f.number(kind, _SQRT_HALF_BITS))
    power = f.binary("lshr", f.add(bits, f.number(kind, _BIAS << 52)), f.number(kind, 52))
    power = f.binary("or", power, f.number(kind, 1075 << 52))  # of a number from 2^52 on: its last bits
    bias = f.select(tiny, f.number(x.type, 2.0**52 + _BIAS + 54), f.number(x.type, 2.0**52 + _BIAS))
    return f.sub(f.convert("bitcast", x.type, power), bias), f.convert("bitcast", x.type, mantissa)
