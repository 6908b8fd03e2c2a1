"""Formulas of QuantizeLinear and DequantizeLinear, whose scale is one number, or one for each place of an axis."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.operators.formulas import Operands, dtype_of, saturated
from kernels.dtype import DType
from kernels.minifloat import FORMATS
from kernels.tensor.expression import Binary, Cast, Compare, Expression, Number, Select, Unary, clip


def quantize(one: Operands) -> Expression:
    """saturate(round(x / scale) + zero point); the quotient has the scale's type, or that of "precision"."""
    zero = one.optional(2)
    named = int(one.number("output_dtype", 0))
    kind = zero.dtype if zero is not None else dtype_of(ir.DataType(named)) if named else DType.U8
    return quantized(
        one.operand(0), one.operand(1), zero, kind, precision=int(one.number("precision", 0)),
        saturates=one.number("saturate", 1) != 0,
    )  # fmt: skip


def quantized(
    x: Expression, scale: Expression, zero: Expression | None, kind: DType, *, precision: int = 0,
    saturates: bool = True,
) -> Expression:  # fmt: skip
    """An element as `kind`: rounded to nearest even before the zero point is added.

    The sum is exact in float32 wherever it does not saturate: both terms are integers below 2**24 then.
    """
    exact = dtype_of(ir.DataType(precision)) if precision else _precision(x.dtype, scale.dtype)
    quotient: Expression = Binary("div", _wide(_as(x, exact)), _wide(_as(scale, exact)))
    quotient = _wide(_as(quotient, exact))
    if kind in FORMATS:
        if kind is DType.E2M1 and zero is not None:
            quotient = Binary("add", quotient, Cast(quotient.dtype, zero))
        return saturated(quotient, kind) if saturates else Cast(kind, quotient)
    return rounded(quotient, zero, kind)


def requantized(
    total: Expression, multiplier: tuple[Expression, Expression], zero: Expression, kind: DType,
    beyond: Expression | None = None,
) -> Expression:  # fmt: skip
    """saturate(round(total * multiplier + beyond) + zero point) of an int32 below 2**24, as if it were exact.

    The multiplier is the sum of two of float32, the second one and `beyond` being small. What remains of the product
    when it is rounded, total * high - whole, has no rounding error in a fused multiply-add; nor has its difference
    from a half where that matters (Sterbenz), so that the small rest decides what is beside the middle of two steps.
    """
    wide, (high, low) = Cast(DType.F32, total), multiplier
    whole = Unary("round", Binary("mul", wide, high))
    # With its sign turned: a product of its own, so that it and the sum become one instruction.
    rest = Binary("add", whole, Binary("mul", wide, Unary("neg", high)))
    half = Select(Compare("lt", rest, _number(0.0)), _number(0.5), _number(-0.5))
    past = Binary("add", Binary("add", rest, half), Binary("mul", wide, Unary("neg", low)))
    past = past if beyond is None else Binary("sub", past, beyond)
    goes_on = Compare("lt", Binary("mul", past, half), _number(0.0))
    step = Select(goes_on, Binary("add", half, half), _number(0.0))
    return saturated_whole(Binary("add", whole, step), zero, kind)


def _number(value: float) -> Number:
    return Number(value, DType.F32)


def requantized_by_scales(
    total: Expression, scales: tuple[Expression, Expression], scale: Expression, zero: Expression | None, kind: DType
) -> Expression:
    """saturate(round(total * (product of the scales / scale)) + zero point), by scales that are known when it runs.

    In float64, and with a multiplier of the scales' type where that is a short one, as ONNX's tests have it.
    """
    exact = DType.F64 if scale.dtype is DType.F32 else scale.dtype
    product = _as(Binary("mul", *(_wide(_as(one, exact)) for one in scales)), exact)
    multiplier = _as(Binary("div", _wide(product), _wide(_as(scale, exact))), exact)
    wide = DType.F64 if exact is DType.F64 else DType.F32
    return rounded(Binary("mul", Cast(wide, total), _as(multiplier, wide)), zero, kind)


def rounded(value: Expression, zero: Expression | None, kind: DType) -> Expression:
    """A float as an integer: rounded to nearest even, the zero point added, kept in range."""
    return saturated_whole(Unary("round", value), zero, kind)


def saturated_whole(whole: Expression, zero: Expression | None, kind: DType) -> Expression:
    """A float without a fraction as an integer: the zero point added, kept in range."""
    if zero is not None:
        whole = Binary("add", whole, Cast(whole.dtype, zero))
    low, high = (-(1 << kind.bits - 1), (1 << kind.bits - 1) - 1) if kind.is_signed else (0, (1 << kind.bits) - 1)
    # By way of int32: x86 converts vectors of floats to that type alone.
    return Cast(kind, Cast(DType.I32, clip(whole, low, high)))


def dequantize(one: Operands) -> Expression:
    """(x - zero point) * scale, in the scale's type or the one that the node names."""
    named = int(one.number("output_dtype", 0))
    scale = one.operand(1)
    kind = dtype_of(ir.DataType(named)) if named else scale.dtype
    return _as(dequantized(one.operand(0), scale, one.optional(2)), kind)


def dequantized(x: Expression, scale: Expression, zero: Expression | None) -> Expression:
    """The product in float32; the difference of integers is exact. Floats have no zero point but 0."""
    number: Expression = x
    if not x.dtype.is_float:
        number = Cast(DType.I32, x)
        if zero is not None:
            number = Binary("sub", number, Cast(DType.I32, zero))
    return Binary("mul", Cast(DType.F32, number), Cast(DType.F32, scale))


def _precision(x: DType, scale: DType) -> DType:
    if not scale.is_float:
        return DType.F64
    return scale if scale is not DType.E8M0 else x if x.is_float else DType.F32


def _as(value: Expression, kind: DType) -> Expression:
    return value if value.dtype is kind else Cast(kind, value)


def _wide(value: Expression) -> Expression:
    """A short float in the type that it is held in."""
    return _as(value, value.dtype.held)
