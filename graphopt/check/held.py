"""Arrays that a check keeps: beyond some bytes of them they lie in temporary files, which the system maps and drops.

A training step of a large model has as inputs and outputs all of its weights and state, and a check keeps several runs
of it. Files have no name, so that nothing of them stays whatever happens.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.check.blocks import blocks_of
from graphopt.check.heap import give_back
from graphopt.model.rooms import Room, folder, is_written, let_go

LARGE = 1 << 20  # bytes of an array that is worth a file
MOST = 16 << 20  # bytes of large arrays that one check keeps in memory


class Held:
    """What one check keeps."""

    def __init__(self, most: int = MOST) -> None:
        self._left = most
        self._is_full = False  # whether arrays have gone to files

    def all(self, values: Iterable[object]) -> list[object]:
        """The values, those arrays in files that memory is not kept for."""
        return [self.one(value) for value in values]

    def make_room(self) -> None:
        """Before a run: what was freed goes back to the system, if so much is kept that this counts."""
        if self._is_full:
            give_back()

    def zeros(self, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Numbers that are written from now on; in a file if they are many."""
        room = Room(np.dtype(np.float64), shape)
        if room.nbytes >= LARGE:
            with suppress(OSError):
                return room.array()
        return np.zeros(shape)

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A copy that a program may change in place; in a file if it is large."""
        if array.nbytes < LARGE or array.dtype.hasobject:
            return array.copy(order="C")
        try:
            copied = Room(array.dtype, array.shape).mapped()
        except OSError:
            return array.copy(order="C")
        for block in blocks_of(array.shape):
            copied[block] = array[block]
            let_go(copied)
        let_go(array)
        return copied

    def feed(self, feed: Mapping[str, Any], others: Iterable[object] = ()) -> dict[str, Any]:
        """A feed, likewise; arrays that are kept by `others` stay as they are."""
        known = set(map(id, others))
        return {name: value if id(value) in known else self.one(value) for name, value in feed.items()}

    def one(self, value: object) -> object:
        """A value; an array with its elements where it goes to a file, or itself where there is no room for one."""
        if not isinstance(value, np.ndarray) or value.nbytes < LARGE or value.dtype.hasobject:
            return value
        if is_written(value):
            self._is_full = True
            value.flags.writeable = False
            let_go(value)
            return value
        if value.nbytes <= self._left:
            self._left -= value.nbytes
            return value
        try:
            self._is_full = True
            return _filed(value)
        except OSError:  # no folder for temporary files, or no room in it
            return value


def _filed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with tempfile.TemporaryFile(dir=folder()) as file:
        np.ascontiguousarray(array).tofile(file)
        file.flush()
        held = mmap.mmap(file.fileno(), array.nbytes, access=mmap.ACCESS_READ)
        return np.frombuffer(held, array.dtype).reshape(array.shape)
