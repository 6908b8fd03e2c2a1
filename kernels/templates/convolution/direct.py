"""Direct convolution: any kernel, strides, dilations, pads and groups, between any two orders of dims.

A block is a stretch of row tiles by a stretch of channel tiles of one plane of one image. The input is read in place
where it is stored with the zeros that are needed, and copied into scratch with them otherwise. Weights that outgrow the
second cache are taken in parts along the input channels ("splits"): while all pixels of a block go over one part, the
next one is asked for, and sums wait in scratch. Where all pixels go over one channel tile's weights, those of the next
tile are asked for. Narrow weights are widened into scratch, a part of a channel tile's at a time. An output in NCHW
leaves through scratch, too, where it is turned.
"""

from __future__ import annotations

from math import prod

from kernels.dtype import DType
from kernels.kernel import ENTRY, Kernel, Operand, pointers_of
from kernels.llvm import types
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.convolution.direct_block import BlockAt, DenseGroups
from kernels.templates.convolution.direct_candidate import Direct
from kernels.templates.convolution.places import channel_of_group, operands_at, output_at, variables_at
from kernels.templates.convolution.planar import write_planar
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS, Convolution
from kernels.templates.convolution.stage import window, write_stage
from kernels.templates.convolution.steps import (
    DirectPacking,
    Merged,
    chunks,
    merged,
    split_groups,
    valid_lanes,
    vector_groups,
)
from kernels.templates.convolution.taps import around, write_needed
from kernels.templates.convolution.tile import PixelTile, write_tile
from kernels.templates.grid import Group, balanced, each_piece, pieces, start_of, stretch_of, unravel
from kernels.templates.narrow import NARROW, write_widening

_LINE = 64  # bytes
_PLACES = ("image", "plane", "group")
_ENDS = ("row", "end_row", "channel", "end_channel")


def build(problem: Convolution, candidate: Direct, target: Target, name: str = "convolution") -> Kernel:
    """The kernel: operands "x", "weights", those of the epilogue, "y"."""
    return DirectBuilder(problem, candidate, target, name).kernel()


class DirectBuilder(Builder[Convolution, Direct]):
    """Writes a direct convolution."""

    def __init__(self, problem: Convolution, candidate: Direct, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.packing = DirectPacking(problem, self.lanes, candidate.vectors)
        height, width = problem.output.size[1:]
        self.columns = () if candidate.flat else balanced(width, candidate.columns)
        self.rows = balanced(height * width, candidate.columns) if candidate.flat else balanced(height, candidate.rows)
        self.row_blocks = -(-pieces(self.rows) // candidate.row_stretch)
        self.row_tiles = candidate.larger or candidate.row_stretch  # of the block that decides what is written
        self.around = None if candidate.flat else around(problem, self.rows, self.columns)
        self.staged = not problem.has_halo
        self.planar = problem.output.order == "NCHW" and problem.output.channels > 1
        self.through_scratch = candidate.splits > 1 or self.planar
        self.dense = tuple(self._dense(one) for one in merged(problem))
        several = candidate.row_stretch > 1 or pieces(self.columns) > 1  # tiles that each channel tile's weights pass
        passed = several and (candidate.channels_outside or candidate.splits > 1)
        self.widens = passed and problem.weights_dtype in NARROW
        self.stored = memory_type(problem.weights_dtype)  # a weight

    def _dense(self, some: Merged) -> DenseGroups:
        problem, candidate = self.problem, self.candidate
        depth, width = problem.depth * some.together, problem.width * some.together
        channels = split_groups(
            vector_groups(problem, self.lanes, candidate.vectors, some.together), width, self.lanes
        )  # fmt: skip
        source = problem.input
        if self.staged:
            source = window(problem, max(group.size for group in self.rows) * self.row_tiles, depth, self.around)
        blocks = -(-pieces(channels) // candidate.channel_stretch)
        dims = (problem.output.batch, problem.output.size[0], some.count, self.row_blocks, blocks)
        steps = chunks(problem, source, depth // candidate.splits)
        return DenseGroups(some, depth, width, channels, source, steps, self.packing.steps(some.together), dims)

    def kernel(self) -> Kernel:
        """The kernel, written."""
        problem = self.problem
        scratch = self._staged_bytes() + self._sums_bytes() + self._widened_bytes()
        return self.written(
            self.operands(), sum(prod(one.block_dims) for one in self.dense),
            scratch_bytes=scratch, flops=problem.flops, traffic=problem.traffic,
        )  # fmt: skip

    def operands(self) -> tuple[Operand, ...]:
        """The table of arguments."""
        return self.problem.operands(self.packing)

    def _staged_bytes(self) -> int:
        most = max(one.source.elements for one in self.dense)
        return -(-most * 4 // _LINE) * _LINE if self.staged else 0

    def _sums_bytes(self) -> int:
        """Scratch for the sums of one channel tile over all row tiles of a block (one tile's, where not split)."""
        if not self.through_scratch:
            return 0
        widest = self.dense[0].widest * self.lanes * 4
        return self._pixels_of_piece() * widest * (self.candidate.row_stretch if self.candidate.splits > 1 else 1)

    def _widened_bytes(self) -> int:
        """Scratch for a part of a channel tile's weights."""
        if not self.widens:
            return 0
        return max(one.all_steps // self.candidate.splits * one.widest for one in self.dense) * self.lanes * 4

    def _pixels_of_piece(self) -> int:
        rows = max(group.size for group in self.rows)
        return rows if self.candidate.flat else rows * self.problem.output.size[2]

    # -- the entry: which block, which window, and the loops -----------------------------------------------------------

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        """The tiles of a block, of one kind of dense groups or the other."""
        if len(self.dense) == 1:
            return self._block(f, self.dense[0], block, scratch)
        most, rest = self.dense
        count = prod(most.block_dims)
        f.when(
            f.compare("ult", block, f.integer(count)),
            lambda: self._block(f, most, block, scratch),
            lambda: self._block(f, rest, f.sub(block, count), scratch),
        )
        return None

    def _block(self, f: Function, dense: DenseGroups, block: Value, scratch: Value) -> None:
        """The tiles of a block, by a function for any stretch of them, which kernels with other blocks share."""
        candidate = self.candidate
        image, plane, group, row_block, channel_block = unravel(f, block, dense.block_dims)
        rows = stretch_of(f, row_block, candidate.row_stretch, pieces(self.rows))
        channels = stretch_of(f, channel_block, candidate.channel_stretch, pieces(dense.channels))
        places = [one for one, dim in zip((image, plane, group), dense.block_dims, strict=False) if dim != 1]
        name = self._write_tiles(dense)
        f.call(name, f.parameter("arguments"), *places, *map(f.integer, (*rows, *channels)), scratch)

    def _write_tiles(self, dense: DenseGroups) -> str:
        """Write f(arguments, places on dims that are not one, ends of row tiles and of channel tiles, scratch)."""
        table, _, scratch = ENTRY
        several = [one for one, dim in zip(_PLACES, dense.block_dims, strict=False) if dim != 1]
        given = (table, *(Parameter(one, "i64") for one in (*several, *_ENDS)), scratch)
        f = Function(self.module, f"{self.name}{dense.suffix}_tiles", given, small=True)
        image, plane, group = (f.parameter(one) if one in several else f.integer(0) for one in _PLACES)
        row, end_row, channel, end_channel = map(f.parameter, _ENDS)
        pointers = pointers_of(f, self.operands())
        self._tiles(
            f, dense, (image, plane, group), pointers, f.parameter("scratch"), (row, end_row), (channel, end_channel)
        )
        f.finish()
        return f.name

    def _tiles(
        self,
        f: Function,
        dense: DenseGroups,
        at: tuple[Value, Value, Value],
        pointers: dict[str, Value],
        scratch: Value,
        rows: tuple[Amount, Amount],
        channels: tuple[Amount, Amount],
    ) -> None:
        problem, candidate = self.problem, self.candidate
        image, plane, group = at = (*at[:2], f.add(at[2], dense.groups.first))
        x = self.first_channel(f, pointers[INPUT], image, group)
        first_row = start_of(f, self.rows, rows[0]) if self.staged else f.integer(0)
        seen = f.integer(0)
        if self.staged:
            end_row = start_of(f, self.rows, f.integer(rows[1]))
            x, seen = self._stage(f, dense, x, scratch, plane, first_row, end_row)
        else:
            place = [b - p for b, p in zip(problem.input.before, problem.pads, strict=True)]
            start = f.mul(plane, problem.strides[0] * problem.input.plane_stride)
            x = f.at(x, f.add(start, problem.input.position(0, 0, (place[0], place[1], place[2]))))
        distance = f.mul(group, self.packing.group_elements(self.dense[0].groups.together))
        weights = f.at(pointers[WEIGHTS], distance, self.stored)
        wide = f.at(scratch, self._staged_bytes(), "i8") if self._staged_bytes() else scratch
        sums = f.at(wide, self._widened_bytes(), "i8") if self.widens else wide  # last: they follow the block's size
        tile = BlockAt(dense, at, pointers, x, weights, wide, sums, first_row, rows[0], seen)
        if candidate.splits > 1:
            self._channels_then_splits(f, tile, rows, channels)
        elif candidate.channels_outside:

            def all_rows(group: Group, vector: Value) -> None:
                self._widen(f, tile, group, vector, f.integer(0))
                each_piece(f, self.rows, *rows, lambda r, s: self._row(f, tile, r, s, group, vector))

            each_piece(f, dense.channels, *channels, all_rows)
        else:
            each_piece(
                f, self.rows, *rows,
                lambda r, s: each_piece(f, dense.channels, *channels, lambda c, v: self._row(f, tile, r, s, c, v)),
            )  # fmt: skip

    def first_channel(self, f: Function, x: Value, image: Value, group: Value) -> Value:
        """The first stored element of a dense group's first channel in an image."""
        return channel_of_group(f, self.problem.input, self.dense[0].depth, x, image, group)

    def _stage(
        self, f: Function, dense: DenseGroups, x: Value, scratch: Value, plane: Value, first: Value, end: Value
    ) -> tuple[Value, Value]:
        """Copy what rows of outputs see into scratch; returns it, and which row of the padded input it begins with."""
        pad, stride, reach = (one[1] for one in (self.problem.pads, self.problem.strides, self.problem.reach))
        left = self.problem.pads[2] if self.around is None else self.around[1][0]
        function = self.write_copy(dense, left, self.name + dense.suffix)
        from_plane = f.add(f.mul(plane, self.problem.strides[0]), -self.problem.pads[0])
        from_row, seen = f.add(f.mul(first, stride), -pad), f.integer(0)
        height = f.add(f.mul(f.sub(end, first), stride), reach - stride)
        if self.around is not None:
            before, after = self.around[0]
            to_row = f.minimum(f.add(from_row, height), f.integer(self.problem.input.size[1] + after))
            from_row = f.maximum(from_row, f.integer(-before))
            height, seen = f.sub(to_row, from_row), f.add(from_row, pad)
        f.call(function, x, scratch, from_plane, from_row, height)
        return scratch, seen

    def write_copy(self, dense: DenseGroups, left: int, prefix: str) -> str:
        """Write the function that copies a window (`write_stage`), and return its name."""
        return write_stage(self.module, self.problem, dense.source, left, prefix=prefix)

    def _channels_then_splits(
        self, f: Function, tile: BlockAt, rows: tuple[Amount, Amount], channels: tuple[Amount, Amount]
    ) -> None:
        last = self.candidate.splits - 1

        def part(number: Amount, group: Group, vector: Value, ends: bool) -> None:
            self._widen(f, tile, group, vector, f.integer(number))
            each_piece(
                f, self.rows, *rows,
                lambda r, s: self._row(f, tile, r, s, group, vector, f.integer(number), begins=False, ends=ends),
            )  # fmt: skip

        def all_parts(group: Group, vector: Value) -> None:
            # The first part goes on from zeros, so that it needs no function of its own.
            self._clear(f, tile.sums, rows)
            f.loop(0, last, 1, lambda number, _: part(number, group, vector, False))
            part(last, group, vector, True)

        each_piece(f, tile.dense.channels, *channels, all_parts)

    def _clear(self, f: Function, sums: Value, rows: tuple[Amount, Amount]) -> None:
        """Zeros where the sums of a channel tile wait, for some row tiles."""
        kind = types.vector("float", self.lanes)

        def one(place: Value, _: tuple[Value, ...]) -> None:
            f.store(f.number(kind, 0), f.at(sums, place), align=4 * self.lanes)

        each = self._pixels_of_piece() * self.dense[0].widest * self.lanes
        f.loop(0, f.mul(f.sub(f.integer(rows[1]), rows[0]), each), self.lanes, one)

    def _weights(self, f: Function, place: BlockAt, channels: Group, vector: Value, part: Value) -> Value:
        """A part of a channel tile's weights, as they lie in memory."""
        steps, before = place.dense.all_steps, f.mul(vector, place.dense.all_steps * self.lanes)
        within = f.mul(part, steps // self.candidate.splits * channels.size * self.lanes)
        return f.at(place.weights, f.add(before, within), self.stored)

    def _widen(self, f: Function, place: BlockAt, channels: Group, vector: Value, part: Value) -> None:
        """Write a part of a channel tile's weights to scratch, where they are widened there."""
        if self.widens:
            function = write_widening(self.module, self.problem.weights_dtype, prefix=self.name)
            vectors = place.dense.all_steps // self.candidate.splits * channels.size
            f.call(function, self._weights(f, place, channels, vector, part), place.wide, f.integer(vectors))

    # -- one row tile -------------------------------------------------------------------------------------------------

    def _row(
        self, f: Function, place: BlockAt, group: Group, start: Value, channels: Group, vector: Value,
        part: Value | None = None, *, begins: bool = True, ends: bool = True,
    ) -> None:  # fmt: skip
        """All tiles of one row piece (of flat pixels: the one tile) by one channel tile."""
        part = part or f.integer(0)
        if self.candidate.flat:
            self._tile(f, place, 1, group.size, f.integer(0), start, channels, vector, part, begins, ends)
        else:

            def one(columns: Group, column: Value) -> None:
                self._tile(
                    f, place, group.size, columns.size, start, column, channels, vector, part, begins, ends
                )  # fmt: skip

            each_piece(f, self.columns, 0, pieces(self.columns), one)

    def _tile(
        self,
        f: Function,
        place: BlockAt,
        rows: int,
        columns: int,
        row: Value,
        column: Value,
        channels: Group,
        vector: Value,
        part: Value,
        begins: bool,
        ends: bool,
    ) -> None:
        problem, candidate, dense = self.problem, self.candidate, place.dense
        source = dense.source
        _, strides_row, strides_column = problem.strides
        taps: tuple[Value, ...] = ()
        if self.around is None:
            distance = f.add(
                f.mul(f.sub(row, place.first_row) if self.staged else row, strides_row * source.row_stride),
                f.mul(column, strides_column * source.column_stride),
            )
        else:  # to what the first tap sees that is needed: others may lie outside of a copy
            taps = write_needed(f, problem, (row, column), (rows, columns))
            down = f.add(f.mul(row, strides_row), f.mul(taps[0], problem.dilations[1]))
            right = f.add(f.mul(column, strides_column), f.mul(taps[1], problem.dilations[2]))
            if self.staged:
                down, right = f.sub(down, place.seen), f.sub(right, problem.pads[2] - self.around[1][0])
            distance = f.add(f.mul(down, source.row_stride), f.mul(right, source.column_stride))
        x = f.at(place.x, distance)
        x = f.at(x, f.mul(part, self._part_distance(dense)))
        size = channels.size * self.lanes
        part_steps = dense.all_steps // candidate.splits
        weights = self._weights(f, place, channels, vector, part)
        valid = valid_lanes(channels.start, channels.size, dense.width, self.lanes)
        to_output = ends and not self.planar
        ahead, lines = self._ahead(dense, rows * columns, part_steps * size * problem.weights_dtype.bytes)
        dtype = DType.F32 if self.widens else problem.weights_dtype
        tile = PixelTile(rows, columns, valid, dense.steps, begins, to_output, ahead, dtype, bool(taps))
        name = (
            f"{self.name}{dense.suffix}_{rows}x{columns}x{tile.vectors}_{sum(valid)}"
            f"{'b' if begins else ''}{'e' if to_output else ''}"
        )
        if not self.module.has(name):
            write_tile(self.module, problem, source, tile, name=name)
        width = self.dense[0].width
        at = variables_at(f, problem, place.at, f.mul(vector, self.lanes), width, row, column)
        y = output_at(f, problem, place.pointers[OUTPUT], at)
        sums, following = place.sums, place.sums
        if ahead or candidate.splits > 1:
            pixel = self._pixel(f, place, rows, row, column)
            following = f.at(f.at(weights, part_steps * size, self.stored), f.mul(pixel, lines), "i8")
            if candidate.splits > 1:
                sums = f.at(sums, f.mul(pixel, dense.widest * self.lanes))
        operands = operands_at(f, problem, place.pointers, at) if ends else ()
        given = (x, place.wide if self.widens else weights, y, sums, following, *taps)
        f.call(name, *given, *(operands if to_output else ()))
        if ends and self.planar:
            turn = f"{name}_planar"
            if not self.module.has(turn):
                write_planar(self.module, problem, rows, columns, valid, name=turn)
            f.call(turn, sums, y, *operands)

    def _part_distance(self, dense: DenseGroups) -> int:
        """Elements of the source between the first channels of two parts."""
        if self.candidate.splits == 1:
            return 0
        block, lane = divmod(dense.depth // self.candidate.splits, dense.source.block)
        return block * dense.source.block_stride + lane

    def _pixel(self, f: Function, place: BlockAt, rows: int, row: Value, column: Value) -> Value:
        """How many pixels of a block come before a tile's: tile after tile, each with its pixels together."""
        begin = place.first_row if self.staged else start_of(f, self.rows, place.first_piece)
        if self.candidate.flat:
            return f.sub(column, begin)
        return f.add(f.mul(f.sub(row, begin), self.problem.output.size[2]), f.mul(column, rows))

    def _ahead(self, dense: DenseGroups, pixels: int, part: int) -> tuple[int, int]:
        """How a tile asks for its share of the next part of the weights: lines per chunk, and bytes for each pixel.

        All tiles of a block together ask for the next part, or for the next channel tile's weights, while they work on
        these; those of a smaller block for their share, so that their code is that of the larger one. Nobody asks where
        the first cache holds all of them.
        """
        candidate = self.candidate
        weights = self.packing.elements * self.problem.weights_dtype.bytes
        if candidate.splits == 1 and not (candidate.channels_outside and weights > self.target.l1):
            return 0, 0
        lines = -(-part // (_LINE * self._pixels_of_piece() * self.row_tiles))
        loops = sum(len(group.starts) for group in dense.steps)
        return -(-lines * pixels // loops), lines * _LINE
