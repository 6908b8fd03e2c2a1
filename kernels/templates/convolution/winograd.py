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

from collections.abc import Callable, Sequence

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Amount, Function, Value
from kernels.target import Target
from kernels.templates.builder import apart
from kernels.templates.convolution.problem import INPUT, WEIGHTS, Convolution
from kernels.templates.convolution.winograd_back import WinogradBack
from kernels.templates.convolution.winograd_choice import Winograd, blocks_of, candidates, estimate
from kernels.templates.convolution.winograd_into import WinogradInto
from kernels.templates.convolution.winograd_narrow import write_filters
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


class _WinogradBuilder(WinogradInto, WinogradBack):
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
        chunks = (self.lines + self.candidate.chunk - 1) // self.candidate.chunk
        dims = (self.problem.output.batch, self.problem.output.size[0], self.groups, chunks)
        image, plane, dense, piece, part = unravel(f, block, (*dims, -(-total // stretch)))
        channels = stretch_of(f, part, stretch, total)
        x = self._image(f, pointers, image, dense)
        weights, sums = self._weights_of(f, pointers, dense), f.at(scratch, self.points * self.depth_point)

        def chunk(tiles: Amount, first: Value, last: Value) -> None:
            planes = self._planes_into(f, x, scratch, plane, (first, last))
            self._products(f, weights, scratch, sums, tiles, channels, planes)
            self._back(f, pointers, (image, plane, dense), sums, (first, last), channels)

        if self.of_any_sides:
            first, last = map(f.integer, stretch_of(f, piece, self.candidate.chunk, self.lines))
            chunk(f.mul(f.sub(last, first), self.wide), first, last)
        else:
            one_of(f, self.chunks, piece, lambda some, at: chunk(some.size * self.wide, at, f.add(at, some.size)))
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

    # -- products -----------------------------------------------------------------------------------------------------

    def _products(
        self, f: Function, weights: Value, moved: Value, sums: Value, tiles: Amount, channels: tuple[Amount, Amount],
        planes: tuple[Value, Value],
    ) -> None:  # fmt: skip
        """The products of all points, in a function that kernels of other images and epilogues have as well."""

        def write(
            inner: Function, tiles: Amount, weights: Value, moved: Value, sums: Value, first: Value, last: Value,
            *deep: Value,
        ) -> None:  # fmt: skip
            self._write_products(inner, weights, moved, sums, tiles, (first, last), deep)

        pieces_of = [f.integer(one) for one in channels]
        each = self.depth // self.problem.kernel[0]
        deep = [f.mul(planes[0], each), f.mul(f.sub(planes[1], planes[0]), each)] if self.some_planes else []
        name = f"{self.name}_products" + (f"_{tiles}" if isinstance(tiles, int) else "")
        apart(f, name, (tiles, weights, moved, sums, *pieces_of, *deep), write)

    def _write_products(
        self, f: Function, weights: Value, moved: Value, sums: Value, tiles: Amount, channels: tuple[Value, Value],
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
        self, f: Function, group: Group, a: Value, b: Value, c: Value, tiles: Amount,
        seen: Sequence[Value] = (),
    ) -> None:  # fmt: skip
        """The product of one point and one panel, over the channels that are seen where those are not all."""
        depth, width, ahead = self.depth, group.size * self.lanes, Asked()
        groups = balanced(tiles if isinstance(tiles, int) else self.most, self.candidate.rows)
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

        if isinstance(tiles, int):
            each_piece(f, groups, 0, pieces(groups), rows)
        else:
            _whole_and_rest(f, tiles, self.candidate.rows, rows)


def _whole_and_rest(f: Function, tiles: Value, most: int, rows: Callable[[Group, Value], None]) -> None:
    """rows(group, start) for register tiles of `most` and one of as few as hold the rest, of half as many or a quarter.

    Those behind the last tile have room, and nobody reads them.
    """
    whole = f.binary("udiv", tiles, f.integer(most))
    f.loop(0, whole, 1, lambda number, _: rows(Group(most, 1, 0, 0), f.mul(number, most)))
    start, sizes, rest = f.mul(whole, most), [most], f.sub(tiles, f.mul(whole, most))
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))

    def of(some: Sequence[int]) -> None:
        def write() -> None:
            rows(Group(some[0], 1, 0, 0), start)

        if len(some) == 1:
            write()
        else:
            f.when(f.compare("sgt", rest, f.integer(some[1])), write, lambda: of(some[1:]))

    f.when(f.compare("sgt", rest, f.integer(0)), lambda: of(sizes))
