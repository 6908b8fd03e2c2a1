"""asin, acos and atan: an odd polynomial where it is short, and what is left of pi / 2 elsewhere."""

from __future__ import annotations

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.math.polynomial import absolute, horner
from kernels.math.quotient import quotient

_HALF_PI = 1.57079637050628662109375  # as f32
_HALF_PI_LOW = -4.37113900018624283e-8  # pi / 2 without it
_LARGE = 0.5403  # its arc cosine is 1: from here on what is subtracted from pi / 2 is below 1, and rounds as finely
_LARGEST = 2.0**60  # its arc tangent rounds to pi / 2, and its inverse is a normal number
_ASIN = (
    0.16666640894855816, 0.07501597730236129, 0.044315860064587105, 0.03340826971665906, 0.008691456018600448,
    0.045158133025351974,
)  # fmt: skip  # t + t^3 p(t^2): relative error 2^-29 on |t| <= 0.55
_ATAN = (
    -0.33333299090235546, 0.19998548313881764, -0.14264241954248477, 0.10952186970766223, -0.08403453166615119,
    0.057957632290286595, -0.031177875922244733, 0.010914617921248215, -0.0017936236490390422,
)  # fmt: skip  # t + t^3 p(t^2): relative error 2^-28 on |t| <= 1


def asin(f: Function, x: Value) -> Value:
    """asin x: at most 2 ULP, NaN beyond -1 and 1. Large ones are pi / 2 - 2 asin sqrt((1 - |x|) / 2)."""
    size = absolute(f, x)
    large, square, root = _halved(f, x, size)
    t = f.select(large, f.neg(root), size)
    found = _sum(f, _where(f, large, _HALF_PI), _where(f, large, _HALF_PI_LOW), t, square)
    return f.intrinsic("llvm.copysign", x.type, found, x)


def acos(f: Function, x: Value) -> Value:
    """acos x: at most 2 ULP, near 1 too; NaN beyond -1 and 1."""
    large, square, root = _halved(f, x, absolute(f, x))
    t = f.select(large, f.intrinsic("llvm.copysign", x.type, root, x), f.neg(x))
    negative = f.compare("olt", x, f.number(x.type, 0.0))
    base, low = (
        f.select(large, _where(f, negative, 2 * part), f.number(x.type, part)) for part in (_HALF_PI, _HALF_PI_LOW)
    )
    return _sum(f, base, low, t, square)


def atan(f: Function, x: Value) -> Value:
    """atan x: at most 2 ULP. Beyond 1 it is pi / 2 - atan(1 / |x|)."""
    size = absolute(f, x)
    large = f.compare("ogt", size, f.number(x.type, 1.0))
    inverse = quotient(f, f.number(x.type, -1.0), f.minimum(size, f.number(x.type, _LARGEST)))
    t = f.select(large, inverse, size)
    square = f.mul(t, t)
    tail = f.fma(f.mul(t, square), horner(f, square, _ATAN), _where(f, large, _HALF_PI_LOW))
    found = f.add(_where(f, large, _HALF_PI), f.add(t, tail))
    return f.intrinsic("llvm.copysign", x.type, found, x)


def _halved(f: Function, x: Value, size: Value) -> tuple[Value, Value, Value]:
    """Whether x is large, the square that the polynomial takes, and twice the sine of half the angle."""
    large = f.compare("ogt", size, f.number(x.type, _LARGE))
    rest = f.sub(f.number(x.type, 1.0), size)  # exact where x is large, and below 0 where x has no angle
    square = f.select(large, f.mul(rest, f.number(x.type, 0.5)), f.mul(x, x))
    return large, square, f.intrinsic("llvm.sqrt", x.type, f.add(rest, rest))


def _sum(f: Function, base: Value, low: Value, t: Value, square: Value) -> Value:
    """base + low + the angle whose sine is t, or twice the one whose sine is t / 2 where `square` is t^2 / 4."""
    tail = f.fma(f.mul(t, square), horner(f, square, _ASIN), low)
    return f.add(base, f.add(t, tail))


def _where(f: Function, condition: Value, number: float) -> Value:
    """The number, or 0 where the condition does not hold."""
    kind = types.with_element(condition.type, "float")
    return f.select(condition, f.number(kind, number), f.number(kind, 0.0))
