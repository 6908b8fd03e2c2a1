"""The memory of a device: buffers with room between them that nobody may touch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.ptx.machine.numbers import GLOBAL_BASE
from kernels.ptx.machine.state import READ, WRITTEN

APART = 1024  # bytes between buffers that are none's
_ALIGNMENT = 256

Anything = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Placed:
    """A buffer on the device: where it begins, how many bytes it has, whether a launch may write it."""

    name: str
    address: int
    size: int
    constant: bool


class DeviceMemory:
    """Buffers one behind the other; what was written to them stays from launch to launch.

    `touched` says of each byte whether the last launch has read (1) or written (2) it.
    """

    def __init__(self) -> None:
        self.buffers: list[Placed] = []
        self.content = np.zeros(APART, np.uint8)
        self.written = np.zeros(APART, bool)
        self.touched = np.zeros(0, np.uint8)

    def reserve(self, name: str, size: int, *, constant: bool = False) -> Placed:
        """A buffer of so many bytes that nobody has written yet."""
        at = -(-(len(self.content) + APART) // _ALIGNMENT) * _ALIGNMENT
        whole = -(-(at + size + APART) // _ALIGNMENT) * _ALIGNMENT
        self.content = np.concatenate([self.content, np.zeros(whole - len(self.content), np.uint8)])
        self.written = np.concatenate([self.written, np.zeros(whole - len(self.written), bool)])
        placed = Placed(name, GLOBAL_BASE + at, size, constant)
        self.buffers.append(placed)
        return placed

    def place(self, name: str, array: npt.ArrayLike, *, constant: bool = False) -> Placed:
        """A buffer with the bytes of an array; `constant` where no launch may write it."""
        content = np.ascontiguousarray(array)
        placed = self.reserve(name, content.nbytes, constant=constant)
        self.write(placed, content)
        return placed

    def write(self, placed: Placed, array: npt.ArrayLike) -> None:
        """The bytes of an array to the beginning of a buffer."""
        content = np.ascontiguousarray(array)
        at = placed.address - GLOBAL_BASE
        self.content[at : at + content.nbytes] = content.reshape(-1).view(np.uint8)
        self.written[at : at + content.nbytes] = True

    def read(self, placed: Placed, dtype: npt.DTypeLike) -> Anything:
        """What lies in a buffer, as an array of one dim."""
        at = placed.address - GLOBAL_BASE
        return self.content[at : at + placed.size].copy().view(dtype)

    def touches(self, address: int, size: int) -> tuple[int, int]:
        """How many of some bytes the last launch has read, and how many it has written."""
        some = self.touched[address - GLOBAL_BASE :][:size]
        return int(np.count_nonzero(some & READ)), int(np.count_nonzero(some & WRITTEN))

    def clear(self, placed: Placed) -> None:
        """Nobody has written the buffer any more."""
        at = placed.address - GLOBAL_BASE
        self.written[at : at + placed.size] = False

    def named(self, address: int) -> str:
        """What lies at an address: a buffer and bytes from its beginning, or what is near."""
        for one in self.buffers:
            if one.address <= address < one.address + one.size:
                return f"{one.name}+{address - one.address}"
        before = [one for one in self.buffers if one.address + one.size <= address]
        if before and address < before[-1].address + before[-1].size + 2 * APART:
            return f"{address - before[-1].address - before[-1].size} bytes behind {before[-1].name}"
        after = [one for one in self.buffers if one.address > address]
        if after and after[0].address - address <= 2 * APART:
            return f"{after[0].address - address} bytes before {after[0].name}"
        return f"address {address:#x}"
