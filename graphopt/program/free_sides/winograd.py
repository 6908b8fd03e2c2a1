"""Winograd's convolutions along sides that a run sets: minimal filtering F(4, 3) along the first side, in products.

    x of [n, h, ...], padded        -->  d of [n, tiles, 6, ...]: windows of six rows, one every four
    v = MatMul(B^T, d)              -->  six rows for each tile, of which each meets a kernel of its own
    m = MatMul(columns of v, G w)   -->  the sums along the sides that are left, and over the channels
    y = MatMul(A^T, m)              -->  four rows of results for each tile; those behind the image are cut off

Half as many multiplications as three products with rows of the kernel take. Windows overlap in memory, and what is
transposed is read where it lies, so that the transforms take a pass over the image and one over the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.program.free_sides.writer import Weights, Writer
from graphopt.program.points import PointsTensor
from kernels.kernel import Sums
from kernels.templates.convolution.toom_cook import F4_POINTS, filtering, rounded

OUTPUTS, TAPS = 4, 3  # of a tile along the first side
FILTERING = filtering(OUTPUTS, TAPS, F4_POINTS)
LEAST = 8  # channels: of fewer the transforms take what is gained
SIDES = 2  # at most; windows of more are no views


def is_filtered(w: Weights, dilations: Sequence[int], strides: Sequence[int], rows: int) -> bool:
    """Whether a kernel of [m, channels, taps] has this form, of images of at most so many rows of results."""
    is_plain = w.shape[2] == TAPS and dilations[0] == strides[0] == 1 and len(strides) <= SIDES
    return is_plain and w.dtype == np.float32 and min(w.shape[:2]) >= LEAST and rows >= TAPS


def filtered(
    writer: Writer, x: ir.Value, w: Weights, pads: Sequence[int], dilations: Sequence[int], strides: Sequence[int]
) -> ir.Value:  # fmt: skip
    """The convolution of an image whose channels lie behind; its rows may be up to three too many."""
    rank, size = len(strides), FILTERING.size
    wide = (*pads[:rank], pads[rank] + OUTPUTS - 1, *pads[rank + 1 :])
    image = writer.padded(x, wide, 1)
    flat = writer.reshape(image, [0, 0, -1]) if rank > 1 else image
    windows = writer.parts(flat, (size,), (1,), (OUTPUTS,), 1)
    rows = writer.reshape(writer.add("Concat", windows, {"axis": 2}), [0, 0, size, -1])
    made = writer.add("MatMul", [_matrix(writer, FILTERING.window), rows])
    made = writer.reshape(made, [0, 0, size, *[-1] * (rank - 1), w.shape[1]])
    made = writer.add("Transpose", [made], {"perm": [2, 0, 1, *range(3, 3 + rank)]})
    parts = writer.parts(made, w.shape[3:], dilations[1:], strides[1:], 3)
    columns = parts[0] if len(parts) == 1 else writer.add("Concat", parts, {"axis": 2 + rank})
    sums = writer.add("MatMul", [columns, writer.add("Constant", [], {"value": _kernels(w)})])
    sides = [writer.dims(sums, 3, 1)] if rank > 1 else []
    sums = writer.add("Transpose", [sums], {"perm": [1, 2, 0, *range(3, 3 + rank)]})
    sums = writer.reshape(sums, [0, 0, size, -1]) if rank > 1 else sums
    result = writer.add("MatMul", [_matrix(writer, FILTERING.output), sums])
    return writer.reshape(result, [0, -1, *sides, len(w)])


def _kernels(w: Weights) -> PointsTensor:
    """G w along the first side, as [points, 1, (1,) taps of the other side and channels, m]."""
    rows = np.moveaxis(w, (0, 1), (-1, -2)).reshape(TAPS, *[1] * (w.ndim - 2), -1, len(w))
    return PointsTensor(np.ascontiguousarray(rows), Sums(rounded(FILTERING.taps), 1))


def _matrix(writer: Writer, exact: tuple[tuple[object, ...], ...]) -> ir.Value:
    return writer.constant(np.array(rounded(exact), np.float32))  # type: ignore[arg-type]
