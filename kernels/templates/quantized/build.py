"""Convolution of bytes as a kernel: candidates, their estimate, blocks, and the loops over tiles.

A block is a stretch of rows of one plane by a stretch of tiles of output channels. Where the input does not lie as the
tiles read it, the block first copies the window that it sees into scratch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernels.kernel import Kernel
from kernels.llvm.function import Amount, Function, Value
from kernels.target import Target
from kernels.templates import cost
from kernels.templates.builder import Builder
from kernels.templates.convolution.places import operands_at, output_at, variables_at
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS, Convolution
from kernels.templates.grid import (
    Group,
    Groups,
    balanced,
    cut,
    each_piece,
    even,
    pieces,
    start_of,
    stretch_of,
    tallest,
    unravel,
)
from kernels.templates.quantized.arithmetic import (
    PER_WORD,
    ByteArithmetic,
    best,
    element_bytes,
    multiplies_pairs,
    shift_of_a,
    supported,
)
from kernels.templates.quantized.packing import TilePacking, run_elements
from kernels.templates.quantized.problem import X_ZERO, QuantizedConvolution
from kernels.templates.quantized.stage import copy_bytes, window, write_pixels, write_window
from kernels.templates.quantized.tile import ByteTile, Source, write_tile
from kernels.templates.template import Template
from kernels.templates.tile import UnsupportedArithmetic

_BLOCK_WORDS = 200_000  # products of vectors of words: 50 to 200 microseconds
_PRESSURE = 0.2  # share of the loads that is not hidden behind products


@dataclass(frozen=True, slots=True)
class Bytewise:
    """Sizes that decide the speed of a convolution of bytes."""

    rows: int  # of a tile
    columns: int
    vectors: int
    row_stretch: int  # row pieces of a block
    channel_stretch: int  # channel tiles of a block
    flat: bool  # whether the pixels of a plane are taken as one row
    arithmetic: ByteArithmetic

    def __str__(self) -> str:
        flat = " flat" if self.flat else ""
        stretch = f"{self.row_stretch}x{self.channel_stretch}"
        return f"{self.arithmetic} {self.rows}x{self.columns}x{self.vectors}{flat} block {stretch}"


def candidates(
    problem: QuantizedConvolution, target: Target, arithmetic: ByteArithmetic | None = None
) -> tuple[Bytewise, ...]:
    """Candidates, the likely best first; of the target's best arithmetic where none is given."""
    chosen = arithmetic or best(target)
    flat = can_be_flat(problem.geometry)
    found = []
    for rows, columns, vectors in _shapes(problem, target, chosen, flat):
        found.append(_with_blocks(problem, target, rows, columns, vectors, flat, chosen))
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(problem, one, target)))


def can_be_flat(geometry: Convolution) -> bool:
    """Whether a plane's pixels follow one another in input, output and operands, and each sees only one."""
    return (
        geometry.kernel == geometry.strides == (1, 1, 1)
        and geometry.pads == (0, 0, 0)
        and geometry.input.size == geometry.output.size
        and geometry.is_one_row
    )


def _shapes(
    problem: QuantizedConvolution, target: Target, arithmetic: ByteArithmetic, flat: bool
) -> list[tuple[int, int, int]]:
    """Rows, columns and vectors whose sums, weights and a broadcast fit the registers."""
    geometry, lanes = problem.geometry, target.lanes()
    height, width = (1, geometry.output.size[1] * geometry.output.size[2]) if flat else geometry.output.size[1:]
    halves = 2 if arithmetic == "pairs" and not multiplies_pairs(target) else 1
    spare = 2 * halves if arithmetic == "pairs" else 1
    extra = 1 if TilePacking(problem, arithmetic, lanes, 1).has_zeros else 0
    most = 12 if target.vector_registers < 32 else 27
    found = []
    for vectors in range(1, min(-(-geometry.width // lanes), 6) + 1):
        free = target.vector_registers - spare - extra - halves * vectors
        free = min(free, 22 - 2 * vectors) if halves == 2 else free  # more were seen on the stack
        pixels = min(free, most) // (vectors + extra)
        for rows in range(1, min(height, 4) + 1):
            if pixels >= rows:
                columns = -(-width // -(-width // (pixels // rows)))
                found.append((rows, columns, vectors))
    return list(dict.fromkeys(found)) or [(1, 1, 1)]


def estimate(problem: QuantizedConvolution, candidate: Bytewise, target: Target) -> float:
    """Nanoseconds of all blocks on one core, good enough to choose between candidates."""
    geometry = problem.geometry
    packing = TilePacking(problem, candidate.arithmetic, target.lanes(), candidate.vectors)
    height, width = geometry.output.size[1:]
    wide = balanced(height * width if candidate.flat else width, candidate.columns)
    tall = balanced(1 if candidate.flat else height, candidate.rows)
    dear = 1 if candidate.arithmetic != "pairs" else 2
    extra = 1 if packing.has_zeros else 0
    cycles = 0.0
    for group in packing.groups:
        for down in tall:
            for across in wide:
                pixels = down.size * across.size
                products = dear * pixels * (group.size + extra)
                step = cost.step_cycles(products, pixels, group.size, target, _PRESSURE)
                each = packing.words * step + 24.0 + 6.0 * pixels * group.size
                cycles += each * group.count * down.count * across.count
    return cost.nanoseconds(cycles * geometry.groups * geometry.output.batch * geometry.output.size[0], target)


def _with_blocks(
    problem: QuantizedConvolution,
    target: Target,
    rows: int,
    columns: int,
    vectors: int,
    flat: bool,
    arithmetic: ByteArithmetic,
) -> Bytewise:
    """Stretches of a block: all channels where the weights are small, few of them where they are many."""
    geometry = problem.geometry
    packing = TilePacking(problem, arithmetic, target.lanes(), vectors)
    height, width = geometry.output.size[1:]
    row_pieces = pieces(balanced(height * width if flat else height, columns if flat else rows))
    channel_pieces = pieces(packing.groups)
    pixels = columns if flat else rows * width
    words = packing.words * pixels * vectors
    channels = channel_pieces
    if packing.group_bytes > target.l2 // 2:
        channels = max(1, min(channel_pieces, _BLOCK_WORDS // max(1, words * row_pieces)))
        channels = even(channel_pieces, channels)
    stretch = max(1, min(row_pieces, _BLOCK_WORDS // max(1, words * channels)))
    bytes_of_piece = pixels * geometry.strides[1] * geometry.strides[2] * geometry.depth * element_bytes(arithmetic)
    stretch = max(1, min(stretch, target.l2 // 2 // max(1, bytes_of_piece)))
    return Bytewise(rows, columns, vectors, even(row_pieces, stretch), channels, flat, arithmetic)


def build(problem: QuantizedConvolution, candidate: Bytewise, target: Target, name: str = "bytewise") -> Kernel:
    """The kernel: operands "x", "weights", "x_zero" where that is no constant, those of the epilogue, "y".

    Raises UnsupportedArithmetic where the target lacks the instructions.
    """
    if not supported(candidate.arithmetic, target):
        raise UnsupportedArithmetic(f"{target.cpu} has no instruction for {candidate.arithmetic}.")
    return _BytewiseBuilder(problem, candidate, target, name).kernel()


BYTEWISE = Template("bytewise", QuantizedConvolution, candidates, build, estimate)


class _BytewiseBuilder(Builder[QuantizedConvolution, Bytewise]):
    def __init__(self, problem: QuantizedConvolution, candidate: Bytewise, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.geometry = problem.geometry
        self.packing = TilePacking(problem, candidate.arithmetic, self.lanes, candidate.vectors)
        height, width = self.geometry.output.size[1:]
        self.columns: Groups = () if candidate.flat else cut(width, candidate.columns)
        self.rows: Groups = cut(height * width, candidate.columns) if candidate.flat else cut(height, candidate.rows)
        self.row_blocks = -(-pieces(self.rows) // candidate.row_stretch)
        self.channel_blocks = -(-pieces(self.packing.groups) // candidate.channel_stretch)
        self.staged = not self._lies_ready()
        self.window = window(self.geometry, tallest(self.rows) * candidate.row_stretch)
        layout = self.window if self.staged else self.geometry.input
        size = element_bytes(candidate.arithmetic) if self.staged else 1
        self.source = Source(layout.plane_stride * size, layout.row_stride * size, layout.column_stride * size)
        out = self.geometry.output
        self.dims = (out.batch, out.size[0], self.geometry.groups, self.row_blocks, self.channel_blocks)

    def _lies_ready(self) -> bool:
        """Whether tiles can read the input where it lies."""
        problem, geometry, arithmetic = self.problem, self.geometry, self.candidate.arithmetic
        bytes_fit = arithmetic != "pairs" and shift_of_a(arithmetic, problem.x_dtype) == 0
        whole = run_elements(problem) % PER_WORD[arithmetic] == 0
        side_by_side = geometry.input.order == "NHWC" or geometry.input.channels == 1
        return bytes_fit and whole and side_by_side and geometry.has_halo

    def kernel(self) -> Kernel:
        operands = self.problem.operands(self.packing)
        scratch = self._scratch_bytes()
        return self.written(operands, prod(self.dims), scratch_bytes=scratch, flops=self.geometry.flops)

    def _scratch_bytes(self) -> int:
        if not self.staged:
            return 0
        if self.candidate.flat:
            pixels = tallest(self.rows) * self.candidate.row_stretch
            return copy_bytes(pixels * self.geometry.depth, self.candidate.arithmetic)
        return copy_bytes(self.window.elements, self.candidate.arithmetic)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        geometry, layout = self.geometry, self.geometry.input
        image, plane, group, row_block, channel_block = unravel(f, block, self.dims)
        rows = stretch_of(f, row_block, self.candidate.row_stretch, pieces(self.rows))
        channels = stretch_of(f, channel_block, self.candidate.channel_stretch, pieces(self.packing.groups))
        zero = self._zero(f, pointers)
        channel_step = geometry.depth * (layout.block_stride if layout.order == "NCHW" else 1)
        x = f.at(pointers[INPUT], f.add(f.mul(image, layout.image_stride), f.mul(group, channel_step)), "i8")
        x = f.at(x, layout.origin, "i8")
        first = start_of(f, self.rows, rows[0])
        if self.staged:
            self._stage(f, x, scratch, plane, first, rows[1], zero)
            x = scratch
        else:
            back = sum(
                pad * step
                for pad, step in zip(
                    geometry.pads, (layout.plane_stride, layout.row_stride, layout.column_stride), strict=True
                )
            )
            x = f.at(x, f.add(f.mul(plane, geometry.strides[0] * layout.plane_stride), -back), "i8")
        weights = f.at(pointers[WEIGHTS], f.mul(group, self.packing.group_bytes), "i8")
        if self.problem.weights_per_image:
            weights = f.at(weights, f.mul(image, self.packing.elements), "i8")
        outer = (image, plane, group)

        def tiles(wide: Group, vector: Value) -> None:
            def piece(tall: Group, start: Value) -> None:
                def one(across: Group, column: Value) -> None:
                    self._tile(
                        f, pointers, outer, x, weights, zero, first, tall.size, across.size, start, column, wide, vector
                    )

                if self.candidate.flat:
                    self._tile(
                        f, pointers, outer, x, weights, zero, first, 1, tall.size, f.integer(0), start, wide, vector
                    )
                else:
                    each_piece(f, self.columns, 0, pieces(self.columns), one)

            each_piece(f, self.rows, *rows, piece)

        each_piece(f, self.packing.groups, *channels, tiles)

    def _zero(self, f: Function, pointers: dict[str, Value]) -> Value:
        """The input's shifted zero point, i32."""
        shift = shift_of_a(self.candidate.arithmetic, self.problem.x_dtype)
        if self.problem.x_zero is not None:
            return f.number("i32", self.problem.x_zero + shift)
        stored = f.load("i8", pointers[X_ZERO])
        return f.add(f.convert("sext" if self.problem.x_dtype.is_signed else "zext", "i32", stored), shift)

    def _stage(
        self, f: Function, x: Value, scratch: Value, plane: Value, first: Value, last: Amount, zero: Value
    ) -> None:
        geometry, arithmetic, layout = self.geometry, self.candidate.arithmetic, self.geometry.input
        if self.candidate.flat:
            name = write_pixels(self.module, self.problem, arithmetic, f"{self.name}_stage")
            pixels = geometry.output.size[1] * geometry.output.size[2]
            end = f.integer(pixels) if isinstance(last, int) else start_of(f, self.rows, last)
            origin = f.add(f.mul(plane, layout.plane_stride), f.mul(first, layout.column_stride))
            f.call(name, f.at(x, origin, "i8"), scratch, f.sub(end, first))
            return
        name = write_window(self.module, self.problem, arithmetic, self.window, f"{self.name}_stage")
        from_plane = f.add(f.mul(plane, geometry.strides[0]), -geometry.pads[0])
        from_row = f.add(f.mul(first, geometry.strides[1]), -geometry.pads[1])
        f.call(name, x, scratch, from_plane, from_row, zero)

    def _tile(
        self,
        f: Function,
        pointers: dict[str, Value],
        outer: tuple[Value, Value, Value],
        x: Value,
        weights: Value,
        zero: Value,
        first: Value,
        rows: int,
        columns: int,
        row: Value,
        column: Value,
        wide: Group,
        vector: Value,
    ) -> None:
        geometry, source = self.geometry, self.source
        down, across = row, column
        if self.staged and self.candidate.flat:
            across = f.sub(column, first)
        elif self.staged:
            down = f.sub(row, first)
        place = f.add(f.mul(down, geometry.strides[1] * source.row), f.mul(across, geometry.strides[2] * source.column))
        valid = self._valid(wide)
        name = f"{self.name}_{rows}x{columns}x{len(valid)}_{sum(valid)}"
        write_tile(self.module, self.packing, source, ByteTile(rows, columns, valid), name=name)
        at = variables_at(f, geometry, outer, f.mul(vector, self.lanes), geometry.width, row, column)
        y = output_at(f, geometry, pointers[OUTPUT], at)
        words = f.at(weights, f.mul(vector, self.packing.vector_bytes), "i8")
        f.call(name, f.at(x, place, "i8"), words, y, zero, *operands_at(f, geometry, pointers, at))

    def _valid(self, wide: Group) -> tuple[int, ...]:
        """Lanes that are channels, of each vector of a tile."""
        rest = self.geometry.width % self.lanes
        last = rest if rest and wide == self.packing.groups[-1] else self.lanes
        return (*(self.lanes,) * (wide.size - 1), last)
