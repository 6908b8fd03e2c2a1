"""One operation of the grammar as instructions, on values as they are computed with (f32 for f16, i1 for bool)."""

from __future__ import annotations

from collections.abc import Callable

from kernels.dtype import DType
from kernels.llvm.function import Function, Value
from kernels.math import double, integers, libm, rounding
from kernels.math.erf import erf
from kernels.math.exponential import exp, sigmoid
from kernels.math.hyperbolic import acosh, asinh, atanh, cosh, sinh
from kernels.math.inverse import acos, asin, atan
from kernels.math.logarithm import log
from kernels.math.polynomial import absolute
from kernels.math.power import power
from kernels.math.remainder import fmod
from kernels.math.tanh import tanh
from kernels.math.trigonometric import cos, sin
from kernels.tensor.expression import BinaryOp, CompareOp, UnaryOp

# The C library's functions, of f64.
_LIBRARY = ("sin", "cos", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
_PREDICATES = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def unary(f: Function, op: UnaryOp, x: Value, dtype: DType) -> Value:
    """A function of one operand of type `dtype`."""
    if op == "not":
        return f.binary("xor", x, f.number(x.type, True))
    if op == "neg":
        return f.neg(x)
    if dtype.is_integer:
        return _of_integer(f, op, x, signed=dtype.is_signed)
    if dtype is DType.F64 and op in _LIBRARY:
        return libm.call(f, op, x)
    if dtype is DType.F64 and op in _DOUBLE:
        return _DOUBLE[op](f, x)
    return _UNARY[op](f, x)


def binary(f: Function, op: BinaryOp, a: Value, b: Value, dtype: DType) -> Value:
    """A function of two operands of type `dtype`."""
    if op in ("and", "or", "xor"):
        return f.binary(op, a, b)
    if dtype.is_integer and op in _INTEGER:
        return _INTEGER[op](f, a, b, dtype.is_signed)
    match op:
        case "add":
            return f.add(a, b)
        case "sub":
            return f.sub(a, b)
        case "mul":
            return f.mul(a, b)
        case "div":
            return f.div(a, b)
        case "min":
            return f.minimum(a, b, signed=dtype.is_signed)
        case "max":
            return f.maximum(a, b, signed=dtype.is_signed)
        case "pow":
            return libm.call(f, "pow", a, b) if dtype is DType.F64 else _power(f, a, b)
        case "fmod":
            return fmod(f, a, b)
        case "mod":
            return _modulus(f, a, b)
    raise AssertionError(f"no rule for {op} of {dtype.value}")


def compare(f: Function, op: CompareOp, a: Value, b: Value, dtype: DType) -> Value:
    """A question about two operands; false when either is NaN, except for "ne"."""
    if dtype.is_float:
        return f.compare("une" if op == "ne" else f"o{op}", a, b)
    if op in _PREDICATES:
        return f.compare(f"{'s' if dtype.is_signed else 'u'}{op}", a, b)
    return f.compare(op, a, b)


def _of_integer(f: Function, op: UnaryOp, x: Value, *, signed: bool) -> Value:
    zero = f.number(x.type, 0)
    if op == "abs":
        return f.select(f.compare("slt", x, zero), f.sub(zero, x), x) if signed else x
    assert op == "sign", f"{op} of an integer"
    some = f.select(f.compare("ne", x, zero), f.number(x.type, 1), zero)
    return f.select(f.compare("slt", x, zero), f.number(x.type, -1), some) if signed else some


def _power(f: Function, a: Value, b: Value) -> Value:
    """Squares and cubes are products."""
    if b.is_constant and b.text == f.number(b.type, 2.0).text:
        return f.mul(a, a)
    if b.is_constant and b.text == f.number(b.type, 3.0).text:
        return f.mul(f.mul(a, a), a)
    return power(f, a, b)


def _modulus(f: Function, a: Value, b: Value) -> Value:
    """The remainder with the sign of the divisor."""
    rest = fmod(f, a, b)
    zero = f.number(rest.type, 0.0)
    differs = f.binary("xor", f.compare("olt", rest, zero), f.compare("olt", b, zero))
    some = f.compare("une", rest, zero)
    return f.select(f.binary("and", some, differs), f.add(rest, b), rest)


_UNARY: dict[str, Callable[[Function, Value], Value]] = {
    "abs": absolute, "sqrt": rounding.sqrt, "rsqrt": rounding.rsqrt, "reciprocal": rounding.reciprocal,
    "floor": rounding.floor, "ceil": rounding.ceil, "round": rounding.round_half_even, "trunc": rounding.trunc,
    "sign": rounding.sign, "is_nan": rounding.is_nan, "is_inf": rounding.is_inf,
    "exp": exp, "log": log, "erf": erf, "tanh": tanh, "sigmoid": sigmoid, "sin": sin, "cos": cos,
    "asin": asin, "acos": acos, "atan": atan, "sinh": sinh, "cosh": cosh,
    "asinh": asinh, "acosh": acosh, "atanh": atanh,
}  # fmt: skip

_DOUBLE: dict[str, Callable[[Function, Value], Value]] = {
    "exp": double.exp, "log": double.log, "erf": double.erf, "tanh": double.tanh, "sigmoid": double.sigmoid,
}  # fmt: skip

_INTEGER: dict[str, Callable[[Function, Value, Value, bool], Value]] = {
    "div": lambda f, a, b, signed: integers.quotient(f, a, b, signed=signed),
    "fmod": lambda f, a, b, signed: integers.remainder(f, a, b, signed=signed),
    "mod": lambda f, a, b, signed: integers.modulus(f, a, b, signed=signed),
    "pow": lambda f, a, b, signed: integers.power(f, a, b, signed=signed),
    "shl": lambda f, a, b, signed: integers.shift_left(f, a, b),
    "shr": lambda f, a, b, signed: integers.shift_right(f, a, b, signed=signed),
}
