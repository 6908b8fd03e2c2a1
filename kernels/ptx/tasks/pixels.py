"""Images as operands of tiles: a matrix of [tap][channel] and pixel, 0 where a window reaches over the border.

Where an element lies is where its pixel's window begins and how far the tap and the channel are from there. The second
is the same for all pixels: a table in shared memory has it, worked out once, for each slice where these have channels
of one tap, and else for each place of the depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kernels.dtype import DType
from kernels.llvm.function import Value
from kernels.ptx.tasks.threads import THREADS, Block
from kernels.ptx.tasks.tile_source import Along, Copied, CopyGrid, SliceReader, both, in_depth, strided_reader
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import INPUT, Convolution


def table_bytes(problem: Convolution, slice_: int) -> int:
    """Shared memory that the table of a convolution takes."""
    return 0 if _is_matrix(problem) else 4 * _entries(problem, slice_) * _words(problem)


def checked_axes(problem: Convolution) -> tuple[int, ...]:
    """The axes along which windows reach over a border that is not stored as zeros."""
    if problem.has_halo:
        return ()
    axes = zip(
        problem.pads, problem.output.size, problem.strides, problem.reach, problem.input.size, problem.input_dilations,
        strict=True,
    )  # fmt: skip
    return tuple(
        axis
        for axis, (pad, out, stride, reach, size, wide) in enumerate(axes)
        if pad or wide > 1 or (out - 1) * stride + reach > size
    )


def _channel_stride(layout: Layout) -> int | None:
    """How far channels lie from one another; None where that differs."""
    return layout.block_stride if layout.block == 1 else 1 if layout.blocks == 1 else None


def _is_matrix(problem: Convolution) -> bool:
    """Whether an element lies at a stride of its channel from where its pixel's window begins."""
    return prod(problem.kernel) == 1 and not checked_axes(problem) and _channel_stride(problem.input) is not None


def _by_taps(problem: Convolution, slice_: int) -> bool:
    """Whether each slice has channels of one tap, at a stride from one another."""
    return problem.depth % slice_ == 0 and _channel_stride(problem.input) is not None


def _entries(problem: Convolution, slice_: int) -> int:
    slices = -(-problem.depth * prod(problem.kernel) // slice_)
    return slices if _by_taps(problem, slice_) else slices * slice_


def _words(problem: Convolution) -> int:
    """Words of an entry: how far it is, and the tap along each axis that is checked."""
    return (1, 2, 4, 4)[len(checked_axes(problem))]


@dataclass(frozen=True, slots=True)
class _Window:
    """Where a pixel's window begins: among the input's elements, and along each axis."""

    first: Value
    starts: tuple[Value, ...]

    @classmethod
    def of(cls, block: Block, problem: Convolution, pixel: Value) -> _Window:
        """That of a pixel of all images; axes with zeros between their elements are none of `first`."""
        f, layout = block.f, problem.input
        image, *places = block.split(pixel, (problem.output.batch, *problem.output.size))
        starts = [
            f.add(f.mul(place, stride), -pad)
            for place, stride, pad in zip(places, problem.strides, problem.pads, strict=True)
        ]
        first = f.add(f.mul(image, layout.image_stride), layout.origin)
        for axis, stride in _near(problem):
            first = f.add(first, f.mul(starts[axis], stride))
        return cls(first, tuple(starts))


def _near(problem: Convolution) -> list[tuple[int, int]]:
    """The axes without zeros between their elements, each with its stride."""
    layout = problem.input
    strides = (layout.plane_stride, layout.row_stride, layout.column_stride)
    return [(axis, strides[axis]) for axis in range(3) if problem.input_dilations[axis] == 1]


def fill_table(block: Block, problem: Convolution, group: Value, table: int, slice_: int) -> None:
    """All threads write the table of a group of channels, so many bytes from the start of shared memory."""
    if _is_matrix(problem):
        return
    f, words = block.f, _words(problem)
    unit = slice_ if _by_taps(problem, slice_) else 1
    begin = f.at(block.shared, table, "i8")

    def write(number: Value, _: tuple[Value, ...]) -> Sequence[Value]:
        tap, channel = block.split(f.mul(number, unit), (prod(problem.kernel), problem.depth))
        taps = block.split(tap, problem.kernel)
        moved = [f.mul(one, wide) for one, wide in zip(taps, problem.dilations, strict=True)]
        away = channel_at(block, problem, f.add(f.mul(group, problem.depth), channel))
        for axis, stride in _near(problem):
            away = f.add(away, f.mul(moved[axis], stride))
        at = block.at(begin, f.mul(number, words), "i32")
        entry = [away, *(moved[axis] for axis in checked_axes(problem))]
        for place, one in enumerate([*entry, *[block.word(0)] * (words - len(entry))]):
            f.store(one, f.at(at, place, "i32"))
        return ()

    block.strided(block.thread, _entries(problem, slice_), THREADS, write)


class PixelSource:
    """The images as the right operand of tiles; the table lies in shared memory, `table` bytes from its start."""

    def __init__(self, problem: Convolution, group: Value, pixels: int, table: int) -> None:
        """The table is there: all threads have written it (`fill_table`), and have met."""
        self.problem, self.vector, self.dtype = problem, 1, DType.F32
        self._group, self._pixels, self._table = group, pixels, table
        last = problem.input.column_stride == 1 or problem.input.block == 1
        self.along: Along = "outer" if last else "depth"

    def reader(self, block: Block, grid: CopyGrid) -> SliceReader:
        """Pixels beyond the last are the last one's."""
        f, problem = block.f, self.problem
        many = grid.count if self.along == "depth" else 1
        outers = [block.least(f.add(grid.outer, one * grid.apart), self._pixels - 1) for one in range(many)]
        windows = [_Window.of(block, problem, one) for one in outers]
        stride = _channel_stride(problem.input)
        if _is_matrix(problem):
            assert stride is not None, "channels of a matrix lie at a stride"
            channel = f.add(f.mul(self._group, problem.depth), grid.place)
            firsts = [
                block.at(block.pointers[INPUT], f.add(one.first, f.mul(channel, stride)))
                for one in windows
            ]  # fmt: skip
            nothing: list[Value | None] = [None] * grid.count
            return strided_reader(
                block, self, grid, firsts, grid.apart * stride, nothing, stride, problem.depth
            )  # fmt: skip
        if _by_taps(problem, grid.slice) and stride is not None:
            return self._of_taps(block, grid, windows, stride)
        return self._of_places(block, grid, windows)

    def _of_taps(self, block: Block, grid: CopyGrid, windows: Sequence[_Window], stride: int) -> SliceReader:
        f = block.f
        channel = f.mul(grid.place, stride)
        firsts = [block.at(block.pointers[INPUT], f.add(one.first, channel)) for one in windows]

        def read(number: Value, whole: bool) -> Sequence[Copied]:
            entry = self._entry(block, number)
            found = [self._copied(block, *one, entry) for one in zip(firsts, windows, strict=True)]
            if len(found) < grid.count:
                ((address, inside),) = found
                found = [(f.at(address, one * grid.apart * stride), inside) for one in range(grid.count)]
            return found

        return read

    def _of_places(self, block: Block, grid: CopyGrid, windows: Sequence[_Window]) -> SliceReader:
        f = block.f
        firsts = [block.at(block.pointers[INPUT], one.first) for one in windows]

        def read(number: Value, whole: bool) -> Sequence[Copied]:
            place = f.add(f.mul(number, grid.slice), grid.place)
            many = 1 if self.along == "depth" else grid.count
            entries = [self._entry(block, place, one * grid.apart) for one in range(many)]
            found = [
                self._copied(
                    block, firsts[one % len(firsts)], windows[one % len(windows)], entries[one % len(entries)]
                )
                for one in range(grid.count)
            ]  # fmt: skip
            if whole:
                return found
            there = in_depth(block, self.along, grid, number, self.problem.depth * prod(self.problem.kernel))
            inside = both(block, [one for _, one in found], there)
            return [(address, one) for (address, _), one in zip(found, inside, strict=True)]

        return read

    def _copied(self, block: Block, first: Value, window: _Window, entry: Sequence[Value]) -> Copied:
        """Where the element of an entry lies under a pixel's window, and whether it is inside."""
        f, layout = block.f, self.problem.input
        strides = (layout.plane_stride, layout.row_stride, layout.column_stride)
        inside: Value | None = None
        away = entry[0]
        for axis, tap in zip(checked_axes(self.problem), entry[1:], strict=False):
            place, wide = f.add(window.starts[axis], tap), self.problem.input_dilations[axis]
            there = block.below(place, self.problem.spread[axis])
            if wide > 1:
                apart = f.binary("udiv", place, block.word(wide))
                there = f.binary("and", there, f.compare("eq", f.mul(apart, wide), place))
                away = f.add(away, f.mul(apart, strides[axis]))
            inside = there if inside is None else f.binary("and", inside, there)
        return block.at(first, away), inside

    def _entry(self, block: Block, number: Value, more: int = 0) -> list[Value]:
        """An entry of the table, `more` behind one with a number."""
        f, words = block.f, _words(self.problem)
        begin = f.at(block.shared, self._table, "i8")
        base = f.at(block.at(begin, f.mul(number, words), "i32"), more * words, "i32")
        if words == 1:
            return [f.load("i32", base)]
        some = f.load(f"<{words} x i32>", base, align=4 * words)
        return [f.extract(some, one) for one in range(words)]


class WindowSource:
    """The window of one pixel over one channel of the input, tap by tap."""

    def __init__(self, block: Block, problem: Convolution, pixel: Value, channel: Value) -> None:
        f = block.f
        self._block, self._problem, self._channel = block, problem, channel
        image, *places = block.split(pixel, (problem.output.batch, *problem.output.size))
        self._starts = [
            f.add(f.mul(place, stride), -pad)
            for place, stride, pad in zip(places, problem.strides, problem.pads, strict=True)
        ]
        self._base = f.add(f.mul(image, problem.input.image_stride), problem.input.origin)

    def element(self, tap: Value) -> Value:
        """The element under a tap: 0 outside."""
        block, problem, f = self._block, self._problem, self._block.f
        taps = list(block.split(tap, problem.kernel)) if prod(problem.kernel) > 1 else [block.word(0)] * 3
        check = bool(checked_axes(problem))
        at, inside = window_at(block, problem, self._base, self._starts, taps, check=check)
        address = block.at(block.pointers[INPUT], f.add(at, channel_at(block, problem, self._channel)))
        if inside is None:
            return f.load("float", address)
        safe = f.select(inside, address, block.pointers[INPUT])
        return f.select(inside, f.load("float", safe), f.number("float", 0.0))


def channel_at(block: Block, problem: Convolution, channel: Value) -> Value:
    """How far a channel of the input lies from the first one."""
    layout, f = problem.input, block.f
    if layout.block == 1:
        return f.mul(channel, layout.block_stride)
    if layout.blocks == 1:
        return channel
    outer, lane = block.split(channel, (layout.blocks, layout.block))
    return f.add(f.mul(outer, layout.block_stride), lane)


def window_at(
    block: Block, problem: Convolution, base: Value, starts: Sequence[Value], taps: Sequence[Value], *, check: bool
) -> tuple[Value, Value | None]:
    """Where a tap of a window lies in the input, and whether that is inside; None: it always is."""
    f, layout = block.f, problem.input
    inside: Value | None = None
    strides = (layout.plane_stride, layout.row_stride, layout.column_stride)
    for axis, (start, tap, stride) in enumerate(zip(starts, taps, strides, strict=True)):
        place = f.add(start, f.mul(tap, problem.dilations[axis]))
        wide = problem.input_dilations[axis]
        tests = []
        if check and wide > 1:
            tests.append(block.below(place, problem.spread[axis]))
            apart = f.binary("udiv", place, block.word(wide))
            tests.append(f.compare("eq", f.mul(apart, wide), place))
            place = apart
        elif check and (problem.kernel[axis] > 1 or problem.pads[axis] or problem.output.size[axis] > 1):
            tests.append(block.below(place, layout.size[axis]))
        for one in tests:
            inside = one if inside is None else f.binary("and", inside, one)
        base = f.add(base, f.mul(place, stride))
    return base, inside
