"""Numbers that differ between sizes as one polynomial of the dims, and records with such numbers in them.

Lagrange's interpolation, in exact fractions; a polynomial has to give the numbers at sizes that were held out too.
Where a number of the model turns at a size (kinks), the smaller one of the two is one more unknown: B*min(S, 8) + 1.
So is a quotient where numbers grow in steps (steps): B*((S - 1) // 2).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from functools import cached_property
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
    _known: dict[tuple[int, ...], dict[Product, Fraction] | None] = field(default_factory=dict, compare=False)
    _along: dict[tuple[int, tuple[int, ...]], list[bool]] = field(default_factory=dict, compare=False)  # as _alone

    def number(self, numbers: Sequence[int], where: str) -> Size | int:
        """The polynomial through the numbers; raises Differs where there is none of a low degree."""
        if len(set(numbers)) == 1:
            return numbers[0]
        size = size_of({product: int(factor) for product, factor in self._solved(tuple(numbers), where).items()})
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
        """Whole factors by products: the fewest terms of the least degree that fit, by elimination."""
        if numbers not in self._known:
            solved = (self._factors(numbers, products, self.points) for products in self._bases(numbers))
            whole = (one for one in solved if one is not None and all(x.denominator == 1 for x in one.values()))
            self._known[numbers] = next(whole, None)
        found = self._known[numbers]
        if found is None:
            raise Differs(f"{where} is no polynomial of the sizes")
        return found

    def _factors(
        self, numbers: Sequence[int], terms: Sequence[Product], points: Sequence[Point], *, only: bool = True
    ) -> dict[Product, Fraction] | None:
        """The factors of terms that give the numbers at the points; None where there are none, or not these `only`."""
        names = [dim.name for dim in self.dims]
        rows = []
        for point, number in zip(points, numbers, strict=True):
            sizes = dict(zip(names, point, strict=True))
            rows.append([*(Fraction(prod(atom.at(sizes) for atom in term)) for term in terms), Fraction(number)])
        solution = _eliminated(rows, len(terms), only=only)
        if solution is None:
            return None
        return {term: factor for term, factor in zip(terms, solution, strict=True) if factor}

    def _bases(self, numbers: Sequence[int]) -> Iterator[Sequence[Product]]:
        """Terms that the numbers may be sums of, few ones first.

        What the numbers are not along one dim alone, at the first sizes of the others, they are in no product; the
        squares of a dim may be what is wanting there.
        """
        fits = [self._alone(numbers, at) for at in range(len(self.dims))]
        for base in self._all:
            if all(fits[at][one] or at == base.squared for at, one in enumerate(base.chosen)):
                yield base.products

    @cached_property
    def _all(self) -> list[_Base]:
        """Factors of terms for each dim: each without further ones, then those with one of the dims squared.

        First of the dims alone; then with what turns in the place of its dim, and then beside it.
        """
        found = []
        for chosen in itertools.product(*(range(len(choices)) for choices in self._atoms)):
            some = [choices[one] for choices, one in zip(self._atoms, chosen, strict=True)]
            single: list[list[Product]] = [[(), *((atom,) for atom in one)] for one in some]
            found.append(_Base(chosen, None, single))
            for place, one in enumerate(some):
                for pairs in _PAIRS if len(one) > 1 else _PAIRS[1:]:
                    found.append(
                        _Base(chosen, place, [*single[:place], [*single[place], *pairs(one, 2)], *single[place + 1 :]])
                    )
        return sorted(found, key=lambda base: prod(map(len, base.choices)))

    def _alone(self, numbers: Sequence[int], at: int) -> list[bool]:
        """Whether the numbers may be a sum of such unknowns along one dim, all others as they are first."""
        first = self.points[0]
        rows = [
            (point, number) for point, number in zip(self.points, numbers, strict=True)
            if point[:at] == first[:at] and point[at + 1 :] == first[at + 1 :]
        ]  # fmt: skip
        points, found = [point for point, _ in rows], tuple(number for _, number in rows)
        if (at, found) not in self._along:
            self._along[at, found] = [
                self._factors(found, [(), *((atom,) for atom in one)], points, only=False) is not None
                for one in self._atoms[at]
            ]
        return self._along[at, found]

    @cached_property
    def _atoms(self) -> list[list[tuple[Atom, ...]]]:
        """By dim the unknowns that may stand for it: itself, what turns or grows in steps with it, or both."""
        found = []
        for dim in self.dims:
            turning: list[Atom] = [kink.operation for kink in self.kinks if kink.dim == dim]
            turning += [step for step in self.steps if dims_of(step.left) == {dim}]
            some = [one for count in (1, 2) for one in itertools.combinations(turning, count)]
            found.append([(dim,), *some, *((dim, *one) for one in some)])
        return found


@dataclass(frozen=True)
class _Base:
    """Terms: all products of one of each dim's factors."""

    chosen: tuple[int, ...]  # of each dim which of the unknowns that may stand for it
    squared: int | None  # the dim whose factors have squares too
    choices: list[list[Product]]

    @cached_property
    def products(self) -> list[Product]:
        """The terms."""
        return [
            tuple(sorted(itertools.chain(*parts), key=lambda one: one.text))
            for parts in itertools.product(*self.choices)
        ]


def _eliminated(rows: list[list[Fraction]], unknown: int, *, only: bool) -> list[Fraction] | None:
    """A solution of as many unknowns by Gauss and Jordan; None where there is none, or more than an `only` one."""
    done, pivots = 0, list[int]()
    for column in range(unknown):
        pivot = next((row for row in range(done, len(rows)) if rows[row][column]), None)
        if pivot is None:
            if only:
                return None
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        factor = rows[done][column]
        rows[done] = [one / factor for one in rows[done]]
        for other in range(len(rows)):
            if other != done and rows[other][column]:
                factor = rows[other][column]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[done], strict=True)]
        done += 1
        pivots.append(column)
    if any(row[-1] for row in rows[done:]):
        return None
    solution = dict(zip(pivots, (row[-1] for row in rows), strict=False))
    return [solution.get(column, Fraction(0)) for column in range(unknown)]


def record_like(like: Any, values: Mapping[str, Any]) -> Any:
    """A record of the same class, without its checks: those of every sample have passed them."""
    made = object.__new__(type(like))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
