"""The constants of a program, or of several of one model, in one block of bytes: equal ones once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from graphopt.model.rooms import let_go
from graphopt.program.regions.buffer import Buffer
from graphopt.program.regions.region import Lowered
from kernels.kernel import Packing, Transforming
from kernels.listing import ALIGNMENT
from kernels.run import area
from kernels.templates.units.rounding import Rounded

GROWTH = 4  # times the constants of the first program: room for those of others
FIRST = 256  # bytes, that constants of one size are told apart by before they are compared
Bytes = npt.NDArray[np.uint8]
Packed = Mapping[tuple[int, Packing | None], Bytes]  # by the array, which stays where it is, and its packing
NOT_PACKED: Packed = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A constant as it lies in the block, and what it was packed of, where a bundle may have it in another form."""

    start: int  # bytes
    size: int
    packing: Packing | None
    array: npt.NDArray[np.generic] | None


class Weights:
    """Constants packed for kernels. They lie where a program reads them, and never move: later ones follow."""

    def __init__(self, room: int, *, keep: bool = False, packed: Packed = NOT_PACKED) -> None:
        """`keep`: all constants are held as they were, too, so that other forms can be made of one.

        `packed` are those that need not be packed again.
        """
        self.held: list[Held] = []
        self._packed = packed
        self._keep = keep
        self._block = area(room)
        self._top = 0
        self._alike: dict[tuple[int, bytes], list[int]] = {}  # starts, by size and first bytes

    @property
    def bytes(self) -> Bytes:
        """All of them so far."""
        return self._block[: self._top]

    def has_room(self, lowered: Lowered) -> bool:
        """Whether the constants of a program fit, were they all new."""
        return self._top + bytes_of(lowered) <= self._block.size

    def add(self, lowered: Lowered) -> dict[Buffer, int]:
        """Where the constants of a program lie, in bytes from the start."""
        return {one: self._place(lowered, one) for one in lowered.buffers if one in lowered.constants}

    def _place(self, lowered: Lowered, constant: Buffer) -> int:
        known = lowered.constants[constant]
        packed = self._packed.get((id(known.array), known.packing))
        start = self._top
        raw = self._block[start : start + constant.size]  # where it stays, unless it is there already
        if packed is None:
            known.fill(raw)
            let_go(known.array)
        else:
            raw[:] = packed
        alike = self._alike.setdefault((raw.size, raw[:FIRST].tobytes()), [])
        for other in alike:
            if _are_equal(self._block[other : other + raw.size], raw):
                raw[:] = 0
                return other
        alike.append(start)
        taps = isinstance(known.packing, Transforming) and known.packing.is_stored_as_taps
        kept = taps or (self._keep and not isinstance(known.packing, Rounded))  # nothing else is made of those
        self.held.append(Held(start, raw.size, known.packing, known.array if kept else None))
        self._top += _filled(raw.size)
        return start


def bytes_of(lowered: Lowered) -> int:
    """Of all constants of a program, each with what fills it up."""
    return sum(_filled(one.size) for one in lowered.buffers if one in lowered.constants)


def _filled(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _are_equal(one: Bytes, other: Bytes) -> bool:
    return bool(np.array_equal(one, other))
