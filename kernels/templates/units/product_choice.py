"""Which products on matrix units are worth trying, and a guess at their time."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.size import is_free
from kernels.target import Target
from kernels.templates import cost
from kernels.templates.gemm_problem import Gemm
from kernels.templates.grid import balanced, pieces
from kernels.templates.units.rounding import PAIR
from kernels.units.instructions import LANES, ROWS, TILE_BYTES
from kernels.units.write import NoMatrixUnit, has_unit

ROUNDING = 3.0  # cycles to round two vectors into a row of a tile
FINISH = 3.0  # cycles to load a vector of sums, apply an epilogue and store it
LOADS = 0.8  # of loading tiles, that products do not hide
TILE = 30.0  # cycles around the loop of a tile of sums: clearing, storing, calls
NEAR = 8  # tiles of the depth, of which a panel's and the rows' stay in the first cache
SHARED_BLOCKS = 8  # blocks for several workers
LEAST_ROWS = 2  # fewer are as fast as their weights are read


@dataclass(frozen=True, slots=True)
class UnitProduct:
    """Sizes that decide the speed of a product on matrix units."""

    row_stretch: int  # pairs of tiles of rows of a block
    panel_stretch: int  # panels of a block
    depth_block: int | None = None  # tiles of the depth that all rows of a block take before the next ones; None: all

    def __str__(self) -> str:
        depth = f" depth {self.depth_block}" if self.depth_block else ""
        return f"units block {self.row_stretch}x{self.panel_stretch}{depth}"


def candidates(gemm: Gemm, target: Target) -> tuple[UnitProduct, ...]:
    """The likely best first; raises NoMatrixUnit where the target has none for the problem."""
    if not serves(gemm, target):
        raise NoMatrixUnit(f"{target.cpu} has no matrix unit for this product of rounded numbers.")
    pairs, panels = _pairs(gemm), _panels(gemm)
    steps = -(-gemm.depth // PAIR)
    found = []
    for part in (None, NEAR) if steps >= 2 * NEAR else (None,):
        rows = max(1, min(pairs, target.l2 // 2 // (2 * TILE_BYTES * steps)))
        found.append(UnitProduct(rows, panels, part))
    return tuple(sorted(found, key=lambda one: estimate(gemm, one, target)))


def serves(gemm: Gemm, target: Target) -> bool:
    """Whether a product may run on matrix units."""
    if any(map(is_free, (gemm.rows, gemm.columns, gemm.depth, *gemm.batch))):
        return False
    return (
        gemm.arithmetic == "rounded" and gemm.constant_b and gemm.place_a.column == 1
        and gemm.rows >= LEAST_ROWS and gemm.columns > 0 and gemm.depth > 0 and gemm.matrices > 0
        and target.vector_bytes == 4 * LANES and has_unit("bf16", target) and target.has("avx512bf16")
    )  # fmt: skip


def share(gemm: Gemm, candidate: UnitProduct, target: Target) -> UnitProduct:
    """The candidate with blocks for several workers."""
    pairs, panels = _pairs(gemm), _panels(gemm)
    blocks = gemm.matrices * -(-pairs // candidate.row_stretch)
    wanted = -(-SHARED_BLOCKS // blocks)
    return UnitProduct(candidate.row_stretch, max(1, panels // wanted), candidate.depth_block)


def estimate(gemm: Gemm, candidate: UnitProduct, target: Target) -> float:
    """Nanoseconds of all blocks on one core."""
    steps, panels, pairs = -(-gemm.depth // PAIR), _panels(gemm), _pairs(gemm)
    tiles = -(-gemm.rows // ROWS) * -(-gemm.columns // LANES)
    loads = panels * pairs * steps * 4 * TILE_BYTES  # bytes
    near = candidate.depth_block is not None or 4 * TILE_BYTES * steps <= target.l1
    rate = 2 / (1 / target.core.l1 + 1 / target.core.l2) if near else target.core.l2  # rows come from the second cache
    cycles = tiles * steps / target.core.tile_products + LOADS * loads / rate
    parts = 1 if candidate.depth_block is None else -(-steps // candidate.depth_block)
    cycles += parts * tiles * (TILE + 2 * ROWS * (parts > 1))
    cycles += FINISH * gemm.rows * -(-gemm.columns // LANES)
    cycles += ROUNDING * gemm.rows * steps * -(-panels // candidate.panel_stretch)
    weights = 2 * gemm.columns * gemm.depth
    reading = weights / target.constant_rate
    cycles = max(cycles, reading) + cost.CONSTANT * min(cycles, reading)
    return cost.nanoseconds(gemm.matrices * cycles, target)


def _pairs(gemm: Gemm) -> int:
    return pieces(balanced(-(-gemm.rows // ROWS), 2))


def _panels(gemm: Gemm) -> int:
    return pieces(balanced(-(-gemm.columns // LANES), 2))
