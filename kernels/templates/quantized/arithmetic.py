"""Sums of products of bytes, a 32-bit word of the depth at a time: which instructions a target has for it.

Every lane of a vector is an int32 sum. A word of A, the same for all lanes, holds a few elements of the depth; a vector
of B holds a word for each lane. All three ways are exact modulo 2**32:

    u8s8    four bytes, unsigned by signed (x86: vpdpbusd)
    s8s8    four bytes, signed by signed (ARM: sdot)
    pairs   two int16 (x86: vpmaddwd, whose pairs of bytes' products cannot overflow; elsewhere two multiplications)

Bytes of the other sign than an instruction wants are shifted by 128, which is one xor; sums are corrected for it.
vpmaddubsw, the instruction for bytes before vpdpbusd, saturates its int16 sums: it is never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.target import Target
from kernels.templates.tile import UnsupportedArithmetic

ByteArithmetic = Literal["u8s8", "s8s8", "pairs"]
PER_WORD: Mapping[ByteArithmetic, int] = {"u8s8": 4, "s8s8": 4, "pairs": 2}  # elements of the depth in a 32-bit word


def supported(arithmetic: ByteArithmetic, target: Target) -> bool:
    """Whether the target has the instructions."""
    if arithmetic == "u8s8":
        return target.has("avx512vnni") or (target.has("avxvnni") and target.vector_bytes == 32)
    if arithmetic == "s8s8":
        return target.has("dotprod")
    return True


def best(target: Target) -> ByteArithmetic:
    """The fastest one that the target has."""
    found: tuple[ByteArithmetic, ...] = ("u8s8", "s8s8", "pairs")
    return next(one for one in found if supported(one, target))


def element_bytes(arithmetic: ByteArithmetic) -> int:
    """The size of an element of A and of B in a word."""
    return 4 // PER_WORD[arithmetic]


def shift_of_a(arithmetic: ByteArithmetic, dtype: DType) -> int:
    """What is added to each element of A before it goes into a word."""
    if dtype not in (DType.U8, DType.I8):
        raise UnsupportedArithmetic(f"a product of bytes takes u8 or i8, not {dtype.value}: dequantize it first.")
    if arithmetic == "pairs":
        return 0
    if arithmetic == "u8s8":
        return 128 if dtype is DType.I8 else 0
    return -128 if dtype is DType.U8 else 0


def shift_of_b(arithmetic: ByteArithmetic, dtype: DType) -> int:
    """What is added to each element of B before it goes into a word."""
    if dtype not in (DType.U8, DType.I8):
        raise UnsupportedArithmetic(f"a product of bytes takes u8 or i8, not {dtype.value}: dequantize it first.")
    return -128 if arithmetic != "pairs" and dtype is DType.U8 else 0


def multiplies_pairs(target: Target) -> bool:
    """Whether one instruction sums the products of two int16; elsewhere words are halved and multiplied twice."""
    return target.has("avx2")


def _halves(f: Function, words: Value) -> tuple[Value, Value]:
    """The signed low and high halves of words, as int32."""
    sixteen = f.number(words.type, 16)
    return f.binary("ashr", f.binary("shl", words, sixteen), sixteen), f.binary("ashr", words, sixteen)


def factors_of_a(f: Function, arithmetic: ByteArithmetic, word: Value, lanes: int) -> tuple[Value, ...]:
    """A word of A, i32, as `add_products` takes it: in every lane."""
    if arithmetic == "pairs" and not multiplies_pairs(f.module.target):
        low, high = _halves(f, word)
        return f.splat(low, lanes), f.splat(high, lanes)
    return (f.splat(word, lanes),)


def factors_of_b(f: Function, arithmetic: ByteArithmetic, words: Value) -> tuple[Value, ...]:
    """Vectors of words of B as `add_products` takes them."""
    if arithmetic == "pairs" and not multiplies_pairs(f.module.target):
        return _halves(f, words)
    return (words,)


def add_products(
    f: Function, arithmetic: ByteArithmetic, left: tuple[Value, ...], right: tuple[Value, ...], total: Value
) -> Value:
    """total + the products of a word of A and a word of B, lane by lane."""
    lanes = types.lanes(total.type)
    if arithmetic == "pairs":
        if not multiplies_pairs(f.module.target):
            for one, other in zip(left, right, strict=True):
                total = f.add(total, f.mul(one, other))
            return total
        name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[lanes]
        pairs = types.vector("i16", 2 * lanes)
        a, b = (f.convert("bitcast", pairs, one[0]) for one in (left, right))
        return f.add(f.call_outside(f"llvm.x86.{name}", total.type, a, b), total)
    quads = types.vector("i8", 4 * lanes)
    a, b = (f.convert("bitcast", quads, one[0]) for one in (left, right))
    if arithmetic == "u8s8":
        return f.call_outside(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total.type, total, a, b)
    return f.call_outside(f"llvm.aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8", total.type, total, a, b)
