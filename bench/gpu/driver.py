"""Words on a GPU, and launches over them: what interpreters of programs take, beside the runtime of bundles."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from graphopt.program.deploy.cuda.runtime import Device


class Gpu(Device):
    """The first GPU. Raises CudaError where there is no driver, or no GPU."""

    def array(self, content: npt.ArrayLike | int) -> WordArray:
        """Device memory with these 32-bit words, or so many zeros."""
        words = np.zeros(max(content, 1), np.uint32) if isinstance(content, int) else np.asarray(content, np.uint32)
        array = WordArray(self, self.allocate(words.nbytes), max(words.size, 1))
        if words.size:
            self.write(array.pointer, words)
        return array

    def start(
        self, function: ctypes.c_void_p, blocks: int, threads: int, arguments: Sequence[WordArray | int],
        *, cooperative: bool = False,
    ) -> None:  # fmt: skip
        """Start a kernel; arrays are passed as pointers, numbers as 32-bit words."""
        held = [
            ctypes.c_uint64(one.pointer) if isinstance(one, WordArray) else ctypes.c_uint32(one & 0xFFFFFFFF)
            for one in arguments
        ]
        self.launch(function, blocks, threads, held, cooperative=cooperative)


class WordArray:
    """32-bit words on the device."""

    def __init__(self, gpu: Gpu, pointer: int, size: int) -> None:
        self._gpu, self.pointer, self.size = gpu, pointer, size

    def words(self) -> npt.NDArray[np.uint32]:
        """Copy from the device."""
        found: npt.NDArray[np.uint32] = self._gpu.read(self.pointer, (self.size,), np.uint32)
        return found

    def free(self) -> None:
        """Give the memory back."""
        self._gpu.free(self.pointer)
