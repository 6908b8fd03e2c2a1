"""Cumulative sums along one axis, with ONNX's `exclusive` and `reverse`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.size import bound, is_free
from kernels.target import Target
from kernels.templates.template import only

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
    """The kernel: operands "x" and "y". Lanes are positions after the axis; along the last axis sums are scalar."""
    axis = problem.axis % len(problem.shape)
    outer, size = math.prod(problem.shape[:axis]), problem.shape[axis]
    inner, total = math.prod(problem.shape[axis + 1 :]), math.prod(problem.shape)
    module, kind = Module(target), types.scalar(problem.dtype)
    lanes = max(1, target.lanes(problem.dtype))  # a GPU has no vectors
    stretch = max(1, BLOCK_BYTES // max(1, bound(size * inner) * problem.dtype.bytes))
    blocks = -(-outer // stretch) if is_free(outer) else max(1, -(-outer // stretch))

    def column(f: Function, x: Value, y: Value, at: Value, width: int) -> None:
        """The sums of `width` neighbouring positions."""
        whole = types.vector(kind, width)

        def step(number: Value, carried: tuple[Value, ...]) -> list[Value]:
            place = f.sub(f.integer(size - 1), number) if problem.reverse else number
            offset = f.add(f.mul(place, inner), at)
            before = carried[0]
            after = f.add(before, f.load(whole, f.at(x, offset, kind)))
            f.store(before if problem.exclusive else after, f.at(y, offset, kind))
            return [after]

        f.loop(0, size, 1, step, [f.number(whole, 0)])

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if not bound(total):
            return
        first = f.mul(block, stretch)
        last = f.minimum(f.add(first, stretch), f.integer(outer))

        def row(number: Value, _: tuple[Value, ...]) -> None:
            x, y = (f.at(pointers[one], f.mul(number, size * inner), kind) for one in ("x", "y"))
            whole = inner // lanes * lanes
            f.loop(0, whole, lanes, lambda at, _: column(f, x, y, at, lanes))
            f.loop(whole, inner, 1, lambda at, _: column(f, x, y, at, 1))

        f.loop(first, last, 1, row)

    operands = (Operand("x", "input", problem.dtype, total), Operand("y", "output", problem.dtype, total))
    return write_kernel(module, name, operands, blocks, body, flops=total)


CUMULATIVE_SUM = only("cumulative_sum", CumulativeSum, build)
