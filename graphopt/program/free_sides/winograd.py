"""Winograd's convolutions along sides that a run sets: minimal filtering F(4, 3) along the first side, in products.

    x of [n, h, ...], padded        -->  d of [n, tiles, 6, ...]: windows of six rows, one every four
    v = MatMul(B^T, d)              -->  six rows for each tile, of which each meets a kernel of its own
    m = MatMul(columns of v, G w)   -->  the sums along the sides that are left, and over the channels
    y = MatMul(A^T, m)              -->  four rows of results for each tile; those behind the image are cut off

Half as many multiplications as three products with rows of the kernel take. Windows overlap in memory, and what is
transposed is read where it lies, so that the transforms take a pass over the image and one over the result. Of kernels
with more rows every three have windows of their own, and their m is one sum; a last one alone is a product by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.program.free_sides.writer import Weights, Writer
from graphopt.program.points import PointsTensor
from kernels.kernel import Sums
from kernels.templates.convolution.toom_cook import F4_POINTS, Fractions, filtering, rounded

OUTPUTS, TAPS = 4, 3  # of a tile along the first side
FILTERING = filtering(OUTPUTS, TAPS, F4_POINTS)
LEAST = (32, 8)  # channels of a sequence and of an image: of fewer the transforms take what is gained
SIDES = 2  # at most; windows of more are no views


def is_filtered(w: Weights, dilations: Sequence[int], strides: Sequence[int], rows: int) -> bool:
    """Whether a kernel of [m, channels, taps] has this form, of images of at most so many rows of results."""
    is_plain = w.shape[2] >= TAPS and dilations[0] == strides[0] == 1 and len(strides) <= SIDES
    return is_plain and w.dtype == np.float32 and min(w.shape[:2]) >= LEAST[len(strides) - 1] and rows >= TAPS


def filtered(
    writer: Writer, x: ir.Value, w: Weights, pads: Sequence[int], dilations: Sequence[int], strides: Sequence[int]
) -> tuple[ir.Value, ir.Value | None]:  # fmt: skip
    """The convolution of an image whose channels lie behind, in which up to three rows are too many.

    Beside it what a last row of the kernel adds, if there is one.
    """
    rank, size, taps = len(strides), FILTERING.size, w.shape[2]
    several = [w[:, :, at : at + TAPS] for at in range(0, taps - 1, TAPS)]
    more = OUTPUTS - 1 + TAPS * len(several) - taps  # rows behind
    image = writer.padded(x, (*pads[:rank], pads[rank] + more, *pads[rank + 1 :]), 1)
    flat = writer.reshape(image, [0, 0, -1]) if rank > 1 else image
    along = dilations[1:], strides[1:]
    total: ir.Value | None = None
    for number, some in enumerate(several):
        first, last = TAPS * number, TAPS * (len(several) - number - 1)
        windows = [writer.part(flat, (first + at,), (last + size - 1 - at,), (OUTPUTS,), 1) for at in range(size)]
        rows = writer.reshape(writer.add("Concat", windows, {"axis": 2}), [0, 0, size, -1])
        made = writer.add("MatMul", [_matrix(writer, FILTERING.window), rows])
        made = writer.reshape(made, [0, 0, size, *[-1] * (rank - 1), w.shape[1]])
        made = writer.add("Transpose", [made], {"perm": [2, 0, 1, *range(3, 3 + rank)]})
        sums = _times(writer, writer.parts(made, w.shape[3:], *along, 3), _points(some), 2 + rank)
        total = sums if total is None else writer.add("Add", [total, sums])
    assert total is not None, "a kernel has three rows"
    sides = [writer.dims(total, 3, 1)] if rank > 1 else []
    sums = writer.add("Transpose", [total], {"perm": [1, 2, 0, *range(3, 3 + rank)]})
    sums = writer.reshape(sums, [0, 0, size, -1]) if rank > 1 else sums
    result = writer.reshape(writer.add("MatMul", [_matrix(writer, FILTERING.output), sums]), [0, -1, *sides, len(w)])
    if taps % TAPS != 1:
        return result, None
    none = [0] * (rank - 1)
    part = writer.part(image, [taps - 1, *none], [more, *none], [1] * rank, 1)
    kernel = ir.tensor(np.ascontiguousarray(_columns(w[:, :, -1:])[0]))
    return result, _times(writer, writer.parts(part, w.shape[3:], *along, 2), kernel, 1 + rank)


def _times(writer: Writer, parts: Sequence[ir.Value], kernel: ir.TensorProtocol, axis: int) -> ir.Value:
    """The product of columns, side by side along an axis, with a kernel."""
    columns = parts[0] if len(parts) == 1 else writer.add("Concat", parts, {"axis": axis})
    return writer.add("MatMul", [columns, writer.add("Constant", [], {"value": kernel})])


def _points(w: Weights) -> PointsTensor:
    """G w along the first side, as [points, 1, (1,) taps of the other side and channels, m]."""
    rows = _columns(w).reshape(w.shape[2], *[1] * (w.ndim - 2), -1, len(w))
    matrix = tuple(row[: w.shape[2]] for row in rounded(FILTERING.taps))
    return PointsTensor(np.ascontiguousarray(rows), Sums(matrix))


def _columns(w: Weights) -> Weights:
    """A kernel as [rows, taps of the other side and channels, m]."""
    return np.moveaxis(w, (0, 1), (-1, -2)).reshape(w.shape[2], -1, len(w))


def _matrix(writer: Writer, exact: Fractions) -> ir.Value:
    return writer.constant(np.array(rounded(exact), np.float32))
