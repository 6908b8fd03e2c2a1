"""Matrix products on matrix units: float32 rounded to bfloat16 where it is packed, sums and epilogue in float32.

A block rounds its rows of A into tiles in scratch once, which stay in the second cache; then panels of 32 columns pass,
and for each the pairs of row tiles. Sums leave through scratch, from where the epilogue takes them. Constant panels lie
as the tiles read them, and those that follow are asked for. In parts of the depth a panel's part stays in the first
cache while all rows pass, and sums wait in scratch (as in `kernels/templates/gemm.py`).
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand, operands_of
from kernels.llvm import types
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.epilogue import origins
from kernels.templates.gemm_problem import Gemm, InvalidGemm
from kernels.templates.grid import Group, balanced, each_piece, pieces, split_last, start_of, stretch_of, unravel
from kernels.templates.matrix import Matrix, dense_batch
from kernels.templates.packing import PanelPacking
from kernels.templates.template import Template
from kernels.templates.tile import ProductTile, write_tile
from kernels.templates.units.product_choice import UnitProduct, candidates, estimate, share
from kernels.templates.units.rounding import PAIR, Rounded, write_rows
from kernels.tensor.expression import Variable
from kernels.units.instructions import LANES, ROW_BYTES, ROWS, TILE_BYTES, Depth, product
from kernels.units.write import write

FINISHED = 8  # rows of sums that one call of the epilogue's function takes


def build(gemm: Gemm, candidate: UnitProduct, target: Target, name: str) -> Kernel:
    """The kernel: operands "a", "b", "c" and those of the epilogue."""
    return _UnitProductBuilder(gemm, candidate, target, name).kernel()


def family(candidate: UnitProduct) -> tuple[str, Hashable]:
    """Whether the depth is taken in parts."""
    return "units", candidate.depth_block


UNIT_PRODUCT = Template("product", Gemm, candidates, build, estimate, share, family=family, variant="units")


class _UnitProductBuilder(Builder[Gemm, UnitProduct]):
    def __init__(self, gemm: Gemm, candidate: UnitProduct, target: Target, name: str) -> None:
        super().__init__(gemm, candidate, target, name)
        self.steps = -(-gemm.depth // PAIR)
        self.part = min(candidate.depth_block or self.steps, self.steps)
        self.parts = -(-self.steps // self.part)
        self.row_groups = split_last(balanced(-(-gemm.rows // ROWS), 2), gemm.rows % ROWS)
        self.column_groups = split_last(balanced(-(-gemm.columns // LANES), 2), gemm.columns % LANES)
        self.row_blocks = -(-pieces(self.row_groups) // candidate.row_stretch)
        self.column_blocks = -(-pieces(self.column_groups) // candidate.panel_stretch)

    def kernel(self) -> Kernel:
        gemm = self.problem
        packing = Rounded(self._packing())
        operands = (
            Operand("a", "input", DType.F32, gemm.place_a.elements(gemm.rows, gemm.depth, gemm.batch)),
            Operand("b", "constant", DType.BF16, packing.elements, packing),
            *operands_of(gemm.epilogue.buffers),
            Operand("c", "output", gemm.epilogue.dtype, gemm.place_c.elements(gemm.rows, gemm.columns, gemm.batch)),
        )
        blocks = gemm.matrices * self.row_blocks * self.column_blocks
        scratch = self._rows_bytes() + self._sums_bytes()
        return self.written(operands, blocks, scratch_bytes=scratch, flops=gemm.flops)

    def _packing(self) -> PanelPacking:
        gemm, b = self.problem, self.problem.place_b
        several = any(b.batch)
        if several and b.batch != dense_batch(gemm.batch, b.batch[-1]):
            raise InvalidGemm("a constant B of a batch must hold one matrix per index, or one for all.")
        return PanelPacking(
            gemm.depth, gemm.columns, LANES, self.column_groups, 2, b.row, b.column,
            gemm.matrices if several else 1, b.batch[-1] if several else 0, self.steps * ROWS,
        )  # fmt: skip

    def _rows_bytes(self) -> int:
        """Scratch for a block's rows of A, as tiles."""
        tiles = max(group.size for group in self.row_groups) * self.candidate.row_stretch
        return tiles * self.steps * TILE_BYTES

    def _sums_bytes(self) -> int:
        """Scratch for the sums of one pair of row tiles; of all pairs of a block where the depth is in parts."""
        return 4 * TILE_BYTES * (self.candidate.row_stretch if self.parts > 1 else 1)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        gemm = self.problem
        matrix, row_block, column_block = unravel(f, block, (gemm.matrices, self.row_blocks, self.column_blocks))
        at = dict(zip(gemm.batch_variables, unravel(f, matrix, gemm.batch), strict=True))
        a = _place(f, pointers["a"], gemm.place_a, at, "float")
        c = _place(f, pointers["c"], gemm.place_c, at, types.scalar(gemm.epilogue.dtype))
        b = pointers["b"]
        if any(gemm.place_b.batch):
            tiles = sum(group.size * group.count for group in self.column_groups)
            b = f.at(b, f.mul(matrix, tiles * self.steps * TILE_BYTES), "i8")
        rows = stretch_of(f, row_block, self.candidate.row_stretch, pieces(self.row_groups))
        panels = stretch_of(f, column_block, self.candidate.panel_stretch, pieces(self.column_groups))
        first = f.mul(start_of(f, self.row_groups, rows[0]), ROWS)
        end = f.minimum(f.mul(start_of(f, self.row_groups, f.integer(rows[1])), ROWS), f.integer(gemm.rows))
        round_rows = write_rows(self.module, gemm.depth, gemm.place_a.row, self.steps, prefix=self.name)
        f.call(round_rows, f.at(a, f.mul(first, gemm.place_a.row)), scratch, f.sub(end, first))
        sums = f.at(scratch, self._rows_bytes(), "i8")

        def panel(wide: Group, vector: Value) -> None:
            start = f.at(b, f.mul(vector, self.steps * TILE_BYTES), "i8")

            def part(number: Amount, *, ends: bool) -> None:
                def pair(tall: Group, tile: Value) -> None:
                    row = f.mul(tile, ROWS)
                    within = f.sub(row, first)
                    waiting = f.at(sums, f.mul(within, 2 * ROW_BYTES), "i8") if self.parts > 1 else sums
                    self._tile(f, tall, wide, start, scratch, waiting, f.sub(row, first), number, ends=ends)
                    if ends:
                        self._finish(f, tall, wide, waiting, c, row, f.mul(vector, LANES), pointers, at)

                each_piece(f, self.row_groups, *rows, pair)

            self._clear(f, sums)
            f.loop(0, self.parts - 1, 1, lambda number, _: part(number, ends=False))
            part(self.parts - 1, ends=True)

        each_piece(f, self.column_groups, *panels, panel)

    def _clear(self, f: Function, sums: Value) -> None:
        """Zeros where the sums of a block's rows wait."""
        if self.parts > 1:
            zero = f.number(types.vector("float", LANES), 0)
            f.loop(0, self._sums_bytes(), ROW_BYTES, lambda at, _: f.store(zero, f.at(sums, at, "i8"), align=ROW_BYTES))

    def _tile(
        self, f: Function, tall: Group, wide: Group, b: Value, tiles: Value, sums: Value, row: Value, number: Amount,
        *, ends: bool,
    ) -> None:  # fmt: skip
        """Call the function of a pair of row tiles by a panel, for a part of the depth."""
        steps = self.steps - (self.parts - 1) * self.part if ends else self.part
        ahead = -(-2 * ROWS // max(1, self.candidate.row_stretch)) if wide.size == 2 else 0
        name = f"{self.name}_units_{tall.size}x{wide.size}x{steps}"
        if not self.module.has(name):
            given = ("a", "b", "sums", "next")
            tile = Function(self.module, name, tuple(Parameter(one) for one in given))
            program = product(
                "bf16", tall.size, wide.size, (Depth(steps, TILE_BYTES),), a_stride=ROW_BYTES,
                a_apart=self.steps * TILE_BYTES, begins=self.parts == 1, ahead=ahead,
            )  # fmt: skip
            write(tile, program, {one: tile.parameter(one) for one in given})
            tile.finish()
        before = f.mul(f.integer(number), self.part * TILE_BYTES)
        a = f.at(f.at(tiles, f.mul(row, self.steps * ROW_BYTES), "i8"), before, "i8")
        panel = f.at(b, f.mul(before, wide.size), "i8")
        following = f.at(panel, self.part * wide.size * TILE_BYTES, "i8")
        share = f.mul(f.binary("udiv", row, f.integer(2 * ROWS)), steps * ahead * ROW_BYTES)
        f.call(name, a, panel, sums, f.at(following, share, "i8"))

    def _finish(
        self, f: Function, tall: Group, wide: Group, sums: Value, c: Value, row: Value, column: Value,
        pointers: dict[str, Value], at: dict[Variable, Value],
    ) -> None:  # fmt: skip
        """Apply the epilogue to the sums of a pair of row tiles, and store them."""
        gemm = self.problem
        rest = gemm.rows % ROWS if tall is self.row_groups[-1] else 0
        rows = (tall.size - 1) * ROWS + (rest or ROWS)
        lanes = gemm.columns % LANES if wide is self.column_groups[-1] else 0

        def some(height: int, first: Value, _: tuple[Value, ...]) -> None:
            tile = ProductTile(
                height, wide.size, 0, 0, 1, wide.size * LANES, gemm.place_c.row, lanes or LANES, begins=False
            )
            name = write_tile(self.module, tile, gemm.epilogue, gemm.row, gemm.column, prefix=self.name)
            here = f.add(row, first)
            aim = f.at(c, f.add(f.mul(here, gemm.place_c.row), column), types.scalar(gemm.epilogue.dtype))
            found = origins(f, gemm.epilogue, pointers, {gemm.row: here, gemm.column: column, **at})
            where = f.at(sums, f.mul(first, wide.size * ROW_BYTES), "i8")
            operands = [found[buffer.name] for buffer in gemm.epilogue.buffers]
            nothing = Value(("null",), "ptr")
            f.call(name, nothing, nothing, aim, where, *operands)

        whole = rows // FINISHED * FINISHED
        f.loop(0, whole, FINISHED, partial(some, FINISHED))
        if rows > whole:
            some(rows - whole, f.integer(whole), ())


def _place(f: Function, base: Value, place: Matrix, at: dict[Variable, Value], kind: str) -> Value:
    offset = f.integer(place.offset)
    for index, stride in zip(at.values(), place.batch, strict=True):
        offset = f.add(offset, f.mul(index, stride))
    return f.at(base, offset, kind)
