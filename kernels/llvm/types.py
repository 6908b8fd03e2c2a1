"""LLVM's types and constants as text, for our element types."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import numpy as np

from kernels.dtype import DType

_SCALARS = {
    DType.F64: "double", DType.F32: "float", DType.F16: "half", DType.BF16: "bfloat",
    DType.I64: "i64", DType.U64: "i64", DType.I32: "i32", DType.U32: "i32", DType.I16: "i16", DType.U16: "i16",
}  # fmt: skip
_BITS = {"double": 64, "float": 32, "half": 16, "bfloat": 16, "ptr": 64}
FLOATS = ("float", "double", "half", "bfloat")


def scalar(dtype: DType) -> str:
    """The type of one element in memory; a bool is a byte, as all that is shorter."""
    return _SCALARS.get(dtype, "i8")


@functools.cache
def vector(element: str, lanes: int) -> str:
    """A vector of `lanes` elements; one lane is the element itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


@functools.cache
def lanes(kind: str) -> int:
    """How many elements a type holds."""
    return int(kind[1 : kind.index(" ")]) if kind.startswith("<") else 1


@functools.cache
def element(kind: str) -> str:
    """The type of one element."""
    return kind[kind.index(" x ") + 3 : -1] if kind.startswith("<") else kind


@functools.cache
def with_element(kind: str, new: str) -> str:
    """The same number of lanes of another element type."""
    return vector(new, lanes(kind))


@functools.cache
def bits(kind: str) -> int:
    """The size of one element of a type, in bits."""
    one = element(kind)
    return _BITS.get(one) or int(one[1:])


@functools.cache
def is_float(kind: str) -> bool:
    """Whether the elements are floating-point numbers."""
    return element(kind) in FLOATS


@functools.cache
def suffix(kind: str) -> str:
    """How an intrinsic's name spells the type: <16 x float> is v16f32."""
    one = element(kind)
    short = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(one, one)
    return short if lanes(kind) == 1 else f"v{lanes(kind)}{short}"


def constant(kind: str, value: float | int | bool) -> str:
    """A number of this type, repeated in every lane."""
    one = element(kind)
    text = _literal(one, value)
    return text if lanes(kind) == 1 else f"splat ({one} {text})"


def constant_lanes(kind: str, values: Sequence[int] | Sequence[float]) -> str:
    """A vector of given numbers."""
    one = element(kind)
    if lanes(kind) == 1:
        return _literal(one, values[0])
    return "<" + ", ".join(f"{one} {_literal(one, value)}" for value in values) + ">"


def _literal(kind: str, value: float | int | bool) -> str:
    if kind == "float":
        return f"0x{_double(float(np.float32(value))):016X}"
    if kind == "double":
        return f"0x{_double(float(value)):016X}"
    if kind == "half":
        return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
    if kind == "bfloat":
        return f"0xR{_bfloat(float(value)):04X}"
    if kind == "i1":
        return "true" if value else "false"
    return str(int(value))


def _double(value: float) -> int:
    found: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return found


def _bfloat(value: float) -> int:
    """The nearest bfloat16, ties to even."""
    found = int(np.float32(value).view(np.uint32))
    if np.isnan(value):
        return 0x7FC0
    return (found + 0x7FFF + ((found >> 16) & 1)) >> 16 & 0xFFFF
