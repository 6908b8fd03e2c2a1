"""Winograd convolution F(4x4, 3x3) or F(2x2, 3x3): 4/16 or 16/36 of the multiplications of a direct 3x3 of stride 1.

A block takes a few rows of tiles of a plane, and all output channels or some: windows of 6 x 6 (4 x 4) inputs are
transformed into scratch, 36 (16) products of matrices (tiles x channels by channels x output channels) follow, and
tiles of 4 x 4 (2 x 2) outputs are transformed back, with the epilogue. The smaller tiles need less than half of the
weights, and waste less of an image that is no whole number of tiles. A kernel of several planes is a sum over these:
the products go over the channels of all planes that it sees. Weights are transformed when they are packed, in float64;
those of 16 bits by each block, panel by panel. Windows that reach over the image's border have functions of their own
which read nothing outside, so that no zeros need to be stored around an image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.target import Target
from kernels.templates.builder import apart
from kernels.templates.convolution.places import operands_at, output_at, variables_at
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS, Convolution
from kernels.templates.convolution.store import store_pixels
from kernels.templates.convolution.taps import needed_of_place
from kernels.templates.convolution.transform import product
from kernels.templates.convolution.winograd_choice import Winograd, blocks_of, candidates, estimate
from kernels.templates.convolution.winograd_kinds import Kind, stored_of
from kernels.templates.convolution.winograd_narrow import TAPS, write_filters
from kernels.templates.convolution.winograd_sizes import WinogradSizes
from kernels.templates.epilogue import Epilogue, leaves_of, parameters_of
from kernels.templates.grid import Group, balanced, each_piece, one_of, pieces, start_of, stretch_of, unravel
from kernels.templates.template import Template
from kernels.templates.tile import Asked, ProductTile, asked, write_tile
from kernels.tensor.expression import Variable

_TILE, _COLUMN = Variable("tile", 1), Variable("column", 1)


def build(problem: Convolution, candidate: Winograd, target: Target, name: str = "winograd") -> Kernel:
    """The kernel: operands "x", "weights", those of the epilogue, "y"."""
    return _WinogradBuilder(problem, candidate, target, name).kernel()


WINOGRAD = Template("winograd", Convolution, candidates, build, estimate)


class _WinogradBuilder(WinogradSizes):
    def kernel(self) -> Kernel:
        problem, candidate = self.problem, self.candidate
        operands = problem.operands(self.packing, None if candidate.from_taps else DType.F32)
        return self.written(
            operands, blocks_of(problem, candidate, self.target),
            scratch_bytes=4 * self.made.size**2 * (self.depth_point + self.width_point + self.filter_point),
            flops=problem.flops, traffic=problem.traffic,
        )  # fmt: skip

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        total = pieces(self.channels)
        stretch = self.candidate.stretch or total
        dims = (self.problem.output.batch, self.problem.output.size[0], self.groups, pieces(self.chunks))
        image, plane, dense, piece, part = unravel(f, block, (*dims, -(-total // stretch)))
        channels = stretch_of(f, part, stretch, total)
        layout = self.problem.input
        apart = self.in_depth if layout.order == "NHWC" else self.in_depth // layout.block * layout.block_stride
        x = f.at(f.at(pointers[INPUT], f.mul(image, layout.image_stride)), f.mul(dense, apart))
        stored = memory_type(self.problem.weights_dtype if self.candidate.from_taps else DType.F32)
        weights = f.at(pointers[WEIGHTS], f.mul(dense, self.packing.group_elements), stored)
        sums = f.at(scratch, self.made.size**2 * self.depth_point)

        def chunk(group: Group, first: Value) -> None:
            last = f.add(first, group.size)
            planes = self._planes_into(f, x, scratch, plane, (first, last))
            self._products(f, weights, scratch, sums, group.size * self.wide, channels, planes)
            self._back(f, pointers, (image, plane, dense), sums, (first, last), channels)

        one_of(f, self.chunks, piece, chunk)

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
        """Transform the windows of some rows of tiles, in a function that serves blocks of any size."""
        apart(f, f"{self.name}_into", (x, moved, *rows), self._write_into)

    def _write_into(self, f: Function, x: Value, moved: Value, *rows: Value) -> None:
        problem, layout = self.problem, self.problem.input
        corner = layout.position(0, 0, layout.before)
        corner -= problem.pads[1] * layout.row_stride + problem.pads[2] * layout.column_stride

        def vectors(block: Value, _: tuple[Value, ...]) -> None:
            def vector(part: Value, _: tuple[Value, ...]) -> None:
                at = f.at(x, f.add(f.mul(block, layout.block_stride), f.mul(part, self.lanes)))
                to = f.at(moved, f.mul(f.add(f.mul(block, self.in_block), part), self.lanes))

                def tile(down: Kind, across: Kind, row: Value, column: Value, number: Value) -> None:
                    step = self.candidate.outputs
                    place = f.add(f.mul(row, step * layout.row_stride), f.mul(column, step * layout.column_stride))
                    function = self._window_function(down, across)
                    target = f.at(to, f.mul(number, self.depth_row))
                    begin, _ = stored_of(problem, 1)
                    top = [f.sub(f.mul(row, step), problem.pads[1] + begin)] if self.any_row else []
                    f.call(function, f.at(at, f.add(place, corner)), target, *top)

                self._each_tile(f, rows, self.windows, tile)

            f.loop(0, self.in_block, 1, vector)

        f.loop(0, self.in_blocks, 1, vectors)

    def _window_function(self, down: Kind, across: Kind) -> str:
        """f(x, moved): transform the window whose first element would lie at `x`; only what is stored is read.

        f(x, moved, top) where rows differ: `top` rows from the first one that is stored lies that of the window.
        """
        name = f"{self.name}_window_{down.low}{down.high}_{across.low}{across.high}"
        if self.module.has(name):
            return name
        given = [Parameter("x", "ptr", "noalias nocapture readonly"), Parameter("moved", "ptr", "noalias nocapture")]
        f = Function(self.module, name, [*given, Parameter("top", "i64")] if self.any_row else given)
        layout, size = self.problem.input, self.made.size
        rows = {row: f.at(f.parameter("x"), row * layout.row_stride) for row in range(down.low, down.high)}
        if self.any_row:
            zeros = self.module.constant(f"{self.name}_zeros", "float", ["0.0"] * self.zeros)
            begin, end = stored_of(self.problem, 1)
            for row in sorted(set(rows) - set(range(*self.inside))):
                is_stored = f.compare("ult", f.add(f.parameter("top"), row), f.integer(end - begin))
                rows[row] = f.select(is_stored, rows[row], Value((zeros,), "ptr"))
        # Down the columns first: of each only one column's vectors are alive at a time.
        columns: list[list[Value | None]] = []
        for column in range(size):
            loaded: list[Value | None] = [None] * size
            if across.low <= column < across.high:
                for row, at in rows.items():
                    loaded[row] = f.load(self.kind, f.at(at, column * layout.column_stride))
            columns.append(product(f, self.window_matrix, loaded))
        for row in range(size):
            moved = product(f, self.window_matrix, [columns[column][row] for column in range(size)])
            for column, value in enumerate(moved):
                target = f.at(f.parameter("moved"), (row * size + column) * self.depth_point)
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
        points = self.made.size**2

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
            dtype = self.problem.weights_dtype
            taps = f.at(weights, f.mul(vector, TAPS * self.depth * self.lanes), memory_type(dtype))
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
        if not self.candidate.from_taps:  # as the largest blocks do, so that all have the same tiles
            most = balanced(self.most, self.candidate.rows)
            ahead = asked(self.target.core, depth, 4 * width, most[0].size, pieces(most))

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

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _back(
        self, f: Function, pointers: dict[str, Value], images: tuple[Value, Value, Value], sums: Value,
        rows: tuple[Value, Value], channels: tuple[Amount, Amount],
    ) -> None:  # fmt: skip
        """Transform some rows of tiles back and store what the epilogue makes of them, whatever the blocks are."""
        names = (OUTPUT, *(one.name for one in self.problem.epilogue.buffers))
        numbers: list[Amount] = [0 if one.is_constant else one for one in images]

        def write(
            inner: Function, sums: Value, image: Amount, plane: Amount, dense: Amount, first: Value, last: Value,
            begin: Value, end: Value, *addresses: Value,
        ) -> None:  # fmt: skip
            own = dict(zip(names, addresses, strict=True))
            self._write_back(inner, own, (image, plane, dense), sums, (first, last), (begin, end))

        addresses = [pointers[name] for name in names]
        vectors = [self._vector(f, one) for one in channels]
        apart(f, f"{self.name}_back", (sums, *numbers, *rows, *vectors, *addresses), write)

    def _write_back(
        self, f: Function, pointers: dict[str, Value], images: tuple[Amount, Amount, Amount], sums: Value,
        rows: tuple[Value, Value], vectors: tuple[Value, Value],
    ) -> None:  # fmt: skip
        problem, lanes = self.problem, self.lanes
        outer = (f.integer(images[0]), f.integer(images[1]), f.integer(images[2]))
        dense = outer[2]
        # Vectors of channels of the groups before: the last vectors of all groups together are not whole.
        before: Amount = 0 if self.groups == 1 else f.mul(dense, self.out_vectors)

        def all_of(valid: int) -> Callable[[Value, tuple[Value, ...]], None]:
            def vector(number: Value, _: tuple[Value, ...]) -> None:
                channel = f.mul(number, self.lanes)

                def tile(down: Kind, across: Kind, row: Value, column: Value, place: Value) -> None:
                    at = variables_at(
                        f, problem, outer, channel, self.width, f.mul(row, self.candidate.outputs),
                        f.mul(column, self.candidate.outputs),
                    )  # fmt: skip
                    function = self._tile_function(down, across, valid)
                    source = f.at(sums, f.add(f.mul(place, self.width_row), channel))
                    y = output_at(f, problem, pointers[OUTPUT], at)
                    f.call(function, source, y, *operands_at(f, problem, pointers, at))

                self._each_tile(f, rows, self.tiles, tile)

            return vector

        begin, end = vectors
        whole = problem.output.channels // lanes
        f.loop(begin, f.minimum(end, _less(f, whole, before)), 1, all_of(lanes))
        for number in range(whole, self.groups * self.out_vectors):
            valid = max(0, problem.output.channels - number * lanes)
            first_one, last_one = (_less(f, one, before) for one in (number, number + 1))
            f.loop(f.maximum(begin, first_one), f.minimum(end, last_one), 1, all_of(valid))

    def _vector(self, f: Function, piece: Amount) -> Value:
        """The first vector of a register tile of channels; for the one after the last, the end."""
        if isinstance(piece, int):
            return f.integer(0 if piece == 0 else self.out_vectors)
        return start_of(f, self.channels, piece)

    def _tile_function(self, down: Kind, across: Kind, valid: int) -> str:
        """f(sums, y, operands of the epilogue...): transform back and store the outputs that exist."""
        name = f"{self.name}_tile_{down.outputs}x{across.outputs}_{valid}"
        if self.module.has(name):
            return name
        f = Function(
            self.module,
            name,
            (
                Parameter("sums", "ptr", "noalias nocapture readonly"),
                Parameter("y", "ptr", "nocapture"),
                *parameters_of(self.problem.epilogue),
            ),
        )
        size = self.made.size
        columns = []
        for column in range(size):
            loaded = [
                f.load(
                    self.kind,
                    f.at(f.parameter("sums"), (row * size + column) * self.width_point),
                    align=4 * self.lanes,
                )
                for row in range(size)
            ]
            columns.append(product(f, self.output_matrix[: down.outputs], loaded))
        leaves = leaves_of(f, self.problem.epilogue, self.problem.variables[5], self.lanes)
        for row in range(down.outputs):
            made = product(f, self.output_matrix[: across.outputs], [columns[column][row] for column in range(size)])
            values = [value or f.number(self.kind, 0) for value in made]
            pixels = [(row, column) for column in range(across.outputs)]
            store_pixels(f, self.problem, leaves, f.parameter("y"), pixels, values, (valid,))
        f.finish()
        return name


def _less(f: Function, number: int, by: Amount) -> Value:
    return f.integer(number - by) if isinstance(by, int) else f.sub(f.integer(number), by)
