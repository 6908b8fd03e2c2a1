"""Weights of 16 bits in kernels of float32: they lie narrow in memory, and are widened on their way to the products.

A tile that alone reads its weights widens each vector as it loads it. Where several tiles of a block read the same
weights, the block widens a panel of them into scratch before, so that the tiles' loops are those of float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.conversion import memory_type, widened
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

NARROW = (DType.F16, DType.BF16)
CYCLES = 2.0  # to widen a vector into scratch: a load, two instructions, a store
TOGETHER = 4  # vectors of a turn of the loop


def load_wide(f: Function, address: Value, dtype: DType, lanes: int) -> Value:
    """A vector of elements that lie in memory as `dtype`, to compute with."""
    return widened(f, f.load(types.vector(memory_type(dtype), lanes), address), dtype)


def numbers(array: npt.NDArray[np.generic], dtype: DType) -> npt.NDArray[np.float32]:
    """Elements that lie in memory as `dtype`, in float32."""
    if dtype is DType.BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def write_widening(module: Module, dtype: DType, *, prefix: str) -> str:
    """Write, once, the function f(narrow, wide, vectors) and return its name; `wide` starts where a vector may."""
    name = f"{prefix}_widen_{dtype.value}"
    if module.has(name):
        return name
    f = Function(
        module,
        name,
        (
            Parameter("narrow", "ptr", "noalias nocapture readonly"),
            Parameter("wide", "ptr", "noalias nocapture"),
            Parameter("vectors", "i64"),
        ),
    )
    lanes, kind = module.target.lanes(), memory_type(dtype)

    def some(count: int, first: Value) -> None:
        source, aim = (
            f.at(f.parameter("narrow"), f.mul(first, lanes), kind),
            f.at(f.parameter("wide"), f.mul(first, lanes)),
        )
        values = [load_wide(f, f.at(source, one * lanes, kind), dtype, lanes) for one in range(count)]
        for one, value in enumerate(values):
            f.store(value, f.at(aim, one * lanes), align=4 * lanes)

    most = f.binary("and", f.parameter("vectors"), f.integer(-TOGETHER))
    f.loop(0, most, TOGETHER, lambda at, _: some(TOGETHER, at))
    f.loop(most, f.parameter("vectors"), 1, lambda at, _: some(1, at))
    f.finish()
    return name
