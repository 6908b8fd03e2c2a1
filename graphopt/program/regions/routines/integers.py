"""Products and convolutions of quantized integers: sums in int32, which wrap, then another scale where it is asked.

    sum = sum over k of (a - a zero point) * (b - b zero point)
    y   = saturate(round(float32(sum) * (a scale * b scale / y scale)) + y zero point)

Multiplier and product are computed in float64; ONNX Runtime, in float32, may lie one step beside where the product
falls near the middle of two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphopt.model.operators.linear import requantized_by_scales
from graphopt.model.operators.padding import padding
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, pieces
from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    dot,
    ge,
    integer,
    lt,
    maximum,
    minimum,
    number,
    pick,
    quotient,
)
from kernels.tensor.expression import Expression, dense_strides

_COLUMNS = 256  # of a product that one iteration computes: their sums stay in the first cache
_SUM = DType.I32


def matmul_integer(node: Defined) -> None:
    """MatMulInteger: the sums."""
    with node.stage() as w:
        _product(node, w, (0, 2), (1, 3), lambda total, _: total)


def qlinear_matmul(node: Defined) -> None:
    """QLinearMatMul: with scales for the whole, for each row of the first and for each column of the second operand."""
    with node.stage() as w:
        scales = [_read(node, w, at) for at in (1, 4, 6)]
        zero, kind = _read(node, w, 7), node.output_dtype(0)

        def finished(total: Expression, at: Sequence[Expression]) -> Expression:
            a, b, y = (_broadcast(one, at, rows=not number) for number, one in enumerate(scales))
            assert a is not None and b is not None and y is not None, "scales are given"
            return requantized_by_scales(total, (a, b), y, _broadcast(zero, at, rows=True), kind)

        _product(node, w, (0, 2), (3, 5), finished)


def _product(
    node: Defined, w: Stage, first: tuple[int, int], second: tuple[int, int],
    finish: Callable[[Expression, Sequence[Expression]], Expression],
) -> None:  # fmt: skip
    """The loops of a product; `first` and `second` are the places of the operands and of their zero points."""
    a, b = w.reads(node.input(first[0])), w.reads(node.input(second[0]))
    a_zero, b_zero, y = _read(node, w, first[1]), _read(node, w, second[1]), w.writes(node.output(0))
    a_shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
    b_shape = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    (rows, depth), columns = a_shape[-2:], b_shape[-1]
    batch = node.output_shape(0)[: max(len(a_shape), len(b_shape)) - 2] if max(len(a_shape), len(b_shape)) > 2 else ()
    sums = w.scratch(_SUM, (_COLUMNS,))
    with pieces(node, w, (*batch, rows), (columns, _COLUMNS)) as ((*outer, row), (chunk,)):
        start = w.local(DType.I64, chunk * _COLUMNS)
        count = w.local(DType.I64, minimum(columns - start, _COLUMNS))
        a_start = w.local(DType.I64, _start(a_shape, outer) + row * depth)
        b_start = w.local(DType.I64, _start(b_shape, outer) + start)
        with w.loop(count) as i:
            sums[i] = 0
        with w.loop(depth) as k:
            left = w.local(_SUM, as_type(a.at(a_start + k), _SUM))
            zero = _broadcast(a_zero, (*outer, row, integer(0)), rows=True)
            if zero is not None:
                w.set(left, left - as_type(zero, _SUM))
            with w.loop(count) as i:
                right: Expression = as_type(b.at(b_start + k * columns + i), _SUM)
                zero = _broadcast(b_zero, (*outer, integer(0), start + i), rows=False)
                right = right if zero is None else right - as_type(zero, _SUM)
                sums[i] = sums[i] + left * right
        y_start = w.local(DType.I64, (dot(outer, dense_strides(batch)) * rows + row) * columns + start)
        with w.loop(count) as i:
            y.put(y_start + i, finish(sums[i], (*outer, row, start + i)))


def _read(node: Defined, w: Stage, at: int) -> Grid | None:
    return w.reads(node.input(at)) if node.has(at) else None


def _start(shape: Sequence[int], outer: Sequence[Expression]) -> Expression:
    """Where the matrix of a batch begins, whose dims are broadcast."""
    strides = dense_strides(tuple(shape))[:-2]
    return dot(*_matched(shape[:-2], strides, outer))


def _matched(
    shape: Sequence[int], strides: Sequence[int], at: Sequence[Expression]
) -> tuple[list[Expression], list[int]]:
    """The indices of dims that are not broadcast, matched from the last one on, with their strides."""
    shown = at[len(at) - len(shape) :]
    kept = [one for one in zip(shape, strides, shown, strict=True) if one[0] > 1]
    return [one[2] for one in kept], [one[1] for one in kept]


def _broadcast(x: Grid | None, at: Sequence[Expression], *, rows: bool) -> Expression | None:
    """A scale or zero point at batch, row and column; one dim is that of the `rows`, or of the columns."""
    if x is None:
        return None
    shape = (*x.shape, 1) if len(x.shape) == 1 and rows else x.shape
    return x.at(dot(*_matched(shape, dense_strides(shape), at)))


def conv_integer(node: Defined) -> None:
    """ConvInteger: the sums."""
    with node.stage() as w:
        _convolution(node, w, (0, 2), (1, 3), lambda total, _: total)


def qlinear_conv(node: Defined) -> None:
    """QLinearConv: with a bias of int32, and scales of the weights for the whole or for each output channel."""
    with node.stage() as w:
        x, weights, y = (_read(node, w, at) for at in (1, 4, 6))
        zero, bias, kind = _read(node, w, 7), _read(node, w, 8), node.output_dtype(0)
        assert x is not None and weights is not None and y is not None, "scales are given"

        def finished(total: Expression, channel: Expression) -> Expression:
            total = total if bias is None else total + as_type(bias.at(channel), _SUM)
            scale = weights.at(channel if weights.area.elements > 1 else 0)
            return requantized_by_scales(total, (x.at(0), scale), y.at(0), None if zero is None else zero.at(0), kind)

        _convolution(node, w, (0, 2), (3, 5), finished)


def _convolution(
    node: Defined, w: Stage, first: tuple[int, int], second: tuple[int, int],
    finish: Callable[[Expression, Expression], Expression],
) -> None:  # fmt: skip
    """Row by row of the result: every tap adds to the places of the row whose element it finds inside the image."""
    x, weights = w.reads(node.input(first[0])), w.reads(node.input(second[0]))
    x_zero, w_zero, y = _read(node, w, first[1]), _read(node, w, second[1]), w.writes(node.output(0))
    (_, channels, *size), (images, outputs, *out) = x.shape, y.shape
    kernel, rank = weights.shape[2:], len(size)
    strides, dilations = (node.integers(name) or (1,) * rank for name in ("strides", "dilations"))
    reach = [step * (taps - 1) + 1 for step, taps in zip(dilations, kernel, strict=True)]
    pads, _ = padding(node.node, size, out, reach, strides)
    per_group, group_outputs = channels // node.integer("group", 1), outputs // node.integer("group", 1)
    sums = w.scratch(_SUM, (out[-1],))
    with w.shared(images, outputs, *out[:-1]) as (image, output, *rows):
        with w.loop(out[-1]) as i:
            sums[i] = 0
        first_channel = w.local(DType.I64, quotient(output, group_outputs) * per_group)
        with w.loops(per_group, *kernel) as (c, *taps):
            factor = w.local(_SUM, as_type(weights[(output, c, *taps)], _SUM))
            if w_zero is not None:
                w.set(factor, factor - as_type(w_zero.at(output if w_zero.area.elements > 1 else 0), _SUM))
            places = [
                w.local(DType.I64, row * step + tap * dilation - pad)
                for row, tap, step, dilation, pad in zip(rows, taps, strides, dilations, pads, strict=False)
            ]
            inside: Expression = number(True, DType.BOOL)
            for place, extent in zip(places, size, strict=False):
                inside = both(inside, both(ge(place, 0), lt(place, extent)))
            offset = w.local(DType.I64, taps[-1] * dilations[-1] - pads[-1])
            begin = w.local(DType.I64, maximum(quotient(strides[-1] - 1 - offset, strides[-1]), 0))
            end = w.local(DType.I64, minimum(quotient(size[-1] - 1 - offset + strides[-1], strides[-1]), out[-1]))
            w.set(end, pick(inside, end, 0))
            start = w.local(DType.I64, x.place((image, first_channel + c, *places, integer(0))) + offset)
            with w.loop(end, begin) as i:
                element: Expression = as_type(x.at(start + i * strides[-1]), _SUM)
                element = element if x_zero is None else element - as_type(x_zero.at(0), _SUM)
                sums[i] = sums[i] + factor * element
        y_start = w.local(DType.I64, y.place((image, output, *rows, integer(0))))
        with w.loop(out[-1]) as i:
            y.put(y_start + i, finish(sums[i], output))


DEFINITIONS: dict[str, Definition] = {
    "MatMulInteger": matmul_integer, "QLinearMatMul": qlinear_matmul, "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
}  # fmt: skip
