"""Pooling: the largest or the average of each window, for any window, strides, dilations and pads, and globally.

Where channels lie side by side a vector of channels is pooled at a time; in NCHW one channel is. Windows that reach
over the image's border are cut there, so that neither zeros nor anything else around an image is read. A window's NaN
is the result's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import prod

from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.size import is_free
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.convolution.places import operands_at, output_at, variables_at
from kernels.templates.convolution.problem import INPUT, OUTPUT, Convolution, of_any_sides
from kernels.templates.convolution.store import store_pixels
from kernels.templates.convolution.taps import taps_of_row
from kernels.templates.convolution.windows import (
    Columns,
    Rows,
    column_kinds,
    columns_of_any_size,
    each_tile,
    each_vector,
    row_kinds,
    rows_of_any_size,
    side_by_side,
    stretches,
    vector_at,
    vectors_of,
)
from kernels.templates.epilogue import leaves_of, parameters_of
from kernels.templates.grid import unravel
from kernels.templates.pooling_problem import Pooling
from kernels.templates.template import Template

_BLOCK_READS = 100_000  # vectors that a block reads: about 50 microseconds
_SHARED_READS = 10_000  # of a block for several workers
_SHARED_BLOCKS = 16  # of an image, at the most
_MOST_COLUMNS = 8  # of a tile
_MOST_READS = 11  # vectors of one row that a tile reads, or those of two windows: more come late, all at once


@dataclass(frozen=True, slots=True)
class PoolingCandidate:
    """Sizes that decide the speed of pooling."""

    columns: int  # of a tile
    vector_stretch: int  # vectors of channels of a block (channels where a vector holds one)
    row_stretch: int  # rows of a block
    rows_outside: bool = False  # whether blocks of the same rows follow one another, rather than those of one vector

    def __str__(self) -> str:
        block = f"{self.row_stretch} rows x {self.vector_stretch} vectors"
        return f"pooling 1x{self.columns} block {block}{' by rows' if self.rows_outside else ''}"


def candidates(problem: Pooling, target: Target) -> tuple[PoolingCandidate, ...]:
    """Candidates, the likely best first."""
    windows, lanes = problem.windows, _lanes(problem, target)
    height, width = windows.output.size[1:]
    taps = windows.kernel[0] * windows.kernel[1] * windows.kernel[2]
    per_vector = taps * height * width
    vectors = max(1, min(vectors_of(windows.input, lanes), _BLOCK_READS // per_vector))
    rows = max(1, min(height, _BLOCK_READS * height // per_vector))
    most = _most_columns(windows)
    found = [
        PoolingCandidate(-(-width // -(-width // columns)), vectors, rows) for columns in (most, max(1, most // 2))
    ]
    return tuple(dict.fromkeys(found))


def _most_columns(windows: Convolution) -> int:
    """Columns of a tile: windows that share few inputs are few."""
    taps, step = windows.kernel[2], min(windows.strides[2], windows.kernel[2])
    reads = max(_MOST_READS, 2 * taps)
    return max(1, min(_MOST_COLUMNS, 1 + (reads - taps) // step))


def share(problem: Pooling, candidate: PoolingCandidate, target: Target) -> PoolingCandidate:
    """The candidate with smaller blocks, which follow the rows: a worker's share is a part of the image."""
    windows = problem.windows
    height, width = windows.output.size[1:]
    vectors = vectors_of(windows.input, _lanes(problem, target))
    reads = prod(windows.kernel) * height * width * vectors
    blocks = min(_SHARED_BLOCKS, reads // _SHARED_READS)
    rows, stretch = stretches(height, vectors, blocks)
    if blocks < 2 or windows.output.size[0] > 1:
        return candidate
    return replace(candidate, row_stretch=rows, vector_stretch=stretch, rows_outside=True)


def build(problem: Pooling, candidate: PoolingCandidate, target: Target, name: str = "pooling") -> Kernel:
    """The kernel: operands "x", those of the epilogue, "y"."""
    return _PoolingBuilder(problem, candidate, target, name).kernel()


def repeats(problem: Pooling, candidate: PoolingCandidate, cut: PoolingCandidate) -> bool:
    """Smaller blocks do nothing again: channels are apart, and rows that overlap are few, and near."""
    return False


def serves(problem: Pooling, candidate: PoolingCandidate) -> bool:
    """Whether a kernel takes the sides of images from the run: of planes with channels last."""
    windows = problem.windows
    is_plane = windows.kernel[0] == windows.output.size[0] == 1
    return not of_any_sides(windows) or (windows.input.order == "NHWC" and is_plane)


POOLING = Template("pooling", Pooling, candidates, build, share=share, repeats=repeats, serves=serves)


def _lanes(problem: Pooling, target: Target) -> int:
    return target.lanes() if side_by_side(problem.windows.input, target.lanes()) else 1


class _PoolingBuilder(Builder[Pooling, PoolingCandidate]):
    def __init__(self, problem: Pooling, candidate: PoolingCandidate, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.windows = problem.windows
        self.lanes = _lanes(problem, target)
        self.kind = types.vector("float", self.lanes)
        deep, down, across = problem.axes
        self.planes = _alike(row_kinds(deep), problem, 0)
        self.of_any_sides = of_any_sides(self.windows)
        if self.of_any_sides:
            self.rows = rows_of_any_size(down)
            self.columns = columns_of_any_size(across, candidate.columns)
        else:
            self.rows = _alike(row_kinds(down), problem, 1)
            self.columns = _alike_columns(column_kinds(across, candidate.columns), problem)
        self.vectors = vectors_of(self.windows.input, self.lanes)
        self.dims = (
            self.windows.output.batch,
            -(-self.vectors // candidate.vector_stretch),
            self.windows.output.size[0],
            (self.windows.output.size[1] + candidate.row_stretch - 1) // candidate.row_stretch,
        )

    def kernel(self) -> Kernel:
        return self.written(self.windows.operands(), prod(self.dims), flops=self.windows.flops // 2)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        windows, candidate = self.windows, self.candidate
        if candidate.rows_outside:
            batch, groups, planes, parts = self.dims
            image, part, stretch, plane = unravel(f, block, (batch, parts, groups, planes))
        else:
            image, stretch, plane, part = unravel(f, block, self.dims)
        first: Amount = 0
        last: Amount = windows.output.size[1]
        if is_free(self.dims[3]) or self.dims[3] > 1:
            first = f.mul(part, candidate.row_stretch)
            last = f.minimum(f.add(first, candidate.row_stretch), f.integer(windows.output.size[1]))
        begin = f.mul(stretch, candidate.vector_stretch)
        end = f.add(begin, candidate.vector_stretch)
        x = f.at(pointers[INPUT], f.mul(image, windows.input.image_stride))
        for deep in self.planes:
            inside = f.binary(
                "and",
                f.compare("sge", plane, f.integer(deep.first)),
                f.compare("slt", plane, f.integer(deep.first + deep.count)),
            )

            def all_vectors(deep: Rows = deep) -> None:
                place = _BlockRows(pointers, image, plane, x, first, last, deep)
                each_vector(f, windows.input, self.lanes, begin, end, partial(self._vector, f, place))

            if len(self.planes) == 1:
                all_vectors()
            else:
                f.when(inside, all_vectors)

    def _vector(self, f: Function, place: _BlockRows, valid: int) -> Callable[[Value, tuple[Value, ...]], None]:
        windows, layout, deep = self.windows, self.windows.input, place.deep
        corner = layout.position(0, 0, layout.before)

        def vector(number: Value, _: tuple[Value, ...]) -> None:
            if self.lanes == 1:
                offset = f.mul(number, layout.block_stride)
            else:
                offset = vector_at(f, layout, number, self.lanes)
            start_plane = f.add(
                f.mul(place.plane, windows.strides[0]), deep.low * windows.dilations[0] - windows.pads[0]
            )  # fmt: skip
            at = f.at(place.x, f.add(f.add(offset, f.mul(start_plane, layout.plane_stride)), corner))

            def tile(down: Rows, across: Columns, row: Value, column: Value, _: int) -> None:
                low, seen = taps_of_row(f, windows, down, row)
                start = f.add(f.mul(low, windows.dilations[1]), -windows.pads[1])
                from_row = f.mul(f.add(f.mul(row, windows.strides[1]), start), layout.row_stride)
                from_column = f.mul(f.add(f.mul(column, windows.strides[2]), -windows.pads[2]), layout.column_stride)
                variables = variables_at(
                    f, windows, (place.image, place.plane, f.integer(0)), f.mul(number, self.lanes),
                    windows.output.channels, row, column, self.lanes,
                )  # fmt: skip
                y = output_at(f, windows, place.pointers[OUTPUT], variables)
                operands = operands_at(f, windows, place.pointers, variables)
                border: tuple[Value, ...] = ()
                if across.at_border:
                    left = f.add(f.mul(column, windows.strides[2]), -windows.pads[2])
                    border = left, f.sub(f.integer(windows.output.size[2]), column)
                f.call(
                    self._function(across, valid),
                    f.at(at, f.add(from_row, from_column)),
                    y,
                    f.integer(deep.high - deep.low),
                    seen,
                    self._counted(f, deep, down, row),
                    *border,
                    *operands,
                )

            each_tile(f, self.rows, self.columns, place.first, place.last, tile)

        return vector

    def _counted(self, f: Function, deep: Rows, down: Rows, row: Value) -> Value:
        """How many places of the windows of a row of outputs count along planes and rows."""
        if self.problem.kind == "max":  # nobody asks how many there were
            return f.number("float", 1)
        if down.at_border:
            start = f.add(f.mul(row, self.windows.strides[1]), -self.windows.pads[1])
            return self._looked_at(f, 1, start, 0)
        rows = self.windows.kernel[1] if self.of_any_sides else self.problem.counted(1, down.first)
        return f.number("float", self.problem.counted(0, deep.first) * rows)

    def _looked_at(self, f: Function, axis: int, start: Value, first: int) -> Value:
        """How many places of a window that begins `first` behind `start` count along an axis of any size."""
        line, after = self.problem.axes[axis], self.problem.after[axis]
        low, high = (-line.pad, line.size + after) if self.problem.count_pads else (0, line.size)
        ones = []
        for tap in range(line.taps):
            place = f.add(start, first + tap * line.dilation - low)
            counts = f.compare("ult", place, f.integer(high - low))
            ones.append(f.select(counts, f.number("float", 1), f.number("float", 0)))
        return reduce(f.add, ones)

    def _function(self, across: Columns, valid: int) -> str:
        """f(x, y, planes, rows, counted, operands of the epilogue...): one tile of one row."""
        kind = "border" if across.at_border else "inside" if self.of_any_sides else self.columns.index(across)
        name = f"{self.name}_{kind}_{valid}"
        if self.module.has(name):
            return name
        windows, layout = self.windows, self.windows.input
        f = Function(
            self.module,
            name,
            (
                Parameter("x", "ptr", "noalias nocapture readonly"),
                Parameter("y", "ptr", "nocapture"),
                Parameter("planes", "i64"),
                Parameter("rows", "i64"),
                Parameter("counted", "float"),
                *((Parameter("left", "i64"), Parameter("columns", "i64")) if across.at_border else ()),
                *parameters_of(windows.epilogue),
            ),
        )
        start = f.number(self.kind, float("-inf") if self.problem.kind == "max" else 0.0)

        def plane(deep: Value, carried: tuple[Value, ...]) -> tuple[Value, ...]:
            x = f.at(f.parameter("x"), f.mul(deep, windows.dilations[0] * layout.plane_stride))

            def row(number: Value, inner: tuple[Value, ...]) -> list[Value]:
                at = f.at(x, f.mul(number, windows.dilations[1] * layout.row_stride))
                return self._row(f, across, valid, at, inner)

            return f.loop(0, f.parameter("rows"), 1, row, carried)

        found = list(f.loop(0, f.parameter("planes"), 1, plane, [start] * across.size))
        if self.problem.kind == "average":
            found = self._divided(f, across, found)
        if across.at_border:
            for column, value in enumerate(found):
                exists = f.compare("ult", f.integer(column), f.parameter("columns"))
                f.when(exists, partial(self._store, f, [(0, column)], [value], valid))
        else:
            self._store(f, [(0, column) for column in range(across.size)], found, valid)
        f.finish()
        return name

    def _store(self, f: Function, pixels: Sequence[tuple[int, int]], values: Sequence[Value], valid: int) -> None:
        leaves = leaves_of(f, self.windows.epilogue, self.windows.variables[5], self.lanes)
        store_pixels(f, self.windows, leaves, f.parameter("y"), pixels, values, (valid,), self.lanes)

    def _row(self, f: Function, across: Columns, valid: int, x: Value, carried: tuple[Value, ...]) -> list[Value]:
        """One row of the windows of a tile: each input is read once, and a window's inputs meet in pairs."""
        windows, layout = self.windows, self.windows.input
        masked = layout.order == "NHWC" and valid < self.lanes
        least = ""
        if across.at_border:
            outside = "0xFFF0000000000000" if self.problem.kind == "max" else "0.0"
            least = self.module.constant(f"{self.name}_least", "float", [outside] * self.lanes)
        read: dict[int, Value] = {}
        found = []
        for column, (low, high) in enumerate(across.taps):
            seen = []
            for tap in range(low, high):
                place = column * windows.strides[2] + tap * windows.dilations[2]
                if place not in read:
                    address = f.at(x, place * layout.column_stride)
                    if across.at_border:
                        end = f.integer(layout.size[2])
                        is_stored = f.compare("ult", f.add(f.parameter("left"), place), end)
                        address = f.select(is_stored, address, Value((least,), "ptr"))
                    if masked:
                        read[place] = f.masked_load(self.kind, address, f.first_lanes(valid, self.lanes))
                    else:
                        read[place] = f.load(self.kind, address)
                seen.append(read[place])
            while len(seen) > 1:
                pairs = [self._met(f, a, b) for a, b in zip(seen[::2], seen[1::2], strict=False)]
                seen = pairs + seen[2 * len(pairs) :]
            found.append(self._met(f, carried[column], seen[0]))
        return found

    def _met(self, f: Function, left: Value, right: Value) -> Value:
        return f.maximum(left, right) if self.problem.kind == "max" else f.add(left, right)

    def _divided(self, f: Function, across: Columns, sums: list[Value]) -> list[Value]:
        """Sums over how many places counted: those of the column times those of row and plane, which are given."""
        divisors: dict[int, Value] = {}
        found = []
        for column, total in enumerate(sums):
            counted = self.windows.kernel[2] if self.of_any_sides else self.problem.counted(2, across.first + column)
            if across.at_border:  # which column this is the run says
                left = f.parameter("left")
                divisors[counted] = self._divisor(f, self._looked_at(f, 2, left, column * self.windows.strides[2]))
            elif counted not in divisors:
                divisors[counted] = self._divisor(f, f.number("float", counted))
            found.append(f.div(total, divisors[counted]))
        return found

    def _divisor(self, f: Function, along: Value) -> Value:
        return f.splat(f.mul(f.parameter("counted"), along), self.lanes)


@dataclass(frozen=True, slots=True)
class _BlockRows:
    """What all vectors of a block share."""

    pointers: dict[str, Value]
    image: Value
    plane: Value
    x: Value  # the image's first element
    first: Amount  # rows
    last: Amount
    deep: Rows


def _alike(kinds: tuple[Rows, ...], problem: Pooling, axis: int) -> tuple[Rows, ...]:
    """The kinds cut where another number of places counts."""
    found: list[Rows] = []
    for kind in kinds:
        counted = -1
        for number in range(kind.first, kind.first + kind.count):
            now = problem.counted(axis, number)
            if now == counted:
                last = found[-1]
                found[-1] = Rows(last.first, last.count + 1, last.low, last.high)
            else:
                found.append(Rows(number, 1, kind.low, kind.high))
            counted = now
    return tuple(found)


def _alike_columns(kinds: tuple[Columns, ...], problem: Pooling) -> tuple[Columns, ...]:
    """The tiles of columns cut where other numbers of places count."""
    found: list[Columns] = []
    for kind in kinds:
        counted: list[int] = []
        for tile in range(kind.count):
            first = kind.first + tile * kind.size
            now = [problem.counted(2, first + column) for column in range(kind.size)]
            if now == counted:
                found[-1] = replace(found[-1], count=found[-1].count + 1)
            else:
                found.append(replace(kind, first=first, count=1))
            counted = now
    return tuple(found)
