"""Loop axes: variables that run as one, row numbers back to variables, and addresses of affine indices.

fused((i, j), a[i, j] and b[i, j] dense)   -->   one axis of i.extent * j.extent elements
fused((i, j), a[i, j] and bias[j])         -->   two axes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernels.llvm.function import Function, Value
from kernels.tensor.expression import Expression, Index, Load, Position, Variable


@dataclass(frozen=True, slots=True)
class Axis:
    """Variables that run as one, outermost first; with none, an axis of one element."""

    variables: tuple[Variable, ...] = ()

    @property
    def extent(self) -> int:
        """How many elements the axis has."""
        return prod(variable.extent for variable in self.variables)

    def factor(self, one: Index) -> int:
        """By how much an index grows from one element of the axis to the next."""
        return one.factor(self.variables[-1]) if self.variables else 0


def fused(variables: Sequence[Variable], indices: Iterable[Index]) -> tuple[Axis, ...]:
    """As few axes as possible in which every index is still affine; variables of extent 1 are left out."""
    several = [variable for variable in variables if variable.extent != 1]
    known = list(indices)
    axes: list[Axis] = []
    for variable in several:
        last = axes[-1].variables[-1] if axes else None
        if last is not None and all(one.factor(last) == one.factor(variable) * variable.extent for one in known):
            axes[-1] = Axis((*axes[-1].variables, variable))
        else:
            axes.append(Axis((variable,)))
    return tuple(axes)


def indices_of(values: Iterable[Expression]) -> list[Index]:
    """Where expressions read, as places in the storages, and the indices that they use as values."""
    found: list[Index] = []
    for node in distinct(values):
        if isinstance(node, Load):
            found.append(place(node))
        elif isinstance(node, Position):
            found.append(node.index)
    return list(dict.fromkeys(found))


def distinct(values: Iterable[Expression]) -> Iterator[Expression]:
    """Every node object once, from left to right: shared parts make a tree of 2^n nodes out of n."""
    seen: set[int] = set()
    for value in values:
        pending = [value]
        while pending:
            node = pending.pop()
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                pending += reversed(node.operands)


def distinct_loads(values: Iterable[Expression]) -> list[Load]:
    """The different loads, in the order of first use."""
    return list(dict.fromkeys(node for node in distinct(values) if isinstance(node, Load)))


def place(load: Load) -> Index:
    """Where a load reads, in elements from the start of the storage."""
    return load.buffer.position(load.indices)


def count(axes: Sequence[Axis]) -> int:
    """How many elements axes have together."""
    return prod(axis.extent for axis in axes)


def spread(f: Function, number: Value, axes: Sequence[Axis]) -> dict[Axis, Value]:
    """The place on each axis of the element with a number in row-major order."""
    found: dict[Axis, Value] = {}
    for axis in reversed(axes[1:]):
        quotient = f.binary("udiv", number, f.integer(axis.extent))
        found[axis] = f.sub(number, f.mul(quotient, axis.extent))
        number = quotient
    if axes:
        found[axes[0]] = number
    return found


def value_of(f: Function, one: Index, at: Mapping[Axis, Value]) -> Value:
    """An index's value, given the places on the axes; axes that are not given count as 0."""
    total = f.integer(one.offset)
    for axis, where in at.items():
        total = f.add(total, f.mul(where, axis.factor(one)))
    return total
