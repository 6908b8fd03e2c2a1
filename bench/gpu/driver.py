"""The CUDA driver through ctypes: just what launching persistent programs takes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

COOPERATIVE_TOO_LARGE = 720  # CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute


class CudaError(Exception):
    """A call of the driver that failed; `code` is its CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed with {code} ({name}).")
        self.code = code


class Gpu:
    """The first GPU, with a context. Raises OSError where there is no driver, CudaError where there is no GPU."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._device = device
        self._context = ctypes.c_void_p()
        self._call("cuCtxCreate_v2", ctypes.byref(self._context), 0, device)
        name = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode()
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.capability = (self._attribute(_MAJOR), self._attribute(_MINOR))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"?").decode())

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def load(self, ptx: str) -> ctypes.c_void_p:
        """A module, compiled by the driver."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx.encode()))
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """A kernel of a module."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def resident(self, function: ctypes.c_void_p, threads: int) -> int:
        """Blocks of the kernel that are resident on one multiprocessor, as the driver says."""
        count = ctypes.c_int()
        self._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(count), function, threads, ctypes.c_size_t(0)
        )
        return count.value

    def array(self, content: npt.ArrayLike | int) -> Array:
        """Device memory with these 32-bit words, or so many zeros."""
        words = np.zeros(max(content, 1), np.uint32) if isinstance(content, int) else np.asarray(content, np.uint32)
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(words.nbytes, 4)))
        array = Array(self, pointer, max(words.size, 1))
        if words.size:
            array.write(words)
        return array

    def launch(
        self, function: ctypes.c_void_p, blocks: int, threads: int, arguments: Sequence[Array | int],
        *, cooperative: bool = False,
    ) -> None:  # fmt: skip
        """Start a kernel; arrays are passed as pointers, numbers as 32-bit words."""
        held = [one.pointer if isinstance(one, Array) else ctypes.c_uint32(one & 0xFFFFFFFF) for one in arguments]
        table = (ctypes.c_void_p * max(len(held), 1))(
            *(ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in held)
        )
        shape = (blocks, 1, 1, threads, 1, 1, 0, None, table)
        if cooperative:
            self._call("cuLaunchCooperativeKernel", function, *shape)
        else:
            self._call("cuLaunchKernel", function, *shape, None)

    def wait(self) -> None:
        """Until everything that was started has ended."""
        self._call("cuCtxSynchronize")


class Array:
    """32-bit words on the device."""

    def __init__(self, gpu: Gpu, pointer: ctypes.c_uint64, size: int) -> None:
        self._gpu, self.pointer, self.size = gpu, pointer, size

    def write(self, words: npt.NDArray[np.uint32]) -> None:
        """Copy to the device."""
        data = np.ascontiguousarray(words)
        self._gpu._call(
            "cuMemcpyHtoD_v2", self.pointer, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes)
        )

    def read(self) -> npt.NDArray[np.uint32]:
        """Copy from the device."""
        data = np.empty(self.size, np.uint32)
        self._gpu._call(
            "cuMemcpyDtoH_v2", data.ctypes.data_as(ctypes.c_void_p), self.pointer, ctypes.c_size_t(data.nbytes)
        )
        return data

    def free(self) -> None:
        """Give the memory back."""
        self._gpu._call("cuMemFree_v2", self.pointer)
