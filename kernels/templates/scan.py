"""Cumulative sums along one axis, with ONNX's `exclusive` and `reverse`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.size import bound, is_free
from kernels.target import Target
from kernels.templates.template import only

_TOGETHER = 4  # vectors
BLOCK_BYTES = 64 << 10  # that a block reads, about


class InvalidScan(KernelsError):
    """A cumulative sum of an axis or a type that there is not."""


@dataclass(frozen=True, slots=True)
class CumulativeSum:
    """y[i] = sum of x[j] for j <= i along `axis` (j < i when exclusive; j >= i when reverse), dense tensors."""

    shape: tuple[int, ...]
    axis: int
    dtype: DType = DType.F32
    exclusive: bool = False
    reverse: bool = False

    def __post_init__(self) -> None:
        if not -len(self.shape) <= self.axis < len(self.shape):
            raise InvalidScan(f"axis {self.axis} is outside of {len(self.shape)} dims.")
        if self.dtype.held is not self.dtype or self.dtype is DType.BOOL:
            raise InvalidScan(f"cumulative sums of {self.dtype.value} are not supported; cast to f32 before.")


def build(problem: CumulativeSum, target: Target, name: str = "cumulative_sum") -> Kernel:
    """The kernel: operands "x" and "y". Lanes are positions after the axis; along the last axis sums are scalar.

    Several vectors go along the axis together, as each sum waits for the one before it; what is left of a row goes in
    shorter ones.
    """
    axis = problem.axis % len(problem.shape)
    outer, size = math.prod(problem.shape[:axis]), problem.shape[axis]
    inner, total = math.prod(problem.shape[axis + 1 :]), math.prod(problem.shape)
    module, kind = Module(target), types.scalar(problem.dtype)
    lanes = max(1, target.lanes(problem.dtype))  # a GPU has no vectors
    stretch = max(1, BLOCK_BYTES // max(1, bound(size * inner) * problem.dtype.bytes))
    blocks = -(-outer // stretch) if is_free(outer) else max(1, -(-outer // stretch))

    def columns(f: Function, x: Value, y: Value, at: Value, widths: Sequence[int]) -> None:
        """The sums of neighbouring positions, so many in each vector."""
        parts = [types.vector(kind, width) for width in widths]
        starts = list(accumulate(widths, initial=0))

        def step(number: Value, carried: tuple[Value, ...]) -> list[Value]:
            place = f.sub(f.integer(size - 1), number) if problem.reverse else number
            offset = f.add(f.mul(place, inner), at)
            sums = []
            for part, start, before in zip(parts, starts, carried, strict=False):
                here = f.add(offset, start)
                after = f.add(before, f.load(part, f.at(x, here, kind)))
                f.store(before if problem.exclusive else after, f.at(y, here, kind))
                sums.append(after)
            return sums

        f.loop(0, size, 1, step, [f.number(part, 0) for part in parts])

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if not bound(total):
            return
        first = f.mul(block, stretch)
        last = f.minimum(f.add(first, stretch), f.integer(outer))

        def row(number: Value, _: tuple[Value, ...]) -> None:
            x, y = (f.at(pointers[one], f.mul(number, size * inner), kind) for one in ("x", "y"))
            some, whole = inner // (_TOGETHER * lanes) * (_TOGETHER * lanes), inner // lanes * lanes
            f.loop(0, some, _TOGETHER * lanes, lambda at, _: columns(f, x, y, at, [lanes] * _TOGETHER))
            if is_free(inner):
                f.loop(some, whole, lanes, lambda at, _: columns(f, x, y, at, [lanes]))
                f.loop(whole, inner, 1, lambda at, _: columns(f, x, y, at, [1]))
            elif some < inner:
                columns(f, x, y, f.integer(some), _widths(inner - some, lanes))

        f.loop(first, last, 1, row)

    operands = (Operand("x", "input", problem.dtype, total), Operand("y", "output", problem.dtype, total))
    return write_kernel(module, name, operands, blocks, body, flops=total)


def _widths(count: int, lanes: int) -> list[int]:
    """So many positions in whole vectors and halves of them, halves of these and so on."""
    found = [lanes] * (count // lanes)
    while lanes > 1:
        lanes //= 2
        found += [lanes] if count & lanes else []
    return found


CUMULATIVE_SUM = only("cumulative_sum", CumulativeSum, build)
