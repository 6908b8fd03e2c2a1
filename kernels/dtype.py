"""Element types: their names, sizes and NumPy equivalents."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt


class DType(enum.Enum):
    """The type of a buffer's elements. A bool is stored as one byte, 0 or 1."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        """The size of one element in memory."""
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self in (DType.F64, DType.F32, DType.F16, DType.BF16)

    @property
    def is_signed(self) -> bool:
        """Whether this is a signed integer type."""
        return self in (DType.I64, DType.I32, DType.I16, DType.I8)

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer type; bool is none."""
        return not self.is_float and self is not DType.BOOL

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy type with the same bytes; bfloat16, which NumPy lacks, is held as uint16."""
        return np.dtype(_NUMPY[self])

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> DType:
        """The element type of a NumPy dtype; raises KeyError for one that has none (bfloat16 cannot be told)."""
        return _FROM_NUMPY[np.dtype(dtype)]


_BYTES = {
    DType.F64: 8, DType.F32: 4, DType.F16: 2, DType.BF16: 2,
    DType.I64: 8, DType.I32: 4, DType.I16: 2, DType.I8: 1,
    DType.U64: 8, DType.U32: 4, DType.U16: 2, DType.U8: 1,
    DType.BOOL: 1,
}  # fmt: skip

_NUMPY: dict[DType, npt.DTypeLike] = {
    DType.F64: np.float64, DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16,
    DType.I64: np.int64, DType.I32: np.int32, DType.I16: np.int16, DType.I8: np.int8,
    DType.U64: np.uint64, DType.U32: np.uint32, DType.U16: np.uint16, DType.U8: np.uint8,
    DType.BOOL: np.bool_,
}  # fmt: skip

_FROM_NUMPY = {np.dtype(name): dtype for dtype, name in _NUMPY.items() if dtype is not DType.BF16}
