"""Where tiles read their operands: which elements of a slice of the depth a thread copies, and where each lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kernels.dtype import DType
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Value
from kernels.ptx.tasks.threads import Block

Along = Literal["depth", "outer"]
Copied = tuple[Value, Value | None]  # where an element lies, and whether it is there; None: it always is
SliceReader = Callable[[Value, bool], Sequence[Copied]]  # of a slice by its number; whether all of it is in the depth


@dataclass(frozen=True, slots=True)
class CopyGrid:
    """The elements of each slice that one thread copies, `count` of them.

    The first has a row or column of the whole matrix, `outer`, and a `place` in the slice. Where the depth lies side by
    side, the others have the same place, `apart` rows or columns from one another; else the same row or column, `apart`
    places from one another.
    """

    outer: Value
    place: Value
    count: int
    apart: int
    slice: int  # of the depth
    extent: int  # rows or columns of a tile


class TileSource(Protocol):
    """One operand of a tile. Outside the depth it is 0; beyond its last row or column any element is right."""

    @property
    def along(self) -> Along:
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

    def reader(self, block: Block, grid: CopyGrid) -> SliceReader:
        """Writes what is the same for all slices, before the first of them."""
        ...


@dataclass(frozen=True, slots=True)
class StridedSource:
    """A matrix whose elements lie at strides of their row or column and of the depth."""

    base: Value
    outer_stride: int
    depth_stride: int
    outers: int
    depth: int
    dtype: DType
    vector: int = 1

    @property
    def along(self) -> Along:
        """What lies side by side."""
        return "outer" if self.outer_stride == 1 and self.depth_stride != 1 else "depth"

    def reader(self, block: Block, grid: CopyGrid) -> SliceReader:
        """Rows or columns beyond the last are the last one's, or are not read."""
        f, outer = block.f, grid.outer
        step, inside = grid.apart * self.depth_stride, list[Value | None]([None] * grid.count)
        if self.along == "outer":
            outer = block.least(outer, self.outers - self.vector)
        else:
            step = grid.apart * self.outer_stride
            if self.outers % grid.extent:
                inside = [block.below(f.add(outer, number * grid.apart), self.outers) for number in range(grid.count)]
        place = f.add(f.mul(outer, self.outer_stride), f.mul(grid.place, self.depth_stride))
        first = block.at(self.base, place, memory_type(self.dtype))
        return strided_reader(block, self, grid, [first], step, inside, self.depth_stride, self.depth)


def strided_reader(
    block: Block, source: TileSource, grid: CopyGrid, firsts: Sequence[Value], step: int,
    inside: Sequence[Value | None], depth_stride: int, depth: int,
) -> SliceReader:  # fmt: skip
    """Elements that lie alike in all slices, from those of the first slice on.

    `firsts` are where these lie; or where one of them does, and the next ones `step` elements on.
    """
    f, kind = block.f, memory_type(source.dtype)

    def read(number: Value, whole: bool) -> Sequence[Copied]:
        moved = f.mul(number, grid.slice * depth_stride)
        places = [block.at(one, moved, kind) for one in firsts]
        if len(places) < grid.count:
            places = [f.at(places[0], one * step, kind) for one in range(grid.count)]
        there = inside
        if not whole:
            there = both(block, inside, in_depth(block, source.along, grid, number, depth))
        return list(zip(places, there, strict=True))

    return read


def in_depth(block: Block, along: Along, grid: CopyGrid, number: Value, depth: int) -> list[Value | None]:
    """Whether the depth has the elements of a slice."""
    f = block.f
    at = f.add(f.mul(number, grid.slice), grid.place)
    if along == "depth":
        return [block.below(at, depth)] * grid.count
    return [block.below(f.add(at, one * grid.apart), depth) for one in range(grid.count)]


def both(block: Block, some: Sequence[Value | None], others: Sequence[Value | None]) -> list[Value | None]:
    """Of each element whether both hold; None always holds."""
    return [
        other if one is None else one if other is None else block.f.binary("and", one, other)
        for one, other in zip(some, others, strict=True)
    ]
