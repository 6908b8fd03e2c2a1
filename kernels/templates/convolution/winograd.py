"""Winograd convolution: F(4x4, 3x3) needs 4/16 of a direct 3x3's multiplications, F(2x2, 3x3) 16/36.

A block takes a few rows of tiles of a plane, and all output channels or some: windows of 6 x 6 (4 x 4) inputs are
transformed into scratch, 36 (16) products of matrices (tiles x channels by channels x output channels) follow, and
tiles of 4 x 4 (2 x 2) outputs are transformed back, with the epilogue. The smaller tiles need less than half of the
weights, and waste less of an image that is no whole number of tiles. Of images of one row a block takes a part of it.

Kernels of one row or one column are filtered in one direction, with windows of up to nine: F(6, 3), F(4, 5), F(3, 7).
More taps are parts, each of which has windows of its own, and so are those that see rows of one phase where a stride
skips others; the products go over the channels of all. A kernel of several planes is such a sum too: the products go
over the channels of all planes that it sees. With a dilation elements of a window and outputs of a tile are as far
apart.

Weights are transformed when they are packed, in float64; those of 16 bits by each block, panel by panel. Windows that
reach over the image's border have functions of their own which read nothing outside, so that no zeros need to be stored
around an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.target import Target
from kernels.templates.builder import apart
from kernels.templates.convolution.problem import INPUT, WEIGHTS, Convolution
from kernels.templates.convolution.taps import needed_of_place
from kernels.templates.convolution.transform import product
from kernels.templates.convolution.winograd_back import WinogradBack
from kernels.templates.convolution.winograd_choice import Winograd, blocks_of, candidates, estimate
from kernels.templates.convolution.winograd_kinds import Kind, stored_of
from kernels.templates.convolution.winograd_narrow import write_filters
from kernels.templates.convolution.winograd_parts import offset_of
from kernels.templates.epilogue import Epilogue
from kernels.templates.grid import Group, balanced, each_piece, one_of, pieces, stretch_of, unravel
from kernels.templates.template import Template
from kernels.templates.tile import Asked, ProductTile, asked, write_tile
from kernels.tensor.expression import Variable

_TILE, _COLUMN = Variable("tile", 1), Variable("column", 1)


def build(problem: Convolution, candidate: Winograd, target: Target, name: str = "winograd") -> Kernel:
    """The kernel: operands "x", "weights", those of the epilogue, "y"."""
    return _WinogradBuilder(problem, candidate, target, name).kernel()


WINOGRAD = Template("winograd", Convolution, candidates, build, estimate)


class _WinogradBuilder(WinogradBack):
    def kernel(self) -> Kernel:
        problem, candidate = self.problem, self.candidate
        operands = problem.operands(self.packing, None if candidate.from_taps else DType.F32)
        return self.written(
            operands, blocks_of(problem, candidate, self.target),
            scratch_bytes=4 * self.points * (self.depth_point + self.width_point + self.filter_point),
            flops=problem.flops, traffic=problem.traffic,
        )  # fmt: skip

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if self.joined:
            return self._whole_images(f, pointers, block, scratch)
        total = pieces(self.channels)
        stretch = self.candidate.stretch or total
        dims = (self.problem.output.batch, self.problem.output.size[0], self.groups, pieces(self.chunks))
        image, plane, dense, piece, part = unravel(f, block, (*dims, -(-total // stretch)))
        channels = stretch_of(f, part, stretch, total)
        x = self._image(f, pointers, image, dense)
        weights, sums = self._weights_of(f, pointers, dense), f.at(scratch, self.points * self.depth_point)

        def chunk(group: Group, first: Value) -> None:
            last = f.add(first, group.size)
            planes = self._planes_into(f, x, scratch, plane, (first, last))
            self._products(f, weights, scratch, sums, group.size * self.wide, channels, planes)
            self._back(f, pointers, (image, plane, dense), sums, (first, last), channels)

        one_of(f, self.chunks, piece, chunk)
        return None

    def _whole_images(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        """A block of all tiles of some planes of outputs, which share what is read of the weights."""
        total, batch, planes = pieces(self.channels), self.problem.output.batch, self.problem.output.size[0]
        stretch = self.candidate.stretch or total
        number, dense, part = unravel(f, block, (pieces(self.joined), self.groups, -(-total // stretch)))
        channels = stretch_of(f, part, stretch, total)
        weights, sums = self._weights_of(f, pointers, dense), f.at(scratch, self.points * self.depth_point)
        rows = f.integer(0), f.integer(self.chunks[0].size)
        tiles = self.chunks[0].size * self.wide

        def images(group: Group, first: Value) -> None:
            def into(place: Value, _: tuple[Value, ...]) -> None:
                image, plane = unravel(f, f.add(first, place), (batch, planes))
                moved = f.at(scratch, f.mul(place, tiles * self.depth_row))
                self._planes_into(f, self._image(f, pointers, image, dense), moved, plane, rows)

            def back(place: Value, _: tuple[Value, ...]) -> None:
                image, plane = unravel(f, f.add(first, place), (batch, planes))
                made = f.at(sums, f.mul(place, tiles * self.width_row))
                self._back(f, pointers, (image, plane, dense), made, rows, channels)

            f.loop(0, group.size, 1, into)
            seen = f.integer(0), f.integer(self.problem.kernel[0])
            self._products(f, weights, scratch, sums, group.size * tiles, channels, seen)
            f.loop(0, group.size, 1, back)

        one_of(f, self.joined, number, images)

    def _image(self, f: Function, pointers: dict[str, Value], image: Value, dense: Value) -> Value:
        layout = self.problem.input
        apart = self.in_depth if layout.order == "NHWC" else self.in_depth // layout.block * layout.block_stride
        return f.at(f.at(pointers[INPUT], f.mul(image, layout.image_stride)), f.mul(dense, apart))

    def _weights_of(self, f: Function, pointers: dict[str, Value], dense: Value) -> Value:
        stored = memory_type(self.problem.weights_dtype if self.candidate.from_taps else DType.F32)
        return f.at(pointers[WEIGHTS], f.mul(dense, self.packing.group_elements), stored)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _planes_into(
        self, f: Function, x: Value, moved: Value, plane: Value, rows: tuple[Value, Value]
    ) -> tuple[Value, Value]:
        """Transform the windows in each plane that a kernel sees; returns the first of these, and the end."""
        problem, layout = self.problem, self.problem.input
        count, stride, dilation, pad = (
            one[0] for one in (problem.kernel, problem.strides, problem.dilations, problem.pads)
        )
        first, end = f.integer(0), f.integer(count)
        if self.some_planes:
            first, end = needed_of_place(f, problem, 0, plane, 1)
        begin = x
        if problem.output.size[0] > 1 or pad:
            begin = f.at(x, f.mul(f.add(f.mul(plane, stride), -pad), layout.plane_stride))
        if count == 1:
            self._into(f, begin, moved, rows)
        else:
            each = self.in_vectors // count * self.lanes

            def one(tap: Value, _: tuple[Value, ...]) -> None:
                source = f.at(begin, f.mul(tap, dilation * layout.plane_stride))
                self._into(f, source, f.at(moved, f.mul(tap, each)), rows)

            f.loop(first, end, 1, one)
        return first, end

    def _into(self, f: Function, x: Value, moved: Value, rows: tuple[Value, Value]) -> None:
        """Transform the windows of some lines of tiles, by each part of a kernel.

        They have functions that serve blocks of any size.
        """
        down, across = self.parts
        parts = [(row, column) for row in range(down) for column in range(across)]
        each = self.in_vectors // self.problem.kernel[0] // len(parts) * self.lanes
        for number, part in enumerate(parts):
            name = f"{self.name}_into" + (f"_{part[0]}_{part[1]}" if len(parts) > 1 else "")
            apart(f, name, (x, f.at(moved, number * each), *rows), partial(self._write_into, part))

    def _write_into(self, of: tuple[int, int], f: Function, x: Value, moved: Value, *rows: Value) -> None:
        problem, layout = self.problem, self.problem.input
        above, beside = (
            problem.pads[axis] - offset_of(problem, axis, taps, number)
            for axis, number, (_, taps) in zip((1, 2), of, self.candidate.sides, strict=True)
        )
        _, down_step, across_step = problem.strides
        corner = layout.position(0, 0, layout.before) - above * layout.row_stride - beside * layout.column_stride
        begin, _ = stored_of(problem, 1)

        def vectors(block: Value, _: tuple[Value, ...]) -> None:
            def vector(part: Value, _: tuple[Value, ...]) -> None:
                at = f.at(x, f.add(f.mul(block, layout.block_stride), f.mul(part, self.lanes)))
                to = f.at(moved, f.mul(f.add(f.mul(block, self.in_block), part), self.lanes))

                def tile(down: Kind, across: Kind, row: Value, column: Value, number: Value) -> None:
                    first, left = self._first(f, 1, row), self._first(f, 2, column)
                    first, left = f.mul(first, down_step), f.mul(left, across_step)
                    place = f.add(f.mul(first, layout.row_stride), f.mul(left, layout.column_stride))
                    function = self._window_function(down, across, of[0])
                    target = f.at(to, f.mul(number, self.depth_row))
                    top = [f.sub(first, above + begin)] if self.any_row else []
                    f.call(function, f.at(at, f.add(place, corner)), target, *top)

                self._each_tile(f, rows, [kinds[one] for kinds, one in zip(self.windows, of, strict=True)], tile)

            f.loop(0, self.in_block, 1, vector)

        f.loop(0, self.in_blocks, 1, vectors)

    def _window_function(self, down: Kind, across: Kind, part: int) -> str:
        """f(x, moved): transform the window whose first element would lie at `x`; only what is stored is read.

        f(x, moved, top) where rows differ: `top` rows from the first one that is stored lies that of the window.
        """
        low, high = self.inside[part] if self.any_row else (down.low, down.high)
        name = f"{self.name}_window_{low}{high}_{across.low}{across.high}"
        if self.module.has(name):
            return name
        given = [Parameter("x", "ptr", "noalias nocapture readonly"), Parameter("moved", "ptr", "noalias nocapture")]
        f = Function(self.module, name, [*given, Parameter("top", "i64")] if self.any_row else given)
        layout, (above, beside) = self.problem.input, self.window_matrices
        tall, wide = (one.size for one in self.made)
        step, beside_step = (self.problem.strides[axis] * self.problem.dilations[axis] for axis in (1, 2))
        rows = {row: f.at(f.parameter("x"), row * step * layout.row_stride) for row in range(down.low, down.high)}
        if self.any_row:
            zeros = self.module.constant(f"{self.name}_zeros", "float", ["0.0"] * self.zeros)
            begin, end = stored_of(self.problem, 1)
            for row in sorted(set(rows) - set(range(low, high))):
                is_stored = f.compare("ult", f.add(f.parameter("top"), row * step), f.integer(end - begin))
                rows[row] = f.select(is_stored, rows[row], Value((zeros,), "ptr"))
        # Down the columns first: of each only one column's vectors are alive at a time.
        columns: list[list[Value | None]] = []
        for column in range(wide):
            loaded: list[Value | None] = [None] * tall
            if across.low <= column < across.high:
                for row, at in rows.items():
                    loaded[row] = f.load(self.kind, f.at(at, column * beside_step * layout.column_stride))
            columns.append(product(f, above, loaded))
        for row in range(tall):
            moved = product(f, beside, [columns[column][row] for column in range(wide)])
            for column, value in enumerate(moved):
                target = f.at(f.parameter("moved"), (row * wide + column) * self.depth_point)
                f.store(value or f.number(self.kind, 0), target, align=4 * self.lanes)
        f.finish()
        return name

    # -- products -----------------------------------------------------------------------------------------------------

    def _products(
        self, f: Function, weights: Value, moved: Value, sums: Value, tiles: int, channels: tuple[Amount, Amount],
        planes: tuple[Value, Value],
    ) -> None:  # fmt: skip
        """The products of all points, in a function that kernels of other images and epilogues have as well."""

        def write(
            inner: Function, weights: Value, moved: Value, sums: Value, first: Value, last: Value, *deep: Value
        ) -> None:
            self._write_products(inner, weights, moved, sums, tiles, (first, last), deep)

        pieces_of = [f.integer(one) for one in channels]
        each = self.depth // self.problem.kernel[0]
        deep = [f.mul(planes[0], each), f.mul(f.sub(planes[1], planes[0]), each)] if self.some_planes else []
        apart(f, f"{self.name}_products_{tiles}", (weights, moved, sums, *pieces_of, *deep), write)

    def _write_products(
        self, f: Function, weights: Value, moved: Value, sums: Value, tiles: int, channels: tuple[Value, Value],
        deep: Sequence[Value],
    ) -> None:  # fmt: skip
        """Narrow weights are transformed once for all points of a panel."""
        points = self.points

        def operands(number: Value) -> tuple[Value, Value]:
            a, c = (f.at(base, f.mul(number, size)) for base, size in (
                (moved, self.depth_point), (sums, self.width_point)
            ))  # fmt: skip
            return f.at(a, deep[0]) if deep else a, c

        def all_panels(number: Value, _: tuple[Value, ...]) -> None:
            a, c = operands(number)
            b = f.at(weights, f.mul(number, self.packing.group_elements // points))

            def panel(group: Group, vector: Value) -> None:
                b_at = f.at(b, f.mul(vector, self.depth * self.lanes))
                b_at = f.at(b_at, f.mul(deep[0], group.size * self.lanes)) if deep else b_at
                self._product(f, group, a, b_at, f.at(c, f.mul(vector, self.lanes)), tiles, deep[1:])

            each_piece(f, self.channels, *channels, panel)

        def all_points(group: Group, vector: Value) -> None:
            dtype, count = self.problem.weights_dtype, self.problem.kernel[1] * self.problem.kernel[2]
            taps = f.at(weights, f.mul(vector, count * self.depth * self.lanes), memory_type(dtype))
            filters = f.at(sums, points * self.width_point)
            function = write_filters(
                self.module, self.made, dtype, self.depth, group.size, self.filter_point, prefix=self.name
            )
            f.call(function, taps, filters)

            def point(number: Value, _: tuple[Value, ...]) -> None:
                a, c = operands(number)
                b = f.at(filters, f.mul(number, self.filter_point))
                self._product(f, group, a, b, f.at(c, f.mul(vector, self.lanes)), tiles)

            f.loop(0, points, 1, point)

        if self.candidate.from_taps:
            each_piece(f, self.channels, *channels, all_points)
        else:
            f.loop(0, points, 1, all_panels)

    def _product(
        self, f: Function, group: Group, a: Value, b: Value, c: Value, tiles: int, seen: Sequence[Value] = ()
    ) -> None:
        """The product of one point and one panel, over the channels that are seen where those are not all."""
        depth, groups, width = self.depth, balanced(tiles, self.candidate.rows), group.size * self.lanes
        ahead = Asked()
        if not self.candidate.from_taps:  # all that follows: what a block of few tiles leaves, nobody asks for
            ahead = asked(self.target.core, depth, 4 * width, groups[0].size, pieces(groups))

        def rows(some: Group, row: Value) -> None:
            tile = ProductTile(
                some.size, group.size, None if seen else depth, self.depth_row, 1, width, self.width_row, self.lanes,
                ahead=ahead.lines,
            )  # fmt: skip
            function = write_tile(self.module, tile, Epilogue(), _TILE, _COLUMN, prefix=self.name)
            at = [f.at(base, f.mul(row, step)) for base, step in ((a, self.depth_row), (c, self.width_row))]
            following = [ahead.place(f, b, row)] if ahead.lines else []
            f.call(function, at[0], b, at[1], *seen, *following)

        each_piece(f, groups, 0, pieces(groups), rows)
