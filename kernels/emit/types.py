"""The numbers that element types have in the C interface. They are ONNX's, so that a caller needs no second table."""

from __future__ import annotations

from kernels.dtype import DType

CODES = {
    DType.F32: 1, DType.U8: 2, DType.I8: 3, DType.U16: 4, DType.I16: 5, DType.I32: 6, DType.I64: 7, DType.BOOL: 9,
    DType.F16: 10, DType.F64: 11, DType.U32: 12, DType.U64: 13, DType.BF16: 16,
    DType.E4M3FN: 17, DType.E4M3FNUZ: 18, DType.E5M2: 19, DType.E5M2FNUZ: 20, DType.U4: 21, DType.I4: 22,
    DType.E2M1: 23, DType.E8M0: 24, DType.U2: 25, DType.I2: 26,
}  # fmt: skip


def code_of(dtype: DType) -> int:
    """The number of an element type."""
    return CODES[dtype]
