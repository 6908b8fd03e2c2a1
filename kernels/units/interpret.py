"""The meaning of tile programs, with NumPy: the oracle that tests hold them to, on any machine.

A product of bfloat16 sums the even and the odd elements of the depth apart, each with fused multiply-adds in order, and
adds both sums to the tile; subnormal numbers count as zeros, as operands and as results. Products of bytes are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kernels.errors import KernelsError
from kernels.units.instructions import (
    LANES,
    ROW_BYTES,
    ROWS,
    TILES,
    Ask,
    Clear,
    Instruction,
    LoadTile,
    Multiply,
    Repeat,
    StoreTile,
    TilePlace,
)

Bytes = npt.NDArray[np.uint8]
_LEAST = float(np.finfo(np.float32).tiny)


class OutsideMemory(KernelsError):
    """A tile that does not lie inside the memory that a program is given."""


def interpret(program: Sequence[Instruction], memory: Mapping[str, Bytes]) -> None:
    """Run a program on memory by the names of its addresses; raises OutsideMemory."""
    tiles = np.zeros((TILES, ROWS, ROW_BYTES), np.uint8)
    _run(program, memory, tiles, {})


def _run(program: Sequence[Instruction], memory: Mapping[str, Bytes], tiles: Bytes, at: Mapping[str, int]) -> None:
    for one in program:
        match one:
            case Clear(tile):
                tiles[tile] = 0
            case LoadTile(tile, place):
                for row, start in enumerate(_rows(place, memory, at)):
                    tiles[tile, row] = memory[place.base][start : start + ROW_BYTES]
            case StoreTile(tile, place):
                for row, start in enumerate(_rows(place, memory, at)):
                    memory[place.base][start : start + ROW_BYTES] = tiles[tile, row]
            case Multiply():
                tiles[one.total] = _product(one, tiles[one.total], tiles[one.left], tiles[one.right])
            case Repeat(name, count, body):
                for number in range(count):
                    _run(body, memory, tiles, {**at, name: number})
            case Ask():
                pass


def _rows(place: TilePlace, memory: Mapping[str, Bytes], at: Mapping[str, int]) -> list[int]:
    start = place.offset + sum(at[name] * step for name, step in place.steps)
    rows = [start + row * place.stride for row in range(ROWS)]
    size = memory[place.base].size
    if min(rows) < 0 or max(rows) + ROW_BYTES > size:
        reach = f"from byte {min(rows)} to {max(rows) + ROW_BYTES}"
        raise OutsideMemory(f"a tile reaches {reach} of the {size} of '{place.base}'.")
    return rows


def _product(one: Multiply, total: Bytes, left: Bytes, right: Bytes) -> Bytes:
    if one.arithmetic == "bf16":
        sums = _floats(total.view(np.uint32))
        a = _wide(left)  # [row, depth]
        b = _wide(right).reshape(ROWS, LANES, 2)  # [pair, column, which]
        halves = []
        for which in range(2):
            part = np.zeros((ROWS, LANES), np.float32)
            for pair in range(ROWS):
                # A product of two bfloat16 is exact in float64; the sum is rounded to float32 from there.
                exact = part.astype(np.float64) + np.outer(a[:, 2 * pair + which], b[pair, :, which].astype(np.float64))
                part = _flushed(exact.astype(np.float32))
            halves.append(part)
        return _flushed(sums + _flushed(halves[0] + halves[1])).view(np.uint8)
    kinds = {"u": np.uint8, "s": np.int8}
    first, second = (kinds[one.arithmetic[place]] for place in (0, 2))
    rows = left.view(first).astype(np.int64)
    columns = right.view(second).astype(np.int64).reshape(ROWS, LANES, 4).transpose(0, 2, 1).reshape(-1, LANES)
    return (total.view(np.int32) + rows @ columns).astype(np.int32).view(np.uint8)


def _wide(short: Bytes) -> npt.NDArray[np.float32]:
    """The numbers of bfloat16's bytes."""
    return _floats(np.left_shift(short.view(np.uint16), 16, dtype=np.uint32))


def _floats(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    return _flushed(np.ascontiguousarray(bits).view(np.float32))


def _flushed(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Subnormal numbers as the zeros of their signs."""
    return np.where(np.abs(numbers) < _LEAST, np.copysign(np.float32(0), numbers), numbers).astype(np.float32)
