"""What a routine computes, step by step on NumPy arrays: the meaning that its code is tested against."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels.routine.grammar import Area, Assign, Element, For, Local, Put, Routine, RoutineStep, When, While
from kernels.tensor import scalars
from kernels.tensor.expression import Binary, Cast, Compare, Expression, Number, Select, Unary
from kernels.tensor.storage import Array


def interpret(routine: Routine, arrays: Mapping[str, Array]) -> None:
    """Run a routine on one-dimensional arrays by the names of its operands; outputs are written in place.

    Raises IndexError for a place outside of an area.
    """
    held = dict(arrays)
    shared = routine.shared
    with np.errstate(all="ignore"):
        for iteration in range(shared.count):
            for one in routine.scratch:
                held[one.name] = np.full(one.elements, 0x5A, one.dtype.numpy)
            _Run(held).body(shared.body, {shared.variable: np.asarray(iteration, np.int64)})


class _Run:
    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self._locals: dict[Local, Array] = {}

    def body(self, statements: tuple[RoutineStep, ...], known: Mapping[Local, Array] | None = None) -> None:
        self._locals.update(known or {})
        for one in statements:
            match one:
                case Assign(local, value):
                    self._locals[local] = self._value(value)
                case Put(area, place, value):
                    at = self._place(area, place)
                    self._arrays[area.name][at] = scalars.narrow(self._value(value), area.dtype)
                case For(variable, start, stop, inside):
                    for number in range(int(self._value(start)), int(self._value(stop))):
                        self.body(inside, {variable: np.asarray(number, np.int64)})
                case While(condition, inside):
                    while self._value(condition):
                        self.body(inside)
                case When(condition, inside, otherwise):
                    self.body(inside if self._value(condition) else otherwise)

    def _place(self, area: Area, place: Expression) -> int:
        at = int(self._value(place))
        if not 0 <= at < area.elements:
            raise IndexError(f"'{area.name}' has {area.elements} elements and is asked for number {at}.")
        return at

    def _value(self, value: Expression) -> Array:
        match value:
            case Number(number, kind):
                return scalars.number(number, kind)
            case Local():
                return self._locals[value]
            case Element(area, place):
                stored = np.asarray(self._arrays[area.name][self._place(area, place)])
                return scalars.widen(stored, area.dtype)
            case Unary(op, operand):
                return scalars.unary(op, self._value(operand), operand.dtype)
            case Binary(op, left, right):
                return scalars.binary(op, self._value(left), self._value(right), left.dtype)
            case Compare(op, left, right):
                return scalars.compare(op, self._value(left), self._value(right))
            case Select(condition, yes, no):
                chosen = self._value(yes), self._value(no)
                return chosen[0] if self._value(condition) else chosen[1]
            case Cast(kind, operand):
                return scalars.cast(self._value(operand), operand.dtype, kind)
        raise AssertionError(f"no rule for {type(value).__name__}")
