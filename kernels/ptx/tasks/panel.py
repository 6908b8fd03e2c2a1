"""Constants that a block has in shared memory before it waits for its inputs, and sums over a depth shared by threads.

A step of a chain takes as long as its loads: those of weights need not begin when the state is there. As much of a
panel as has room is copied while the block waits; the rest is read where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.llvm.function import Value
from kernels.ptx.tasks.threads import THREADS, Block

HELD_BYTES = 32 << 10  # of a panel: all blocks of a launch have room for it, whatever their task
_TURN = 16  # places of the depth whose loads are under way together
_VECTOR = 4  # floats that are copied at once


@dataclass(frozen=True, slots=True)
class HeldPanel:
    """The first rows of a panel of float32 [depth][columns], behind so many bytes of a block's shared memory.

    Rows lie `apart` elements from one another in global memory, a multiple of four as `columns` is.
    """

    rows: int
    columns: int
    apart: int
    offset: int

    @classmethod
    def of(cls, depth: int, columns: int, apart: int, offset: int) -> HeldPanel:
        """As many rows as have room."""
        return cls(min(depth, HELD_BYTES // (4 * columns)), columns, apart, -(-offset // 16) * 16)

    @property
    def end(self) -> int:
        """Shared memory up to the panel's end, in bytes."""
        return self.offset + 4 * self.rows * self.columns

    def bring(self, block: Block, start: Value) -> None:
        """Begin to copy it from where its first row begins."""
        f, vectors = block.f, self.columns // _VECTOR

        def copy(number: Value, _: tuple[Value, ...]) -> Sequence[Value]:
            row, vector = block.split(number, (self.rows, vectors))
            column = f.mul(vector, _VECTOR)
            to = self.at(block, row, column)
            block.copy(to, block.at(start, f.add(f.mul(row, self.apart), column)), None, DType.F32, _VECTOR)
            return ()

        block.strided(block.thread, self.rows * vectors, THREADS, copy)
        block.copies_end()

    def at(self, block: Block, row: Value, column: Value) -> Value:
        """Where an element is."""
        f = block.f
        return block.at(f.at(block.shared, self.offset, "i8"), f.add(f.mul(row, self.columns), column))


def sums_of_share(
    block: Block, share: Value, shares: int, begin: int, end: int, total: Value,
    add: Callable[[Value, Value, Value | None], Value],
) -> Value:  # fmt: skip
    """Add to the sums of a thread what its share of a depth gives: places begin + share, + shares, ... below the end.

    `add(place, total, inside)` adds one place, or nothing where it is not `inside`; None: it is. A share behind the
    last has no place.
    """
    f, depth = block.f, end - begin
    each = depth // shares  # places that every share has
    first = f.add(share, begin)

    def turn(place: Value, held: tuple[Value, ...]) -> Sequence[Value]:
        found = held[0]
        for step in range(_TURN):
            found = add(f.add(place, step * shares), found, None)
        return (found,)

    whole = each // _TURN * _TURN
    if whole:
        (total,) = f.loop(first, block.word(begin + whole * shares), shares * _TURN, turn, (total,))
    for step in range(whole, -(-depth // shares)):
        place = f.add(first, step * shares)
        total = add(place, total, None if step < each else block.below(place, end))
    return total
