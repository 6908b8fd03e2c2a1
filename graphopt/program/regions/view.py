"""Where a value's elements lie: a buffer, and strides into it. Moving data is mostly a matter of other strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from graphopt.program.regions.buffer import Buffer
from kernels.dtype import DType
from kernels.tensor import expression
from kernels.tensor.expression import dense_strides


@dataclass(frozen=True, slots=True)
class View:
    """A value's place: element [i, j, ...] lies at offset + i * strides[0] + ... (in elements) of a buffer."""

    buffer: Buffer
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def dense(cls, buffer: Buffer, dtype: DType, shape: Sequence[int]) -> View:
        """A buffer of its own, row-major."""
        return cls(buffer, dtype, tuple(shape), dense_strides(tuple(shape)))

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie row-major and without gaps from the buffer's start."""
        return self.offset == 0 and self._steps == tuple(
            stride for stride, size in zip(dense_strides(self.shape), self.shape, strict=True) if size > 1
        )

    @property
    def _steps(self) -> tuple[int, ...]:
        return tuple(stride for stride, size in zip(self.strides, self.shape, strict=True) if size > 1)

    def operand(self, name: str) -> expression.Buffer:
        """The view as a buffer of a tensor expression."""
        return expression.Buffer(name, self.dtype, self.shape, self.strides, self.offset)

    def transposed(self, order: Sequence[int]) -> View:
        """Its dims in another order."""
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in order),
            strides=tuple(self.strides[axis] for axis in order),
        )

    def sliced(self, axis: int, start: int, count: int, step: int = 1) -> View:
        """`count` elements of one dim, from `start` on, every `step`-th (negative steps go back)."""
        if step < 0 and count > 0:
            raise ValueError("strides are not negative here: a reversed slice is a copy")
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis] if count else self.offset
        shape[axis], strides[axis] = count, strides[axis] * step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def expanded(self, shape: Sequence[int]) -> View:
        """Broadcast to a shape: new and stretched dims have stride 0."""
        lead = len(shape) - len(self.shape)
        strides = [0] * lead + [
            0 if have == 1 and want != 1 else stride
            for have, want, stride in zip(self.shape, shape[lead:], self.strides, strict=True)
        ]
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """The same elements in the same order under other dims; None where no strides say so, or counts differ."""
        strides = reshaped_strides(self.shape, self.strides, tuple(shape))
        return None if strides is None else replace(self, shape=tuple(shape), strides=strides)


def reshaped_strides(shape: tuple[int, ...], steps: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of `target` for elements that lie by `steps` under `shape`; None when no strides say so.

    Dims are taken from both shapes until their products agree; inside such a group the old dims must be one run.
    """
    if prod(target) != prod(shape):
        return None
    if 0 in target or 0 in shape:
        return dense_strides(target)
    old = [(size, stride) for size, stride in zip(shape, steps, strict=True) if size != 1]
    strides: list[int] = []
    position = 0
    at = 0
    while at < len(target):
        if target[at] == 1:
            strides.append(0)
            at += 1
            continue
        taken, want, first = [at], target[at], position
        have = old[position][0] if position < len(old) else 1
        position += 1
        while have != want:
            if have < want:
                have *= old[position][0]
                position += 1
            else:
                at += 1
                want *= target[at]
                taken.append(at)
        run = old[first:position]
        if any(a[1] != b[0] * b[1] for a, b in pairwise(run)):
            return None
        step = run[-1][1]
        inner: list[int] = []
        for axis in reversed(taken):
            inner.append(0 if target[axis] == 1 else step)
            step *= target[axis]
        strides += reversed(inner)
        at += 1
    return tuple(strides)


def axes_of(shape: tuple[int, ...]) -> tuple[expression.Variable, ...]:
    """A loop variable for each dim."""
    return tuple(expression.Variable(f"d{number}", size) for number, size in enumerate(shape))
