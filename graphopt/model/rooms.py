"""Arrays in files, which the system maps and drops: results are written where they lie, and other processes see them.

A file has no name, so that nothing of it stays whatever happens, or one for as long as another process needs it.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

EVERY = 0.01  # seconds, in which a run touches a hundred MB at most
ELSEWHERE = "/var/tmp"  # on a disk, where /tmp may be memory


class WrittenMap(mmap.mmap):
    """A map whose pages the file has, also those that were written: they may be let go of."""


@dataclass(frozen=True, slots=True)
class Room:
    """Place for a result of known dims."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return self.dtype.itemsize * math.prod(self.shape)

    def array(self) -> npt.NDArray[Any]:
        """An array of zeros in a file without a name; raises OSError where no disk has room for it."""
        with tempfile.TemporaryFile(dir=folder()) as file:
            _allocate(file.fileno(), self.nbytes)
            return _mapped(file.fileno(), self)

    def mapped(self) -> np.memmap[Any, np.dtype[Any]]:
        """Likewise as NumPy's own kind of array, which programs change in place where they change an input."""
        with tempfile.TemporaryFile(dir=folder()) as file:
            _allocate(file.fileno(), self.nbytes)
            return np.memmap(file, self.dtype, "r+", shape=self.shape)


@dataclass(frozen=True, slots=True)
class Lent:
    """A file with the elements of an array, or place for them, while another process needs it."""

    path: Path
    room: Room

    def array(self) -> npt.NDArray[Any]:
        """The array in the file."""
        with self.path.open("r+b") as file:
            return _mapped(file.fileno(), self.room)


def let_go(array: object) -> None:
    """Take the pages of an array in a map of a file out of the process's memory; they come back when they are read.

    Other arrays stay as they are, those in maps among them whose changes no file has.
    """
    base, is_shared = _map_of(array)
    if base is None or not (is_shared or memoryview(base).readonly):
        return
    assert isinstance(array, np.ndarray), "it has a map"
    first, end = np.lib.array_utils.byte_bounds(array)
    start = np.frombuffer(base, np.uint8).ctypes.data
    begin = -(-(first - start) // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (end - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > begin and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED, begin, stop - begin)


def _map_of(array: object) -> tuple[mmap.mmap | None, bool]:
    """The map in which an array lies, and whether the file has what is written into it."""
    base, is_shared = array, False
    while isinstance(base, np.ndarray):
        is_shared |= isinstance(base, np.memmap) and base.mode in ("r+", "w+")
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    if not isinstance(base, mmap.mmap):
        return None, False
    return base, is_shared or isinstance(base, WrittenMap)


@contextmanager
def letting_go(arrays: Iterable[object]) -> Iterator[None]:
    """Let go of pages of these arrays again and again while the block runs, which works on one after the other."""
    known, ended = tuple(arrays), threading.Event()
    if not known:
        yield
        return

    def rest() -> None:
        while not ended.wait(EVERY):
            for array in known:
                let_go(array)

    thread = threading.Thread(target=rest, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for array in known:
            let_go(array)


def folder() -> str:
    """Where such files are made."""
    return os.environ.get("TMPDIR") or ELSEWHERE


@contextmanager
def lent(array: npt.NDArray[Any] | Room) -> Iterator[Lent]:
    """An array in a file, or room for one, which has a name inside of the block; raises OSError without room."""
    number, name = tempfile.mkstemp(prefix="graphopt-verify-", dir=folder())
    try:
        with os.fdopen(number, "wb") as file:
            if isinstance(array, Room):
                _allocate(file.fileno(), array.nbytes)
                room = array
            else:
                np.ascontiguousarray(array).tofile(file)
                room = Room(array.dtype, array.shape)
        yield Lent(Path(name), room)
    finally:
        with suppress(OSError):  # Windows keeps what is mapped
            os.unlink(name)


def _allocate(number: int, size: int) -> None:
    """All bytes of a file at once: a disk that is full when a page is written would end the process."""
    if sys.platform != "linux":
        raise OSError("no bytes of a file can be set aside here")
    os.posix_fallocate(number, 0, size)


def maps_of(arrays: Iterable[object]) -> list[npt.NDArray[np.uint8]]:
    """The maps in which arrays lie, each once and whole: one call lets go of all of it."""
    found = {id(base): base for base, _ in map(_map_of, arrays) if base is not None}
    return [np.frombuffer(base, np.uint8) for base in found.values()]


def is_written(value: object) -> bool:
    """Whether it is an array in a file that has what is written into it."""
    return _map_of(value)[1]


def room_of(array: object) -> Room:
    """What is said of an array that lies where it was to be written."""
    assert isinstance(array, np.ndarray), "it is written"
    return Room(array.dtype, array.shape)


def _mapped(number: int, room: Room) -> npt.NDArray[Any]:
    return np.frombuffer(WrittenMap(number, room.nbytes), room.dtype).reshape(room.shape)
