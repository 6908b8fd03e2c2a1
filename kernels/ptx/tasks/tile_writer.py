"""Writes what a block does for a tile: copies, products, and the sums by way of shared memory to their places.

Slices lie in shared memory as they do in global memory, [place of the depth][row] or [row][place], so that
neighbouring threads copy neighbours on both sides. A thread reads four floats at once: four rows of a place, or four
places of a row; its rows lie so that the eight threads that are served together touch all banks once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from kernels.llvm.function import Value, joined
from kernels.ptx.tasks.threads import THREADS, Block
from kernels.ptx.tasks.tile import PAD, SKEWED_ROWS, STAGES, TaskTile
from kernels.ptx.tasks.tile_source import CopyGrid, TileSource

StoreSums = Callable[[Value, Value, Value], None]
Which = Literal["left", "right"]
_AT_ONCE = 16  # sums of a thread that are stored together
_SERVED = 8  # threads whose vectors of four shared memory reads at once


def prepare_tile(block: Block, tile: TaskTile, depth: int, source: TileSource, which: Which, corner: Value) -> None:
    """Begin to copy the first slices of an operand that is constant: a block need not wait for anything to do so.

    `corner`: the tile's first row where it is the left one, else its first column. `write_tile` is told that they are
    `held`.
    """
    side = _Side.of(block, tile, source, which, _threads(block, tile), corner)
    _bring_first(block, tile, depth, [side])
    block.copies_end()


def write_tile(
    block: Block, tile: TaskTile, depth: int, left: TileSource, right: TileSource, corner: tuple[Value, Value],
    store: StoreSums, held: Which | None = None,
) -> None:  # fmt: skip
    """The sums of a tile at a corner (row, column); `store(rows, columns, sums)` takes several elements.

    Each is a value of several parts, one for each element. Of the operand that is `held` the first slices are under
    way.
    """
    f, threads = block.f, _threads(block, tile)
    sides = (
        _Side.of(block, tile, left, "left", threads, corner[0]),
        _Side.of(block, tile, right, "right", threads, corner[1]),
    )
    slices, whole = -(-depth // tile.slice), depth // tile.slice
    size = 4 * tile.slice_elements

    def bring(number: Value, stage: Value, complete: bool) -> None:
        for side in sides:
            side.copy(number, stage, complete)

    _bring_first(block, tile, depth, [side for side in sides if side.which != held], apart=True)
    at_once = min(4, tile.share)

    def multiplied(sums: Value, stage: Value) -> Value:
        parts = list(sums.split())
        for begin in range(0, tile.share, at_once):
            a, b = (side.read(side.held(stage), begin, at_once) for side in sides)
            for k in range(at_once):
                for row in range(tile.tall):
                    for column in range(tile.wide):
                        at = row * tile.wide + column
                        parts[at] = f.fma(a[k][row], b[k][column], parts[at])
        return joined(parts)

    def step(carried: tuple[Value, ...], bringing: Callable[[Value], None]) -> Sequence[Value]:
        sums, stage, free = carried  # and in bytes the stage that is multiplied, and the one that was
        block.await_copies(STAGES - 2)
        block.barrier()
        bringing(free)
        block.copies_end()
        following = f.add(stage, f.number("i64", size))
        ended = f.compare("eq", following, f.number("i64", STAGES * size))
        return multiplied(sums, stage), f.select(ended, f.number("i64", 0), following), stage

    def early(number: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
        """A slice behind which there are others to bring, all of them in the depth."""
        later = f.add(f.convert("trunc", "i32", number), STAGES - 1)
        return step(carried, lambda free: bring(later, free, True))

    def late(number: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
        """One of the last slices: what is brought is the depth's rest."""

        def rest(free: Value) -> None:
            if slices > max(whole, STAGES - 1):
                last = f.compare("eq", number, f.integer(slices - STAGES))
                f.when(last, lambda: bring(block.word(slices - 1), free, False))

        return step(carried, rest)

    sums = joined([f.number("float", 0.0)] * (tile.tall * tile.wide))
    begin = (sums, f.number("i64", 0), f.number("i64", (STAGES - 1) * size))
    many = max(0, whole - STAGES + 1)
    sums = f.loop(many, slices, 1, late, f.loop(0, many, 1, early, begin))[0]
    _store(block, tile, threads[0], sums, sides, corner, store)


def _threads(block: Block, tile: TaskTile) -> tuple[Value, Value, Value]:
    """A thread's group, and its piece among those down and over."""
    group, piece = block.split(block.thread, (tile.groups, tile.pieces))
    down, over = block.split(piece, (tile.rows // tile.tall, tile.columns // tile.wide))
    return group, down, over


def _bring_first(block: Block, tile: TaskTile, depth: int, sides: Sequence[_Side], *, apart: bool = False) -> None:
    """Begin to copy the slices that are on their way before the first is multiplied; each a group where `apart`."""
    f, slices, whole = block.f, -(-depth // tile.slice), depth // tile.slice
    for number in range(STAGES - 1):
        if number < slices:
            stage = f.number("i64", number * 4 * tile.slice_elements)
            for side in sides:
                side.copy(block.word(number), stage, number < whole)
        if apart:
            block.copies_end()


def _store(
    block: Block, tile: TaskTile, group: Value, sums: Value, sides: tuple[_Side, _Side], corner: tuple[Value, Value],
    store: StoreSums,
) -> None:  # fmt: skip
    """Add the sums of all groups, and store them: neighbouring threads neighbouring columns."""
    f, count = block.f, tile.rows * tile.columns
    block.barrier()
    rows, columns = sides[0].positions, sides[1].positions
    mine = block.at(block.shared, f.mul(group, tile.sums_of_group))
    parts = sums.split()
    wide = 4 if sides[1].vectors else 1
    for row, down in enumerate(rows):
        start = f.add(f.mul(down, tile.columns), f.mul(f.binary("udiv", down, block.word(SKEWED_ROWS)), tile.skew))
        for column in range(0, tile.wide, wide):
            at = block.at(mine, f.add(start, columns[column]))
            some = parts[row * tile.wide + column : row * tile.wide + column + wide]
            block.store_vector(some, at)
    block.barrier()
    each = count // THREADS

    def put(first: Value, many: int) -> None:
        numbers, totals = [f.add(first, one * THREADS) for one in range(many)], list[Value]()
        skewed = tile.columns * SKEWED_ROWS  # elements between which there is a skew
        at = block.at(block.shared, f.add(first, f.mul(f.binary("udiv", first, block.word(skewed)), tile.skew)))
        apart = THREADS + (THREADS // skewed * tile.skew if tile.skew else 0)
        for one in range(many):
            place = f.at(at, one * apart)
            total = f.load("float", place)
            for other in range(1, tile.groups):
                total = f.add(total, f.load("float", f.at(place, other * tile.sums_of_group)))
            totals.append(total)
        places = [block.split(one, (tile.rows, tile.columns)) for one in numbers]
        store(
            joined([f.add(corner[0], row) for row, _ in places]),
            joined([f.add(corner[1], column) for _, column in places]), joined(totals),
        )  # fmt: skip

    if count < THREADS:
        f.when(block.below(block.thread, count), lambda: put(block.thread, 1))
        return
    if each <= _AT_ONCE:
        put(block.thread, each)
        return

    def turn(number: Value, _: tuple[Value, ...]) -> Sequence[Value]:
        put(f.add(block.thread, f.mul(number, _AT_ONCE * THREADS)), _AT_ONCE)
        return ()

    f.loop(block.word(0), block.word(each // _AT_ONCE), 1, turn)


class _Side:
    """One operand: what a thread copies of a slice, and what it reads of it."""

    @classmethod
    def of(
        cls, block: Block, tile: TaskTile, source: TileSource, which: Which, threads: tuple[Value, Value, Value],
        corner: Value,
    ) -> _Side:  # fmt: skip
        """The operand for a thread of a group, down and over, and a tile that begins at a row or column."""
        group, down, over = threads
        if which == "left":
            apart = tile.columns // tile.wide < _SERVED
            return cls(block, source, tile, which, tile.rows, tile.tall, (group, down, corner), 0, apart)
        offset = tile.left_elements
        return cls(block, source, tile, which, tile.columns, tile.wide, (group, over, corner), offset, True)

    def __init__(
        self, block: Block, source: TileSource, tile: TaskTile, which: Which, extent: int, count: int,
        place: tuple[Value, Value, Value], offset: int, apart: bool,
    ) -> None:  # fmt: skip
        """`apart` says whether threads that are served together have different rows."""
        self._block, self._source, f = block, source, block.f
        group, index, corner = place
        first = f.mul(group, tile.share)
        self.which, self._count = which, count
        self.vectors = source.along == "outer"  # whether four rows or columns lie side by side, or else four places
        self._stride = extent if self.vectors else tile.slice + (PAD if apart else 0)
        # What a thread reads.
        threads = extent // count
        if self.vectors:
            many = min(4, count)
            starts = [f.add(f.mul(index, many), one * threads * many) for one in range(count // many)]
            self._apart = threads * many
            self.positions = [f.add(start, one) for start in starts for one in range(many)]
            begin = f.add(f.mul(first, self._stride), starts[0])
        else:
            self._apart = threads * self._stride
            self.positions = [f.add(index, one * threads) for one in range(count)]
            begin = f.add(f.mul(index, self._stride), first)
        self._held = block.at(f.at(block.shared, offset), begin)
        # What it copies.
        inner = extent // source.vector if self.vectors else tile.slice
        total = tile.slice * extent // source.vector
        slow, fast = block.split(block.thread, (max(1, THREADS // inner), inner))
        copies = max(1, total // THREADS)
        self._some = block.below(block.thread, total) if total < THREADS else None
        fast = f.mul(fast, source.vector) if self.vectors else fast
        outer, depth = (fast, slow) if self.vectors else (slow, fast)
        grid = CopyGrid(f.add(corner, outer), depth, copies, THREADS // inner, tile.slice, extent)
        self._step = grid.apart * self._stride
        self._to = block.at(f.at(block.shared, offset), f.add(f.mul(slow, self._stride), fast))
        self._reader = source.reader(block, grid)

    def copy(self, number: Value, stage: Value, whole: bool) -> None:
        """Begin to copy the thread's elements of a slice to a stage."""
        block, f = self._block, self._block.f

        def some() -> None:
            to = f.at(self._to, stage, "i8")
            for one, (address, inside) in enumerate(self._reader(number, whole)):
                block.copy(f.at(to, one * self._step), address, inside, self._source.dtype, self._source.vector)

        if self._some is None:
            some()
        else:
            f.when(self._some, some)

    def held(self, stage: Value) -> Value:
        """Where the elements that the thread reads begin in a stage."""
        return self._block.f.at(self._held, stage, "i8")

    def read(self, base: Value, begin: int, many: int) -> list[list[Value]]:
        """The thread's elements by place, of so many places from one on."""
        block, f = self._block, self._block.f
        if self.vectors:
            size = min(4, self._count)
            return [
                [
                    one
                    for start in range(self._count // size)
                    for one in block.load_vector(
                        f.at(base, (begin + place) * self._stride + start * self._apart), size
                    )
                ]
                for place in range(many)
            ]  # fmt: skip
        by_row = [block.load_vector(f.at(base, row * self._apart + begin), many) for row in range(self._count)]
        return [[row[place] for row in by_row] for place in range(many)]
