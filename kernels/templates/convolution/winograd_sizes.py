"""The sizes of a Winograd convolution's parts: tiles, channels of a dense group, and the distances in scratch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import dense_count, merged_groups, vector_groups
from kernels.templates.convolution.taps import share
from kernels.templates.convolution.toom_cook import rounded
from kernels.templates.convolution.winograd_choice import Winograd, images_of
from kernels.templates.convolution.winograd_kinds import Kind, kinds_of, merged_kinds
from kernels.templates.convolution.winograd_narrow import TapPacking
from kernels.templates.convolution.winograd_weights import FILTERINGS, WinogradPacking, channels_of_plane
from kernels.templates.cost import PAGE
from kernels.templates.grid import balanced, cut


class WinogradSizes(Builder[Convolution, Winograd]):
    """A builder that knows them."""

    def __init__(self, problem: Convolution, candidate: Winograd, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.kind = types.vector("float", self.lanes)
        self.packing: TapPacking | WinogradPacking = WinogradPacking(
            problem, self.lanes, candidate.vectors, candidate.outputs
        )
        if candidate.from_taps:
            self.packing = TapPacking(problem, self.lanes, candidate.vectors)
        self.made = FILTERINGS[candidate.outputs]
        self.window_matrix, self.output_matrix = rounded(self.made.window), rounded(self.made.output)
        rows, columns = (kinds_of(problem, axis, self.made) for axis in (1, 2))
        # Where a row outside of the image can be read from zeros, windows of all rows of tiles have one function.
        self.zeros = (self.made.size - 1) * problem.input.column_stride + self.lanes
        self.any_row = len(rows) > 1 and 4 * self.zeros <= PAGE
        self.windows = merged_kinds([replace(one, low=0, high=self.made.size, outputs=0) for one in rows]
                               if self.any_row else [replace(one, outputs=0) for one in rows]), \
            merged_kinds([replace(one, outputs=0) for one in columns])  # fmt: skip
        self.inside = max(one.low for one in rows), min(one.high for one in rows)  # rows that all windows have
        self.tiles = tuple(merged_kinds([replace(one, low=0, high=0) for one in kinds]) for kinds in (rows, columns))
        self.wide = -(-problem.output.size[2] // self.candidate.outputs)
        self.chunks = balanced(-(-problem.output.size[1] // self.candidate.outputs), candidate.chunk)
        self.channels = vector_groups(problem, self.lanes, candidate.vectors)
        self.groups, together = dense_count(problem), merged_groups(problem)
        self.in_depth, self.width = problem.depth * together, problem.width * together  # channels of a dense group
        self.depth = problem.kernel[0] * channels_of_plane(problem)  # and those of all planes that a kernel sees
        # Blocks of channels of a dense group, and the vectors of each: in NHWC a group is one.
        block = self.in_depth if problem.input.order == "NHWC" else problem.input.block
        self.in_blocks, self.in_block = -(-self.in_depth // block), block // self.lanes
        self.in_vectors = self.in_blocks * self.in_block * problem.kernel[0]
        self.out_vectors = sum(group.size * group.count for group in self.channels)
        self.joined = () if candidate.images == 1 else cut(images_of(problem), candidate.images)
        # Tiles of a block, the largest.
        self.most = (candidate.room or self.chunks[0].size * candidate.images) * self.wide
        # Whether outputs in some planes see fewer: those beside the images are zeros.
        self.some_planes = share(problem, 0, balanced(problem.output.size[0], 1)) < 1
        self.depth_row, self.width_row = (n * self.lanes for n in (self.in_vectors, self.out_vectors))
        self.depth_point = _apart(self.most * self.depth_row, self.lanes)
        self.width_point = _apart(self.most * self.width_row, self.lanes)
        widest = max(group.size for group in self.channels)
        # Of weights that a block transforms.
        self.filter_point = _apart(self.depth * widest * self.lanes, self.lanes) if self.candidate.from_taps else 0

    def _each_tile(
        self, f: Function, rows: Sequence[Value], kinds: Sequence[Sequence[Kind]],
        body: Callable[[Kind, Kind, Value, Value, Value], None],
    ) -> None:  # fmt: skip
        """body(row kind, column kind, row of tiles, column, number in the chunk) for every tile of a chunk.

        `rows`: its first row of tiles, and the one after its last.
        """
        first, end = rows
        for down in kinds[0]:
            last = f.minimum(end, f.integer(down.first + down.count))
            begin = f.maximum(first, f.integer(down.first)) if down.first else first

            def row(tile_row: Value, _: tuple[Value, ...], down: Kind = down) -> None:
                start = f.mul(f.sub(tile_row, first), self.wide)
                for across in kinds[1]:

                    def one(column: Value, _: tuple[Value, ...], across: Kind = across) -> None:
                        body(down, across, tile_row, column, f.add(start, column))

                    f.loop(across.first, across.first + across.count, 1, one)

            f.loop(begin, last, 1, row)


def _apart(elements: int, lanes: int) -> int:
    """A distance between points that is no multiple of a page, so that a window's vectors do not crowd one set."""
    return elements + lanes if elements * 4 % PAGE == 0 else elements
