"""Tiles of products: sums over a depth for rows and columns, whose elements come from wherever a source reads them.

    sums[row, column] = sum over k of left[k, row] * right[k, column]

A block has a tile of `rows` x `columns`. All of its threads copy slices of the depth into shared memory, several slices
ahead of the one that they multiply, so that what a copy waits for is hidden (Ampere's asynchronous copies; older GPUs
copy by way of registers). Each thread has `tall` x `wide` sums in registers; where a tile has fewer such pieces than
the block has threads, groups of threads share the depth of a slice, and their sums are added in shared memory at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kernels.dtype import DType
from kernels.llvm.function import Value, joined
from kernels.ptx.tasks.threads import RESIDENT, THREADS, Block
from kernels.target import Target

STAGES = 4  # slices in shared memory: one is multiplied, the others are on their way
_PAD = 4  # elements between rows of a slice: they stay aligned for vectors of four
# Cycles: of a slice whatever it holds, of a block before and after, of each result of a thread; and what two blocks
# side by side take of one's. Rounded from a fit to the tiles of 40 products and convolutions on one H200 (python -m
# bench.gpu.tiles), but for the second, of which that gave 5,930. The fit was judged by the tiles that it was made of.
_LEAST_SLICE, _FIXED_CYCLES, _STORE_CYCLES, _TOGETHER = 300.0, 3000.0, 5.0, 1.7
_HELD = 0.9  # of the cycles in which shared memory is read, those that multiplying does not hide
# Instructions of a copy: of four elements, of one, of one whose place is worked out. The second is a guess.
VECTORS, PLAIN, WINDOWS = 3.0, 16.0, 40.0


class TileSource(Protocol):
    """Where one operand of a tile is read. Outside the depth it is 0; beyond the tile's rows any element is right."""

    @property
    def along(self) -> Literal["depth", "outer"]:
        """What lies side by side in memory."""
        ...

    @property
    def vector(self) -> int:
        """Elements along the outer dim that are copied at once, aligned as a whole: 4 or 1."""
        ...

    @property
    def dtype(self) -> DType:
        """As they lie in memory."""
        ...

    def prepare(self, block: Block, outer: Value) -> Any:
        """What is the same for all of the depth, of a row or a column."""
        ...

    def slice(self, block: Block, first: Value) -> Any:
        """What is the same for a slice of the depth that begins at `first`."""
        ...

    def address(self, block: Block, prepared: Any, part: Any, first: Value, place: Value) -> tuple[Value, Value | None]:
        """Where the element at `first + place` of the depth lies, and whether it is there; None: it always is."""
        ...


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
    def slice_elements(self) -> int:
        """Elements of one slice of both operands in shared memory."""
        return self.slice * (self.rows + self.columns + 2 * _PAD)

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


def chosen(product: TiledProduct, target: Target) -> TaskTile:
    """The tile with the least cycles by estimate, of those of which `RESIDENT` blocks have room."""
    fitting = [tile for tile in TILES if RESIDENT * (tile.shared + 1024) <= target.l1] or list(TILES[-2:])
    return min(fitting, key=lambda tile: cycles(tile, product, target))


StoreSums = Callable[[Value, Value, Value], None]


def write_tile(
    block: Block,
    tile: TaskTile,
    depth: int,
    left: TileSource,
    right: TileSource,
    corner: tuple[Value, Value],
    store: StoreSums,
) -> None:
    """The sums of a tile at a corner (row, column); `store(rows, columns, sums)` takes several elements.

    Each is a value of several parts, one for each element.
    """
    f = block.f
    group_pieces = tile.pieces
    piece = block.thread
    group = block.word(0)
    if tile.groups > 1:
        group = f.binary("udiv", block.thread, block.word(group_pieces))
        piece = f.sub(block.thread, f.mul(group, group_pieces))
    across = tile.columns // tile.wide
    down = f.binary("udiv", piece, block.word(across))
    over = f.sub(piece, f.mul(down, across))
    sides = (
        _Side(block, left, tile.rows, tile.slice, corner[0], 0),
        _Side(block, right, tile.columns, tile.slice, corner[1], tile.slice * (tile.rows + _PAD)),
    )
    slices = max(1, -(-depth // tile.slice))
    share = tile.slice // tile.groups  # of a slice, for a group

    def bring(number: Value) -> None:
        """Begin to copy a slice; one behind the last is copied for nothing, from the last one's place."""
        stage = f.binary("and", number, block.word(STAGES - 1))
        base = block.at(block.shared, f.mul(stage, tile.slice_elements))
        near = f.mul(block.least(number, slices - 1), tile.slice)
        for side in sides:
            side.copy(base, near)
        block.copies_end()

    for number in range(STAGES - 1):
        bring(block.word(number))
    sums = joined([f.number("float", 0.0)] * (tile.tall * tile.wide))

    def step(number: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
        block.await_copies(STAGES - 2)
        block.barrier()
        bring(f.add(number, STAGES - 1))
        stage = f.binary("and", number, block.word(STAGES - 1))
        base = block.at(block.shared, f.mul(stage, tile.slice_elements))
        begin = f.mul(group, share)
        rows_at = block.at(base, f.add(f.mul(begin, tile.rows + _PAD), f.mul(down, tile.tall)))
        place = f.add(f.mul(begin, tile.columns + _PAD), f.mul(over, tile.wide))
        columns_at = block.at(base, f.add(place, tile.slice * (tile.rows + _PAD)))
        parts = list(carried[0].split())
        for k in range(share):
            a = _vector(block, rows_at, k * (tile.rows + _PAD), tile.tall)
            b = _vector(block, columns_at, k * (tile.columns + _PAD), tile.wide)
            for row in range(tile.tall):
                for column in range(tile.wide):
                    at = row * tile.wide + column
                    parts[at] = f.fma(a[row], b[column], parts[at])
        return (joined(parts),)

    (sums,) = f.loop(block.word(0), block.word(slices), 1, step, (sums,))
    block.await_copies(0)  # those for nothing, too: the memory is somebody else's next
    row, column = f.add(corner[0], f.mul(down, tile.tall)), f.add(corner[1], f.mul(over, tile.wide))
    if tile.groups == 1:
        rows = joined([f.add(row, one) for one in range(tile.tall) for _ in range(tile.wide)])
        columns = joined([f.add(column, one) for _ in range(tile.tall) for one in range(tile.wide)])
        store(rows, columns, sums)
        return
    _store_shared(block, tile, group, piece, row, column, sums, store)


def _store_shared(
    block: Block, tile: TaskTile, group: Value, piece: Value, row: Value, column: Value, sums: Value, store: StoreSums
) -> None:
    """Add the sums of all groups, each group some of a piece, and store them."""
    f, count = block.f, tile.tall * tile.wide
    block.barrier()
    mine = block.at(block.shared, f.add(f.mul(group, count * tile.pieces), piece))
    for number, one in enumerate(sums.split()):
        f.store(one, f.at(mine, number * tile.pieces))
    block.barrier()
    each = -(-count // tile.groups)
    rows, columns, totals = list[Value](), list[Value](), list[Value]()
    for number in range(each):
        which = f.add(f.mul(group, each), number)
        which = which if count % tile.groups == 0 else block.least(which, count - 1)
        total: Value | None = None
        at = block.at(block.shared, f.add(f.mul(which, tile.pieces), piece))
        for other in range(tile.groups):
            one = f.load("float", f.at(at, other * count * tile.pieces))
            total = one if total is None else f.add(total, one)
        assert total is not None, "there are groups"
        down = f.binary("udiv", which, block.word(tile.wide))
        rows.append(f.add(row, down))
        columns.append(f.add(column, f.sub(which, f.mul(down, tile.wide))))
        totals.append(total)
    store(joined(rows), joined(columns), joined(totals))


def _vector(block: Block, base: Value, offset: int, count: int) -> list[Value]:
    """ThreadElements that lie side by side in shared memory, in vectors of up to four."""
    f, found = block.f, list[Value]()
    for start in range(0, count, 4):
        size = min(4, count - start)
        address = f.at(base, offset + start)
        if size == 1:
            found.append(f.load("float", address))
            continue
        some = f.load(f"<{size} x float>", address, align=4 * size)
        found += [f.extract(some, lane) for lane in range(size)]
    return found


class _Side:
    """One operand: which elements of a slice a thread copies."""

    def __init__(self, block: Block, source: TileSource, extent: int, slice_: int, corner: Value, offset: int) -> None:
        self._block, self._source, f = block, source, block.f
        self._stride, self._offset = extent + _PAD, offset
        vectors = extent // source.vector
        inner = slice_ if source.along == "depth" else vectors
        self._count = slice_ * vectors
        self._places: list[tuple[Value, Value, Value]] = []  # the copy, in the slice's depth, and in the tile
        for start in range(0, self._count, THREADS):
            number = f.add(block.thread, start)
            slow = f.binary("udiv", number, block.word(inner))
            fast = f.sub(number, f.mul(slow, inner))
            depth, outer = (fast, slow) if source.along == "depth" else (slow, fast)
            self._places.append((number, depth, f.mul(outer, source.vector)))
        self._prepared = [source.prepare(block, f.add(corner, outer)) for _, _, outer in self._places]

    def copy(self, base: Value, first: Value) -> None:
        """Copy the thread's elements of the slice that begins at `first`."""
        block, f, source = self._block, self._block.f, self._source
        part = source.slice(block, first)
        for prepared, (number, place, outer) in zip(self._prepared, self._places, strict=True):

            def one(prepared: Any = prepared, place: Value = place, outer: Value = outer) -> None:
                address, inside = source.address(block, prepared, part, first, place)
                to = block.at(base, f.add(f.add(f.mul(place, self._stride), outer), self._offset))
                block.copy(to, address, inside, source.dtype, source.vector)

            if self._count % THREADS and number is self._places[-1][0]:
                f.when(block.below(number, self._count), one)
            else:
                one()
