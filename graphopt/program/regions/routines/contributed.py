"""Quantized operators of com.microsoft, as exporters and quantizers for ONNX Runtime write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphopt.model.operators import linear
from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, dot, integer, number, quotient
from kernels.tensor.expression import Binary, Expression, dense_strides

_LANES = 16  # sums of a dot product that run side by side


def matmul_n_bits(node: Defined) -> None:
    """A matrix times weights of 2, 4 or 8 bits, in blocks along the depth: [columns, blocks, bytes of a block]."""
    depth, columns = node.integer("K", 0), node.integer("N", 0)
    bits, block = node.integer("bits", 4), node.integer("block_size", 32)
    if bits not in (2, 4, 8) or node.has(4):
        raise node.refuse("has weights in an order of their own, or of other widths than 2, 4 and 8 bits")
    rows = node.output_shape(0)
    count = 1
    for one in rows[:-1]:
        count *= one
    each, blocks = 8 // bits, -(-depth // block)
    whole = blocks * block
    with node.stage() as w:
        a, packed, scales = (w.reads(node.input(at)) for at in (0, 1, 2))
        zeros = w.reads(node.input(3)) if node.has(3) else None
        bias = w.reads(node.input(5)) if node.has(5) else None
        y = w.writes(node.output(0))
        weights, left = w.scratch(DType.F32, (whole,)), w.scratch(DType.F32, (whole,))
        sums = w.scratch(DType.F32, (_LANES,))
        with w.shared(columns) as (column,):
            with w.loop(blocks) as b:
                scale = w.local(DType.F32, as_type(scales.at(column * blocks + b), DType.F32))
                zero = w.local(DType.F32, _zero_of(zeros, column, b, blocks, bits))
                start = w.local(DType.I64, (column * blocks + b) * (block // each))
                with w.loop(block // each) as at:
                    byte = w.local(DType.I32, as_type(packed.at(start + at), DType.I32))
                    for part in range(each):
                        low = Binary("shr", byte, number(part * bits, DType.I32))
                        code = Binary("and", low, number((1 << bits) - 1, DType.I32))
                        weights[b * block + at * each + part] = (as_type(code, DType.F32) - zero) * scale
            with w.loop(count) as row:
                with w.loop(depth) as k:
                    left[k] = as_type(a.at(row * depth + k), DType.F32)
                with w.loop(whole, depth) as k:
                    left[k] = 0.0
                with w.loop(_LANES) as lane:
                    sums[lane] = 0.0
                with w.loop(whole // _LANES) as k, w.loop(_LANES) as lane:
                    sums[lane] = sums[lane] + left[k * _LANES + lane] * weights[k * _LANES + lane]
                total = w.local(DType.F32, 0.0 if bias is None else as_type(bias.at(column), DType.F32))
                with w.loop(_LANES) as lane:
                    w.set(total, total + sums[lane])
                y.put(row * columns + column, as_type(total, y.dtype))


def _zero_of(zeros: Grid | None, column: Expression, b: Expression, blocks: int, bits: int) -> Expression:
    """The zero point of a block: the middle of the codes, a number, or a code among those that a byte holds."""
    if zeros is None:
        return number(float(1 << bits - 1), DType.F32)
    if zeros.dtype.is_float:
        return as_type(zeros.at(column * blocks + b), DType.F32)
    each = 8 // bits
    byte = as_type(zeros.at(column * -(-blocks // each) + quotient(b, each)), DType.I32)
    shift = as_type(Binary("fmod", b, integer(each)), DType.I32) * bits
    code = Binary("and", Binary("shr", byte, shift), number((1 << bits) - 1, DType.I32))
    return as_type(code, DType.F32)


def _of_two(node: Defined, *, combine: Callable[[Expression, Expression], Expression]) -> None:
    """A function of two dequantized operands that broadcast, quantized."""
    shape = node.output_shape(0)
    with node.stage() as w:
        parts = [(_read(node, w, at), _read(node, w, at + 1), _read(node, w, at + 2)) for at in (0, 3)]
        scale, zero, y = _read(node, w, 6), _read(node, w, 7), w.writes(node.output(0))
        assert scale is not None, "the scale of the result is given"
        with w.shared(*shape[:-1]) as outer, w.loop(shape[-1] if shape else 1) as last:
            at = (*outer, last) if shape else ()
            values = []
            for x, factor, offset in parts:
                assert x is not None and factor is not None, "operands and their scales are given"
                shown = zip(x.shape, dense_strides(x.shape), at[len(at) - len(x.shape) :], strict=True)
                kept = [(index, stride) for size, stride, index in shown if size > 1]
                element = x.at(dot([one[0] for one in kept], [one[1] for one in kept]))
                values.append(linear.dequantized(element, factor.at(0), None if offset is None else offset.at(0)))
            made = combine(*values)
            y[at] = linear.quantized(made, scale.at(0), None if zero is None else zero.at(0), y.dtype)


def _read(node: Defined, w: Stage, at: int) -> Grid | None:
    return w.reads(node.input(at)) if node.has(at) else None


def _add(a: Expression, b: Expression) -> Expression:
    return a + b


def _multiply(a: Expression, b: Expression) -> Expression:
    return a * b


MICROSOFT: dict[str, Definition] = {
    "MatMulNBits": matmul_n_bits, "QLinearAdd": partial(_of_two, combine=_add),
    "QLinearMul": partial(_of_two, combine=_multiply),
}  # fmt: skip
