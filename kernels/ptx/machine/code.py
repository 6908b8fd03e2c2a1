"""A kernel in numbers, as the machine runs it: one row for each instruction, registers and constants as slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.ptx.machine.grammar import PtxFunction, PtxInstruction

CodeRows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """Where a part of a kernel's parameter lies: which one, bytes before the part, bytes of it, the slot."""

    parameter: int
    offset: int
    size: int
    slot: int


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel with all functions that it calls.

    `meets[i]` is where lanes that part at row i meet; `origins[i]` says what a row stands for. `constants` are slots
    with their bits, `specials` slots with numbers of special registers. Shared and local bytes are those that the text
    declares; `granule` is the least access to memory in bytes, at most four.
    """

    kernel: str
    rows: CodeRows
    meets: npt.NDArray[np.int64]
    origins: tuple[tuple[PtxFunction, PtxInstruction | None], ...]
    slots: int
    constants: tuple[tuple[int, int], ...]
    specials: tuple[tuple[int, int], ...]
    parameters: tuple[ParameterSlot, ...]
    parameter_sizes: tuple[int, ...]
    shared: int
    local: int
    granule: int
    threads: int | None
