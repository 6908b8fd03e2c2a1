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

from kernels.ptx.tasks.threads import RESIDENT, THREADS
from kernels.target import Target

STAGES = 4  # slices in shared memory: one is multiplied, the others are on their way
PAD = 4  # elements between rows of a slice whose depth lies side by side: they stay aligned for vectors of four
# Cycles: of a slice whatever it holds, of a block before and after, of each result of a thread; and what two blocks
# side by side take of one's. Rounded from a fit to the tiles of 40 products and convolutions on one H200 (python -m
# bench.gpu.tiles), but for the second, of which that gave 5,930. The fit was judged by the tiles that it was made of.
_LEAST_SLICE, _FIXED_CYCLES, _STORE_CYCLES, _TOGETHER = 300.0, 3000.0, 5.0, 1.7
_HELD = 0.9  # of the cycles in which shared memory is read, those that multiplying does not hide
# Instructions of a copy: of four elements, of one, of one whose place is worked out. The second is a guess.
VECTORS, PLAIN, WINDOWS = 3.0, 16.0, 40.0


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
    """What tiles are of: so many products, and what the copy of an element of each operand takes."""

    rows: int
    columns: int
    depth: int
    matrices: int = 1
    left: float = VECTORS
    right: float = PLAIN


def cycles(tile: TaskTile, product: TiledProduct, target: Target) -> float:
    """An estimate of the cycles of all blocks: waves of them, and in each the slices of a block."""
    blocks = product.matrices * -(-product.rows // tile.rows) * -(-product.columns // tile.columns)
    slices = max(1, -(-product.depth // tile.slice))
    multiplies = tile.rows * tile.columns * tile.slice / 128
    # A multiprocessor hands out 128 bytes of shared memory a cycle; a vector of four is read by a quarter of a warp.
    held = tile.pieces * tile.slice * (tile.tall + tile.wide) * 4 / 128
    copies = (tile.rows * product.left + tile.columns * product.right) * tile.slice / 128
    beside = min(RESIDENT, -(-blocks // max(1, target.workers)))
    each = max((multiplies + _HELD * held + copies) * (_TOGETHER if beside > 1 else 1.0), _LEAST_SLICE)
    stores = tile.rows * tile.columns / THREADS * _STORE_CYCLES
    return -(-blocks // (beside * max(1, target.workers))) * (slices * each + _FIXED_CYCLES + stores)


def chosen(product: TiledProduct, target: Target, more: Callable[[TaskTile], int] = lambda tile: 0) -> TaskTile:
    """The tile with the least cycles by estimate, of those of which `RESIDENT` blocks have room.

    `more` is what a tile takes of shared memory beside its own, in bytes.
    """
    fitting = [tile for tile in TILES if RESIDENT * (tile.shared + more(tile) + 1024) <= target.l1] or list(TILES[-2:])
    return min(fitting, key=lambda tile: cycles(tile, product, target))
