"""ONNX's linear quantisation as expressions and as tensor programs: QuantizeLinear, DequantizeLinear, requantisation.

    quantize(x)    = saturate(round(x / scale) + zero)          rounding half to even
    dequantize(q)  = float(q - zero) * scale
    requantize(s)  = saturate(round(float(s) * multiplier) + zero)

The last one is what ONNX Runtime's QLinearConv and QLinearMatMul do to an int32 sum, with multiplier = x_scale *
weights_scale / y_scale in float32. The result of a graph that dequantizes, convolves in float and quantizes may lie one
step beside it where the product falls near the middle of two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernels.dtype import DType
from kernels.templates.quantized.problem import InvalidQuantized, limits
from kernels.tensor.expression import Binary, Buffer, Cast, Expression, Index, Unary, Variable, clip, index
from kernels.tensor.program import Program, Stage

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


def quantize_program(
    shape: Sequence[int],
    kind: DType = DType.U8,
    *,
    axis: int | None = None,
    block: int = 0,
    zero: bool = True,
    name: str = "quantize",
) -> Program:
    """QuantizeLinear: x of float32 -> y of `kind`; inputs "x", "scale" and, with `zero`, "zero".

    One scale for all where `axis` is None, else one per index of that axis; with `block`, one per `block` of them (the
    scale then has x's dims, and the axis divided by `block`). Raises InvalidQuantized for a block that does not divide.
    """
    grid = _Grid(shape, axis, block)
    x, y = Buffer("x", DType.F32, grid.shape), Buffer("y", kind, grid.shape)
    scale, offset = Buffer("scale", DType.F32, grid.scales), Buffer("zero", kind, grid.scales)
    value = quantize(x[grid.at], scale[grid.of_scale], offset[grid.of_scale] if zero else None, kind)
    return Program(name, (x, scale, *((offset,) if zero else ())), (y,), (Stage(y, grid.axes, value, grid.at),))


def dequantize_program(
    shape: Sequence[int],
    kind: DType = DType.U8,
    *,
    axis: int | None = None,
    block: int = 0,
    zero: bool = True,
    name: str = "dequantize",
) -> Program:
    """DequantizeLinear: x of `kind` (int32 too) -> y of float32; otherwise as `quantize_program`."""
    grid = _Grid(shape, axis, block)
    x, y = Buffer("x", kind, grid.shape), Buffer("y", DType.F32, grid.shape)
    scale, offset = Buffer("scale", DType.F32, grid.scales), Buffer("zero", kind, grid.scales)
    value = dequantize(x[grid.at], scale[grid.of_scale], offset[grid.of_scale] if zero else None)
    return Program(name, (x, scale, *((offset,) if zero else ())), (y,), (Stage(y, grid.axes, value, grid.at),))


class _Grid:
    """The axes of a program, and where an element's scale lies. Neighbouring dims that need no name are one."""

    def __init__(self, shape: Sequence[int], axis: int | None, block: int) -> None:
        self.axes: tuple[Variable, ...]
        self.at: tuple[Index, ...]
        self.of_scale: tuple[Index, ...]
        if axis is None:
            self.shape: tuple[int, ...] = (prod(shape),)
            self.scales: tuple[int, ...] = (1,)
            self.axes = (Variable("i", prod(shape)),)
            self.at, self.of_scale = (index(self.axes[0]),), (index(0),)
            return
        axis = axis % len(shape)
        outer, size, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
        self.shape = (outer, size, inner)
        first, last = Variable("outer", outer), Variable("inner", inner)
        if not block:
            middle = Variable("axis", size)
            self.scales, self.axes = (size,), (first, middle, last)
            self.at, self.of_scale = (index(first), index(middle), index(last)), (index(middle),)
            return
        if size % block:
            raise InvalidQuantized(f"blocks of {block} do not divide an axis of {size}.")
        number, inside = Variable("number", size // block), Variable("inside", block)
        self.scales, self.axes = (outer, size // block, inner), (first, number, inside, last)
        self.at = (index(first), number * block + inside, index(last))
        self.of_scale = (index(first), index(number), index(last))
