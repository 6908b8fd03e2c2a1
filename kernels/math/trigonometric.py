"""sin and cos: reduction to |r| <= pi / 4 and a quadrant, one polynomial for each.

Small arguments subtract n pi/2 in three parts (Cody and Waite; exact with fused multiply-adds). Vectors with an
argument beyond that take a function of their own: the fraction of x 2/pi from a table of 2^e 2/pi modulo 4, one entry
per exponent, in f64 (Payne and Hanek's idea; as f32 has few exponents the table needs no shifting).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.math.polynomial import absolute, anywhere, horner
from kernels.math.rounding import round_half_even

Name = Literal["sin", "cos"]

_LARGE = 65536.0
_TWO_BY_PI = 0.6366197723675814
_ROUNDER = 12582912.0  # 1.5 * 2^23
_HALF_PI = (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512451623018e-15)  # each as f32; the sum is pi / 2
_HALF_PI_WIDE = (1.57079632673412561416625976562, 6.07710050650619224932e-11)  # n * the first is exact in f64
_SIN = (-0.16666654536746514, 0.008332156059719145, -0.00019514632567685798)  # r + r^3 p(r^2): relative error 2^-28
_COS = (0.04166664555426353, -0.0013887309858416858, 2.4432412185996658e-05)  # 1 - r^2 / 2 + r^4 p(r^2): 2^-33
_FIRST = 127 + 15  # exponent field of the table's first entry
_ENTRIES = 255 - _FIRST
_TABLE = "two_by_pi"


def sin(f: Function, x: Value) -> Value:
    """sin x: at most 2 ULP for every finite x; NaN for infinities."""
    return _either(f, x, "sin")


def cos(f: Function, x: Value) -> Value:
    """cos x: at most 2 ULP for every finite x; NaN for infinities."""
    return _either(f, x, "cos")


def _either(f: Function, x: Value, name: Name) -> Value:
    some = anywhere(f, f.compare("ogt", absolute(f, x), f.number(x.type, _LARGE)))
    outside = _large_function(f, x.type, name)

    def with_large() -> tuple[Value, ...]:
        return (f.each(x.type, lambda one: f"call fastcc {x.type} @{outside}({x.type} {one})", x),)

    def without() -> tuple[Value, ...]:
        return (_small(f, x, name),)

    return f.when(some, with_large, without)[0]


def _small(f: Function, x: Value, name: Name) -> Value:
    rounded = f.fma(x, f.number(x.type, _TWO_BY_PI), f.number(x.type, _ROUNDER))
    n = f.sub(rounded, f.number(x.type, _ROUNDER))
    r = x
    if f.module.target.architecture.is_fused:
        for part in _HALF_PI:
            r = f.fma(n, f.number(x.type, -part), r)
    else:
        wide = types.with_element(x.type, "double")
        r, n = (f.convert("fpext", wide, one) for one in (x, n))
        for part in _HALF_PI_WIDE:
            r = f.sub(r, f.mul(n, f.number(wide, part)))
        r = f.convert("fptrunc", x.type, r)
    return _of_quadrant(f, r, f.convert("bitcast", types.with_element(x.type, "i32"), rounded), name)


def _of_quadrant(f: Function, r: Value, quadrant: Value, name: Name) -> Value:
    """The function of quadrant * pi / 2 + r; only the two low bits of the quadrant count."""
    if name == "cos":
        quadrant = f.add(quadrant, f.number(quadrant.type, 1))
    square = f.mul(r, r)
    sine = f.fma(f.mul(r, square), horner(f, square, _SIN), r)
    # -0 in, -0 out: the product above is -0 then, and so is its sum with r.
    cosine = f.fma(square, f.number(r.type, -0.5), f.number(r.type, 1.0))
    cosine = f.fma(f.mul(square, square), horner(f, square, _COS), cosine)
    odd = f.binary("and", quadrant, f.number(quadrant.type, 1))
    found = f.select(f.compare("ne", odd, f.number(quadrant.type, 0)), cosine, sine)
    negative = f.binary("and", quadrant, f.number(quadrant.type, 2))
    sign = f.binary("shl", negative, f.number(quadrant.type, 30))
    bits = f.binary("xor", f.convert("bitcast", quadrant.type, found), sign)
    return f.convert("bitcast", r.type, bits)


def _large_function(caller: Function, kind: str, name: Name) -> str:
    """A function of one vector for arguments of every size, written once per module."""
    label = f"{name}_large_{types.suffix(kind)}"
    if caller.module.has(label):
        return label
    caller.module.add(label, "")  # taken: the text follows
    f = Function(caller.module, label, (Parameter("x", kind),), result=kind)
    x = f.parameter("x")
    wide, integer, long = (types.with_element(kind, one) for one in ("double", "i32", "i64"))
    table = Value((caller.module.constant(_TABLE, "double", _table(), 64),), "ptr")
    bits = f.convert("bitcast", integer, x)
    magnitude = f.binary("and", bits, f.number(integer, 0x7FFFFFFF))
    entry = f.sub(f.binary("lshr", magnitude, f.number(integer, 23)), f.number(integer, _FIRST))
    entry = f.maximum(f.minimum(entry, f.number(integer, _ENTRIES - 1)), f.number(integer, 0))
    high, low = (_gather(f, wide, table, f.add(f.mul(entry, 2), part)) for part in (0, 1))
    significand = f.add(f.binary("and", bits, f.number(integer, 0x7FFFFF)), f.number(integer, 0x800000))
    m = f.convert("sitofp", wide, significand)
    product = f.mul(m, high)  # exact: 24 and 29 bits
    n = round_half_even(f, product)
    fraction = f.fma(m, low, f.sub(product, n))
    rest = round_half_even(f, fraction)
    r = f.mul(f.sub(fraction, rest), f.number(wide, math.pi / 2))
    quadrant = f.convert("trunc", integer, f.convert("fptosi", long, f.add(n, rest)))
    negative = f.compare("slt", bits, f.number(integer, 0))
    r = f.select(negative, f.neg(f.convert("fptrunc", kind, r)), f.convert("fptrunc", kind, r))
    quadrant = f.select(negative, f.neg(quadrant), quadrant)
    found = _of_quadrant(f, r, quadrant, name)
    small = f.compare("ole", absolute(f, x), f.number(kind, _LARGE))
    finite = f.compare("olt", absolute(f, x), f.number(kind, math.inf))
    found = f.select(finite, found, f.sub(x, x))
    f.give(f.select(small, _small(f, x, name), found))
    f.finish()
    return label


def _gather(f: Function, kind: str, table: Value, entries: Value) -> Value:
    total = f.number(kind, 0.0)
    lanes = types.lanes(kind)
    for lane in range(lanes):
        place = f.convert("sext", "i64", f.extract(entries, lane))
        one = f.load("double", f.at(table, place, "double"))
        total = one if lanes == 1 else f.insert(total, one, lane)
    return total


def _table() -> list[str]:
    """For each exponent field: 2^(field - 150) * 2/pi modulo 4, as 29 leading bits and the next 53."""
    found = []
    two_by_pi = 2 / _pi()
    for field in range(_FIRST, _FIRST + _ENTRIES):
        value = two_by_pi * Fraction(2) ** (field - 150) % 4
        high = Fraction(round(value * 2**27), 2**27)
        found += [types.constant("double", float(high)), types.constant("double", float(value - high))]
    return found


def _pi() -> Fraction:
    """pi to 300 bits, by Machin's formula."""

    def arctangent_of_inverse(q: int) -> Fraction:
        return sum(
            (Fraction((-1) ** k, (2 * k + 1) * q ** (2 * k + 1)) for k in range(300 // q.bit_length())), Fraction(0)
        )

    return 16 * arctangent_of_inverse(5) - 4 * arctangent_of_inverse(239)
