"""Sliding windows over images whose channels lie side by side, for depthwise convolution and pooling.

Rows and tiles of columns are sorted by which part of their window is stored. Each sort gets a function of its own that
reads nothing outside, so that no zeros need to be stored around an image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernels.llvm.function import Amount, Function, Value
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


@dataclass(frozen=True, slots=True)
class Columns:
    """Tiles of columns, side by side, whose windows are cut alike."""

    first: int  # column of the first tile
    count: int  # tiles
    size: int  # columns of a tile
    taps: tuple[tuple[int, int], ...]  # low and high of each column of a tile


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
        low: Amount = max(first, down.first) if isinstance(first, int) else f.maximum(first, f.integer(down.first))
        high: Amount = min(last, end) if isinstance(last, int) else f.minimum(last, f.integer(end))

        def row(number: Value, several: int, down: Rows = down) -> None:
            for across in columns:

                def tile(place: Value, _: tuple[Value, ...], across: Columns = across) -> None:
                    body(down, across, number, f.add(f.mul(place, across.size), across.first), several)

                f.loop(0, across.count, 1, tile)

        if together > 1 and down.high - down.low == taps and down.count >= together:
            if isinstance(low, int) and isinstance(high, int):
                middle: Amount = low + (high - low) // together * together
            else:
                length = f.maximum(f.sub(f.integer(high), low), f.integer(0))
                rest = f.binary("urem", length, f.integer(together))
                middle = f.sub(f.add(f.integer(low), length), rest)
            f.loop(low, middle, together, lambda number, _, row=row: row(number, together))  # type: ignore[misc]
            low = middle
        f.loop(low, high, 1, lambda number, _, row=row: row(number, 1))  # type: ignore[misc]


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
