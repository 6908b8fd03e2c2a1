"""Expressions of elements that a thread computes: where its operands lie, given the place on each axis."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from kernels.llvm.conversion import memory_type
from kernels.llvm.emission import emit_all
from kernels.llvm.function import Value, joined
from kernels.ptx.tasks.threads import Block
from kernels.templates.axes import Axis
from kernels.tensor.expression import Expression, Index, Load, Variable

Places = Mapping[Axis, Value]


def axes_of(at: Mapping[Variable, Value]) -> Places:
    """Each variable as an axis of its own."""
    return {Axis((variable,)): where for variable, where in at.items()}


class ThreadElements:
    """The leaves of expressions at some places on axes; places of several parts are several elements.

    `stand_ins` are values of loads by their buffers' names.
    """

    def __init__(self, block: Block, at: Places, stand_ins: Mapping[str, Value] | None = None) -> None:
        self._block, self._at, self._stand_ins = block, at, dict(stand_ins or {})

    def load(self, load: Load) -> Value:
        """The elements as they are stored."""
        if load.buffer.name in self._stand_ins:
            return self._stand_ins[load.buffer.name]
        return self._read(load, self.number(load.buffer.position(load.indices)))

    def load_where(self, load: Load, condition: Value) -> Value:
        """The elements where the condition holds, and else the first of the storage."""
        if load.buffer.name in self._stand_ins:
            return self._stand_ins[load.buffer.name]
        kind = memory_type(load.dtype)
        if prod(load.buffer.shape) == 0:
            return self._block.f.number(kind, 0)
        place = self.number(load.buffer.position(load.indices))
        return self._read(load, self._block.f.select(condition, place, self._block.word(0)))

    def position(self, index: Index) -> Value:
        """The values of an index, i64."""
        return self._block.f.convert("sext", "i64", self.number(index))

    def number(self, index: Index) -> Value:
        """The value of an index, of 32 bits."""
        f = self._block.f
        total = self._block.word(index.offset)
        for axis, where in self._at.items():
            factor = axis.factor(index)
            if factor:
                total = f.add(f.mul(where, factor), total)
        return total

    def store(self, value: Value, load: Load) -> None:
        """Store one element where a load of it would read."""
        f = self._block.f
        place = self.number(load.buffer.position(load.indices))
        f.store(value, self._block.at(self._block.pointers[load.buffer.name], place, memory_type(load.dtype)))

    def values(self, expressions: tuple[Expression, ...]) -> tuple[Value, ...]:
        """Expressions as they are stored."""
        return emit_all(self._block.f, expressions, 1, self)

    def _read(self, load: Load, place: Value) -> Value:
        f, kind = self._block.f, memory_type(load.dtype)
        base = self._block.pointers[load.buffer.name]
        return joined([f.load(kind, self._block.at(base, one, kind)) for one in place.split()])
