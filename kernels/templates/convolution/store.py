"""Applying the epilogue to accumulated vectors of channels and storing them where a layout has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels.llvm import types
from kernels.llvm.emission import emit
from kernels.llvm.function import Function, Value, joined
from kernels.templates.convolution.problem import Convolution
from kernels.templates.epilogue import TileLeaves
from kernels.tensor.expression import Expression, Index, Load

TOGETHER = 4  # vectors that an epilogue works on at a time, so that their latencies overlap


class SeveralLeaves:
    """Leaves of several vectors at different places of a tile, one part of a value for each."""

    def __init__(self, leaves: Sequence[TileLeaves]) -> None:
        self._leaves = tuple(leaves)

    def load(self, load: Load) -> Value:
        """The value of a leaf at every place."""
        return joined([one.load(load) for one in self._leaves])

    def position(self, index: Index) -> Value:
        """As the leaves have it."""
        return self._leaves[0].position(index)


ValueOf = Callable[[Function, Expression, int, SeveralLeaves], Value]


def store_pixels(
    f: Function,
    problem: Convolution,
    leaves: TileLeaves,
    y: Value,
    pixels: Sequence[tuple[int, int]],
    sums: Sequence[Value],
    valid: Sequence[int],
    lanes: int = 0,
    *,
    planes: bool = False,
    value_of: ValueOf = emit,
) -> None:
    """Store one value per pixel (row, column of the tile) with a part per vector of channels.

    `y` is the output at the tile's first pixel and channel; a vector has `valid` lanes that are channels. In blocked
    layouts the lanes after them are the zeros that fill up a block; in others they belong to somebody else. `lanes` are
    the target's where none are given. With `planes`, lanes go to planes of their own, and `leaves` count lanes along
    blocks; `value_of` is what writes the epilogue's value.
    """
    layout, lanes = problem.output, lanes or f.module.target.lanes()
    _, block, _, row, column, _ = problem.variables
    element = types.scalar(problem.epilogue.dtype)
    block_stride, row_stride, column_stride = layout.block_stride, layout.row_stride, layout.column_stride
    jobs = [
        (pixel, vector, part)
        for pixel, total in zip(pixels, sums, strict=True)
        for vector, part in enumerate(total.split())
        if valid[vector] or layout.order == "NCHWc"
    ]
    for first in range(0, len(jobs), TOGETHER):
        some = jobs[first : first + TOGETHER]
        placed = []
        for (r, c), vector, part in some:
            blocks, lane = (0, vector * lanes) if planes else divmod(vector * lanes, layout.block)
            placed.append(leaves.place(part, {row: r, column: c, block: blocks}, [lane], valid[vector]))
        parts = value_of(f, problem.epilogue.value, lanes, SeveralLeaves(placed)).split()
        made = parts if len(parts) == len(placed) else parts * len(placed)
        for ((r, c), vector, _), one in zip(some, made, strict=True):
            if planes:
                for channel in range(valid[vector]):
                    place = (vector * lanes + channel) * block_stride + r * row_stride + c * column_stride
                    f.store(f.extract(one, channel), f.at(y, place, element))
                continue
            blocks, lane = divmod(vector * lanes, layout.block)
            place = blocks * block_stride + r * row_stride + c * column_stride + lane
            _store(f, one, f.at(y, place, element), valid[vector], whole=layout.order == "NCHWc")


def _store(f: Function, value: Value, address: Value, valid: int, *, whole: bool) -> None:
    lanes = types.lanes(value.type)
    if whole and valid < lanes:
        f.store(f.select(f.first_lanes(valid, lanes), value, f.number(value.type, 0)), address)
    else:
        f.store_lanes(value, address, valid)
