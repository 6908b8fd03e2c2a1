"""Checks that every row-wise problem makes of its parts, and the defaults of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.templates.elementwise import Output
from kernels.templates.streams import check_value
from kernels.tensor.expression import Expression, Load, Variable, index


class InvalidRows(KernelsError):
    """A row-wise problem whose parts do not fit."""


class RowProblem:
    """What problems on rows have in common; they are frozen records with these fields."""

    __slots__ = ()
    rows: tuple[Variable, ...]
    columns: tuple[Variable, ...]
    x: Expression
    outputs: tuple[Output, ...]

    @property
    def elements(self) -> int:
        """How many elements all rows have."""
        return prod(axis.extent for axis in (*self.rows, *self.columns))

    @property
    def values(self) -> tuple[Expression, ...]:
        """What the outputs are worth."""
        return tuple(one.value for one in self.outputs)

    @property
    def stores(self) -> tuple[Load, ...]:
        """Where the outputs go."""
        return stores_of(self.outputs)


def filled(outputs: Sequence[Output], axes: Sequence[Variable]) -> tuple[Output, ...]:
    """The outputs, those without indices at one dim per axis."""
    places = tuple(index(axis) for axis in axes)
    return tuple(one if one.indices else Output(one.buffer, one.value, places) for one in outputs)


def stores_of(outputs: Sequence[Output]) -> tuple[Load, ...]:
    """What outputs write, as loads of it."""
    return tuple(Load(one.buffer, one.indices) for one in outputs)


def check_rows(
    rows: Sequence[Variable],
    columns: Sequence[Variable],
    x: Expression,
    outputs: Sequence[Output],
    *,
    per_row: bool = False,
    any_type: bool = False,
) -> None:
    """Raises InvalidRows or InvalidExpression; with `per_row`, outputs have one element per row."""
    if not any_type and (not x.dtype.is_float or x.dtype is DType.F64):
        raise InvalidRows(f"rows of {x.dtype.value} are not computed in f32: cast them to it.")
    axes = tuple(rows) if per_row else (*rows, *columns)
    for one in outputs:
        if one.value.dtype is not one.buffer.dtype:
            raise InvalidRows(
                f"'{one.buffer.name}' is {one.buffer.dtype.value} and its value {one.value.dtype.value}: cast it."
            )
        if prod(axis.extent for axis in axes):
            check_value(one.value, axes)
            check_value(Load(one.buffer, one.indices), axes)
    if prod(axis.extent for axis in (*rows, *columns)):
        check_value(x, (*rows, *columns))
