"""Which tiles and blocks of a matrix product are worth trying, and a guess at their time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType
from kernels.size import bound
from kernels.target import Target
from kernels.templates import cost
from kernels.templates.gemm_problem import Gemm
from kernels.templates.grid import balanced, cut, pieces
from kernels.templates.narrow import CYCLES, NARROW
from kernels.templates.tile import GROUP, most_accumulators, most_registers

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


def candidates(gemm: Gemm, target: Target) -> tuple[GemmCandidate, ...]:
    """The tiles worth trying, the likely best first."""
    found = []
    for rows, vectors in tile_shapes(gemm.rows, gemm.columns, target, lanes_of(gemm, target)):
        for b in _ways_to_b(gemm):
            for depth_block in _depth_blocks(gemm, target, rows, vectors):
                found.append(_with_blocks(gemm, target, rows, vectors, b, depth_block))
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(gemm, one, target)))


def lanes_of(gemm: Gemm, target: Target) -> int:
    """Sums of a vector."""
    return target.lanes(DType.F64 if gemm.arithmetic == "f64" else DType.F32)


def tile_shapes(rows: int, columns: int, target: Target, lanes: int) -> list[tuple[int, int]]:
    """Shapes (rows, vectors of so many lanes) whose sums fit the registers."""
    most, rows = most_accumulators(target, asking=True), max(rows, 1)
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
    lanes, word = lanes_of(gemm, target), 8 if gemm.arithmetic == "f64" else 4
    rows = balanced(gemm.rows, candidate.rows)
    panels = balanced(-(-gemm.columns // lanes), candidate.vectors)
    words = -(-gemm.depth // GROUP[gemm.arithmetic])
    part = candidate.depth_block or words
    share = gemm.b_dtype.bytes / 4  # of a word
    cycles = cost.product_cycles(rows, panels, words, word, gemm.columns % lanes > 0, target, part, share)
    if gemm.place_a.row * word % cost.PAGE == 0:
        cycles += cost.crowded_cycles(rows, panels, words)
    if gemm.b_dtype in NARROW:  # once for each stretch of rows, or by each tile
        times = -(-pieces(rows) // candidate.row_stretch) if widens(gemm, candidate) else pieces(rows)
        cycles += CYCLES * times * words * -(-gemm.columns // lanes)
    if part < words:  # sums wait in scratch between two parts
        cycles += (-(-words // part) - 1) * cost.waiting_cycles(rows, panels, target)
    elif cost.outgrows(word * part, candidate.rows * candidate.row_stretch, candidate.vectors * lanes, target):
        cycles += cost.FAR_PANEL / target.core.l3 * (pieces(rows) - 1) * gemm.columns * words * word
    if candidate.b == "packed":  # read and written once for each stretch of rows
        stretches = -(-pieces(rows) // candidate.row_stretch)
        cycles += stretches * words * -(-gemm.columns // lanes) * (2.0 if gemm.place_b.column == 1 else 6.0)
    elif candidate.b == "place" and gemm.place_b.row * word % cost.PAGE == 0:
        cycles *= 1.2  # rows a multiple of 4 KiB apart fall on the same lines of the first cache
    return cost.nanoseconds(gemm.matrices * cycles, target)


def widens(gemm: Gemm, candidate: GemmCandidate) -> bool:
    """Whether a block widens panels into scratch: where several tiles read each."""
    tiles = min(candidate.row_stretch, bound(pieces(cut(gemm.rows, candidate.rows))))
    return gemm.b_dtype in NARROW and tiles > 1


def reads_ahead(gemm: Gemm, candidate: GemmCandidate, target: Target, moved: int) -> bool:
    """Whether C may lie over A, so many elements from where A begins: no tile writes what is read after that.

    A tile that has all columns and takes the whole depth keeps its sums in registers until it has read its rows of A.
    """
    word = 4 if gemm.arithmetic == "f32" else 0
    groups = -(-gemm.depth // GROUP[gemm.arithmetic])
    whole = candidate.vectors * lanes_of(gemm, target) >= gemm.columns and (candidate.depth_block or groups) >= groups
    if not whole or gemm.epilogue.dtype.bytes != word or gemm.matrices != 1:
        return False
    a, c = gemm.place_a, gemm.place_c
    alike = (a.row, a.column, a.offset) == (c.row, c.column, c.offset + moved)
    return pieces(cut(gemm.rows, candidate.rows)) == 1 or (alike and max(gemm.depth, gemm.columns) <= a.row)


def _ways_to_b(gemm: Gemm) -> list[WayToB]:
    if gemm.constant_b:
        return ["constant"]
    if gemm.place_b.column == 1 and gemm.arithmetic in ("f32", "f64"):
        return ["place", "packed"]
    return ["packed"]


def _depth_blocks(gemm: Gemm, target: Target, rows: int, vectors: int) -> list[int | None]:
    """Parts of the depth worth trying: all of it, what keeps a panel in the first cache, what the second one likes.

    A panel that one tile passes alone needs no parts. Short parts read A in short pieces, which is slow where A does
    not stay in the second cache; in float64 they were measured no faster.
    """
    if gemm.rows <= rows:
        return [None]
    near = near_part(gemm, target, vectors, gemm.rows)
    far = _FAR_PART if -(-gemm.depth // GROUP[gemm.arithmetic]) >= 2 * _FAR_PART else None
    return [None, *(size for size in (near, far) if size is not None)]


def near_part(gemm: Gemm, target: Target, vectors: int, rows: int) -> int | None:
    """The part of the depth that keeps a panel in the first cache, where so many rows stay in the second one."""
    groups = -(-gemm.depth // GROUP[gemm.arithmetic])
    near = max(_LEAST_PART, target.l1 // 2 // (target.vector_bytes * vectors) // _LEAST_PART * _LEAST_PART)
    stays = 4 * groups * rows <= target.l2 // 2 and gemm.arithmetic != "f64"
    return near if stays and groups >= 2 * near else None


def family(candidate: GemmCandidate) -> tuple[str, Hashable]:
    """Whether the depth is taken in parts, and the tile."""
    return ("in parts" if candidate.depth_block else "whole"), (candidate.rows, candidate.vectors, candidate.b)


def steady(candidate: GemmCandidate) -> float:
    """Best with three rows for each vector: few rows then keep enough sums at work, and are not cut in two."""
    return -abs(candidate.rows - 3 * candidate.vectors)


def _with_blocks(
    gemm: Gemm, target: Target, rows: int, vectors: int, b: WayToB, depth_block: int | None
) -> GemmCandidate:
    """The stretches of a block: A's part in half of the second cache, about a million flops and some blocks."""
    row_tiles = pieces(balanced(gemm.rows, rows))
    lanes = lanes_of(gemm, target)
    panels = pieces(balanced(-(-gemm.columns // lanes), vectors))
    depth = -(-gemm.depth // GROUP[gemm.arithmetic])
    bytes_of_row = max(1, target.vector_bytes // lanes * (depth_block or depth))
    row_stretch = max(1, min(row_tiles, target.l2 // (4 if depth_block else 2) // bytes_of_row // rows))
    if b == "packed":
        row_stretch = max(1, min(row_tiles, 4 * row_stretch))
    flops_of_tile = 2 * rows * vectors * lanes * max(gemm.depth, 1)
    panel_stretch = max(1, min(panels, round(_BLOCK_FLOPS / flops_of_tile / row_stretch)))
    return GemmCandidate(rows, vectors, row_stretch, panel_stretch, b, depth_block)


_FAR_PART = 384  # steps of the depth: rows by so many, and two panels, stay in the second cache
_LEAST_PART = 32  # steps of the depth: shorter parts differ by a step or two at the most
_BLOCK_FLOPS = 1_000_000  # about 4 to 15 microseconds: several blocks for the workers, and little per block to claim it
