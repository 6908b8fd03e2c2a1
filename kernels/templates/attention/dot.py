"""Scores of a few queries as dot products along the head, a square of keys at a time: K is read where it lies.

Each key gives a vector of partial sums; a square of them is turned in registers, so that adding its vectors gives one
vector with a key's score in each lane.
"""

from __future__ import annotations

from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.transposing import transpose
from kernels.templates.attention.problem import Attention


def write_dot(module: Module, one: Attention, rows: int, row_length: int, *, prefix: str) -> str:
    """Write, once, f(q, k, scores, keys): the scores of `rows` queries, `row_length` elements apart."""
    name = f"{prefix}_dot{rows}"
    if module.has(name):
        return name
    given = (
        Parameter("q", "ptr", "noalias readonly"),
        Parameter("k", "ptr", "noalias readonly"),
        Parameter("scores", "ptr", "noalias"),
        Parameter("keys", "i64"),
    )
    f = Function(module, name, given)
    lanes = module.target.lanes()
    vector = types.vector("float", lanes)
    whole, rest = divmod(one.size, lanes)
    mask = f.first_lanes(rest, lanes)
    zero = f.number(vector, 0.0)

    def pieces_of(address: Value, piece: int) -> Value:
        at = f.at(address, piece * lanes)
        return f.load(vector, at) if piece < whole else f.masked_load(vector, at, mask)

    count = whole + (rest > 0)

    def square(first: Value, present: int) -> None:
        """`present` keys from `first`: for each row, their products along the head, then one vector of sums."""
        for row in range(rows):
            sums = []
            for key in range(present):
                k_at = f.at(f.parameter("k"), f.mul(f.add(first, key), one.place("k").row))
                total = zero
                for piece in range(count):
                    q_piece = pieces_of(f.at(f.parameter("q"), row * one.place("q").row), piece)
                    total = f.fma(q_piece, pieces_of(k_at, piece), total)
                sums.append(total)
            aim = f.at(f.parameter("scores"), f.add(first, row * row_length))
            if present == 1:
                f.store(f.reduce("fadd", sums[0]), aim)
                continue
            turned = transpose(f, sums)
            while len(turned) > 1:
                turned = [f.add(a, b) for a, b in zip(turned[::2], turned[1::2], strict=True)]
            f.store(turned[0], aim)

    keys = f.parameter("keys")
    most = f.binary("and", keys, f.integer(-lanes))
    f.loop(0, most, lanes, lambda first, _: square(first, lanes))
    f.loop(most, keys, 1, lambda first, _: square(first, 1))
    f.finish()
    return name
