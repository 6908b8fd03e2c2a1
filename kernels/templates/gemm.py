"""Matrix products: C = epilogue(A B), batched, with any strides, a constant B packed ahead or a B that is computed.

A block is a stretch of rows by a stretch of panels of one matrix of the batch. Inside it, panels are the outer loop and
row tiles the inner one, so that a panel of B stays in the second cache while the rows pass; the stretch of rows is
chosen so that its part of A stays there too. Where the depth is too great for that, all rows take one part of it before
they take the next one, and sums wait in scratch (K. Goto and R. van de Geijn, Anatomy of High-Performance Matrix
Multiplication, 2008). Packed weights lie in the order in which they are read: tiles ask for what comes next while they
work on what is here, as a network finds its weights in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kernels.dtype import DType
from kernels.errors import Undecided
from kernels.kernel import Kernel, Operand, Packing, operands_of
from kernels.llvm import types
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Amount, Function, Value
from kernels.size import bound, is_free, nothing
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.epilogue import origins
from kernels.templates.gemm_choice import (
    GemmCandidate,
    candidates,
    estimate,
    family,
    lanes_of,
    near_part,
    steady,
    widens,
)
from kernels.templates.gemm_free import FreeProductBuilder, is_of_any_width
from kernels.templates.gemm_problem import Gemm, InvalidGemm
from kernels.templates.grid import (
    FreeGroups,
    Group,
    Groups,
    balanced,
    cut,
    each_piece,
    pieces,
    split_last,
    start_of,
    stretch_of,
    tallest,
    unravel,
)
from kernels.templates.matrix import Matrix
from kernels.templates.narrow import NARROW, write_widening
from kernels.templates.packing import PanelPacking
from kernels.templates.panels import write_panel
from kernels.templates.template import Template
from kernels.templates.tile import GROUP, LINE, Asked, ProductArithmetic, ProductTile, asked, write_tile
from kernels.tensor.expression import Variable

_DTYPES: dict[ProductArithmetic, tuple[DType, DType]] = {
    "f32": (DType.F32, DType.F32),
    "f64": (DType.F64, DType.F64),
    "bf16": (DType.BF16, DType.BF16),
    "u8s8": (DType.U8, DType.I8),
}


def build(gemm: Gemm, candidate: GemmCandidate, target: Target, name: str = "gemm") -> Kernel:
    """The kernel: operands "a", "b", "c" and those of the epilogue."""
    if is_of_any_width(gemm):
        return FreeProductBuilder(gemm, candidate, target, name).kernel()
    return GemmBuilder(gemm, candidate, target, name).kernel()


TILES = (1, 2, 3, 4, 8)  # of rows of any number: so many and more have code of their own


GEMM = Template("product", Gemm, candidates, build, estimate, family=family, steady=steady)
__all__ = ["GEMM", "Gemm", "GemmCandidate", "InvalidGemm", "build", "candidates", "estimate"]


class GemmBuilder(Builder[Gemm, GemmCandidate]):
    """Writes a product; what a constant B is in memory, and how a panel of it is made, others may say otherwise."""

    def __init__(self, gemm: Gemm, candidate: GemmCandidate, target: Target, name: str) -> None:
        super().__init__(gemm, candidate, target, name)
        self.lanes = lanes_of(gemm, target)
        if is_free(gemm.columns) or is_free(gemm.depth):
            raise Undecided("a product's columns and depth cannot be of any size yet.")
        self.row_groups: Groups = cut(gemm.rows, candidate.rows)
        self.least_tiles = 0  # of rows, where only the run knows how many; 1: one tile alone
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
        self.sum_kind = "double" if gemm.arithmetic == "f64" else "float"  # or an int32, as wide
        if gemm.arithmetic == "f64":
            self.packed_kind = "double"
        self.widens = widens(gemm, candidate)

    def kernel(self) -> Kernel:
        gemm = self.problem
        a_type = _DTYPES[gemm.arithmetic][0]
        packing = self._packing()
        b_elements = packing.elements if packing else gemm.place_b.elements(gemm.depth, gemm.columns, gemm.batch)
        operands = (
            Operand("a", "input", a_type, gemm.place_a.elements(gemm.rows, gemm.depth, gemm.batch)),
            Operand("b", "constant" if packing else "input", self.b_type, b_elements, packing, self._parts(packing)),
            *self._beside(),
            *operands_of(self.epilogue.buffers),
            Operand("c", "output", self.epilogue.dtype, gemm.place_c.elements(gemm.rows, gemm.columns, gemm.batch)),
        )
        blocks = gemm.matrices * self.row_blocks * self.column_blocks
        ways = [self] if not isinstance(self.row_groups, FreeGroups) else self._for_tiles(self.row_groups)
        scratch = max(one._panel_bytes() + one._sums_bytes() for one in ways)
        return self.written(operands, blocks, scratch_bytes=scratch, flops=gemm.flops)

    def _parts(self, packing: Packing | None) -> tuple[tuple[int, int], ...] | None:
        """The bytes of a packed B that each block reads: its panels, which lie side by side."""
        gemm = self.problem
        blocks_of_rows = gemm.matrices * self.row_blocks
        if not isinstance(packing, PanelPacking) or packing.matrices > 1 or is_free(blocks_of_rows):
            return None
        if not blocks_of_rows * self.column_blocks:  # nothing is computed
            return None
        vectors = [group.size for group in self.column_groups for _ in range(group.count)]
        size, blocks = packing.elements * self.b_type.bytes // sum(vectors), self.column_blocks
        ends = [size * sum(vectors[: len(vectors) * one // blocks]) for one in range(blocks + 1)]
        return tuple(pairwise(ends)) * blocks_of_rows

    def _panel_bytes(self) -> int:
        """Scratch for a panel of a computed or widened B, or the part of one."""
        return self.part * self._widest() if self.candidate.b == "packed" or self.widens else 0

    def _sums_bytes(self) -> int:
        """Scratch for the sums of all rows of a block by one panel, between two parts of the depth."""
        if self.parts == 1:
            return 0
        return tallest(self.row_groups) * self.candidate.row_stretch * self._widest()

    def _widest(self) -> int:
        """Bytes of a row of a panel."""
        return max((group.size for group in self.column_groups), default=0) * self.target.vector_bytes

    def _beside(self) -> tuple[Operand, ...]:
        """Operands that a constant B needs to be read."""
        return ()

    def _packing(self) -> Packing | None:
        if self.candidate.b != "constant":
            return None
        gemm, b = self.problem, self.problem.place_b
        return PanelPacking(
            gemm.depth, gemm.columns, self.lanes, self.column_groups, self.group, b.row, b.column,
            bound(gemm.matrices_of_b), b.apart,
        )  # fmt: skip

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        """A block; where only the run knows the rows, in one of several ways, by how many tiles of them there are."""
        if isinstance(self.row_groups, FreeGroups):
            self._by_tiles(f, self._for_tiles(self.row_groups), pointers, block, scratch)
        else:
            self._block(f, pointers, block, scratch)

    def _by_tiles(
        self, f: Function, ways: Sequence[GemmBuilder], pointers: dict[str, Value], block: Value, scratch: Value
    ) -> None:
        first, *others = ways
        if not others:
            first._block(f, pointers, block, scratch)
            return
        fewer = f.compare("slt", f.integer(pieces(self.row_groups)), f.integer(others[0].least_tiles))
        f.when(
            fewer,
            lambda: first._block(f, pointers, block, scratch),
            lambda: self._by_tiles(f, others, pointers, block, scratch),
        )

    def _for_tiles(self, rows: FreeGroups) -> list[GemmBuilder]:
        """The same product for one tile of rows, which passes the whole depth, and for so many tiles and more.

        Tiles share the asking for what follows: the fewer there are, the more each asks for in a turn of its loop.
        """
        found = []
        for tiles in (one for one in TILES if one <= bound(rows.pieces)):
            one = self._again(self._for_few(tiles, tiles * rows.most) if tiles < TILES[-1] else self.candidate)
            one.module, one.least_tiles = self.module, tiles
            if tiles == 1:
                one.row_groups, one.row_blocks = rows, 1
            else:
                one.row_groups = replace(rows, shortest=max(1, ((tiles - 1) * rows.most + 1) // tiles))
            found.append(one)
        return found

    def _again(self, candidate: GemmCandidate) -> GemmBuilder:
        """A builder of the same product with another candidate."""
        return type(self)(self.problem, candidate, self.target, self.name)

    def _for_few(self, tiles: int, rows: int) -> GemmCandidate:
        """The candidate with that part of the depth which suits so few rows best: they stay in the second cache.

        One tile of them takes the whole depth at once.
        """
        if tiles == 1:
            return replace(self.candidate, depth_block=None)
        few = replace(self.problem, rows=rows, batch=tuple(map(bound, self.problem.batch)))
        near = near_part(few, self.target, self.candidate.vectors, rows)
        ways = [replace(self.candidate, depth_block=part) for part in (self.candidate.depth_block, None, near)]
        return min(ways, key=lambda one: estimate(few, one, self.target))

    def _block(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        gemm = self.problem
        if nothing(gemm.rows, gemm.columns, gemm.matrices):
            return
        matrix, row_block, column_block = unravel(f, block, (gemm.matrices, self.row_blocks, self.column_blocks))
        at = dict(zip(gemm.batch_variables, unravel(f, matrix, gemm.batch), strict=True))
        a = self._place_of_a(f, pointers["a"], at)
        c = self._matrix(f, pointers["c"], gemm.place_c, at, types.scalar(self.epilogue.dtype))
        b = self._place_of_b(f, pointers["b"], at)
        rows: tuple[Amount, Amount] = (0, 1)
        if self.least_tiles != 1:
            rows = stretch_of(f, row_block, self.candidate.row_stretch, pieces(self.row_groups))
        panels = stretch_of(f, column_block, self.candidate.panel_stretch, pieces(self.column_groups))
        a = self._ready(f, a, scratch, rows)
        place = BlockPlace(pointers, at, a, b, c, scratch, f.at(scratch, self._panel_bytes(), "i8"), rows)

        def panel(group: Group, vector: Value) -> None:
            column, last = f.mul(vector, self.lanes), self.parts - 1
            if last:  # the first part goes on from zeros, so that it needs no function of its own
                self._clear(f, place, group)
                f.loop(0, last, 1, lambda number, _: self._part(f, place, group, column, number, False))
            self._part(f, place, group, column, f.integer(last), True)

        each_piece(f, self.column_groups, *panels, panel)

    def _place_of_a(self, f: Function, base: Value, at: dict[Variable, Value]) -> Value:
        return self._matrix(f, base, self.problem.place_a, at, types.scalar(_DTYPES[self.problem.arithmetic][0]))

    def _ready(self, f: Function, a: Value, scratch: Value, rows: tuple[Amount, Amount]) -> Value:
        """Where A lies once a block may read it: here where it is."""
        return a

    def _clear(self, f: Function, place: BlockPlace, panel: Group) -> None:
        """Zeros where the sums of a block's rows wait."""
        kind, size = types.vector(self.sum_kind, self.lanes), self.target.vector_bytes
        elements: Amount = self._sums_bytes() * self.lanes // size
        if isinstance(self.row_groups, FreeGroups):
            begin, end = (start_of(f, self.row_groups, one) for one in place.rows)
            elements = f.mul(f.sub(end, begin), panel.size * self.lanes)

        def one(at: Value, _: tuple[Value, ...]) -> None:
            f.store(f.number(kind, 0), f.at(place.sums, at, self.sum_kind), align=size)

        f.loop(0, elements, self.lanes, one)

    def _part(self, f: Function, place: BlockPlace, group: Group, column: Value, number: Value, ends: bool) -> None:
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

    def _place_of_b(self, f: Function, base: Value, at: dict[Variable, Value]) -> Value:
        """Where the matrix of an index of the batch begins; packed ones are those of the dims that B has."""
        b = self.problem.place_b
        if self.candidate.b != "constant":
            return self._matrix(f, base, b, at, types.scalar(self.b_type))
        if not b.apart:
            return base
        words = self.words * sum(group.size * group.count for group in self.column_groups) * self.lanes
        packed = Matrix(0, batch=tuple(stride // b.apart * words for stride in b.batch))
        return self._matrix(f, base, packed, at, self.packed_kind)

    def _steps(self, ends: bool) -> int:
        """Elements of the depth of a part: of the last one, or of any before it."""
        whole = (self.parts - 1) * self.part * self.group
        return self.problem.depth - whole if ends else self.part * self.group

    def _panel(
        self, f: Function, at: BlockPlace, group: Group, column: Value, number: Value, ends: bool
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
        at: BlockPlace,
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
            ahead=ahead.lines, near=ahead.near, b_dtype=DType.F32 if self.widens else gemm.b_dtype,
        )  # fmt: skip
        name = write_tile(self.module, tile, self.epilogue, gemm.row, gemm.column, prefix=self.name)
        a_kind, c_kind = types.scalar(_DTYPES[gemm.arithmetic][0]), types.scalar(self.epilogue.dtype)
        first = f.mul(number, self.part * self.group * gemm.place_a.column)
        a_at = f.at(at.a, f.add(f.mul(row, gemm.place_a.row), first), a_kind)
        c_at = f.at(at.c, f.add(f.mul(row, gemm.place_c.row), column), c_kind)
        given = [a_at, where[0], c_at]
        within = f.sub(row, start_of(f, self.row_groups, at.rows[0]))
        if self.parts > 1:
            given.append(f.at(at.sums, f.mul(within, panel), self.sum_kind))
        if ahead.lines:
            if self.least_tiles > 1:  # rows share the next part evenly
                following = self.part * self.group * self.b_type.bytes * panel
                rows = f.sub(start_of(f, self.row_groups, at.rows[1]), start_of(f, self.row_groups, at.rows[0]))
                share = f.binary("udiv", f.mul(within, following // LINE), rows)
                given.append(f.at(where[1], f.add(f.mul(share, LINE), ahead.apart), "i8"))
            else:
                given.append(ahead.place(f, where[1], within))
        if ends:
            found = origins(f, self.epilogue, at.pointers, {gemm.row: row, gemm.column: column, **at.batch})
            given += [found[buffer.name] for buffer in self.epilogue.buffers]
        f.call(name, *given)

    def _asked(self, width: int, ends: bool) -> Asked:
        """How a tile asks for packed weights, where the first cache does not hold all of them.

        One that reads them alone does so where the second cache does not hold the program's: asking for what is there
        takes the way that reading takes.
        """
        word = self.b_type.bytes * self.group
        if self.candidate.b != "constant" or self.words * self.problem.columns * word <= self.target.l1:
            return Asked()
        tiles = min(self.least_tiles or pieces(self.row_groups), self.candidate.row_stretch)
        if tiles == 1 and self.target.constant_level in ("l1", "l2"):
            return Asked()
        steps = self._steps(ends) // self.group
        return asked(self.target.core, steps, word * width, tallest(self.row_groups), tiles, self.part * word * width)


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """What all tiles of a block share."""

    pointers: dict[str, Value]
    batch: dict[Variable, Value]  # the epilogue's variables of the batch
    a: Value
    b: Value
    c: Value
    panel: Value  # scratch for a computed B
    sums: Value  # scratch between two parts of the depth
    rows: tuple[Amount, Amount]  # row tiles
