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
SKEWED_ROWS = 4  # of sums: so many side by side are one thread's
PAD = 4  # elements between rows of a slice whose depth lies side by side: they stay aligned for vectors of four
# Cycles of a block before its first slice and behind its last one, and of a slice besides its work; and the share of
# its work for which a block that is alone waits for itself. With the passes of copies they are judged by 68 problems
# that were timed on an H100 (python -m bench.gpu.estimates); all else follows from what is counted and from how many
# instructions and passes a multiprocessor does in a cycle.
_FIXED_CYCLES, _SLICE_CYCLES, _OWN = 900.0, 100.0, 0.2
_ISSUED = 4  # instructions of warps that a multiprocessor issues in a cycle, and multiplications it does
_ELEMENT_PASSES, _VECTOR_PASSES = 4.0, 2.0  # over the banks, of a warp's copy of single elements, and of four
_FEW_RESIDENT, _FEW_SUMS = 2, 32  # blocks of a multiprocessor where threads have more sums than that
# Instructions of a warp for a slice beside those that multiply and read it (python -m bench.gpu.counts): of each slice,
# and of a copy, be it of four elements or one; of a slice of one tap besides; of a copy whose tap and channel are
# looked up; and for each axis whose border is checked, of a slice or such a copy.
_OF_SLICE, _OF_COPY, _OF_TAP, _OF_PLACED, _OF_CHECK = 18.0, 1.0, 7.0, 6.0, 2.0


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
    def resident(self) -> int:
        """Blocks of a multiprocessor, by the registers of their threads."""
        return RESIDENT if self.tall * self.wide <= _FEW_SUMS else _FEW_RESIDENT

    @property
    def left_elements(self) -> int:
        """Elements of one slice of the left operand in shared memory, however it lies."""
        return self.rows * (self.slice + PAD)

    @property
    def slice_elements(self) -> int:
        """Elements of one slice of both operands in shared memory."""
        return self.left_elements + self.columns * (self.slice + PAD)

    @property
    def skew(self) -> int:
        """Elements behind the rows of a thread where its sums are added: neighbours down have other banks."""
        return self.columns if self.columns < WARP else 0

    @property
    def sums_of_group(self) -> int:
        """Elements from the sums of one group to those of the next one."""
        return self.rows * self.columns + self.rows // SKEWED_ROWS * self.skew

    @property
    def shared(self) -> int:
        """Shared memory, in bytes."""
        return 4 * max(STAGES * self.slice_elements, self.groups * self.sums_of_group)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} by {self.tall}x{self.wide}, slices of {self.slice}"


TILES = (
    TaskTile(128, 128, 8, 8, 16), TaskTile(128, 64, 8, 4, 16), TaskTile(64, 128, 4, 8, 16), TaskTile(64, 64, 4, 4, 16),
    TaskTile(64, 64, 4, 4, 32), TaskTile(32, 64, 4, 4, 32), TaskTile(64, 32, 4, 4, 32), TaskTile(32, 32, 4, 4, 32),
    TaskTile(32, 32, 4, 4, 64), TaskTile(16, 64, 4, 4, 32), TaskTile(64, 16, 4, 4, 32), TaskTile(16, 32, 4, 4, 32),
    TaskTile(16, 32, 4, 4, 64), TaskTile(32, 16, 4, 4, 64), TaskTile(16, 16, 4, 4, 64), TaskTile(16, 16, 4, 4, 128),
    TaskTile(8, 32, 4, 4, 64), TaskTile(32, 8, 4, 4, 64),
    TaskTile(64, 64, 8, 4, 16), TaskTile(64, 32, 8, 4, 32),
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


def instructions(tile: TaskTile, product: TiledProduct) -> float:
    """Instructions of a block's warps for a slice."""
    multiplies = tile.rows * tile.columns * tile.slice / WARP
    reads = THREADS / WARP * tile.share * (tile.tall + tile.wide) / 4
    checks, of_right = _OF_CHECK * product.checks, _OF_COPY
    if product.channels and not product.by_taps(tile):
        of_right = _OF_PLACED + checks
    copies = tile.rows * tile.slice / product.left / WARP * _OF_COPY
    copies += tile.columns * tile.slice / product.right / WARP * of_right
    others = _OF_SLICE + (_OF_TAP + checks if product.by_taps(tile) else 0.0)
    return multiplies + reads + copies + THREADS / WARP * others


def passes(tile: TaskTile, product: TiledProduct) -> float:
    """Passes over the banks of shared memory for a slice of a block: of reads and of copies, without conflicts."""
    reads = THREADS * tile.share * (tile.tall + tile.wide) / WARP
    each = {4: _VECTOR_PASSES / 4, 1: _ELEMENT_PASSES}  # of an element
    copies = tile.rows * each[product.left] + tile.columns * each[product.right]
    return reads + copies * tile.slice / WARP


def block_cycles(tile: TaskTile, product: TiledProduct) -> tuple[float, float]:
    """Cycles that a block keeps a multiprocessor busy, and those for which it waits besides.

    It issues instructions or reads and writes shared memory, whichever takes longer; of blocks side by side one works
    while others wait.
    """
    slices = max(1, -(-product.depth // tile.slice))
    busy = slices * max(instructions(tile, product) / _ISSUED, passes(tile, product))
    return busy, slices * _SLICE_CYCLES + _OWN * busy + _FIXED_CYCLES


def cycles(tile: TaskTile, product: TiledProduct, target: Target, resident: int | None = None) -> float:
    """An estimate of the cycles of all blocks: those of a multiprocessor, some of them side by side."""
    blocks = product.matrices * -(-product.rows // tile.rows) * -(-product.columns // tile.columns)
    each = -(-blocks // max(1, target.workers))
    busy, waiting = block_cycles(tile, product)
    return each * busy + -(-each // (resident or tile.resident)) * waiting


def chosen(product: TiledProduct, target: Target, more: Callable[[TaskTile], int] = lambda tile: 0) -> TaskTile:
    """The tile with the least cycles by estimate, of those of which all resident blocks have room.

    `more` is what a tile takes of shared memory beside its own, in bytes.
    """
    fitting = [tile for tile in TILES if tile.resident * (tile.shared + more(tile) + 1024) <= target.l1]
    fitting = fitting or list(TILES[-2:])
    # A tile of which few blocks are resident leaves all tasks of a program fewer: it has to gain more than a little.
    return min(fitting, key=lambda tile: cycles(tile, product, target) * (1.0 if tile.resident == RESIDENT else 1.25))
