"""Numbers that differ between sizes as one polynomial of the dims, and records with such numbers in them.

Interpolation by whole factors; a polynomial has to give the numbers at sizes that were held out too.
Where a number of the model turns at a size (kinks), the smaller one of the two is one more unknown: B*min(S, 8) + 1.
So is a quotient where numbers grow in steps (steps): B*((S - 1) // 2).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from graphopt.program.kinks import Kink
from graphopt.program.residues import PRIMES, Residues, System, joined, residues
from kernels.size import Atom, Dim, Operation, Product, Size, dims_of, size_of

Point = tuple[int, ...]  # a size for each dim, in their order


_PAIRS = (
    itertools.combinations,
    itertools.combinations_with_replacement,
)  # of a dim's unknowns; squares last


class Differs(Exception):
    """Two sizes whose problems are of another kind; where in a problem."""


class NoPolynomial(Differs):
    """Numbers that no polynomial gives, of those that the samples can tell; where in a problem."""


@dataclass(frozen=True)
class Fit:
    """Numbers at all samples as a polynomial."""

    dims: tuple[Dim, ...]
    points: tuple[Point, ...]
    kinks: tuple[Kink, ...] = ()
    steps: tuple[Operation, ...] = ()
    _known: dict[tuple[int, ...], dict[Product, int] | None] = field(default_factory=dict, compare=False)
    _along: dict[tuple[int, tuple[int, ...]], list[bool]] = field(default_factory=dict, compare=False)  # as _alone
    _values: dict[Atom, list[int]] = field(default_factory=dict, compare=False)  # of unknowns at the points
    _columns: dict[tuple[Product, int], Residues] = field(default_factory=dict, compare=False)  # by the prime's number

    def number(self, numbers: Sequence[int], where: str) -> Size | int:
        """The polynomial through the numbers; raises Differs where there is none of a low degree."""
        if len(set(numbers)) == 1:
            return numbers[0]
        return size_of(self._solved(tuple(numbers), where))

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

    def _solved(self, numbers: tuple[int, ...], where: str) -> dict[Product, int]:
        """Whole factors by products: the fewest terms of the least degree that fit."""
        if numbers not in self._known:
            given = [residues(numbers, prime) for prime in PRIMES]
            solved = (self._factors(numbers, given, base) for base in self._bases(numbers))
            self._known[numbers] = next((one for one in solved if one is not None), None)
        found = self._known[numbers]
        if found is None:
            raise NoPolynomial(f"{where} is no polynomial of the sizes")
        return found

    def _factors(self, numbers: Sequence[int], given: Sequence[Residues], base: _Base) -> dict[Product, int] | None:
        """The whole factors of terms that give the numbers; None where there are none, or not these only."""
        first = base.system(self, 0)
        if len(first.pivots) < len(base.products) or not first.is_solvable(given[0]):
            return None
        solutions = [base.system(self, number).solution(one) for number, one in enumerate(given)]
        if len(solutions[1]) < len(solutions[0]):
            return None
        factors = [joined(int(one), int(other)) for one, other in zip(*solutions, strict=True)]
        found = {term: factor for term, factor in zip(base.products, factors, strict=True) if factor}
        sums = [0] * len(numbers)
        for term, factor in found.items():
            for at, row in enumerate(zip(*map(self._values_of, term), strict=True) if term else [()] * len(numbers)):
                sums[at] += factor * prod(row)
        return found if sums == list(numbers) else None

    def system(self, products: Sequence[Product], number: int, places: Sequence[int] | None = None) -> System:
        """Sums of products that are to give numbers at all points, or at those places among them, by a prime."""
        columns = [self._column(product, number) for product in products]
        return System.of(columns if places is None else [one[places] for one in columns], PRIMES[number])

    def _column(self, product: Product, number: int) -> Residues:
        """A product of unknowns at all points, by one of the primes."""
        if (product, number) not in self._columns:
            found = np.ones(len(self.points), np.int64)
            for atom in product:
                found = found * residues(self._values_of(atom), PRIMES[number]) % PRIMES[number]
            self._columns[product, number] = found
        return self._columns[product, number]

    def _values_of(self, atom: Atom) -> list[int]:
        if atom not in self._values:
            names = [dim.name for dim in self.dims]
            self._values[atom] = [atom.at(dict(zip(names, point, strict=True))) for point in self.points]
        return self._values[atom]

    def _bases(self, numbers: Sequence[int]) -> Iterator[_Base]:
        """Terms that the numbers may be sums of, few ones first.

        What the numbers are not along one dim alone, at the first sizes of the others, they are in no product; the
        squares of a dim may be what is wanting there.
        """
        fits = [self._alone(numbers, at) for at in range(len(self.dims))]
        for base in self._all:
            if all(fits[at][one] or at in base.squared for at, one in enumerate(base.chosen)):
                yield base

    @cached_property
    def _all(self) -> list[_Base]:
        """Factors of terms for each dim: each without further ones, then those with one or two of the dims squared.

        First of the dims alone; then with what turns in the place of its dim, and then beside it.
        """
        found = []
        for chosen in itertools.product(*(range(len(choices)) for choices in self._atoms)):
            some = [choices[one] for choices, one in zip(self._atoms, chosen, strict=True)]
            single: list[list[Product]] = [[(), *((atom,) for atom in one)] for one in some]
            found.append(_Base(chosen, (), single))
            wide = [
                [[*alone, *pairs(one, 2)] for pairs in (_PAIRS if len(one) > 1 else _PAIRS[1:])]
                for alone, one in zip(single, some, strict=True)
            ]
            for place, squares in enumerate(wide):
                found += [_Base(chosen, (place,), [*single[:place], one, *single[place + 1 :]]) for one in squares]
            for both in itertools.combinations(range(len(some)), 2):  # pixels of an image with each other
                choices = [wide[at][-1] if at in both else alone for at, alone in enumerate(single)]
                found.append(_Base(chosen, both, choices))
        return sorted(found, key=lambda base: prod(map(len, base.choices)))

    def _alone(self, numbers: Sequence[int], at: int) -> list[bool]:
        """Whether the numbers may be a sum of such unknowns along one dim, all others as they are first."""
        places = self._places[at]
        found = tuple(numbers[place] for place in places)
        if (at, found) not in self._along:
            right = residues(found, PRIMES[0])
            self._along[at, found] = [one.is_solvable(right) for one in self._systems[at]]
        return self._along[at, found]

    @cached_property
    def _places(self) -> list[list[int]]:
        """By dim which points lie along it alone, at the first sizes of the others."""
        first = self.points[0]
        return [
            [
                place for place, point in enumerate(self.points)
                if point[:at] == first[:at] and point[at + 1 :] == first[at + 1 :]
            ]
            for at in range(len(self.dims))
        ]  # fmt: skip

    @cached_property
    def _systems(self) -> list[list[System]]:
        """By dim and by the unknowns that may stand for it: sums of these at the points along it alone."""
        found = []
        for places, choices in zip(self._places, self._atoms, strict=True):
            terms: list[list[Product]] = [[(), *((atom,) for atom in one)] for one in choices]
            found.append([self.system(some, 0, places) for some in terms])
        return found

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
    squared: tuple[int, ...]  # the dims whose factors have squares too
    choices: list[list[Product]]
    _known: dict[int, System] = field(default_factory=dict, compare=False)

    @cached_property
    def products(self) -> list[Product]:
        """The terms."""
        return [
            tuple(sorted(itertools.chain(*parts), key=lambda one: one.text))
            for parts in itertools.product(*self.choices)
        ]

    def system(self, fit: Fit, number: int) -> System:
        """The sums of these terms that are to give numbers at the points, by one of the primes."""
        if number not in self._known:
            self._known[number] = fit.system(self.products, number)
        return self._known[number]


def record_like(like: Any, values: Mapping[str, Any]) -> Any:
    """A record of the same class, without its checks: those of every sample have passed them."""
    made = object.__new__(type(like))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
