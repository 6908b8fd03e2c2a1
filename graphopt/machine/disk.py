"""How fast a folder's disk is read and written, past the system's cache."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from graphopt.machine.record import DISK
from kernels.measure.entries import Reading, reading_of
from kernels.run import area

BLOCK = 1 << 20  # bytes of a call, as programs read weights that do not fit into memory
BYTES = 32 << 20  # of a round
ROUNDS = 10
ENOUGH = 1_000_000_000  # nanoseconds, after which a slow disk has no further round


def measure_disk(folder: Path) -> dict[str, Reading]:
    """Rates in bytes a nanosecond; none where the file system does not let its cache be passed by."""
    if not hasattr(os, "O_DIRECT"):
        return {}
    block = area(BLOCK)  # begins with a page, as the system wants it, in a huge one, as a program's memory is
    block[:] = np.frombuffer(os.urandom(BLOCK), np.uint8)
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder) as file:
        handle = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        try:
            return _rounds(handle, block)
        finally:
            os.close(handle)
    return {}


def _rounds(handle: int, block: npt.NDArray[np.uint8]) -> dict[str, Reading]:
    rates: dict[str, list[float]] = {name: [] for name in DISK}
    began = time.monotonic_ns()
    while len(rates["disk_read"]) < ROUNDS and time.monotonic_ns() - began < ENOUGH:
        started = time.monotonic_ns()
        for start in range(0, BYTES, BLOCK):
            os.pwrite(handle, block.data, start)
        os.fdatasync(handle)
        rates["disk_write"].append(BYTES / (time.monotonic_ns() - started))
        started = time.monotonic_ns()
        for start in range(0, BYTES, BLOCK):
            os.preadv(handle, [block.data], start)
        rates["disk_read"].append(BYTES / (time.monotonic_ns() - started))
    return {name: reading_of(DISK[name], values) for name, values in rates.items()}
