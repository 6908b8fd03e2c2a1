"""Arrays that a check keeps: beyond some bytes of them they lie in temporary files, which the system maps and drops.

A training step of a large model has as inputs and outputs all of its weights and state, and a check keeps several runs
of it. Files have no name, so that nothing of them stays whatever happens.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

LARGE = 1 << 20  # bytes of an array that is worth a file
MOST = 1 << 30  # bytes of large arrays that one check keeps in memory
ELSEWHERE = "/var/tmp"  # on a disk, where /tmp may be memory


class Held:
    """What one check keeps."""

    def __init__(self, most: int = MOST) -> None:
        self._left = most

    def all(self, values: Iterable[object]) -> list[object]:
        """The values, those arrays in files that memory is not kept for."""
        return [self.one(value) for value in values]

    def feed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """A feed, likewise."""
        return {name: self.one(value) for name, value in feed.items()}

    def one(self, value: object) -> object:
        """A value; an array with its elements where it goes to a file, or itself where there is no room for one."""
        if not isinstance(value, np.ndarray) or value.nbytes < LARGE or value.dtype.hasobject:
            return value
        if value.nbytes <= self._left:
            self._left -= value.nbytes
            return value
        try:
            return _filed(value)
        except OSError:  # no folder for temporary files, or no room in it
            return value


def _filed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR") or ELSEWHERE) as file:
        np.ascontiguousarray(array).tofile(file)
        file.flush()
        return np.frombuffer(mmap.mmap(file.fileno(), array.nbytes), array.dtype).reshape(array.shape)
