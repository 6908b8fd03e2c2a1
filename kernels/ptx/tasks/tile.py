"""Tiles of products: sums over a depth for rows and columns, whose elements come from wherever a source reads them.

    sums[row, column] = sum over k of left[k, row] * right[k, column]

A block has a tile of `rows` x `columns`. All of its threads copy slices of the depth into shared memory, several slices
ahead of the one that they multiply, so that what a copy waits for is hidden (Ampere's asynchronous copies; older GPUs
copy by way of registers). Each thread has `tall` x `wide` sums in registers; where a tile has fewer such pieces than
the block has threads, groups of threads share the depth of a slice, and their sums are added in shared memory at the
end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.ptx.tasks.threads import RESIDENT, THREADS, WARP
from kernels.target import Target

STAGES = 4  # slices in shared memory: one is multiplied, the others are on their way
PAD = 4  # elements between rows of a slice whose depth lies side by side: they stay aligned for vectors of four
# Cycles: of a block before its first slice and behind its last one; and the share of those in which shared memory is
# read that multiplying does not hide. Both are judged by the tiles that were timed on one H200 (python -m
# bench.gpu.estimates); all else follows from what is counted and from how many instructions a multiprocessor issues.
_FIXED_CYCLES, _HELD = 3000.0, 0.5
_ISSUED = 4  # instructions of warps that a multiprocessor issues in a cycle, and multiplications it does


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Instructions of a warp for a slice beside those that multiply and read it (python -m bench.gpu.counts).

    Of each slice; of a copy of four elements, and of one; of a slice of one tap, and of a copy of such a one; of a copy
    whose tap and channel are looked up; and for each axis whose border is checked, of a slice or such a copy.
    """

    slice: float = 18.0
    vector: float = 1.0
    element: float = 1.0
    tap: float = 7.0
    tapped: float = 1.0
    placed: float = 6.0
    check: float = 2.0


@dataclass(frozen=True, slots=True)
class TaskTile:
    """Sizes that decide the speed."""

    rows: int
    columns: int
    tall: int  # sums of a thread
    wide: int
    slice: int  # of the depth

    @property
    def pieces(self) -> int:
        """Pieces of `tall` x `wide` sums."""
        return (self.rows // self.tall) * (self.columns // self.wide)

    @property
    def groups(self) -> int:
        """Groups of threads, which share the depth of a slice."""
        return THREADS // self.pieces

    @property
    def share(self) -> int:
        """Places of a slice that a group multiplies."""
        return self.slice // self.groups

    @property
    def left_elements(self) -> int:
        """Elements of one slice of the left operand in shared memory, however it lies."""
        return self.rows * (self.slice + PAD)

    @property
    def slice_elements(self) -> int:
        """Elements of one slice of both operands in shared memory."""
        return self.left_elements + self.columns * (self.slice + PAD)

    @property
    def shared(self) -> int:
        """Shared memory, in bytes."""
        sums = self.rows * self.columns * self.groups if self.groups > 1 else 0
        return 4 * max(STAGES * self.slice_elements, sums)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} by {self.tall}x{self.wide}, slices of {self.slice}"


TILES = (
    TaskTile(128, 128, 8, 8, 16), TaskTile(128, 64, 8, 4, 16), TaskTile(64, 128, 4, 8, 16), TaskTile(64, 64, 4, 4, 16),
    TaskTile(64, 64, 4, 4, 32), TaskTile(32, 64, 4, 4, 32), TaskTile(64, 32, 4, 4, 32), TaskTile(32, 32, 4, 4, 32),
    TaskTile(32, 32, 4, 4, 64), TaskTile(16, 64, 4, 4, 32), TaskTile(64, 16, 4, 4, 32), TaskTile(16, 32, 4, 4, 32),
    TaskTile(16, 32, 4, 4, 64), TaskTile(32, 16, 4, 4, 64), TaskTile(16, 16, 4, 4, 64), TaskTile(16, 16, 4, 4, 128),
    TaskTile(8, 32, 4, 4, 64), TaskTile(32, 8, 4, 4, 64),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """What tiles are of: so many products, and how each operand is copied."""

    rows: int
    columns: int
    depth: int
    matrices: int = 1
    left: int = 1  # elements of a copy
    right: int = 1
    channels: int = 0  # of the images under windows, where the right operand is such
    checks: int = 1  # axes along which these windows reach over the border

    def by_taps(self, tile: TaskTile) -> bool:
        """Whether each slice has channels of one tap."""
        return bool(self.channels) and self.channels % tile.slice == 0


def instructions(tile: TaskTile, product: TiledProduct, counts: SliceCounts | None = None) -> float:
    """Instructions of a block's warps for a slice; `counts` are those of today's tiles where none are given."""
    counts = counts or SliceCounts()
    multiplies = tile.rows * tile.columns * tile.slice / WARP
    reads = THREADS / WARP * tile.share * (tile.tall + tile.wide) / 4
    each, checks = {4: counts.vector, 1: counts.element}, counts.check * product.checks
    copies = tile.rows * tile.slice / product.left / WARP * each[product.left]
    of_right = each[product.right]
    if product.channels:
        of_right = counts.tapped if product.by_taps(tile) else counts.placed + checks
    copies += tile.columns * tile.slice / product.right / WARP * of_right
    others = counts.slice + (counts.tap + checks if product.by_taps(tile) else 0.0)
    return multiplies + reads + copies + THREADS / WARP * others


def passes(tile: TaskTile, product: TiledProduct) -> float:
    """Passes over the banks of shared memory for a slice of a block: of reads and of copies, without conflicts."""
    reads = THREADS * tile.share * (tile.tall + tile.wide) / WARP
    return reads + (tile.rows + tile.columns) * tile.slice / WARP


def cycles(
    tile: TaskTile, product: TiledProduct, target: Target, resident: int = RESIDENT,
    counts: SliceCounts | None = None,
) -> float:  # fmt: skip
    """An estimate of the cycles of all blocks: waves of them, and in each the slices of those that are side by side."""
    blocks = product.matrices * -(-product.rows // tile.rows) * -(-product.columns // tile.columns)
    slices = max(1, -(-product.depth // tile.slice))
    beside = min(resident, -(-blocks // max(1, target.workers)))
    each = instructions(tile, product, counts) / _ISSUED + _HELD * passes(tile, product)
    return -(-blocks // (beside * max(1, target.workers))) * (slices * beside * each + _FIXED_CYCLES)


def chosen(product: TiledProduct, target: Target, more: Callable[[TaskTile], int] = lambda tile: 0) -> TaskTile:
    """The tile with the least cycles by estimate, of those of which `RESIDENT` blocks have room.

    `more` is what a tile takes of shared memory beside its own, in bytes.
    """
    fitting = [tile for tile in TILES if RESIDENT * (tile.shared + more(tile) + 1024) <= target.l1] or list(TILES[-2:])
    return min(fitting, key=lambda tile: cycles(tile, product, target))
