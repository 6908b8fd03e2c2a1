"""Zero or right: what kernels promise of subnormal numbers, for comparisons with oracles that compute with them.

A subnormal operand may count as the zero of its sign, a subnormal result may be zero. An oracle is therefore asked
twice, for the operands and for the flushed ones, and each element has to agree with one of the answers.
"""

from __future__ import annotations

import numpy as np

from kernels.dtype import DType
from kernels.tensor import scalars
from kernels.tensor.storage import Array


def smallest_normal(dtype: DType) -> float:
    """Of the type that values are computed in."""
    return float(np.finfo(scalars.compute_type(dtype)).tiny)


def flushed(array: Array, dtype: DType) -> Array:
    """Stored elements with zeros of the same sign for what is subnormal where it is computed with."""
    if not dtype.is_float:
        return array
    wide = scalars.widen(array, dtype)
    small = np.abs(wide) < smallest_normal(dtype)
    return scalars.narrow(np.where(small, np.copysign(wide.dtype.type(0), wide), wide), dtype)


def answer(found: Array, right: Array, of_flushed: Array, dtype: DType) -> Array:
    """What `found` is to be compared with: the right answer, or 0 or the flushed operands' where it says so."""
    if not dtype.is_float:
        return np.where(found == of_flushed, of_flushed, right)
    read, *wanted = (scalars.widen(one, dtype) for one in (found, right, of_flushed))
    chosen = np.where(np.isclose(read, wanted[1], rtol=1e-2, atol=0, equal_nan=True), wanted[1], wanted[0])
    zero = (read == 0) & (np.abs(chosen) < smallest_normal(dtype))
    return scalars.narrow(np.where(zero, read, chosen), dtype)
