"""The sizes of a Winograd convolution's parts: tiles, channels of a dense group, and the distances in scratch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.size import bound, is_free
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.convolution.problem import Convolution, of_any_sides
from kernels.templates.convolution.steps import dense_count, merged_groups, vector_groups
from kernels.templates.convolution.taps import share
from kernels.templates.convolution.toom_cook import rounded
from kernels.templates.convolution.winograd_choice import Winograd, images_of
from kernels.templates.convolution.winograd_kinds import (
    Kind,
    axis_of,
    kinds_of,
    lines_of,
    merged_kinds,
    tiles_of_any_size,
    windows_of_any_size,
)
from kernels.templates.convolution.winograd_narrow import TapPacking
from kernels.templates.convolution.winograd_parts import (
    channels_of_plane,
    filterings,
    outputs_apart,
    parts_of,
    points_of,
    sums_of,
)
from kernels.templates.convolution.winograd_weights import WinogradPacking
from kernels.templates.cost import PAGE
from kernels.templates.grid import balanced, cut


class WinogradSizes(Builder[Convolution, Winograd]):
    """A builder that knows them."""

    def __init__(self, problem: Convolution, candidate: Winograd, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.kind = types.vector("float", self.lanes)
        self.packing: TapPacking | WinogradPacking = WinogradPacking(
            problem, self.lanes, candidate.vectors, candidate.sides
        )
        if candidate.from_taps:
            self.packing = TapPacking(problem, self.lanes, candidate.vectors)
        self.made, self.parts = filterings(candidate.sides), parts_of(problem, candidate.sides)
        self.points = points_of(self.made)
        self.window_matrices, self.output_matrices = (
            [rounded(one.window) for one in self.made],
            [rounded(one.output) for one in self.made],
        )
        self.of_any_sides = of_any_sides(problem)
        self.any_row, self.zeros = False, self.lanes
        (self._kinds_of_any_sides if self.of_any_sides else self._kinds)()
        self.lines, self.wide = lines_of(problem, candidate.sides)
        self.chunks = () if self.of_any_sides else balanced(self.lines, candidate.chunk)
        self.channels = vector_groups(problem, self.lanes, candidate.vectors)
        self.groups, together = dense_count(problem), merged_groups(problem)
        self.in_depth, self.width = problem.depth * together, problem.width * together  # channels of a dense group
        # And those of all planes that a kernel sees, by all of its parts.
        self.depth = sums_of(problem, candidate.sides) * channels_of_plane(problem, candidate.sides)
        # Blocks of channels of a dense group, and the vectors of each: in NHWC a group is one.
        block = self.in_depth if problem.input.order == "NHWC" else problem.input.block
        self.in_blocks, self.in_block = -(-self.in_depth // block), -(-block // self.lanes)
        self.rest = block % self.lanes  # channels of a last vector that is not whole
        self.in_vectors = self.in_blocks * self.in_block * sums_of(problem, candidate.sides)
        self.out_vectors = sum(group.size * group.count for group in self.channels)
        self.joined = () if candidate.images == 1 else cut(images_of(problem), candidate.images)
        # Tiles of a block, the largest; of any sides to the end of the last register tile.
        chunk = candidate.chunk if self.of_any_sides else self.chunks[0].size * candidate.images
        self.most = (candidate.room or chunk) * bound(self.wide) + (candidate.rows - 1 if self.of_any_sides else 0)
        # Whether outputs in some planes see fewer: those beside the images are zeros.
        self.some_planes = share(problem, 0, balanced(problem.output.size[0], 1)) < 1
        self.depth_row, self.width_row = (n * self.lanes for n in (self.in_vectors, self.out_vectors))
        self.depth_point = _apart(self.most * self.depth_row, self.lanes)
        self.width_point = _apart(self.most * self.width_row, self.lanes)
        widest = max(group.size for group in self.channels)
        # Of weights that a block transforms.
        self.filter_point = _apart(self.depth * widest * self.lanes, self.lanes) if self.candidate.from_taps else 0

    def _kinds(self) -> None:
        """Kinds of windows and tiles: by what of the image they see, and how many outputs exist."""
        problem = self.problem
        rows, columns = (
            [kinds_of(problem, axis, made, part) for part in range(parts)]
            for axis, made, parts in zip((1, 2), self.made, self.parts, strict=True)
        )
        # Where a row outside of the image can be read from zeros, windows of all rows of tiles have one function.
        across = problem.strides[2] * problem.dilations[2] * problem.input.column_stride
        self.zeros = (self.made[1].size - 1) * across + self.lanes
        self.any_row = max(map(len, rows)) > 1 and 4 * self.zeros <= PAGE
        seen = [
            [replace(one, low=0, high=self.made[0].size) for one in kinds] if self.any_row else kinds for kinds in rows
        ]
        self.windows = tuple(  # of each part of the kernel, down and across
            [merged_kinds([replace(one, outputs=0) for one in kinds]) for kinds in parts] for parts in (seen, columns)
        )
        # Rows that all windows have.
        self.inside = [(max(one.low for one in kinds), min(one.high for one in kinds)) for kinds in rows]
        self.tiles = tuple(
            merged_kinds([replace(one, low=0, high=0) for one in kinds]) for (kinds, *_) in (rows, columns)
        )

    def _kinds_of_any_sides(self) -> None:
        """The same where only the run knows the sides: those inside, and at the borders those that are looked at."""
        axes = tuple(zip((1, 2), self.made, self.parts, strict=True))
        self.windows = tuple(
            [windows_of_any_size(self.problem, axis, made, part) for part in range(parts)] for axis, made, parts in axes
        )
        self.tiles = tuple(tiles_of_any_size(self.problem, axis, made) for axis, made, _ in axes)

    def _each_tile(
        self, f: Function, lines: Sequence[Value], kinds: Sequence[Sequence[Kind]],
        body: Callable[[Kind, Kind, Value, Value, Value], None],
    ) -> None:  # fmt: skip
        """body(row kind, column kind, row of tiles, column, number in the chunk) for every tile of a chunk.

        `lines`: its first line of tiles, and the one after its last.
        """
        first, _ = lines
        if axis_of(self.problem) == 2:
            (down,) = kinds[0]
            for across in kinds[1]:
                begin, last = _within(f, across, lines)

                def tile(column: Value, _: tuple[Value, ...], across: Kind = across) -> None:
                    body(down, across, f.integer(0), column, f.sub(column, first))

                f.loop(begin, last, 1, tile)
            return
        for down in kinds[0]:
            begin, last = _within(f, down, lines)

            def row(tile_row: Value, _: tuple[Value, ...], down: Kind = down) -> None:
                start = f.mul(f.sub(tile_row, first), self.wide)
                for across in kinds[1]:

                    def one(column: Value, _: tuple[Value, ...], across: Kind = across) -> None:
                        body(down, across, tile_row, column, f.add(start, column))

                    f.loop(across.first, across.first + across.count, 1, one)

            f.loop(begin, last, 1, row)

    def _first(self, f: Function, axis: Literal[1, 2], tile: Value) -> Value:
        """The first output of a tile along an axis."""
        outputs, apart = self.made[axis - 1].outputs, outputs_apart(self.problem, axis)
        if apart == 1:
            return f.mul(tile, outputs)
        before = f.mul(f.binary("udiv", tile, f.integer(apart)), (outputs - 1) * apart)
        return f.add(tile, before)


def _within(f: Function, kind: Kind, lines: Sequence[Value]) -> tuple[Value, Value]:
    """The first tile of a kind between two, and the end."""
    first, end = lines
    starts = is_free(kind.first) or kind.first
    return f.maximum(first, f.integer(kind.first)) if starts else first, f.minimum(
        end, f.integer(kind.first + kind.count)
    )


def _apart(elements: int, lanes: int) -> int:
    """A distance between points that is no multiple of a page, so that a window's vectors do not crowd one set."""
    return elements + lanes if elements * 4 % PAGE == 0 else elements
