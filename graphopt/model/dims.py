"""Dimensions: integers, or sympy expressions over non-negative integer symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TypeAlias

import onnx_ir as ir
import sympy

Dim: TypeAlias = "int | sympy.Expr"
Dims: TypeAlias = tuple[Dim, ...]


@cache
def symbol(name: str) -> sympy.Symbol:
    """The dimension called `name`: an unknown integer that is at least zero."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def normal(value: object) -> Dim:
    """An int where the expression is a number, else the expanded expression, so that equal sums compare equal."""
    if isinstance(value, int):
        return value
    expression = sympy.sympify(value)
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return expression
    expanded = sympy.expand(expression)
    return int(expanded) if expanded.is_Integer else expanded


def floor(value: object) -> Dim:
    """The integer at or below a number, in one form.

    floor(h/2 - 1/2) + 1 is floor(h/2 + 1/2), and floor(floor(h/2 + 1/2)/2 + 1/2) is floor(h/4 + 3/4).
    """
    terms = sympy.Add.make_args(sympy.expand(value))
    whole = sympy.Add(*(term for term in terms if term.is_integer))
    expression = sympy.Add(*(term for term in terms if not term.is_integer))
    for inner in [one for one in expression.as_coefficients_dict() if isinstance(one, sympy.floor)]:
        parts = 1 / expression.coeff(inner)
        if parts.is_Integer and parts > 1 and sympy.expand(parts * expression - inner).is_integer:
            expression = sympy.expand(expression + (inner.args[0] - inner) / parts)
    number, _ = expression.as_coeff_Add()
    return normal(sympy.floor(expression - sympy.floor(number)) + sympy.floor(number) + whole)


def from_ir(dim: int | ir.SymbolicDim, fresh: Callable[[], Dim]) -> Dim:
    """A declared dimension; one without a name becomes a `fresh` symbol, equal to nothing else.

    A name such as `past + 1` is one opaque symbol: exporters write such names, nothing promises the arithmetic.
    """
    if isinstance(dim, int):
        return dim if dim >= 0 else fresh()
    return fresh() if dim.value is None else symbol(dim.value)


def to_ir(dim: Dim) -> int | ir.SymbolicDim:
    """The form that goes into a file; fresh symbols are written as unknown."""
    if isinstance(dim, int):
        return dim
    text = str(dim)
    return ir.SymbolicDim(None if "?" in text else text)


def is_static(dims: Dims | None) -> bool:
    """Whether every dimension is a number."""
    return dims is not None and all(isinstance(dim, int) for dim in dims)


def static(dims: Dims | None) -> tuple[int, ...] | None:
    """The dims as integers, or None when one of them is not a number."""
    if dims is None or not is_static(dims):
        return None
    return tuple(int(dim) for dim in dims)


def declared(value: ir.Value) -> tuple[int, ...] | None:
    """The dims that a model itself says of a value, where all are numbers; None else."""
    found = [] if value.shape is None else [dim for dim in value.shape if isinstance(dim, int)]
    return tuple(found) if value.shape is not None and len(found) == len(value.shape) else None


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements."""
    result: Dim = 1
    for dim in dims:
        result = dim if isinstance(result, int) and result == 1 else normal(result * dim)
    return result


def equal(left: Dim, right: Dim) -> bool:
    """Whether two dimensions are known to be equal, whatever the symbols stand for."""
    return bool(left == right)


def same(left: Dims | None, right: Dims | None) -> bool:
    """Whether two shapes are known and known to be equal."""
    return left is not None and right is not None and left == right


def may_be_same(left: Dims, right: Dims) -> bool:
    """Whether no dim of two shapes is known to be another than the other's."""
    return len(left) == len(right) and not any(
        isinstance(apart := normal(sympy.sympify(one) - sympy.sympify(other)), int) and apart != 0
        for one, other in zip(left, right, strict=True)
    )


def quotient(dividend: Dim, divisor: Dim) -> Dim | None:
    """dividend / divisor where that is exact for every value of the symbols, else None."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor if divisor and dividend % divisor == 0 else None
    if divisor == 0:
        return None
    result = sympy.cancel(sympy.sympify(dividend) / sympy.sympify(divisor))
    numerator, denominator = sympy.fraction(sympy.together(result))
    if denominator != 1:
        return None
    return normal(numerator)


def broadcast(*shapes: Dims | None) -> Dims | None:
    """NumPy broadcasting; None when a shape is unknown, two numbers do not fit, or two symbols could be 1 and not 1 in
    either order.
    """
    if any(shape is None for shape in shapes):
        return None
    known: Sequence[Dims] = [shape for shape in shapes if shape is not None]
    rank = max((len(shape) for shape in known), default=0)
    result: list[Dim] = []
    for axis in range(rank):
        dims = [shape[axis - rank + len(shape)] for shape in known if axis - rank + len(shape) >= 0]
        others = {dim for dim in dims if not (isinstance(dim, int) and dim == 1)}
        numbers = [dim for dim in others if isinstance(dim, int)]
        if not others:
            result.append(1)
        elif len(others) == 1:
            result.append(next(iter(others)))
        elif len(numbers) == 1:  # a symbol beside a number above 1 must be that number or 1
            result.append(numbers[0])
        elif numbers:  # two different ones, neither of them 1: no run comes this far
            return None
        else:
            whole = _multiple(list(others))
            if whole is None:
                return None
            result.append(whole)
    return tuple(result)


def _multiple(symbolic: Sequence[Dim]) -> Dim | None:
    """The one that is a multiple of all others: it is 1 only where they are, and where one of them is 1 it wins."""
    for whole in symbolic:
        factors = [quotient(whole, part) for part in symbolic if part != whole]
        if all(factor is not None and _never_negative(factor) for factor in factors):
            return whole
    return None


def _never_negative(factor: Dim) -> bool:
    return bool(sympy.sympify(factor).is_nonnegative)
