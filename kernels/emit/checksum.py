"""A fast 64-bit checksum of the weights: the same formula in NumPy and as LLVM.

    sum over words j of mix(word[j] ^ (j + 1) * GOLDEN)   mod 2**64

`mix` is the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), a
bijection: a change of one word always changes the sum, other changes go unseen once in 2**64. As the words do not wait
for one another, it runs on vectors at the speed of memory. It finds damage, not an attack: that is for the bundle's
SHA-256.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

STRIPE = 64  # bytes: the data's length is a multiple of it
_LANES = STRIPE // 8
_KIND = f"<{_LANES} x i64>"
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_CHUNK = 1 << 16  # words at a time, which stay in cache


def checksum(data: npt.NDArray[np.uint8], before: int = 0) -> int:
    """Of contiguous bytes, as many as a multiple of 64, that follow so many others: sums of pieces are that of all."""
    assert data.size % STRIPE == before % STRIPE == 0, "whole stripes"
    words, total = data.view("<u8"), np.uint64(0)
    keys = np.arange(1, _CHUNK + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    for start in range(0, words.size, _CHUNK):
        part = words[start : start + _CHUNK]
        mixed = part ^ (keys[: part.size] + np.uint64((start + before // 8) * GOLDEN % 2**64))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(SECOND)
        mixed ^= mixed >> np.uint64(31)
        total = np.add.reduce(np.append(mixed, total))
    return int(total)


def write_checksum(module: Module, name: str) -> None:
    """Add name(data, bytes, before) -> i64; the data may start anywhere in memory."""
    given = (Parameter("data"), Parameter("bytes", "i64"), Parameter("before", "i64"))
    f = Function(module, name, given, exported=True, result="i64")
    data = f.parameter("data")

    def stripe(number: Value, carried: tuple[Value, ...]) -> list[Value]:
        keys, sums = carried
        word = f.load(_KIND, f.at(data, f.mul(number, STRIPE), "i8"), align=1)
        mixed = f.binary("xor", word, keys)
        for shift, factor in ((30, FIRST), (27, SECOND)):
            mixed = f.mul(_shifted(f, mixed, shift), f.number(_KIND, _signed(factor)))
        mixed = _shifted(f, mixed, 31)
        return [f.add(keys, f.number(_KIND, _signed(_LANES * GOLDEN))), f.add(sums, mixed)]

    first = ", ".join(f"i64 {_signed((lane + 1) * GOLDEN)}" for lane in range(_LANES))
    skipped = f.mul(f.binary("lshr", f.parameter("before"), f.integer(3)), _signed(GOLDEN))
    keys = f.add(Value((f"<{first}>",), _KIND), f.splat(skipped, _LANES))
    start = [keys, f.number(_KIND, 0)]
    _, sums = f.loop(0, f.binary("lshr", f.parameter("bytes"), f.integer(6)), 1, stripe, start)
    f.give(f.reduce("add", sums))
    f.finish()


def _shifted(f: Function, value: Value, bits: int) -> Value:
    return f.binary("xor", value, f.binary("lshr", value, f.number(_KIND, bits)))


def _signed(value: int) -> int:
    """A 64-bit word as LLVM's text has it."""
    return (value + 2**63) % 2**64 - 2**63
