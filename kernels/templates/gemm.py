"""Matrix products: C = epilogue(A B), batched, with any strides, a constant B packed ahead or a B that is computed.

A block is a stretch of rows by a stretch of panels of one matrix of the batch. Inside it, panels are the outer loop and
row tiles the inner one, so that a panel of B stays in the second cache while the rows pass; the stretch of rows is
chosen so that its part of A stays there too. Where the depth is too great for that, all rows take one part of it before
they take the next one, and sums wait in scratch (K. Goto and R. van de Geijn, Anatomy of High-Performance Matrix
Multiplication, 2008). Packed weights lie in the order in which they are read: tiles ask for what comes next while they
work on what is here, as a network finds its weights in memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand, operands_of
from kernels.llvm import types
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Amount, Function, Value
from kernels.target import Target
from kernels.templates import cost
from kernels.templates.builder import Builder
from kernels.templates.epilogue import origins
from kernels.templates.gemm_problem import Gemm, InvalidGemm
from kernels.templates.grid import Group, balanced, each_piece, pieces, split_last, start_of, stretch_of, unravel
from kernels.templates.matrix import Matrix, dense_batch
from kernels.templates.narrow import CYCLES, NARROW, write_widening
from kernels.templates.packing import PanelPacking
from kernels.templates.panels import write_panel
from kernels.templates.template import Template
from kernels.templates.tile import (
    GROUP,
    Asked,
    ProductArithmetic,
    ProductTile,
    asked,
    most_accumulators,
    most_registers,
    write_tile,
)
from kernels.tensor.expression import Variable

WayToB = Literal["constant", "place", "packed"]  # packed ahead; read where it lies; packed by each block


@dataclass(frozen=True, slots=True)
class GemmCandidate:
    """Sizes that decide the speed of a product."""

    rows: int  # of a tile
    vectors: int  # of a tile
    row_stretch: int  # row tiles of a block
    panel_stretch: int  # panels of a block
    b: WayToB
    depth_block: int | None = None  # steps of the depth that all rows of a block take before the next ones; None: all

    def __str__(self) -> str:
        depth = f" depth {self.depth_block}" if self.depth_block else ""
        return f"{self.rows}x{self.vectors} b {self.b} block {self.row_stretch}x{self.panel_stretch}{depth}"


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
            for depth_block in _depth_blocks(gemm, target, rows, vectors):
                found.append(_with_blocks(gemm, target, rows, vectors, b, depth_block))
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(gemm, one, target)))


def tile_shapes(rows: int, columns: int, target: Target) -> list[tuple[int, int]]:
    """Shapes (rows, vectors) whose sums fit the registers."""
    most, lanes, rows = most_accumulators(target, asking=True), target.lanes(), max(rows, 1)
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
    part = candidate.depth_block or words
    share = gemm.b_dtype.bytes / 4
    cycles = cost.product_cycles(rows, panels, words, 4, gemm.columns % lanes > 0, target, part, share)
    if gemm.b_dtype in NARROW:  # once for each stretch of rows, or by each tile
        times = -(-pieces(rows) // candidate.row_stretch) if widens(gemm, candidate) else pieces(rows)
        cycles += CYCLES * times * words * -(-gemm.columns // lanes)
    if part < words:  # sums wait in scratch between two parts
        cycles += (-(-words // part) - 1) * cost.waiting_cycles(rows, panels, target)
    elif cost.outgrows(4 * part, candidate.rows * candidate.row_stretch, candidate.vectors * lanes, target):
        cycles += cost.FAR_PANEL / target.core.l3 * (pieces(rows) - 1) * gemm.columns * words * 4
    if candidate.b == "packed":  # read and written once for each stretch of rows
        stretches = -(-pieces(rows) // candidate.row_stretch)
        cycles += stretches * words * -(-gemm.columns // lanes) * (2.0 if gemm.place_b.column == 1 else 6.0)
    elif candidate.b == "place" and gemm.place_b.row * 4 % 4096 == 0:
        cycles *= 1.2  # rows a multiple of 4 KiB apart fall on the same lines of the first cache
    return cost.nanoseconds(gemm.matrices * cycles, target)


def widens(gemm: Gemm, candidate: GemmCandidate) -> bool:
    """Whether a block widens panels into scratch: where several tiles read each."""
    tiles = min(candidate.row_stretch, pieces(balanced(gemm.rows, candidate.rows)))
    return gemm.b_dtype in NARROW and tiles > 1


def _ways_to_b(gemm: Gemm) -> list[WayToB]:
    if gemm.constant_b:
        return ["constant"]
    if gemm.place_b.column == 1 and gemm.arithmetic == "f32":
        return ["place", "packed"]
    return ["packed"]


def _depth_blocks(gemm: Gemm, target: Target, rows: int, vectors: int) -> list[int | None]:
    """Parts of the depth worth trying: all of it, what keeps a panel in the first cache, what the second one likes.

    A panel that one tile passes alone needs no parts. Short parts read A in short pieces, which is slow where A does
    not stay in the second cache.
    """
    if gemm.rows <= rows:
        return [None]
    groups = -(-gemm.depth // GROUP[gemm.arithmetic])
    near = max(_LEAST_PART, target.l1 // 2 // (target.vector_bytes * vectors) // _LEAST_PART * _LEAST_PART)
    stays = 4 * groups * gemm.rows <= target.l2 // 2
    return [None, *(size for size in ((near,) if stays else ()) + (_FAR_PART,) if groups >= 2 * size)]


def _with_blocks(
    gemm: Gemm, target: Target, rows: int, vectors: int, b: WayToB, depth_block: int | None
) -> GemmCandidate:
    """The stretches of a block: A's part in half of the second cache, about a million flops and some blocks."""
    row_tiles = pieces(balanced(gemm.rows, rows))
    panels = pieces(balanced(-(-gemm.columns // target.lanes()), vectors))
    depth = -(-gemm.depth // GROUP[gemm.arithmetic])
    bytes_of_row = max(1, DType.F32.bytes * (depth_block or depth))
    row_stretch = max(1, min(row_tiles, target.l2 // (4 if depth_block else 2) // bytes_of_row // rows))
    if b == "packed":
        row_stretch = max(1, min(row_tiles, 4 * row_stretch))
    flops_of_tile = 2 * rows * vectors * target.lanes() * max(gemm.depth, 1)
    panel_stretch = max(1, min(panels, round(_BLOCK_FLOPS / flops_of_tile / row_stretch)))
    return GemmCandidate(rows, vectors, row_stretch, panel_stretch, b, depth_block)


_FAR_PART = 384  # steps of the depth: rows by so many, and two panels, stay in the second cache
_LEAST_PART = 32  # steps of the depth: shorter parts differ by a step or two at the most
_BLOCK_FLOPS = 1_000_000  # about 4 to 15 microseconds: several blocks for the workers, and little per block to claim it


def build(gemm: Gemm, candidate: GemmCandidate, target: Target, name: str = "gemm") -> Kernel:
    """The kernel: operands "a", "b", "c" and those of the epilogue."""
    return _GemmBuilder(gemm, candidate, target, name).kernel()


def family(candidate: GemmCandidate) -> tuple[str, Hashable]:
    """Whether the depth is taken in parts, and the tile."""
    return ("in parts" if candidate.depth_block else "whole"), (candidate.rows, candidate.vectors, candidate.b)


GEMM = Template("product", Gemm, candidates, build, estimate, family=family)
__all__ = ["GEMM", "Gemm", "GemmCandidate", "InvalidGemm", "build", "candidates", "estimate"]


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
        self.part = min(candidate.depth_block or self.words, self.words)  # groups of a part of the depth
        self.parts = max(1, -(-self.words // self.part)) if self.part else 1
        narrow = gemm.b_dtype in NARROW
        self.b_type = gemm.b_dtype if narrow else _DTYPES[gemm.arithmetic][1]
        self.packed_kind = memory_type(gemm.b_dtype) if narrow else "i32"  # of a group of the depth
        self.widens = widens(gemm, candidate)

    def kernel(self) -> Kernel:
        gemm = self.problem
        a_type = _DTYPES[gemm.arithmetic][0]
        packing = self._packing()
        b_elements = packing.elements if packing else gemm.place_b.elements(gemm.depth, gemm.columns, gemm.batch)
        operands = (
            Operand("a", "input", a_type, gemm.place_a.elements(gemm.rows, gemm.depth, gemm.batch)),
            Operand("b", "constant" if packing else "input", self.b_type, b_elements, packing),
            *operands_of(self.epilogue.buffers),
            Operand("c", "output", self.epilogue.dtype, gemm.place_c.elements(gemm.rows, gemm.columns, gemm.batch)),
        )
        blocks = gemm.matrices * self.row_blocks * self.column_blocks
        return self.written(operands, blocks, scratch_bytes=self._panel_bytes() + self._sums_bytes(), flops=gemm.flops)

    def _panel_bytes(self) -> int:
        """Scratch for a panel of a computed or widened B, or the part of one."""
        return self.part * self._widest() if self.candidate.b == "packed" or self.widens else 0

    def _sums_bytes(self) -> int:
        """Scratch for the sums of all rows of a block by one panel, between two parts of the depth."""
        if self.parts == 1:
            return 0
        tallest = max((group.size for group in self.row_groups), default=0)
        return tallest * self.candidate.row_stretch * self._widest()

    def _widest(self) -> int:
        """Bytes of a row of a panel."""
        return max((group.size for group in self.column_groups), default=0) * self.lanes * 4

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

        place = _BlockPlace(pointers, at, a, b, c, scratch, f.at(scratch, self._panel_bytes(), "i8"), rows)

        def panel(group: Group, vector: Value) -> None:
            column, last = f.mul(vector, self.lanes), self.parts - 1
            if last:  # the first part goes on from zeros, so that it needs no function of its own
                self._clear(f, place.sums)
                f.loop(0, last, 1, lambda number, _: self._part(f, place, group, column, number, False))
            self._part(f, place, group, column, f.integer(last), True)

        each_piece(f, self.column_groups, *panels, panel)

    def _clear(self, f: Function, sums: Value) -> None:
        kind = types.vector("float", self.lanes)

        def one(place: Value, _: tuple[Value, ...]) -> None:
            f.store(f.number(kind, 0), f.at(sums, place), align=4 * self.lanes)

        f.loop(0, self._sums_bytes() // 4, self.lanes, one)

    def _part(self, f: Function, place: _BlockPlace, group: Group, column: Value, number: Value, ends: bool) -> None:
        """All rows of a block by one part of the depth of a panel."""
        where = self._panel(f, place, group, column, number, ends)
        each_piece(
            f, self.row_groups, *place.rows,
            lambda tall, row: self._tile(f, place, tall, group, row, column, where, number, ends),
        )  # fmt: skip

    def _matrix(self, f: Function, base: Value, place: Matrix, at: dict[Variable, Value], kind: str) -> Value:
        offset = f.integer(place.offset)
        for index, stride in zip(at.values(), place.batch, strict=True):
            offset = f.add(offset, f.mul(index, stride))
        return f.at(base, offset, kind)

    def _place_of_b(self, f: Function, base: Value, at: dict[Variable, Value], number: Value) -> Value:
        if self.candidate.b != "constant":
            return self._matrix(f, base, self.problem.place_b, at, types.scalar(self.b_type))
        if not any(self.problem.place_b.batch):
            return base
        width = sum(group.size * group.count for group in self.column_groups) * self.lanes
        return f.at(base, f.mul(number, self.words * width), self.packed_kind)

    def _steps(self, ends: bool) -> int:
        """Elements of the depth of a part: of the last one, or of any before it."""
        whole = (self.parts - 1) * self.part * self.group
        return self.problem.depth - whole if ends else self.part * self.group

    def _panel(
        self, f: Function, at: _BlockPlace, group: Group, column: Value, number: Value, ends: bool
    ) -> tuple[Value, Value]:
        """Where a tile finds its part of B, and where that lies in memory.

        A computed B is packed here, and a narrow one widened, once for all rows of the block.
        """
        gemm = self.problem
        if self.candidate.b == "constant":
            panel = f.at(at.b, f.mul(column, self.words), self.packed_kind)
            packed = f.at(panel, f.mul(number, self.part * group.size * self.lanes), self.packed_kind)
            if not self.widens:
                return packed, packed
            function = write_widening(self.module, gemm.b_dtype, prefix=self.name)
            f.call(function, packed, at.panel, f.integer(self._steps(ends) * group.size))
            return at.panel, packed
        kind = types.scalar(self.b_type)
        place = gemm.place_b
        first = f.mul(number, self.part * self.group * place.row)
        start = f.at(at.b, f.add(first, f.mul(column, place.column)), kind)
        if self.candidate.b == "place":
            return start, start
        function = write_panel(
            self.module, self._steps(ends), group.size, self._valid(group), place.row, place.column, self.group, kind,
            prefix=self.name,
        )  # fmt: skip
        f.call(function, start, at.panel)
        return at.panel, start

    def _valid(self, group: Group) -> int:
        """Lanes of a panel's last vector that exist."""
        rest = self.problem.columns % self.lanes
        return rest if rest and group is self.column_groups[-1] else self.lanes

    def _tile(
        self,
        f: Function,
        at: _BlockPlace,
        tall: Group,
        wide: Group,
        row: Value,
        column: Value,
        where: tuple[Value, Value],
        number: Value,
        ends: bool,
    ) -> None:
        gemm, in_place = self.problem, self.candidate.b == "place"
        valid, panel = self._valid(wide), wide.size * self.lanes
        ahead = self._asked(panel, ends)
        tile = ProductTile(
            tall.size, wide.size, self._steps(ends), gemm.place_a.row, gemm.place_a.column,
            gemm.place_b.row if in_place else panel, gemm.place_c.row, valid, arithmetic=gemm.arithmetic,
            b_valid=valid if in_place and valid < self.lanes else 0, begins=self.parts == 1, ends=ends,
            ahead=ahead.lines, b_dtype=DType.F32 if self.widens else gemm.b_dtype,
        )  # fmt: skip
        name = write_tile(self.module, tile, self.epilogue, gemm.row, gemm.column, prefix=self.name)
        a_kind, c_kind = types.scalar(_DTYPES[gemm.arithmetic][0]), types.scalar(self.epilogue.dtype)
        first = f.mul(number, self.part * self.group * gemm.place_a.column)
        a_at = f.at(at.a, f.add(f.mul(row, gemm.place_a.row), first), a_kind)
        c_at = f.at(at.c, f.add(f.mul(row, gemm.place_c.row), column), c_kind)
        given = [a_at, where[0], c_at]
        within = f.sub(row, start_of(f, self.row_groups, at.rows[0]))
        if self.parts > 1:
            given.append(f.at(at.sums, f.mul(within, panel)))
        if ahead.lines:
            given.append(ahead.place(f, where[1], within))
        if ends:
            found = origins(f, self.epilogue, at.pointers, {gemm.row: row, gemm.column: column, **at.batch})
            given += [found[buffer.name] for buffer in self.epilogue.buffers]
        f.call(name, *given)

    def _asked(self, width: int, ends: bool) -> Asked:
        """How a tile asks for packed weights, where the first cache does not hold all of them."""
        word = self.b_type.bytes * self.group
        if self.candidate.b != "constant" or self.words * self.problem.columns * word <= self.target.l1:
            return Asked()
        tiles = min(pieces(self.row_groups), self.candidate.row_stretch)
        steps = self._steps(ends) // self.group
        return asked(steps, word * width, self.row_groups[0].size, tiles, self.part * word * width)


@dataclass(frozen=True, slots=True)
class _BlockPlace:
    """What all tiles of a block share."""

    pointers: dict[str, Value]
    batch: dict[Variable, Value]  # the epilogue's variables of the batch
    a: Value
    b: Value
    c: Value
    panel: Value  # scratch for a computed B
    sums: Value  # scratch between two parts of the depth
    rows: tuple[Amount, Amount]  # row tiles
