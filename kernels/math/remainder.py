"""fmod: the dividend less a whole number of divisors, exact, with one division where the quotient is not large.

Vectors with another lane take a function of their own. In f32 it divides as by hand, of the quotient 28 bits at a time.

With a and b for their sizes, t = a / b < 2^(p - 2), p bits of a significand and n = floor(t):

- The quotient rounds to no less than n and no more than n + 1, as both are numbers, so that q = floor of it is one of
  them. Hence r = a - q b lies in [-b, b).
- Where a >= b, a is a multiple of b's last place, and so is r; a multiple no larger than b is a number, so that a fused
  multiply-add gives it without rounding, and r + b, where r is below 0, as well. Where a < b the remainder is a.
- b is so large that its last place is a normal number. So is every remainder that is not 0, and none is flushed.

Without fused multiply-adds f32 is computed in f64: q b has 22 + 24 bits and is exact. n + 1 - t is at least 2^-24,
of which f64's quotient keeps the sign: q = n.
"""

from __future__ import annotations

import math

from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.math import libm
from kernels.math.polynomial import absolute, anywhere
from kernels.math.rounding import floor

_BITS = {"float": 24, "double": 53}  # of a significand
_LEAST = {"float": 2.0**-102, "double": 2.0**-969}  # as a divisor: its last place is normal
_DIGIT = 28  # bits of a quotient in a step: with 24 of a significand they are fewer than f64's, and so is the product
_INFINITY = 0xFF << 23  # as bits


def fmod(f: Function, a: Value, b: Value) -> Value:
    """C's fmod: exact, subnormal numbers too, with the sign of a. Of f64, large quotients are the C library's."""
    kind, element = a.type, types.element(a.type)
    architecture = f.module.target.architecture
    if element == "double" and (not architecture.is_fused or architecture.is_bare):
        return libm.call(f, "fmod", a, b)
    dividend, divisor = absolute(f, a), absolute(f, b)
    limit = f.mul(divisor, f.number(kind, 2.0 ** (_BITS[element] - 2)))
    far = f.compare("uge", dividend, limit)
    tiny = f.compare("ult", divisor, f.number(kind, _LEAST[element]))  # 0 and NaN, too
    outside = _outside_function(f, kind)

    def outside_of_it() -> tuple[Value, ...]:
        return (f.each(kind, lambda x, y: f"call fastcc {kind} @{outside}({kind} {x}, {kind} {y})", a, b),)

    def by_division() -> tuple[Value, ...]:
        rest = _remainder(f, dividend, divisor)
        rest = f.select(f.compare("olt", dividend, divisor), dividend, rest)
        return (f.intrinsic("llvm.copysign", kind, rest, a),)

    return f.when(anywhere(f, f.binary("or", far, tiny)), outside_of_it, by_division)[0]


def _remainder(f: Function, a: Value, b: Value) -> Value:
    if not f.module.target.architecture.is_fused:
        wide = types.with_element(a.type, "double")
        long, divisor = (f.convert("fpext", wide, one) for one in (a, b))
        product = f.mul(floor(f, f.div(long, divisor)), divisor)
        return f.convert("fptrunc", a.type, f.sub(long, product))
    rest = f.fma(f.neg(floor(f, f.div(a, b))), b, a)
    return f.select(f.compare("olt", rest, f.number(a.type, 0.0)), f.add(rest, b), rest)


def _outside_function(caller: Function, kind: str) -> str:
    """A function of one vector for numbers of every size, written once per module."""
    label = f"fmod_outside_{types.suffix(kind)}"
    if not caller.module.has(label):
        caller.module.add(label, "")  # taken: the text follows
        f = Function(caller.module, label, (Parameter("a", kind), Parameter("b", kind)), result=kind)
        a, b = f.parameter("a"), f.parameter("b")
        f.give(_by_digits(f, a, b) if types.element(kind) == "float" else libm.call(f, "fmod", a, b))
        f.finish()
    return label


def _by_digits(f: Function, a: Value, b: Value) -> Value:
    """The remainder of f32, from significands and exponents as integers, so that nothing is flushed.

    A significand r below b's is shifted by up to 28 bits. The floor q of the quotient is exact, as that has 28 bits
    before the point and is at least 2^-24 below the next integer; so is q times b's significand. The rest is next.
    """
    kind = types.with_element(a.type, "i32")
    wide = types.with_element(a.type, "double")

    def integer(value: int) -> Value:
        return f.number(kind, value)

    size_a, size_b = (f.binary("and", f.convert("bitcast", kind, one), integer(0x7FFFFFFF)) for one in (a, b))
    (exponent_a, significand_a), (exponent_b, significand_b) = (_split(f, one) for one in (size_a, size_b))
    divisor = f.convert("sitofp", wide, significand_b)

    def remainder(dividend: Value) -> Value:
        return f.sub(dividend, f.mul(floor(f, f.div(dividend, divisor)), divisor))

    def step(_: Value, carried: tuple[Value, ...]) -> tuple[Value, ...]:
        rest, left = carried
        shift = f.minimum(left, integer(_DIGIT))
        factor = f.convert("bitcast", a.type, f.binary("shl", f.add(shift, integer(127)), integer(23)))
        return remainder(f.mul(rest, f.convert("fpext", wide, factor))), f.sub(left, shift)

    shifts = f.maximum(f.sub(exponent_a, exponent_b), integer(0))
    most = f.convert("zext", "i64", f.reduce("smax", shifts))
    rest, _ = f.loop(0, most, _DIGIT, step, (remainder(f.convert("sitofp", wide, significand_a)), shifts))
    found = _joined(f, f.convert("fptosi", kind, rest), exponent_b)
    found = f.select(f.compare("ult", size_a, size_b), size_a, found)
    sign = f.binary("and", f.convert("bitcast", kind, a), integer(-(1 << 31)))
    undefined = f.binary("or", f.compare("eq", size_b, integer(0)), f.compare("ugt", size_b, integer(_INFINITY)))
    undefined = f.binary("or", undefined, f.compare("uge", size_a, integer(_INFINITY)))
    number = f.convert("bitcast", a.type, f.binary("or", found, sign))
    return f.select(undefined, f.number(a.type, math.nan), number)


def _split(f: Function, bits: Value) -> tuple[Value, Value]:
    """(e, m) of |x| = m 2^(e - 150), e at least 1."""
    one = f.number(bits.type, 1)
    field = f.binary("lshr", bits, f.number(bits.type, 23))
    fraction = f.binary("and", bits, f.number(bits.type, 0x7FFFFF))
    normal = f.compare("ne", field, f.number(bits.type, 0))
    return f.maximum(field, one), f.select(normal, f.add(fraction, f.number(bits.type, 1 << 23)), fraction)


def _joined(f: Function, m: Value, e: Value) -> Value:
    """The bits of m 2^(e - 150) for 0 <= m < 2^24 and e >= 1: those of m as a float with its exponent moved.

    A subnormal number has m itself in its bits, shifted so that e becomes 1.
    """
    kind = m.type
    as_float = f.convert("bitcast", kind, f.convert("sitofp", types.with_element(kind, "float"), m))
    moved = f.add(as_float, f.binary("shl", f.sub(e, f.number(kind, 150)), f.number(kind, 23)))
    field = f.add(f.binary("lshr", as_float, f.number(kind, 23)), f.sub(e, f.number(kind, 150)))
    shift = f.minimum(f.sub(e, f.number(kind, 1)), f.number(kind, 31))
    subnormal = f.binary("shl", m, shift)
    found = f.select(f.compare("sge", field, f.number(kind, 1)), moved, subnormal)
    return f.select(f.compare("eq", m, f.number(kind, 0)), m, found)
