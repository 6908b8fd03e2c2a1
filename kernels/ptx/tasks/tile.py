"""Tiles of products: sums over a depth for rows and columns, whose elements come from wherever a source reads them.

    sums[row, column] = sum over k of left[k, row] * right[k, column]

A block has a tile of `rows` x `columns`. All of its threads bring a slice of the depth into shared memory, while they
multiply the slice before it: two slices take turns, so that one barrier a slice does. Each thread has `tall` x `wide`
sums in registers; where a tile has fewer such pieces than the block has threads, groups of threads share the depth of
a slice, and their sums are added in shared memory at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kernels.llvm.function import Value, joined
from kernels.ptx.tasks.threads import RESIDENT, THREADS, Block
from kernels.target import Target

_PAD = 4  # elements between rows of a slice: they stay aligned for vectors of four
_SLICE_CYCLES, _FIXED_CYCLES = 60.0, 2500.0  # of a slice's barrier and latency that two blocks do not hide; of a block


class Source(Protocol):
    """Where one operand of a tile is read: of an element outside the depth it gives 0, and any beyond the tile's rows."""

    along: Literal["depth", "outer"]  # what lies side by side in memory

    def prepare(self, block: Block, outer: Value) -> Any:
        """What is the same for all of the depth, of a row or a column."""
        ...

    def slice(self, block: Block, first: Value) -> Any:
        """What is the same for a slice of the depth that begins at `first`."""
        ...

    def element(self, block: Block, prepared: Any, part: Any, first: Value, place: Value) -> Value:
        """The element at `first + place` of the depth."""
        ...


@dataclass(frozen=True, slots=True)
class Tile:
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
        return 4 * max(2 * self.slice_elements, sums)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} by {self.tall}x{self.wide}, slices of {self.slice}"


TILES = (
    Tile(128, 128, 8, 8, 8), Tile(128, 128, 8, 8, 16), Tile(128, 64, 8, 4, 16), Tile(64, 128, 4, 8, 16),
    Tile(64, 64, 4, 4, 16), Tile(64, 64, 4, 4, 32), Tile(32, 128, 4, 8, 32), Tile(32, 64, 4, 4, 32), Tile(64, 32, 4, 4, 32),
    Tile(32, 32, 4, 4, 32), Tile(32, 32, 4, 4, 64), Tile(16, 64, 2, 4, 32), Tile(16, 64, 2, 4, 64), Tile(16, 32, 2, 4, 32),
    Tile(16, 32, 2, 4, 64), Tile(16, 16, 2, 2, 64), Tile(16, 16, 2, 2, 128), Tile(8, 64, 1, 4, 64), Tile(8, 32, 1, 4, 64),
)  # fmt: skip


def cycles(tile: Tile, rows: int, columns: int, depth: int, matrices: int, target: Target) -> float:
    """An estimate of the cycles of all blocks: waves of them, each as long as it multiplies, reads, or waits."""
    blocks = matrices * -(-rows // tile.rows) * -(-columns // tile.columns)
    slices = max(1, -(-depth // tile.slice))
    multiplies = tile.rows * tile.columns * tile.slice / 128
    # A multiprocessor hands out 128 bytes of shared memory a cycle; a vector of four is read by a quarter of a warp.
    held = tile.pieces * tile.slice * (tile.tall + tile.wide) * 4 / 128
    reads = (tile.rows + tile.columns) * tile.slice * 4 / 48
    side_by_side = min(RESIDENT, -(-blocks // max(1, target.workers)))
    busy = slices * (max(multiplies + held / 4, held, reads) * side_by_side + _SLICE_CYCLES) + _FIXED_CYCLES
    return -(-blocks // (side_by_side * max(1, target.workers))) * busy


def chosen(rows: int, columns: int, depth: int, matrices: int, target: Target) -> Tile:
    """The tile with the least cycles by estimate."""
    return min(TILES, key=lambda tile: cycles(tile, rows, columns, depth, matrices, target))


Store = Callable[[Value, Value, Value], None]


def write_tile(
    block: Block, tile: Tile, depth: int, left: Source, right: Source, corner: tuple[Value, Value], store: Store
) -> None:
    """The sums of a tile at a corner (row, column); `store(rows, columns, sums)` takes several elements.

    Each is a value of several parts, one for each element.
    """
    f = block.f
    group_pieces = tile.pieces
    piece = block.thread
    group = block.int(0)
    if tile.groups > 1:
        group = f.binary("udiv", block.thread, block.int(group_pieces))
        piece = f.sub(block.thread, f.mul(group, group_pieces))
    across = tile.columns // tile.wide
    down = f.binary("udiv", piece, block.int(across))
    over = f.sub(piece, f.mul(down, across))
    sides = (
        _Side(block, left, tile.rows, tile.slice, corner[0], 0),
        _Side(block, right, tile.columns, tile.slice, corner[1], tile.slice * (tile.rows + _PAD)),
    )
    slices = max(1, -(-depth // tile.slice))
    share = tile.slice // tile.groups  # of a slice, for a group
    first = [side.read(block.int(0)) for side in sides]
    zero = f.number("float", 0.0)
    sums = joined([zero] * (tile.tall * tile.wide))

    def step(number: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
        held, total = carried[:2], carried[2]
        odd = f.binary("and", number, block.int(1))
        base = block.at(block.shared, f.mul(odd, tile.slice_elements))
        for side, some in zip(sides, held, strict=True):
            side.write(base, some)
        block.barrier()
        following = block.least(f.add(number, 1), slices - 1)
        fetched = [side.read(f.mul(following, tile.slice)) for side in sides]
        begin = f.mul(group, share)
        rows_at = block.at(base, f.add(f.mul(begin, tile.rows + _PAD), f.mul(down, tile.tall)))
        columns_at = block.at(
            base, f.add(f.add(f.mul(begin, tile.columns + _PAD), f.mul(over, tile.wide)), tile.slice * (tile.rows + _PAD))
        )
        parts = list(total.split())
        for k in range(share):
            a = _vector(block, rows_at, k * (tile.rows + _PAD), tile.tall)
            b = _vector(block, columns_at, k * (tile.columns + _PAD), tile.wide)
            for row in range(tile.tall):
                for column in range(tile.wide):
                    at = row * tile.wide + column
                    parts[at] = f.fma(a[row], b[column], parts[at])
        return (*fetched, joined(parts))

    *_, sums = f.loop(block.int(0), block.int(slices), 1, step, (*first, sums))
    row, column = f.add(corner[0], f.mul(down, tile.tall)), f.add(corner[1], f.mul(over, tile.wide))
    if tile.groups == 1:
        rows = joined([f.add(row, one) for one in range(tile.tall) for _ in range(tile.wide)])
        columns = joined([f.add(column, one) for _ in range(tile.tall) for one in range(tile.wide)])
        store(rows, columns, sums)
        return
    _store_shared(block, tile, group, piece, row, column, sums, store)


def _store_shared(
    block: Block, tile: Tile, group: Value, piece: Value, row: Value, column: Value, sums: Value, store: Store
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
        down = f.binary("udiv", which, block.int(tile.wide))
        rows.append(f.add(row, down))
        columns.append(f.add(column, f.sub(which, f.mul(down, tile.wide))))
        totals.append(total)
    store(joined(rows), joined(columns), joined(totals))


def _vector(block: Block, base: Value, offset: int, count: int) -> list[Value]:
    """Elements that lie side by side in shared memory, in vectors of up to four."""
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
    """One operand: which elements of a slice a thread brings."""

    def __init__(self, block: Block, source: Source, extent: int, slice_: int, corner: Value, offset: int) -> None:
        self._block, self._source, f = block, source, block.f
        self._stride, self._offset = extent + _PAD, offset
        each = slice_ * extent // THREADS
        rest = slice_ * extent % THREADS
        assert each and not rest, "all threads bring as many elements"
        inner = slice_ if source.along == "depth" else extent
        apart = THREADS // inner if inner <= THREADS else 0
        self._places: list[tuple[Value, Value]] = []  # of the depth in the slice, and of the outer dim in the tile
        for number in range(each):
            if apart:
                slow = f.binary("udiv", block.thread, block.int(inner))
                fast = f.sub(block.thread, f.mul(slow, inner))
                slow = f.add(slow, number * apart)
            else:
                whole = f.add(block.thread, number * THREADS)
                slow = f.binary("udiv", whole, block.int(inner))
                fast = f.sub(whole, f.mul(slow, inner))
            self._places.append((fast, slow) if source.along == "depth" else (slow, fast))
        self._prepared = [source.prepare(block, f.add(corner, outer)) for _, outer in self._places]

    def read(self, first: Value) -> Value:
        """The thread's elements of the slice that begins at `first`."""
        part = self._source.slice(self._block, first)
        return joined([
            self._source.element(self._block, prepared, part, first, place)
            for prepared, (place, _) in zip(self._prepared, self._places, strict=True)
        ])

    def write(self, base: Value, elements: Value) -> None:
        """Put them into shared memory."""
        f = self._block.f
        for one, (place, outer) in zip(elements.split(), self._places, strict=True):
            at = f.add(f.add(f.mul(place, self._stride), outer), self._offset)
            f.store(one, self._block.at(base, at))
