"""Element types: their names, sizes and NumPy equivalents."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt


class DType(enum.Enum):
    """The type of a buffer's elements.

    A bool is stored as one byte, 0 or 1. Floats and integers of less than eight bits take a byte each, in its low bits.
    E8M0 has powers of two alone.
    """

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    E4M3FN = "e4m3fn"
    E4M3FNUZ = "e4m3fnuz"
    E5M2 = "e5m2"
    E5M2FNUZ = "e5m2fnuz"
    E8M0 = "e8m0"
    E2M1 = "e2m1"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    I4 = "i4"
    I2 = "i2"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    U4 = "u4"
    U2 = "u2"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        """The size of one element in memory."""
        return _BYTES.get(self, 1)

    @property
    def bits(self) -> int:
        """How many of an integer's bits count."""
        return _FEW_BITS.get(self, 8 * self.bytes)

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self in (DType.F64, DType.F32) or self.held is DType.F32

    @property
    def is_signed(self) -> bool:
        """Whether this is a signed integer type."""
        return self in (DType.I64, DType.I32, DType.I16, DType.I8, DType.I4, DType.I2)

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer type; bool is none."""
        return not self.is_float and self is not DType.BOOL

    @property
    def held(self) -> DType:
        """The type in which elements are computed with: f32 for shorter floats, a byte for shorter integers."""
        return _HELD.get(self, self)

    @property
    def is_short(self) -> bool:
        """Whether this is a type of eight bits or less that is stored and cast, and not computed with."""
        return self in _HELD and self.bytes == 1

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy type with the same bytes; what NumPy lacks is held as the bits of uint16 or uint8."""
        return np.dtype(_NUMPY.get(self, np.uint8))

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> DType:
        """The element type of a NumPy dtype; raises KeyError for one that has none (bfloat16 cannot be told)."""
        return _FROM_NUMPY[np.dtype(dtype)]


_BYTES = {
    DType.F64: 8, DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.I64: 8, DType.I32: 4, DType.I16: 2,
    DType.U64: 8, DType.U32: 4, DType.U16: 2,
}  # fmt: skip

_FEW_BITS = {DType.I4: 4, DType.U4: 4, DType.I2: 2, DType.U2: 2}

_HELD = {
    DType.F16: DType.F32, DType.BF16: DType.F32, DType.E4M3FN: DType.F32, DType.E4M3FNUZ: DType.F32,
    DType.E5M2: DType.F32, DType.E5M2FNUZ: DType.F32, DType.E8M0: DType.F32, DType.E2M1: DType.F32,
    DType.I4: DType.I8, DType.I2: DType.I8, DType.U4: DType.U8, DType.U2: DType.U8,
}  # fmt: skip

_NUMPY: dict[DType, npt.DTypeLike] = {
    DType.F64: np.float64, DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16,
    DType.I64: np.int64, DType.I32: np.int32, DType.I16: np.int16, DType.I8: np.int8,
    DType.U64: np.uint64, DType.U32: np.uint32, DType.U16: np.uint16, DType.U8: np.uint8,
    DType.BOOL: np.bool_,
}  # fmt: skip

_FROM_NUMPY = {np.dtype(name): dtype for dtype, name in _NUMPY.items() if dtype is not DType.BF16}
