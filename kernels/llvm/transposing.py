"""A square of elements in registers, turned: n vectors of n lanes, by log2(n) rounds of two-operand shuffles."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.llvm import types
from kernels.llvm.function import Function, Value


def transpose(f: Function, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square whose rows are given; as many rows as lanes, a power of two.

    Each round exchanges, between vectors whose numbers differ in one bit, the lanes whose numbers differ in that bit.
    """
    lanes = types.lanes(rows[0].type)
    assert lanes == len(rows) and lanes & (lanes - 1) == 0, "a square with a side that is a power of two"
    current = list(rows)
    bit = 1
    while bit < lanes:
        turned = list(current)
        for number in range(lanes):
            if number & bit:
                continue
            low, high = current[number], current[number | bit]
            turned[number] = f.shuffle(low, high, [n if not n & bit else lanes + (n ^ bit) for n in range(lanes)])
            turned[number | bit] = f.shuffle(low, high, [n | bit if not n & bit else lanes + n for n in range(lanes)])
        current = turned
        bit <<= 1
    return current
