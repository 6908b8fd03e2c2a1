"""What every operation of an expression gives, on NumPy arrays: the meaning that all kernels are tested against.

A value of a float type shorter than f32 is held and computed in f32 (constants too) and is rounded, to nearest even,
only by a cast to its type and when it is stored (e8m0: towards zero, without its sign); every other type computes in
itself, integers modulo 2^bits. A float becomes an integer of less than eight bits by way of i32, whose low bits stay
(0 beyond i32).
Where a function is not exact (exp, erf, ...), its value is that of the real function rounded once; a kernel states how
far it may be from that.
What C leaves undefined is settled: an integer divided by zero gives 0, and 0 as the remainder;
the smallest integer divided by -1 wraps to itself; an integer to a negative power is truncated, 0 to one gives 0;
shifting by the width or more (or by a negative count) gives 0, or -1 for a negative number to the right. Casts between
integers keep the low bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from kernels.dtype import DType
from kernels.minifloat import FORMATS, Format
from kernels.tensor.expression import BinaryOp, CompareOp, ReduceOp, UnaryOp
from kernels.tensor.storage import Array


def compute_type(dtype: DType) -> np.dtype[np.generic]:
    """The NumPy type in which values of `dtype` are held between operations."""
    return dtype.held.numpy


def widen(stored: Array, dtype: DType) -> Array:
    """Elements as they lie in memory, as values to compute with."""
    if dtype is DType.BF16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in FORMATS or dtype is DType.E8M0:
        return _of_codes(dtype)[stored.astype(np.uint8)]
    if dtype.bits < 8 * dtype.bytes:
        low = stored.astype(np.uint8) & np.uint8((1 << dtype.bits) - 1)
        return np.where(dtype.is_signed and low >> (dtype.bits - 1), low - (1 << dtype.bits), low).astype(
            compute_type(dtype)
        )
    return stored.astype(compute_type(dtype))


def narrow(values: Array, dtype: DType) -> Array:
    """Values as they are stored: f16 and bf16 rounded to nearest even, a NaN of bf16 kept quiet."""
    if dtype is DType.BF16:
        bits = np.asarray(values, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
        return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
    if dtype is DType.E8M0:
        return ((np.asarray(values, np.float32).view(np.uint32) >> np.uint32(23)) & np.uint32(0xFF)).astype(np.uint8)
    if dtype in FORMATS:
        return _nearest(np.asarray(values, np.float64), FORMATS[dtype])
    if dtype.bits < 8 * dtype.bytes:
        return (values.astype(np.int64) & ((1 << dtype.bits) - 1)).astype(np.uint8)
    return values.astype(dtype.numpy)


@lru_cache
def _of_codes(dtype: DType) -> Array:
    """What every byte stands for."""
    if dtype is DType.E8M0:
        return np.array([*(2.0 ** (code - 127) for code in range(255)), np.nan], np.float32)
    form = FORMATS[dtype]
    codes = [code & (2 * form.sign - 1) for code in range(256)]
    found = [math.copysign(form.value(code & (form.sign - 1)), -1 if code & form.sign else 1) for code in codes]
    if form.beyond == "zero":
        found[form.sign] = math.nan
    return np.array(found, np.float32)


def _nearest(values: Array, form: Format) -> Array:
    """The code of the nearest number, the even code of two; beyond the largest what the format has there."""
    known = [form.value(code) for code in range(form.largest + 1)]
    numbers: Array = np.array([*known, 2 * known[-1] - known[-2]])
    low = np.clip(np.searchsorted(numbers, np.abs(values), side="right") - 1, 0, form.largest)
    middle = (numbers[low] + numbers[low + 1]) / 2
    code = low + ((np.abs(values) > middle) | ((np.abs(values) == middle) & (low % 2 == 1)))
    beyond = {"inf": form.largest + 1, "none": form.largest}.get(form.beyond, form.nan)
    code = np.where(code > form.largest, beyond, np.where(np.isnan(values), form.nan, code))
    signs = np.where(np.signbit(values), form.sign, 0)
    if form.beyond == "zero":
        signs = np.where((code == 0) | (code == form.nan), 0, signs)
    return (code ^ signs).astype(np.uint8)


def number(value: float | int | bool, dtype: DType) -> Array:
    """A constant as a value; integers outside the type keep their low bits."""
    if dtype.is_integer:
        bits = dtype.bits
        low = int(value) & ((1 << bits) - 1)
        return np.asarray(low - (1 << bits) if dtype.is_signed and low >> (bits - 1) else low, compute_type(dtype))
    return np.asarray(value, compute_type(dtype))


def unary(op: UnaryOp, x: Array, dtype: DType) -> Array:
    """A function of one operand of type `dtype`."""
    if op in _EXACT:
        return _EXACT[op](x)
    return _ROUNDED[op](x.astype(np.float64)).astype(x.dtype)


def binary(op: BinaryOp, a: Array, b: Array, dtype: DType) -> Array:
    """A function of two operands of type `dtype`."""
    if dtype.is_integer and op in _INTEGER:
        return _INTEGER[op](a, b)
    if op == "pow":
        return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)
    return _BINARY[op](a, b)


def compare(op: CompareOp, a: Array, b: Array) -> Array:
    """A question about two operands; false when either is NaN, except for "ne"."""
    return _COMPARE[op](a, b)


def cast(x: Array, source: DType, kind: DType) -> Array:
    """The values in another type."""
    if kind is DType.BOOL:
        return np.asarray(x != 0)
    if kind.held is DType.F32 and kind is not DType.F32:
        return widen(narrow(x.astype(np.float32), kind), kind)
    if kind.bits < 8 * kind.bytes:
        whole = np.where(np.abs(x) < 2.0**31, x, 0).astype(np.int64) if source.is_float else x
        return widen(narrow(whole, kind), kind)
    if kind.is_integer and source.is_float:
        return _saturated(x, kind)
    return x.astype(kind.numpy)


def reduce(op: ReduceOp, x: Array, axes: int, dtype: DType) -> Array:
    """The last `axes` axes combined, one element after the other in their order, starting from the identity."""
    kept = x.shape[: x.ndim - axes]
    flat = x.reshape((*kept, math.prod(x.shape[x.ndim - axes :])))
    start = np.full((*kept, 1), identity(op, dtype), x.dtype)
    chain = np.concatenate((start, flat), axis=-1)
    if op in ("min", "max"):
        return np.asarray((np.minimum if op == "min" else np.maximum).reduce(chain, axis=-1))
    ufunc = np.add if op == "sum" else np.multiply
    return np.asarray(ufunc.accumulate(chain, axis=-1, dtype=x.dtype)[..., -1])


def identity(op: ReduceOp, dtype: DType) -> float | int:
    """What a reduction of no elements gives."""
    if op in ("sum", "prod"):
        return 0 if op == "sum" else 1
    if dtype.is_float:
        return math.inf if op == "min" else -math.inf
    limits = np.iinfo(dtype.numpy)  # type: ignore[type-var]
    return int(limits.max if op == "min" else limits.min)


def _saturated(x: Array, kind: DType) -> Array:
    limits = np.iinfo(kind.numpy)  # type: ignore[type-var]
    whole = np.trunc(np.where(np.isnan(x), 0, x).astype(np.float64))
    # 2^63 - 1 and 2^64 - 1 are no float64: compare with the power of two itself.
    above, below = whole >= float(limits.max + 1), whole < float(limits.min)
    inside = np.where(above | below, 0.0, whole).astype(kind.numpy)
    return np.where(above, kind.numpy.type(limits.max), np.where(below, kind.numpy.type(limits.min), inside))


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _quotient(a: Array, b: Array) -> Array:
    """Integer division that truncates; by zero: 0."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = a // safe
    inexact = (floor * safe != a) & ((a < 0) != (safe < 0))
    return np.asarray(np.where(b == 0, b.dtype.type(0), floor + inexact.astype(a.dtype)))


def _remainder(a: Array, b: Array) -> Array:
    """Sign of the dividend."""
    rest: Array = a - _quotient(a, b) * b
    return np.where(b == 0, b.dtype.type(0), rest)


def _modulus(a: Array, b: Array) -> Array:
    """Sign of the divisor."""
    rest = _remainder(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _integer_power(a: Array, b: Array) -> Array:
    a, b = np.broadcast_arrays(a, b)
    result = np.power(a, np.where(b < 0, b.dtype.type(0), b))
    odd = (b & b.dtype.type(1)) == 1
    negative = np.where(a == 1, 1, np.where(a + a.dtype.type(1) == 0, np.where(odd, a, -a), 0)).astype(a.dtype)
    return np.where(b < 0, negative, result)


def _shift_right(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    outside = (b < 0) | (b >= bits)
    filled = np.where(a < 0, ~a.dtype.type(0), a.dtype.type(0))
    return np.where(outside, filled, a >> np.where(outside, b.dtype.type(0), b))


def _shift_left(a: Array, b: Array) -> Array:
    outside = (b < 0) | (b >= 8 * a.dtype.itemsize)
    return np.where(outside, a.dtype.type(0), a << np.where(outside, b.dtype.type(0), b))


def _sign(x: Array) -> Array:
    return np.asarray(np.sign(x))


_EXACT: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "sign": _sign, "not": np.logical_not, "is_nan": np.isnan, "is_inf": np.isinf,
}  # fmt: skip
_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "exp": np.exp, "log": np.log, "erf": _erf,
    "tanh": np.tanh, "sigmoid": _sigmoid, "sin": np.sin, "cos": np.cos,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "mod": np.mod, "fmod": np.fmod, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    "div": _quotient, "mod": _modulus, "fmod": _remainder, "pow": _integer_power, "shl": _shift_left,
    "shr": _shift_right,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
