"""What the tests of row-wise templates share: layouts of a buffer, values with special numbers, guarded runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.tensor import scalars, storage
from kernels.tensor.expression import Buffer
from tests.kernels.guard import run_guarded

FLOATS = (DType.F32, DType.F32, DType.F16, DType.BF16)
SIZES = (1, 2, 3, 7, 15, 16, 17, 33, 64, 65, 130, 200, 300)


@st.composite
def layouts(draw: st.DrawFn, name: str, dtype: DType, shape: tuple[int, ...]) -> Buffer:
    """Dense, or dims in another order, with gaps and an offset that no vector is aligned to."""
    if draw(st.booleans()):
        return Buffer(name, dtype, shape, (), draw(st.sampled_from((0, 1))))
    strides, step = [0] * len(shape), draw(st.sampled_from((1, 1, 2)))
    for dim in draw(st.permutations(range(len(shape)))):
        strides[dim] = step
        step = step * max(shape[dim], 1) + draw(st.sampled_from((0, 3)))
    return Buffer(name, dtype, shape, tuple(strides), draw(st.sampled_from((0, 5))))


def floats(shape: tuple[int, ...], dtype: DType, seed: int, special: tuple[float, ...] = ()) -> storage.Array:
    """Normal numbers, a few of them replaced."""
    generator = np.random.default_rng(seed)
    wide = generator.normal(size=shape) * 3 + 1
    if special and wide.size:
        wide = np.where(generator.random(shape) < 0.02, generator.choice(special, size=shape), wide)
    return scalars.narrow(wide.astype(scalars.compute_type(dtype)), dtype)


def run(kernel: Kernel, buffers: Mapping[Buffer, storage.Array], output: Buffer) -> storage.Array:
    """The output's elements, as stored; what belongs to none keeps its bytes."""
    stored = {buffer.name: storage.store(buffer, array) for buffer, array in buffers.items()}
    before = storage.store(output, np.zeros(output.shape, output.dtype.numpy))
    found = run_guarded(kernel, {**stored, output.name: before})[output.name]
    elements = storage.view(output, found).copy()
    storage.view(output, found)[...] = 0
    assert found.tobytes() == before.tobytes(), f"'{output.name}': bytes between its elements were written"
    return elements


def wide(array: storage.Array, dtype: DType) -> np.ndarray:
    """Stored elements as float64."""
    return scalars.widen(array, dtype).astype(np.float64)


def close(found: storage.Array, want: np.ndarray, dtype: DType, atol: float, rtol: float = 1e-5) -> None:
    """The result equals the float64 one, after rounding to the type of the output."""
    step = {DType.F32: 0.0, DType.F16: 2**-10, DType.BF16: 2**-7}[dtype]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(wide(found, dtype), want, rtol=rtol + step, atol=atol + step * 1e-3)
