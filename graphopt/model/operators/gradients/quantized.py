"""Gradients of QuantizeLinear and DequantizeLinear: rounding is passed over, as training for quantization has it.

The gradient of a quantized number is that of its value in floats. QuantizeLinear hands it on to the operand as if
nothing were rounded (a straight-through estimator), and hands none on to operands beyond the range of the integers.
Both together give a scale the gradient of Esser et al., Learned Step Size Quantization (2020).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import NoGradient, Term

INTEGERS = {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16}


def quantized(back: Backward) -> Gradients:
    """dx = dq / scale, and dscale = -dq x / scale^2, where x / scale is within the range of the integers."""
    back.only(0, 1)
    result = back.y().dtype
    if result not in INTEGERS:
        raise NoGradient(f"there is no rule for numbers of type {result.name}")
    x, scale, zero = back.x(), _along(back, back.x(1)), back.optional(2)
    steps = x / scale
    place = steps if zero is None else steps + _along(back, zero.cast(x.dtype))
    low, high = (float(number) for number in (np.iinfo(result.numpy()).min, np.iinfo(result.numpy()).max))
    inside = back.maker.op("And", place >= low, place <= high)
    found = (back.dy / scale).where(inside)
    return found, _of_scale(back, -(found * steps)) if back.wants(1) else None


def dequantized(back: Backward) -> Gradients:
    """dq = dy scale, and dscale = dy (q - zero point)."""
    back.only(0, 1)
    q, zero, dy = back.x(), back.optional(2), back.dy
    found = dy * _along(back, back.x(1)) if back.wants(0) else None
    if not back.wants(1):
        return (found,)
    number = q.cast(dy.dtype)
    return found, _of_scale(back, dy * (number if zero is None else number - _along(back, zero.cast(dy.dtype))))


def _axis(back: Backward) -> int:
    """The axis along which scales lie."""
    if back.integer("block_size", 0):
        raise NoGradient("there is no rule for scales of blocks")
    return back.x().axis(back.integer("axis", 1))


def _along(back: Backward, term: Term) -> Term:
    """A scale or zero point so that it broadcasts to the operand."""
    axis = _axis(back)
    return term if term.rank == 0 or term.shape == (1,) else term.unsqueeze(*range(1, back.x().rank - axis))


def _of_scale(back: Backward, found: Term) -> Term:
    """Summed to the scale's dims."""
    scale, rank, axis = back.x(1), back.x().rank, _axis(back)
    if scale.rank == 0 or scale.shape == (1,):
        return found.sum(*range(rank), keep=False).reshape_like(scale)
    return found.sum(*(at for at in range(rank) if at != axis), keep=False)
