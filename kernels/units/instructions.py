"""Tile programs: loops over loads, products and stores of tiles, as a template writes them and an interpreter reads.

A matrix unit has eight tiles of 16 rows of 64 bytes. A product adds to a tile of 16 x 16 sums what a tile of rows of A
(16 rows by 64 bytes of the depth) and one of B give; in B's tile, a row holds for each of 16 columns the elements of
the depth that fill 32 bits: two bfloat16, or four bytes. (Intel 64 and IA-32 Architectures Software Developer's
Manual, volume 1, chapter 18.)

All tiles are whole: what a matrix lacks is filled where it is packed, so that one configuration serves all kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TILES = 8
ROWS = 16
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES
LANES = ROW_BYTES // 4  # sums of a row

UnitArithmetic = Literal["bf16", "u8s8", "s8s8", "s8u8", "u8u8"]


@dataclass(frozen=True, slots=True)
class TilePlace:
    """Where a tile lies: bytes behind the address `base`, and further with every turn of the loops around."""

    base: str
    offset: int = 0
    steps: tuple[tuple[str, int], ...] = ()  # the name of a loop, bytes
    stride: int = ROW_BYTES  # bytes from one row to the next


@dataclass(frozen=True, slots=True)
class Clear:
    """A tile becomes zeros."""

    tile: int


@dataclass(frozen=True, slots=True)
class LoadTile:
    """A tile is read."""

    tile: int
    place: TilePlace


@dataclass(frozen=True, slots=True)
class StoreTile:
    """A tile is written."""

    tile: int
    place: TilePlace


@dataclass(frozen=True, slots=True)
class Multiply:
    """total += left right: float32 sums of bfloat16, int32 sums of bytes."""

    arithmetic: UnitArithmetic
    total: int
    left: int
    right: int


@dataclass(frozen=True, slots=True)
class Ask:
    """So many lines from a place on are asked for, into the second cache; any address is allowed."""

    place: TilePlace
    lines: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """The body, `count` times."""

    name: str
    count: int
    body: tuple[Instruction, ...]


Instruction = Clear | LoadTile | StoreTile | Multiply | Ask | Repeat


@dataclass(frozen=True, slots=True)
class Depth:
    """One loop of a product over its depth: turns, and bytes from one turn's tiles of A to the next one's."""

    count: int
    step: int


def product(
    arithmetic: UnitArithmetic,
    rows: int,
    columns: int,
    depth: Sequence[Depth],
    *,
    a_stride: int,
    a_apart: int,
    places: Sequence[int] = (0,),
    begins: bool = True,
    ahead: int = 0,
) -> tuple[Instruction, ...]:
    """`rows` by `columns` tiles of sums (at most 2 by 2, or 1 by 3) over a nest of loops of the depth, outermost first.

    "a" has tiles of rows, `a_apart` bytes from one to the next below it, of rows `a_stride` bytes apart, at each of
    `places` (bytes) in a turn of the innermost loop; "b" the packed panel, in the order of the loops, for each place
    16 rows of `columns` tiles side by side; "sums" gets rows of `columns` tiles side by side, and gives what sums go on
    from where the product does not begin. `ahead`: lines from "next" that are asked for at each place.
    """
    assert rows * columns + rows + columns <= TILES, "sums and operands fit the tiles"
    width = columns * ROW_BYTES
    totals = [[row * columns + column for column in range(columns)] for row in range(rows)]
    left = [rows * columns + row for row in range(rows)]
    right = [rows * columns + rows + column for column in range(columns)]
    names = [f"k{number}" for number in range(len(depth))]
    a_steps = tuple((name, one.step) for name, one in zip(names, depth, strict=True))
    size, lines = ROWS * width, ahead * ROW_BYTES  # bytes at a place
    turns, b_steps, line_steps = len(places), [], []
    for name, one in reversed(list(zip(names, depth, strict=True))):
        b_steps.append((name, turns * size))
        line_steps.append((name, turns * lines))
        turns *= one.count

    def sums(row: int, column: int) -> TilePlace:
        return TilePlace("sums", row * ROWS * width + column * ROW_BYTES, stride=width)

    homes = [(tile, sums(row, column)) for row, tiles in enumerate(totals) for column, tile in enumerate(tiles)]
    body: list[Instruction] = []
    for number, place in enumerate(places):
        if ahead:
            body.append(Ask(TilePlace("next", number * lines, tuple(line_steps)), ahead))
        for column, tile in enumerate(right):
            body.append(LoadTile(tile, TilePlace("b", number * size + column * ROW_BYTES, tuple(b_steps), width)))
        for row, tile in enumerate(left):
            body.append(LoadTile(tile, TilePlace("a", place + row * a_apart, a_steps, a_stride)))
            body += [Multiply(arithmetic, total, tile, b) for total, b in zip(totals[row], right, strict=True)]
    nest: tuple[Instruction, ...] = tuple(body)
    for name, one in reversed(list(zip(names, depth, strict=True))):
        nest = (Repeat(name, one.count, nest),)
    starts = [Clear(tile) if begins else LoadTile(tile, place) for tile, place in homes]
    return (*starts, *nest, *(StoreTile(tile, place) for tile, place in homes))
