"""Buffers in memory: how many elements the storage has, and NumPy views of it with the buffer's dims and strides."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.tensor.expression import Buffer

Array = npt.NDArray[Any]  # the element type is the buffer's, known only when it runs


def extent(buffer: Buffer) -> int:
    """Elements of the storage: one past the last that the buffer reaches (strides are not negative)."""
    if prod(buffer.shape) == 0:
        return buffer.offset
    reach = sum((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
    return buffer.offset + reach + 1


def view(buffer: Buffer, storage: Array) -> Array:
    """The buffer's elements inside a one-dimensional storage, as a writable view."""
    size = buffer.dtype.bytes
    strides = tuple(stride * size for stride in buffer.strides)
    if prod(buffer.shape) == 0:
        return np.empty(buffer.shape, buffer.dtype.numpy)
    return np.lib.stride_tricks.as_strided(storage[buffer.offset :], buffer.shape, strides)


def store(buffer: Buffer, values: Array) -> Array:
    """A new storage that holds the values; bytes that belong to no element are 0x5A, so that a stray read shows."""
    count = extent(buffer)
    storage = np.frombuffer(bytearray(b"\x5a") * (count * buffer.dtype.bytes), buffer.dtype.numpy)
    if buffer.dtype.numpy == np.bool_:
        storage = np.zeros(count, np.bool_)
    view(buffer, storage)[...] = values
    return storage
