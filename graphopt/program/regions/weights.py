"""The numbers of a constant as a kernel of products packs them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.operators.formulas import dtype_of
from graphopt.model.short import SHORT, WidenedTensor
from kernels.dtype import DType


def weights_of(facts: Facts, value: ir.Value) -> tuple[npt.NDArray[np.generic], DType] | None:
    """A constant's numbers for a kernel of f32 or f64, and their type: that of the file where it is f16 or bf16."""
    tensor = facts.tensor(value)
    source = tensor.source if isinstance(tensor, WidenedTensor) else tensor
    if source is not None and source.dtype in SHORT:
        dtype = dtype_of(source.dtype)
        return np.ascontiguousarray(source.numpy()).view(dtype.numpy), dtype
    array = facts.array(value)
    if array is None:
        return None
    return (array, DType.F64) if array.dtype == np.float64 else (np.asarray(array, np.float32), DType.F32)
