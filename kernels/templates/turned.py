"""Results that run along the memory with another axis than what they read: squares, turned in registers.

    y[j, i] = x[i, j]        y[j, i] = x[i, j] * scale[j] + z[j, i]

As many rows of the source as a vector has lanes are read along the memory, turned (kernels/llvm/transposing.py), and
stored along the memory of the result, with what is computed of them. What passes is a stretch of whole rows of the
result, so that each line of memory is read once and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
# What writes rows of the result: of the row by its number, what is turned for it, the first place, and how many lanes.
Row = Callable[[int, Sequence[Value], Value, int], None]


@dataclass(frozen=True, slots=True)
class Squares:
    """What turns two axes: where it reads and writes, in elements."""

    loads: tuple[Load, ...]  # of what is turned
    store: Load
    along: Axis  # of the result's memory
    across: Axis  # of the sources'
    others: tuple[Axis, ...]
    side: int  # rows and lanes of a square

    @property
    def result(self) -> Index:
        """Where it writes."""
        return place(self.store)

    @property
    def strips(self) -> int:
        """How often a square's rows of the result go into all of them."""
        return count(self.others) * -(-self.across.extent // self.side)


def squares_of(axes: Sequence[Axis], loads: Sequence[Load], store: Load, target: Target) -> Squares | None:
    """The squares of what reads `loads`; None where nothing is turned, by two axes or too little to fill them by half.

    Loads that lie along the result's memory, or are one element of it, are left out.
    """
    dtype, places = store.buffer.dtype, [place(one) for one in (*loads, store)]
    side = min(MOST_SIDE, target.vector_bytes // dtype.bytes)
    along = [axis for axis in axes if axis.factor(place(store)) == 1]
    numbers = [axis.extent for axis in axes] + [axis.factor(one) for axis in axes for one in places]
    if side < LEAST_SIDE or not along or any(map(is_free, numbers)):
        return None
    turned = tuple(load for load in loads if axis_jumps(along[-1], load) > 1)
    runs = [[axis for axis in axes if axis.factor(place(load)) == 1] for load in turned]
    if not all(runs) or len({one[-1] for one in runs}) != 1 or any(load.buffer.dtype is not dtype for load in turned):
        return None
    other = runs[0][-1]
    if 2 * min(along[-1].extent, other.extent) < side:
        return None
    others = tuple(axis for axis in axes if axis not in (along[-1], other))
    return Squares(turned, store, along[-1], other, others, side)


def axis_jumps(axis: Axis, load: Load) -> int:
    """Elements of the source from one place on an axis to the next."""
    return abs(axis.factor(place(load)))


def strips_of_block(squares: Squares, elements: int) -> int:
    """How many strips a block of about so many elements has."""
    return max(1, min(squares.strips, elements // (squares.side * squares.along.extent)))


def write_copies(f: Function, squares: Squares, x: Value, y: Value, first: Amount, last: Amount) -> None:
    """Copy the strips from `first` to before `last`."""
    kind, apart = _bits(squares.store.buffer.dtype), squares.across.factor(squares.result)

    def begun(at: Mapping[Axis, Value], _: int) -> Row:
        written = f.at(y, value_of(f, squares.result, at), kind)

        def row(number: int, turned: Sequence[Value], start: Value, lanes: int) -> None:
            f.store_lanes(turned[0], f.at(written, f.add(start, number * apart), kind), lanes)

        return row

    write_strips(f, squares, (x,), first, last, begun)


def write_strips(
    f: Function, squares: Squares, sources: Sequence[Value], first: Amount, last: Amount,
    begun: Callable[[Mapping[Axis, Value], int], Row],
) -> None:  # fmt: skip
    """Turn the strips from `first` to before `last`; `sources` are where the loads' storages begin.

    `begun` gives for each strip, whose first row and number of rows it is told, what writes its rows.
    """
    side, kind = squares.side, _bits(squares.store.buffer.dtype)
    tiles = -(-squares.across.extent // side)
    whole, rest = divmod(squares.along.extent, side)

    def strip(number: Value, _: tuple[Value, ...]) -> None:
        other = f.binary("udiv", number, f.integer(tiles))
        begin = f.mul(f.sub(number, f.mul(other, tiles)), side)
        at = {**spread(f, other, squares.others), squares.across: begin}
        read = [
            f.at(source, value_of(f, place(load), at), kind)
            for source, load in zip(sources, squares.loads, strict=True)
        ]

        def squares_of_rows(rows: int) -> None:
            write = begun(at, rows)
            f.loop(0, whole * side, side, lambda place, _: square(write, rows, side, place))
            if rest:
                square(write, rows, rest, f.integer(whole * side))

        def square(write: Row, rows: int, lanes: int, start: Value) -> None:
            found = [
                turned(origin, squares.along.factor(place(load)), rows, lanes, start)
                for origin, load in zip(read, squares.loads, strict=True)
            ]
            for row, vectors in enumerate(zip(*found, strict=True)):
                write(row, vectors, start, lanes)

        def turned(origin: Value, step: int, rows: int, lanes: int, start: Value) -> list[Value]:
            vector = types.vector(kind, side)
            found = []
            for lane in range(side):
                here = f.at(origin, f.mul(f.add(start, lane), step), kind)
                if lane >= lanes:
                    found.append(f.number(vector, 0))
                elif rows == side:
                    found.append(f.load(vector, here))
                else:
                    found.append(f.masked_load(vector, here, f.first_lanes(rows, side)))
            return transpose(f, found)[:rows]

        ends = squares.across.extent % side
        if not ends:
            squares_of_rows(side)
        elif tiles == 1:
            squares_of_rows(ends)
        else:
            is_last = f.compare("eq", begin, f.integer((tiles - 1) * side))
            f.when(is_last, lambda: squares_of_rows(ends), lambda: squares_of_rows(side))

    f.loop(first, last, 1, strip)


def _bits(dtype: DType) -> str:
    """The type of elements that nothing converts."""
    return "i16" if dtype is DType.F16 else memory_type(dtype)
