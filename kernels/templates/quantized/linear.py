"""ONNX's linear quantisation as expressions: QuantizeLinear, DequantizeLinear, requantisation.

    quantize(x)    = saturate(round(x / scale) + zero)          rounding half to even
    dequantize(q)  = float(q - zero) * scale
    requantize(s)  = saturate(round(float(s) * multiplier) + zero)

The last one is what ONNX Runtime's QLinearConv and QLinearMatMul do to an int32 sum, with multiplier = x_scale *
weights_scale / y_scale in float32. The result of a graph that dequantizes, convolves in float and quantizes may lie one
step beside it where the product falls near the middle of two steps.
"""

from __future__ import annotations

from kernels.dtype import DType
from kernels.templates.quantized.problem import InvalidQuantized, limits
from kernels.tensor.expression import Binary, Cast, Expression, Unary, clip

_SATURATED = (DType.U8, DType.I8, DType.U16, DType.I16)


def quantize(x: Expression, scale: Expression, zero: Expression | None, kind: DType = DType.U8) -> Expression:
    """saturate(round(x / scale) + zero) of float32, of the type `kind`; no zero point: 0."""
    return _saturated(x / scale, zero, kind)


def dequantize(q: Expression, scale: Expression, zero: Expression | None = None) -> Expression:
    """(q - zero) * scale as float32; `q` of u8, i8, u16, i16 or i32."""
    number: Expression = Cast(DType.I32, q)
    if zero is not None:
        number = Binary("sub", number, Cast(DType.I32, zero))
    return Cast(DType.F32, number) * scale


def requantize(
    total: Expression, multiplier: Expression, zero: Expression | None, kind: DType = DType.U8
) -> Expression:
    """saturate(round(float(total) * multiplier) + zero) of an int32."""
    return _saturated(Cast(DType.F32, total) * multiplier, zero, kind)


def _saturated(value: Expression, zero: Expression | None, kind: DType) -> Expression:
    """A float as a narrow integer: rounded to nearest even, the zero point added, kept in range.

    The sum is exact in float32 wherever it does not saturate: both terms are integers below 2**24 then.
    """
    if kind not in _SATURATED:
        raise InvalidQuantized(f"a float is quantized to u8, i8, u16 or i16, not to {kind.value}.")
    rounded: Expression = Unary("round", value)
    if zero is not None:
        rounded = rounded + Cast(DType.F32, zero)
    low, high = limits(kind)
    # By way of int32: x86 converts vectors of floats to that type alone.
    return Cast(kind, Cast(DType.I32, clip(rounded, low, high)))
