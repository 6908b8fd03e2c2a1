"""Numbers that differ between sizes as one polynomial of the dims, and records with such numbers in them.

Lagrange's interpolation, in exact fractions; a polynomial has to give the numbers at sizes that were held out too.
Where a number of the model turns at a size (kinks), the smaller one of the two is one more unknown: B*min(S, 8) + 1.
So is a quotient where numbers grow in steps (steps): B*((S - 1) // 2).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from math import prod
from typing import Any

from graphopt.program.kinks import Kink
from kernels.size import Atom, Dim, Operation, Product, Size, at, dims_of, size_of

Point = tuple[int, ...]  # a size for each dim, in their order


_PAIRS = (
    itertools.combinations,
    itertools.combinations_with_replacement,
)  # of a dim's unknowns; squares last


class Differs(Exception):
    """Two sizes whose problems are of another kind; where in a problem."""


@dataclass(frozen=True)
class Fit:
    """Numbers at all samples as a polynomial."""

    dims: tuple[Dim, ...]
    points: tuple[Point, ...]
    kinks: tuple[Kink, ...] = ()
    steps: tuple[Operation, ...] = ()

    def number(self, numbers: Sequence[int], where: str) -> Size | int:
        """The polynomial through the numbers; raises Differs where there is none of a low degree."""
        if len(set(numbers)) == 1:
            return numbers[0]
        found: dict[Product, int] = {}
        for product, factor in self._solved(tuple(numbers), where).items():
            if factor.denominator != 1:
                raise Differs(f"{where} is no polynomial of the sizes")
            found[product] = int(factor)
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

    def _solved(self, numbers: tuple[int, ...], where: str) -> dict[Product, Fraction]:
        """Factors by products: the fewest terms of the least degree that fit, by elimination."""
        names = [dim.name for dim in self.dims]
        for terms in self._bases():
            rows = []
            for point, number in zip(self.points, numbers, strict=True):
                sizes = dict(zip(names, point, strict=True))
                rows.append([*(Fraction(prod(atom.at(sizes) for atom in term)) for term in terms), Fraction(number)])
            solution = _eliminated(rows, len(terms))
            if solution is not None:
                return {term: factor for term, factor in zip(terms, solution, strict=True) if factor}
        raise Differs(f"{where} is no polynomial of the sizes")

    def _bases(self) -> Iterator[list[Product]]:
        """Sets of terms, each without further ones: products of dims, then those with one of the dims squared.

        First of the dims alone; then with what turns in the place of its dim, and then beside it.
        """
        for atoms in itertools.product(*(self._atoms(dim) for dim in self.dims)):
            single: list[list[Product]] = [[(), *((atom,) for atom in some)] for some in atoms]
            yield _products(single)
            for number, some in enumerate(atoms):
                for pairs in _PAIRS if len(some) > 1 else _PAIRS[1:]:
                    yield _products([*single[:number], [*single[number], *pairs(some, 2)], *single[number + 1 :]])

    def _atoms(self, dim: Dim) -> list[tuple[Atom, ...]]:
        """The unknowns that may stand for a dim: itself, what turns or grows in steps with it, or both."""
        turning: list[Atom] = [kink.operation for kink in self.kinks if kink.dim == dim]
        turning += [step for step in self.steps if dims_of(step.left) == {dim}]
        some = [one for count in (1, 2) for one in itertools.combinations(turning, count)]
        return [(dim,), *some, *((dim, *one) for one in some)]


def _products(choices: Sequence[Sequence[Product]]) -> list[Product]:
    """All products of one of each dim's choices."""
    return [tuple(sorted(itertools.chain(*parts), key=lambda one: one.text)) for parts in itertools.product(*choices)]


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
