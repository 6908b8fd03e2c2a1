"""Symbolic content: what an integer tensor holds when it was computed from shapes.

`Shape(x)` of an x of dims [batch, 3, 224] holds the numbers [batch, 3, 224], known although the batch is not. Content
is a NumPy object array of ints, bools and sympy expressions, or of `Real` where floats are computed from these; the
operators that exporters write between a Shape and the Reshape, Expand, Slice or Range that uses it carry it on
(`Operator.content`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import dims

Content = np.ndarray  # dtype object; rank at most MAX_RANK, at most MAX_ELEMENTS elements
MAX_ELEMENTS = 64
MAX_RANK = 2

INTEGER_TYPES = frozenset(
    {
        ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
        ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64, ir.DataType.BOOL,
    }
)  # fmt: skip
# Casting to a narrower type may wrap; dims are assumed to fit these.
WIDE_TYPES = frozenset({ir.DataType.INT32, ir.DataType.INT64})
REAL_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})  # of floats that are computed from dims


def of_array(array: np.ndarray) -> Content | None:
    """The content of a constant integer or bool tensor, None when it is too large to follow."""
    if array.size > MAX_ELEMENTS or array.ndim > MAX_RANK or array.dtype.kind not in "iub":
        return None
    result = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        result[index] = array[index].item()
    return result


def of_dims(shape: dims.Dims) -> Content:
    """A vector holding dims."""
    result = np.empty(len(shape), dtype=object)
    for index, dim in enumerate(shape):
        result[index] = dim
    return result


def to_array(content: Content, dtype: ir.DataType) -> np.ndarray | None:
    """The numbers, or None when an element is symbolic."""
    if not all(isinstance(item, (int, bool)) for item in content.reshape(-1)):
        return None
    return np.array(content.tolist(), dtype=dtype.numpy()).reshape(content.shape)
