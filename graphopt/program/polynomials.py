"""Numbers that differ between sizes as one polynomial of the dims, and records with such numbers in them.

Lagrange's interpolation, in exact fractions; a polynomial has to give the numbers at sizes that were held out too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from math import prod
from typing import Any

from kernels.size import Dim, Product, Size, at, size_of

Point = tuple[int, ...]  # a size for each dim, in their order


class Differs(Exception):
    """Two sizes whose problems are of another kind; where in a problem."""


@dataclass(frozen=True)
class Fit:
    """Numbers at all samples as a polynomial."""

    dims: tuple[Dim, ...]
    points: tuple[Point, ...]

    def number(self, numbers: Sequence[int], where: str) -> Size | int:
        """The polynomial through the numbers; raises Differs where there is none of a low degree."""
        if len(set(numbers)) == 1:
            return numbers[0]
        found: dict[Product, int] = {}
        for powers, factor in self._solved(tuple(numbers), where).items():
            if factor.denominator != 1:
                raise Differs(f"{where} is no polynomial of the sizes")
            product: Product = tuple(dim for dim, power in zip(self.dims, powers, strict=True) for _ in range(power))
            found[tuple(sorted(product, key=lambda one: one.text))] = int(factor)
        size = size_of(found)
        for point, number in zip(self.points, numbers, strict=True):
            if at(size, dict(zip((dim.name for dim in self.dims), point, strict=True))) != number:
                raise Differs(f"{where} is no polynomial of the sizes")
        return size

    def unify(self, values: Sequence[Any], where: str) -> Any:
        """Equal parts as they are, and numbers that differ as polynomials; raises Differs."""
        first = values[0]
        if all(type(one) is type(first) for one in values):
            if all(one is first or one == first for one in values[1:]):
                return first
            if type(first) is int:
                return self.number(values, where)
            if isinstance(first, tuple) and len({len(one) for one in values}) == 1:
                return tuple(self.unify(row, where) for row in zip(*values, strict=True))
            if is_dataclass(first):
                parts = {
                    one.name: self.unify([getattr(value, one.name) for value in values], f"{where}, {one.name}")
                    for one in fields(first)
                }
                return record_like(first, parts)
        raise Differs(where)

    def _solved(self, numbers: tuple[int, ...], where: str) -> dict[tuple[int, ...], Fraction]:
        """Factors by powers of the dims: the fewest terms of the least degree that fit, by elimination."""
        for powers in self._bases():
            rows = [
                [Fraction(prod(one**power for one, power in zip(point, term, strict=True))) for term in powers]
                + [Fraction(number)]
                for point, number in zip(self.points, numbers, strict=True)
            ]
            solution = _eliminated(rows, len(powers))
            if solution is not None:
                return {term: factor for term, factor in zip(powers, solution, strict=True) if factor}
        raise Differs(f"{where} is no polynomial of the sizes")

    def _bases(self) -> list[list[tuple[int, ...]]]:
        """Sets of terms, each without further ones: products of dims, then those with one of the dims squared."""
        found = [list(itertools.product(range(2), repeat=(count := len(self.dims))))]
        for squared in range(count):
            found.append(
                [term for term in itertools.product(range(3), repeat=count)
                 if all(power < 2 or number == squared for number, power in enumerate(term))]
            )  # fmt: skip
        return found


def _eliminated(rows: list[list[Fraction]], unknown: int) -> list[Fraction] | None:
    """The solution of as many unknowns by Gauss and Jordan; None where there is none, or more than one."""
    done = 0
    for column in range(unknown):
        pivot = next((row for row in range(done, len(rows)) if rows[row][column]), None)
        if pivot is None:
            return None
        rows[done], rows[pivot] = rows[pivot], rows[done]
        rows[done] = [one / rows[done][column] for one in rows[done]]
        for other in range(len(rows)):
            if other != done and rows[other][column]:
                factor = rows[other][column]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[done], strict=True)]
        done += 1
    if any(row[-1] for row in rows[done:]):
        return None
    return [rows[number][-1] for number in range(unknown)]


def record_like(like: Any, values: Mapping[str, Any]) -> Any:
    """A record of the same class, without its checks: those of every sample have passed them."""
    made = object.__new__(type(like))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
