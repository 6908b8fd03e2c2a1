"""Copies whose source runs along the memory with one axis and whose result with another: squares, turned in registers.

    y[j, i] = x[i, j]

As many rows of the source as a vector has lanes are read along the memory, turned (kernels/llvm/transposing.py), and
stored along the memory of the result. What passes is a stretch of whole rows of the result, so that each line of memory
is read once and written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Amount, Function, Value
from kernels.llvm.transposing import transpose
from kernels.size import is_free
from kernels.target import Target
from kernels.templates.axes import Axis, count, place, spread, value_of
from kernels.tensor.expression import Index, Load

LEAST_SIDE, MOST_SIDE = 4, 16  # lanes: smaller squares are as fast one by one, larger ones fit no registers


@dataclass(frozen=True, slots=True)
class Squares:
    """A copy that turns two axes: where it reads and writes, in elements."""

    load: Load
    store: Load
    along: Axis  # of the result's memory
    across: Axis  # of the source's
    others: tuple[Axis, ...]
    side: int  # rows and lanes of a square

    @property
    def source(self) -> Index:
        """Where it reads."""
        return place(self.load)

    @property
    def result(self) -> Index:
        """Where it writes."""
        return place(self.store)

    @property
    def strips(self) -> int:
        """How often a square's rows of the result go into all of them."""
        return count(self.others) * -(-self.across.extent // self.side)


def squares_of(axes: Sequence[Axis], load: Load, store: Load, target: Target) -> Squares | None:
    """The squares of a copy; None where it turns nothing, or too little to fill them by half."""
    dtype, sizes = store.buffer.dtype, [axis.extent for axis in axes]
    if load.buffer.dtype is not dtype or any(map(is_free, sizes)):
        return None
    side = min(MOST_SIDE, target.vector_bytes // dtype.bytes)
    along = [axis for axis in axes if axis.factor(place(store)) == 1]
    across = [axis for axis in axes if axis.factor(place(load)) == 1]
    if side < LEAST_SIDE or not along or not across or along[-1] == across[-1]:
        return None
    if 2 * min(along[-1].extent, across[-1].extent) < side or axis_jumps(along[-1], load) < 2:
        return None
    others = tuple(axis for axis in axes if axis not in (along[-1], across[-1]))
    return Squares(load, store, along[-1], across[-1], others, side)


def axis_jumps(axis: Axis, load: Load) -> int:
    """Elements of the source from one place on an axis to the next."""
    return abs(axis.factor(place(load)))


def strips_of_block(squares: Squares, elements: int) -> int:
    """How many strips a block of about so many elements has."""
    return max(1, min(squares.strips, elements // (squares.side * squares.along.extent)))


def write_strips(f: Function, squares: Squares, x: Value, y: Value, first: Amount, last: Amount) -> None:
    """Copy the strips from `first` to before `last`."""
    side, dtype = squares.side, squares.store.buffer.dtype
    kind = "i16" if dtype is DType.F16 else memory_type(dtype)  # bits, which nothing converts
    source, result = squares.source, squares.result
    tiles = -(-squares.across.extent // side)
    whole, rest = divmod(squares.along.extent, side)
    step, apart = squares.along.factor(source), squares.across.factor(result)

    def strip(number: Value, _: tuple[Value, ...]) -> None:
        other = f.binary("udiv", number, f.integer(tiles))
        begin = f.mul(f.sub(number, f.mul(other, tiles)), side)
        at = {**spread(f, other, squares.others), squares.across: begin}
        read, written = f.at(x, value_of(f, source, at), kind), f.at(y, value_of(f, result, at), kind)

        def squares_of_rows(rows: int) -> None:
            f.loop(0, whole * side, side, lambda place, _: square(rows, side, place))
            if rest:
                square(rows, rest, f.integer(whole * side))

        def square(rows: int, lanes: int, start: Value) -> None:
            vector = types.vector(kind, side)
            found = []
            for lane in range(side):
                here = f.at(read, f.mul(f.add(start, lane), step), kind)
                if lane >= lanes:
                    found.append(f.number(vector, 0))
                elif rows == side:
                    found.append(f.load(vector, here))
                else:
                    found.append(f.masked_load(vector, here, f.first_lanes(rows, side)))
            for row, turned in enumerate(transpose(f, found)[:rows]):
                f.store_lanes(turned, f.at(written, f.add(start, row * apart), kind), lanes)

        ends = squares.across.extent % side
        if not ends:
            squares_of_rows(side)
        elif tiles == 1:
            squares_of_rows(ends)
        else:
            is_last = f.compare("eq", begin, f.integer((tiles - 1) * side))
            f.when(is_last, lambda: squares_of_rows(ends), lambda: squares_of_rows(side))

    f.loop(first, last, 1, strip)
