"""Sliding windows over images whose channels lie side by side, for depthwise convolution and pooling.

Rows and tiles of columns are sorted by which part of their window is stored. Each sort gets a function of its own that
reads nothing outside, so that no zeros need to be stored around an image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernels.llvm.function import Amount, Function, Value
from kernels.size import greatest, is_free, least
from kernels.templates.convolution.layout import Layout
from kernels.templates.grid import balanced

LEAST_ROWS = 3  # of a block for several workers


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """How windows lie along rows or columns."""

    size: int  # of the input
    outputs: int
    taps: int
    stride: int
    dilation: int
    pad: int  # places before the input that the first window covers
    before: int = 0  # zeros that are stored before the input, and may be read
    after: int = 0

    def start(self, output: int) -> int:
        """The input place under the first tap."""
        return output * self.stride - self.pad

    def valid(self, output: int) -> tuple[int, int]:
        """The taps from `low` to before `high` that read what is stored."""
        inside = [tap for tap in range(self.taps) if self.readable(self.start(output) + tap * self.dilation)]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def readable(self, place: int) -> bool:
        """Whether an input place is stored."""
        return -self.before <= place < self.size + self.after


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of outputs whose windows are cut alike."""

    first: int
    count: int
    low: int  # the first tap that reads something, and the one after the last
    high: int
    at_border: bool = False  # of an image of any sides: each row is looked at


@dataclass(frozen=True, slots=True)
class Columns:
    """Tiles of columns, side by side, whose windows are cut alike."""

    first: int  # column of the first tile
    count: int  # tiles
    size: int  # columns of a tile
    taps: tuple[tuple[int, int], ...]  # low and high of each column of a tile
    at_border: bool = False  # of an image of any sides: each tile is looked at, and may have fewer columns


def row_kinds(axis: WindowAxis) -> tuple[Rows, ...]:
    """All rows, sorted."""
    found: list[Rows] = []
    for row in range(axis.outputs):
        kind = Rows(row, 1, *axis.valid(row))
        if found and replace(kind, first=found[-1].first, count=found[-1].count) == found[-1]:
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(kind)
    return tuple(found)


def column_kinds(axis: WindowAxis, most: int) -> tuple[Columns, ...]:
    """All columns in tiles of at most `most`, sorted."""
    found: list[Columns] = []
    for group in balanced(axis.outputs, most):
        for tile in range(group.count):
            first = group.start + tile * group.size
            kind = Columns(first, 1, group.size, tuple(axis.valid(first + column) for column in range(group.size)))
            if found and replace(kind, first=found[-1].first, count=found[-1].count) == found[-1]:
                found[-1] = replace(found[-1], count=found[-1].count + 1)
            else:
                found.append(kind)
    return tuple(found)


def rows_of_any_size(axis: WindowAxis) -> tuple[Rows, ...]:
    """The same of an image of any sides: rows that see the whole kernel between those that may not."""
    first, behind = _whole(axis, 1, axis.outputs)
    ends = ((0, first, True), (first, behind, False), (behind, axis.outputs, True))
    kinds = (Rows(start, end - start, 0, axis.taps, at) for start, end, at in ends)
    return tuple(kind for kind in kinds if is_free(kind.count) or kind.count)


def columns_of_any_size(axis: WindowAxis, size: int) -> tuple[Columns, ...]:
    """The same of tiles of columns, of which the last one may have fewer."""
    tiles, taps = (axis.outputs + size - 1) // size, ((0, axis.taps),) * size
    first, behind = _whole(axis, size, axis.outputs // size)
    ends = ((0, first, True), (first, behind, False), (behind, tiles, True))
    kinds = (Columns(start * size, end - start, size, taps, at) for start, end, at in ends)
    return tuple(kind for kind in kinds if is_free(kind.count) or kind.count)


def _whole(axis: WindowAxis, size: int, tiles: int) -> tuple[int, int]:
    """The first of some tiles all of whose windows lie inside of an image of any sides, and the end."""
    step, reach = size * axis.stride, (size - 1) * axis.stride + (axis.taps - 1) * axis.dilation
    first = least(max(0, -((axis.before - axis.pad) // step)), tiles)
    behind = greatest(0, axis.size + axis.after + axis.pad - reach + step - 1) // step
    return first, greatest(first, least(behind, tiles))


def each_tile(
    f: Function,
    rows: Sequence[Rows],
    columns: Sequence[Columns],
    first: Amount,
    last: Amount,
    body: Callable[[Rows, Columns, Value, Value, int], None],
    together: int = 1,
    taps: int = 0,
) -> None:
    """body(row kind, column kind, row, first column, rows) for the tiles of the rows from `first` to before `last`.

    Rows that see all `taps` are taken `together` as long as there are enough; all others one by one. Tiles of a row
    follow one another: memory is read and written from its start to its end, which is what hardware prefetches.
    """
    for down in rows:
        end = down.first + down.count
        low, high = _larger(f, first, down.first), _smaller(f, last, end)

        def row(number: Value, several: int, down: Rows = down) -> None:
            for across in columns:

                def tile(place: Value, _: tuple[Value, ...], across: Columns = across) -> None:
                    body(down, across, number, f.add(f.mul(place, across.size), across.first), several)

                f.loop(0, across.count, 1, tile)

        is_whole = down.high - down.low == taps and not down.at_border
        if together > 1 and is_whole and (is_free(down.count) or down.count >= together):
            if isinstance(low, int) and isinstance(high, int):
                middle: Amount = low + (high - low) // together * together
            else:
                length = f.maximum(f.sub(f.integer(high), low), f.integer(0))
                rest = f.binary("urem", length, f.integer(together))
                middle = f.sub(f.add(f.integer(low), length), rest)
            f.loop(low, middle, together, lambda number, _, row=row: row(number, together))  # type: ignore[misc]
            low = middle
        f.loop(low, high, 1, lambda number, _, row=row: row(number, 1))  # type: ignore[misc]


def _larger(f: Function, one: Amount, other: Amount) -> Amount:
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    return f.maximum(f.integer(one), f.integer(other))


def _smaller(f: Function, one: Amount, other: Amount) -> Amount:
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    return f.minimum(f.integer(one), f.integer(other))


def vectors_of(layout: Layout, lanes: int) -> int:
    """How many vectors of channels are stored side by side or in blocks."""
    return -(-layout.blocks * layout.block // lanes)


def each_vector(
    f: Function,
    layout: Layout,
    lanes: int,
    begin: Value,
    end: Value,
    body: Callable[[int], Callable[[Value, tuple[Value, ...]], None]],
) -> None:
    """body(lanes that are channels)(number) for the vectors of channels from `begin` to before `end`."""
    whole = layout.channels // lanes
    f.loop(begin, f.minimum(end, f.integer(whole)), 1, body(lanes))
    for number in range(whole, vectors_of(layout, lanes)):
        valid = max(0, layout.channels - number * lanes)
        low, high = f.maximum(begin, f.integer(number)), f.minimum(end, f.integer(number + 1))
        f.loop(low, high, 1, body(valid))


def vector_at(f: Function, layout: Layout, number: Value, lanes: int) -> Value:
    """Elements from an image's first channel to those of a vector, at one pixel."""
    if layout.blocks == 1:
        return f.mul(number, lanes)
    each = layout.block // lanes
    if each == 1:
        return f.mul(number, layout.block_stride)
    block = f.binary("udiv", number, f.integer(each))
    part = f.sub(number, f.mul(block, each))
    return f.add(f.mul(block, layout.block_stride), f.mul(part, lanes))


def side_by_side(layout: Layout, lanes: int) -> bool:
    """Whether channels lie side by side so that vectors of them never cross a block."""
    return layout.order == "NHWC" or (layout.order == "NCHWc" and layout.block % lanes == 0)


def stretches(height: int, vectors: int, blocks: int) -> tuple[int, int]:
    """Rows and vectors of a block where an image is cut into about so many: by rows as far as they go.

    A block of fewer than `LEAST_ROWS` rows reads more rows around it than its own.
    """
    parts = max(1, min(blocks, height // LEAST_ROWS))
    groups = max(1, min(vectors, -(-blocks // parts)))
    return -(-height // parts), -(-vectors // groups)
