"""Matrix products: C = epilogue(A B), batched, with any strides, a constant B packed ahead or a B that is computed.

A block is a stretch of rows by a stretch of panels of one matrix of the batch. Inside it, panels are the outer loop and
row tiles the inner one, so that a panel of B stays in the second cache while the rows pass; the stretch of rows is
chosen so that its part of A stays there too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand, operands_of
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.target import Target
from kernels.templates import cost
from kernels.templates.builder import Builder
from kernels.templates.epilogue import Epilogue, origins
from kernels.templates.grid import Group, balanced, each_piece, pieces, split_last, stretch_of, unravel
from kernels.templates.matrix import Matrix, dense, dense_batch
from kernels.templates.packing import PanelPacking
from kernels.templates.panels import write_panel
from kernels.templates.template import Template
from kernels.templates.tile import GROUP, ProductArithmetic, ProductTile, most_accumulators, most_registers, write_tile
from kernels.tensor.expression import Variable


class InvalidGemm(KernelsError):
    """A matrix product whose dims or strides do not fit."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """C[rows, columns] = epilogue(A[rows, depth] B[depth, columns]) for each index of `batch`.

    The epilogue's variables are `row`, `column` and `batch_variables`. The accumulated type is f32, and i32 for "u8s8".
    """

    rows: int
    columns: int
    depth: int
    batch: tuple[int, ...] = ()
    a: Matrix | None = None  # None: dense, row-major
    b: Matrix | None = None
    c: Matrix | None = None
    constant_b: bool = True  # known when the program is compiled, and packed then
    epilogue: Epilogue = field(default_factory=Epilogue)
    arithmetic: ProductArithmetic = "f32"

    def __post_init__(self) -> None:
        for name, rows, columns in (
            ("a", self.rows, self.depth), ("b", self.depth, self.columns), ("c", self.rows, self.columns)
        ):  # fmt: skip
            if getattr(self, name) is None:
                object.__setattr__(self, name, dense(rows, columns, self.batch))
            given: Matrix = getattr(self, name)
            if len(given.batch) != len(self.batch):
                raise InvalidGemm(f"matrix {name} has {len(given.batch)} batch strides for {len(self.batch)} dims.")
        if self.place_c.column != 1:
            raise InvalidGemm("the output's columns must lie side by side; swap A and B for a transposed output.")

    @property
    def row(self) -> Variable:
        """The epilogue's variable of rows."""
        return Variable("row", self.rows)

    @property
    def column(self) -> Variable:
        """The epilogue's variable of columns."""
        return Variable("column", self.columns)

    @property
    def batch_variables(self) -> tuple[Variable, ...]:
        """The epilogue's variables of the batch, outermost first."""
        return tuple(Variable(f"batch{position}", size) for position, size in enumerate(self.batch))

    @property
    def place_a(self) -> Matrix:
        """Where A lies."""
        assert self.a is not None, "set at construction"
        return self.a

    @property
    def place_b(self) -> Matrix:
        """Where B lies."""
        assert self.b is not None, "set at construction"
        return self.b

    @property
    def place_c(self) -> Matrix:
        """Where C lies."""
        assert self.c is not None, "set at construction"
        return self.c

    @property
    def matrices(self) -> int:
        """How many products there are."""
        return math.prod(self.batch)

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products."""
        return 2 * self.rows * self.columns * self.depth * self.matrices


@dataclass(frozen=True, slots=True)
class GemmCandidate:
    """Sizes that decide the speed of a product."""

    rows: int  # of a tile
    vectors: int  # of a tile
    row_stretch: int  # row tiles of a block
    panel_stretch: int  # panels of a block
    b: Literal["constant", "place", "packed"]  # packed ahead; read where it lies; packed by each block

    def __str__(self) -> str:
        return f"{self.rows}x{self.vectors} b {self.b} block {self.row_stretch}x{self.panel_stretch}"


_DTYPES: dict[ProductArithmetic, tuple[DType, DType]] = {
    "f32": (DType.F32, DType.F32),
    "bf16": (DType.BF16, DType.BF16),
    "u8s8": (DType.U8, DType.I8),
}


def candidates(gemm: Gemm, target: Target) -> tuple[GemmCandidate, ...]:
    """The tiles worth trying, the likely best first."""
    found = []
    for rows, vectors in tile_shapes(gemm.rows, gemm.columns, target):
        for b in _ways_to_b(gemm):
            found.append(_with_blocks(gemm, target, rows, vectors, b))
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(gemm, one, target)))


def tile_shapes(rows: int, columns: int, target: Target) -> list[tuple[int, int]]:
    """Shapes (rows, vectors) whose sums fit the registers."""
    most, lanes, rows = most_accumulators(target), target.lanes(), max(rows, 1)
    wide, tallest = max(1, -(-columns // lanes)), 12 if target.vector_registers >= 32 else 6
    shapes = []
    for vectors in range(1, min(wide, 12) + 1):
        height = min(rows, most // vectors, tallest)
        if height < (rows if rows <= tallest else tallest // 3):
            break  # a few rows are not cut: each further pass reads all of B again
        if vectors + 1 + height * vectors <= most_registers(target):
            shapes.append((height, vectors))
    return list(dict.fromkeys(shapes)) or [(1, 1)]


def estimate(gemm: Gemm, candidate: GemmCandidate, target: Target) -> float:
    """Nanoseconds of all blocks on one core, good enough to choose between candidates."""
    lanes = target.lanes()
    rows = balanced(gemm.rows, candidate.rows)
    panels = balanced(-(-gemm.columns // lanes), candidate.vectors)
    words = -(-gemm.depth // GROUP[gemm.arithmetic])
    cycles = cost.product_cycles(rows, panels, words, 4, gemm.columns % lanes > 0, target)
    if candidate.b == "packed":  # read and written once for each stretch of rows
        stretches = -(-pieces(rows) // candidate.row_stretch)
        cycles += stretches * words * -(-gemm.columns // lanes) * (2.0 if gemm.place_b.column == 1 else 6.0)
    elif candidate.b == "place" and gemm.place_b.row * 4 % 4096 == 0:
        cycles *= 1.2  # rows a multiple of 4 KiB apart fall on the same lines of the first cache
    return gemm.matrices * cycles / cost.GIGAHERTZ


def _ways_to_b(gemm: Gemm) -> list[Literal["constant", "place", "packed"]]:
    if gemm.constant_b:
        return ["constant"]
    if gemm.place_b.column == 1 and gemm.arithmetic == "f32":
        return ["place", "packed"]
    return ["packed"]


def _with_blocks(
    gemm: Gemm, target: Target, rows: int, vectors: int, b: Literal["constant", "place", "packed"]
) -> GemmCandidate:
    """The stretches of a block: A's part in half of the second cache, about a million flops and some blocks."""
    row_tiles = pieces(balanced(gemm.rows, rows))
    panels = pieces(balanced(-(-gemm.columns // target.lanes()), vectors))
    bytes_of_row = max(1, gemm.depth * DType.F32.bytes // GROUP[gemm.arithmetic])
    row_stretch = max(1, min(row_tiles, target.l2 // 2 // bytes_of_row // rows))
    if b == "packed":
        row_stretch = max(1, min(row_tiles, 4 * row_stretch))
    flops_of_tile = 2 * rows * vectors * target.lanes() * max(gemm.depth, 1)
    panel_stretch = max(1, min(panels, round(_BLOCK_FLOPS / flops_of_tile / row_stretch)))
    return GemmCandidate(rows, vectors, row_stretch, panel_stretch, b)


_BLOCK_FLOPS = 1_000_000  # about 4 to 15 microseconds: several blocks for the workers, and little per block to claim it


def build(gemm: Gemm, candidate: GemmCandidate, target: Target, name: str = "gemm") -> Kernel:
    """The kernel: operands "a", "b", "c" and those of the epilogue."""
    return _GemmBuilder(gemm, candidate, target, name).kernel()


GEMM = Template("product", Gemm, candidates, build, estimate)


class _GemmBuilder(Builder[Gemm, GemmCandidate]):
    def __init__(self, gemm: Gemm, candidate: GemmCandidate, target: Target, name: str) -> None:
        super().__init__(gemm, candidate, target, name)
        self.row_groups = balanced(gemm.rows, candidate.rows)
        self.column_groups = split_last(
            balanced(-(-gemm.columns // self.lanes), candidate.vectors), gemm.columns % self.lanes
        )
        self.row_blocks = -(-pieces(self.row_groups) // candidate.row_stretch)
        self.column_blocks = -(-pieces(self.column_groups) // candidate.panel_stretch)
        self.group = GROUP[gemm.arithmetic]
        self.words = -(-gemm.depth // self.group)  # 32-bit groups of the depth
        self.epilogue = gemm.epilogue

    def kernel(self) -> Kernel:
        gemm = self.problem
        a_type, b_type = _DTYPES[gemm.arithmetic]
        packing = self._packing()
        b_elements = packing.elements if packing else gemm.place_b.elements(gemm.depth, gemm.columns, gemm.batch)
        operands = (
            Operand("a", "input", a_type, gemm.place_a.elements(gemm.rows, gemm.depth, gemm.batch)),
            Operand("b", "constant" if packing else "input", b_type, b_elements, packing),
            *operands_of(self.epilogue.buffers),
            Operand("c", "output", self.epilogue.dtype, gemm.place_c.elements(gemm.rows, gemm.columns, gemm.batch)),
        )
        blocks = gemm.matrices * self.row_blocks * self.column_blocks
        scratch = 0
        if self.candidate.b == "packed":
            widest = max((group.size for group in self.column_groups), default=0)
            scratch = self.words * widest * self.lanes * 4
        return self.written(operands, blocks, scratch_bytes=scratch, flops=gemm.flops)

    def _packing(self) -> PanelPacking | None:
        if self.candidate.b != "constant":
            return None
        gemm, b = self.problem, self.problem.place_b
        several = any(b.batch)
        if several and b.batch != dense_batch(gemm.batch, b.batch[-1]):
            raise InvalidGemm("a constant B of a batch must hold one matrix per index, or one for all.")
        return PanelPacking(
            gemm.depth, gemm.columns, self.lanes, self.column_groups, self.group, b.row, b.column,
            gemm.matrices if several else 1, b.batch[-1] if several else 0,
        )  # fmt: skip

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        gemm = self.problem
        if not gemm.flops and not (gemm.rows and gemm.columns and gemm.matrices):
            return
        matrix, row_block, column_block = unravel(f, block, (gemm.matrices, self.row_blocks, self.column_blocks))
        at = dict(zip(gemm.batch_variables, unravel(f, matrix, gemm.batch), strict=True))
        a = self._matrix(f, pointers["a"], gemm.place_a, at, types.scalar(_DTYPES[gemm.arithmetic][0]))
        c = self._matrix(f, pointers["c"], gemm.place_c, at, types.scalar(self.epilogue.dtype))
        b = self._place_of_b(f, pointers["b"], at, matrix)
        rows = stretch_of(f, row_block, self.candidate.row_stretch, pieces(self.row_groups))
        panels = stretch_of(f, column_block, self.candidate.panel_stretch, pieces(self.column_groups))

        def panel(group: Group, vector: Value) -> None:
            column = f.mul(vector, self.lanes)
            where = self._panel(f, b, group, column, scratch)

            def tile(tall: Group, row: Value) -> None:
                self._tile(f, tall, group, row, column, a, where, c, pointers, at)

            each_piece(f, self.row_groups, *rows, tile)

        each_piece(f, self.column_groups, *panels, panel)

    def _matrix(self, f: Function, base: Value, place: Matrix, at: dict[Variable, Value], kind: str) -> Value:
        offset = f.integer(place.offset)
        for index, stride in zip(at.values(), place.batch, strict=True):
            offset = f.add(offset, f.mul(index, stride))
        return f.at(base, offset, kind)

    def _place_of_b(self, f: Function, base: Value, at: dict[Variable, Value], number: Value) -> Value:
        if self.candidate.b != "constant":
            return self._matrix(f, base, self.problem.place_b, at, types.scalar(_DTYPES[self.problem.arithmetic][1]))
        if not any(self.problem.place_b.batch):
            return base
        width = sum(group.size * group.count for group in self.column_groups) * self.lanes
        return f.at(base, f.mul(number, self.words * width), "i32")

    def _panel(self, f: Function, b: Value, group: Group, column: Value, scratch: Value) -> Value:
        """Where a tile finds its part of B; a computed B is packed here, once for all rows of the block."""
        gemm = self.problem
        if self.candidate.b == "constant":
            return f.at(b, f.mul(column, self.words), "i32")
        kind = types.scalar(_DTYPES[gemm.arithmetic][1])
        place = gemm.place_b
        start = f.at(b, f.mul(column, place.column), kind)
        if self.candidate.b == "place":
            return start
        function = write_panel(
            self.module, gemm.depth, group.size, self._valid(group), place.row, place.column, self.group, kind,
            prefix=self.name,
        )  # fmt: skip
        f.call(function, start, scratch)
        return scratch

    def _valid(self, group: Group) -> int:
        """Lanes of a panel's last vector that exist."""
        rest = self.problem.columns % self.lanes
        return rest if rest and group is self.column_groups[-1] else self.lanes

    def _tile(
        self,
        f: Function,
        tall: Group,
        wide: Group,
        row: Value,
        column: Value,
        a: Value,
        b: Value,
        c: Value,
        pointers: dict[str, Value],
        at: dict[Variable, Value],
    ) -> None:
        gemm, in_place = self.problem, self.candidate.b == "place"
        valid = self._valid(wide)
        width = gemm.place_b.row if in_place else wide.size * self.lanes
        tile = ProductTile(
            tall.size, wide.size, gemm.depth, gemm.place_a.row, gemm.place_a.column, width, gemm.place_c.row, valid,
            arithmetic=gemm.arithmetic, b_valid=valid if in_place and valid < self.lanes else 0,
        )  # fmt: skip
        name = write_tile(
            self.module,
            tile,
            self.epilogue,
            gemm.row,
            gemm.column,
            prefix=self.name,
        )
        a_kind, c_kind = types.scalar(_DTYPES[gemm.arithmetic][0]), types.scalar(self.epilogue.dtype)
        a_at = f.at(a, f.mul(row, gemm.place_a.row), a_kind)
        c_at = f.at(c, f.add(f.mul(row, gemm.place_c.row), column), c_kind)
        found = origins(f, self.epilogue, pointers, {gemm.row: row, gemm.column: column, **at})
        f.call(name, a_at, b, c_at, *(found[buffer.name] for buffer in self.epilogue.buffers))
