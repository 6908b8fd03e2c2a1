"""Floats that are computed from dims, as exporters compute a size: ceil(height / 2) is Cast, Div, Ceil and Cast.

What a float holds is known without rounding: integers in it are dims, which are assumed to be below 2^16.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from graphopt.model import dims

FEW_BITS = 8  # of a factor whose product with a dim no float32 rounds


@dataclass(frozen=True, slots=True)
class Real:
    """A number of a float tensor: a dim, or a dim by an integer.

    A quotient may be rounded, and is then no `exact` one. Nothing is computed with that but the integers beside it,
    which are those of the quotient itself: it is an integer, or farther from one than it is rounded.
    """

    value: sympy.Expr
    exact: bool = True

    @staticmethod
    def of(number: object) -> Real | None:
        """A dim, or a float of few bits; None for other numbers."""
        if isinstance(number, bool):
            return None
        if isinstance(number, float):
            value = sympy.Rational(number) if number == number and abs(number) <= 1 << FEW_BITS else None
            return Real(value) if value is not None and _is_short(value) else None
        value = sympy.sympify(number)
        return Real(value) if _is_sum(value) else None

    def __repr__(self) -> str:
        return str(self.value)

    def __add__(self, other: Real) -> Real:
        return self._with(self.value + other.value, other)

    def __sub__(self, other: Real) -> Real:
        return self._with(self.value - other.value, other)

    def __neg__(self) -> Real:
        return Real(-self.value, self.exact)

    def __mul__(self, other: Real) -> Real:
        if not _is_short(self.value) and not _is_short(other.value):
            raise ValueError("a product of two dims may be rounded")
        return self._with(self.value * other.value, other)

    def over(self, other: Real) -> Real | None:
        """The quotient of this number and a short one above zero; None of others."""
        if not self.exact or not _is_short(other.value) or not other.value > 0:
            return None
        top, bottom = sympy.fraction(other.value)
        if top & (top - 1) == 0:
            return self._with(self.value / other.value, other)
        return Real(sympy.expand(self.value / other.value), False) if bottom == 1 else None

    def floor(self) -> Real:
        """The integer at or below it."""
        return Real(sympy.sympify(dims.floor(self.value)))

    def ceiling(self) -> Real:
        """The integer at or above it, by a quotient that is rounded down."""
        top, bottom = sympy.fraction(sympy.together(self.value))
        return Real(sympy.sympify(dims.floor((top + bottom - 1) / bottom)))

    def truncated(self) -> dims.Dim | None:
        """The integer that a cast gives; None where the sign is not known of what is none."""
        if self.value.is_integer:
            return dims.normal(self.value)
        return dims.floor(self.value) if self.value.is_nonnegative else None

    def _with(self, value: sympy.Expr, other: Real) -> Real:
        value = sympy.expand(value)
        if not (self.exact and other.exact and _is_sum(value)):
            raise ValueError("it may be rounded")
        return Real(value)


def whole(number: Real) -> dims.Dim | None:
    """What it holds where that is an integer that no float rounds; None else."""
    value = dims.normal(number.value)
    return value if number.exact and sympy.sympify(value).is_integer else None


def _is_sum(value: sympy.Expr) -> bool:
    """Whether it is a sum of numbers and dims by short factors."""
    terms = value.as_coefficients_dict().items()
    return all((term == 1 and abs(factor) <= 1 << 2 * FEW_BITS) or _is_short(factor) for term, factor in terms) and all(
        term.is_Symbol or term.is_Function or term == 1 for term, _ in terms
    )


def _is_short(value: sympy.Expr) -> bool:
    """Whether it is a number of few bits."""
    if not value.is_Rational:
        return False
    top, parts = sympy.fraction(value)
    return bool(abs(top) <= 1 << FEW_BITS and parts <= 1 << FEW_BITS and parts & (parts - 1) == 0)
