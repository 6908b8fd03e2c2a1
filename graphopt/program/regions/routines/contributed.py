"""Quantized operators of com.microsoft, as exporters and quantizers for ONNX Runtime write them."""

from __future__ import annotations

from math import prod

from graphopt.program.regions.routines.stage import Defined, Definition, held
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, eq, gt, integer, ne, number, pick, quotient
from kernels.tensor.expression import Binary, Expression, Unary

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


def inverse(node: Defined) -> None:
    """By elimination of a matrix and one of ones beside it, with the largest element of each column as pivot."""
    *batch, size, _ = node.shape(0)
    kind = held(node.dtype(0))
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        m, found = w.scratch(kind, (size, size)), w.scratch(kind, (size, size))
        with w.shared(prod(batch)) as (matrix,):
            start = matrix * (size * size)
            with w.loop(size) as row, w.loop(size) as column:
                m[row, column] = as_type(x.at(start + row * size + column), kind)
                found[row, column] = pick(eq(row, column), number(1, kind), number(0, kind))
            with w.loop(size) as k:
                pivot = w.local(DType.I64, k)
                with w.loop(size, k + 1) as row:
                    w.set(pivot, pick(gt(Unary("abs", m[row, k]), Unary("abs", m[pivot, k])), row, pivot))
                head = w.local(kind, m[pivot, k])
                with w.loop(size) as column:
                    for one in (m, found):
                        kept = w.local(kind, one[k, column])
                        one[k, column] = one[pivot, column]
                        one[pivot, column] = kept
                with w.loop(size) as column:
                    for one in (m, found):
                        one[k, column] = one[k, column] / head
                with w.loop(size) as row, w.when(ne(row, k)):
                    factor = w.local(kind, m[row, k])
                    with w.loop(size) as column:
                        for one in (m, found):
                            one[row, column] = one[row, column] - factor * one[k, column]
            with w.loop(size) as row, w.loop(size) as column:
                y.put(start + row * size + column, as_type(found[row, column], y.dtype))


MICROSOFT: dict[str, Definition] = {"MatMulNBits": matmul_n_bits, "Inverse": inverse}
