"""Numbers that only a run knows: whole numbers that follow from its free dims, as expressions.

    rows = batch * sequence        blocks = (rows + 63) // 64        tiles = least(rows, 12)

A `Size` stands where a problem has a number. It adds, multiplies and divides like one, is equal to what is written
alike, and answers a comparison where the answer is the same over the whole range of its dims; where it is not, it
raises `Undecided`, so that code which chooses by a number cannot choose for one size alone. `bound` is its greatest
value: what memory is planned for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from math import prod
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from kernels.errors import OfOneSize


@dataclass(frozen=True, slots=True)
class Dim:
    """A free dim: every run has a size from `least` to `most`."""

    name: str
    least: int
    most: int
    number: int  # its place among the sizes of a run

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return self.least, self.most

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value in a run of these sizes."""
        return sizes[self.name]

    @property
    def text(self) -> str:
        """Its name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Operation:
    """Two numbers, combined; a quotient is rounded down, and neither of its operands is negative."""

    kind: Literal["quotient", "least", "greatest"]
    left: Size | int
    right: Size | int
    text: str = field(init=False, repr=False, compare=False)  # as a formula
    _hash: int = field(init=False, repr=False, compare=False)  # numbers of many operations are looked up all the time

    def __post_init__(self) -> None:
        word = {"quotient": "//", "least": "min", "greatest": "max"}[self.kind]
        left, right = (one.formula if isinstance(one, Size) else str(one) for one in (self.left, self.right))
        text = f"(({left}) // ({right}))" if word == "//" else f"{word}({left}, {right})"
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "_hash", hash((self.kind, self.left, self.right)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def range(self) -> tuple[int, int]:
        """Numbers that the value lies between."""
        (low, high), (least, most) = range_of(self.left), range_of(self.right)
        if self.kind == "quotient":
            return low // most, high // least
        choose = min if self.kind == "least" else max
        return choose(low, least), choose(high, most)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value in a run of these sizes."""
        left, right = at(self.left, sizes), at(self.right, sizes)
        if self.kind == "quotient":
            return left // right
        return min(left, right) if self.kind == "least" else max(left, right)


MOST_TRIED = 1 << 18  # sizes of all dims together
_COMBINED = {"quotient": np.floor_divide, "least": np.minimum, "greatest": np.maximum}
_Answer = Callable[[int, int], bool]  # to the least and the greatest value of a difference

Atom = Dim | Operation
Product = tuple[Atom, ...]  # sorted by their text; none: 1


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of products of dims and operations, each with a factor; never a constant. `size_of` makes them."""

    terms: tuple[tuple[Product, int], ...]

    @property
    def range(self) -> tuple[int, int]:
        """Numbers that the value lies between: the least and the greatest where every factor is positive.

        Terms of both signs are first joined by the dims that they grow or shrink with alone: a*b - a is a*(b - 1). Of
        quotients, and of dims that do neither, all sizes are tried where they are not too many.
        """
        if len({factor > 0 for _, factor in self.terms}) == 2:
            parabola = self._of_one_dim()
            if parabola is not None:
                return min(parabola), max(parabola)
            steered = self._steering()
            if steered is not None:
                (low, _), (_, high) = (range_of(self._with(*one)) for one in steered)
                return low, high
            if prod(dim.most - dim.least + 1 for dim in self.dims) <= MOST_TRIED:
                return _tried(self)
        low = high = 0
        for product, factor in self.terms:
            least = most = factor
            for first, last in (atom.range for atom in product):  # either may be negative
                corners = (least * first, least * last, most * first, most * last)
                least, most = min(corners), max(corners)
            low, high = low + least, high + most
        return low, high

    def _of_one_dim(self) -> list[int] | None:
        """Values among which are the least and the greatest, of a sum of one dim and its square; None of others."""
        atoms = {atom for product, _ in self.terms for atom in product}
        dim = next(iter(atoms))
        if len(atoms) > 1 or not isinstance(dim, Dim) or any(len(product) > 2 for product, _ in self.terms):
            return None
        factors = {len(product): factor for product, factor in self.terms}
        turn = -factors.get(1, 0) // (2 * factors.get(2, 1))
        some = {dim.least, dim.most, *(one for one in (turn, turn + 1) if dim.least <= one <= dim.most)}
        return [self.at({dim.name: one}) for one in some]

    def _steering(self) -> tuple[tuple[Dim, int], tuple[Dim, int]] | None:
        """A dim that the value grows with, or shrinks with, at its sizes of the least and the greatest value."""
        atoms = {atom for product, _ in self.terms for atom in product if isinstance(atom, Dim)}
        for dim in sorted(atoms, key=_order):
            behind = {product: factor for product, factor in self.terms if dim in product}
            if any(product.count(dim) > 1 for product in behind):
                continue
            slope = size_of({tuple(atom for atom in product if atom != dim): f for product, f in behind.items()})
            low, high = range_of(slope)
            if low >= 0 or high <= 0:
                return ((dim, dim.least), (dim, dim.most)) if low >= 0 else ((dim, dim.most), (dim, dim.least))
        return None

    def _with(self, dim: Dim, size: int) -> Size | int:
        """The value where a dim has this size; smaller and greater ones of two keep theirs."""
        total: dict[Product, int] = {}
        for product, factor in self.terms:
            rest = tuple(atom for atom in product if atom != dim)
            total[rest] = total.get(rest, 0) + factor * size ** (len(product) - len(rest))
        return size_of(total)

    @property
    def bound(self) -> int:
        """No run has a greater value."""
        return self.range[1]

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value in a run of these sizes."""
        return sum(factor * prod(atom.at(sizes) for atom in product) for product, factor in self.terms)

    @property
    def dims(self) -> frozenset[Dim]:
        """The free dims that it follows from."""
        found: set[Dim] = set()
        for product, _ in self.terms:
            for atom in product:
                found |= {atom} if isinstance(atom, Dim) else dims_of(atom.left) | dims_of(atom.right)
        return frozenset(found)

    @property
    def formula(self) -> str:
        """As people write it: 768*batch*sequence + 1."""
        parts = []
        for product, factor in self.terms:
            words = [atom.text for atom in product]
            parts.append("*".join(words if words and factor == 1 else [str(factor), *words]))
        return " + ".join(parts)

    def __str__(self) -> str:
        """A word of letters, digits and underscores, for names of functions; no number."""
        word = "".join(one if one.isalnum() else "_" for one in self.formula)
        return f"s{word}"

    def __add__(self, other: object) -> Size | int:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        total = dict(self.terms)
        for product, factor in _terms(other):
            total[product] = total.get(product, 0) + factor
        return size_of(total)

    __radd__ = __add__

    def __mul__(self, other: object) -> Size | int:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        total: dict[Product, int] = {}
        for left, factor in self.terms:
            for right, other_factor in _terms(other):
                product = tuple(sorted((*left, *right), key=_order))
                total[product] = total.get(product, 0) + factor * other_factor
        return size_of(total)

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return Size(tuple((product, -factor) for product, factor in self.terms))

    def __sub__(self, other: object) -> Size | int:
        return self + -other if isinstance(other, (int, Size)) else NotImplemented

    def __rsub__(self, other: object) -> Size | int:
        return -self + other if isinstance(other, int) else NotImplemented

    def __floordiv__(self, other: object) -> Size | int:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        if isinstance(other, int) and all(factor % other == 0 for _, factor in self.terms):
            return size_of({product: factor // other for product, factor in self.terms})
        low, high = self.range
        if range_of(other)[0] <= 0 or low < 0 < high:
            raise OfOneSize(f"the sign of {self.formula} by {other} depends on the sizes of a run.")
        if high <= 0:
            return -((-self + (other - 1)) // other)
        if isinstance(other, int) and low // other == high // other:
            return low // other
        return size_of({(Operation("quotient", self, other),): 1})

    def __rfloordiv__(self, other: object) -> Size | int:
        if not isinstance(other, int):
            return NotImplemented
        if self.range[0] <= 0:
            raise OfOneSize(f"whether {self.formula} divides depends on the sizes of a run.")
        if other < 0:
            return -((-other + self - 1) // self)
        return size_of({(Operation("quotient", other, self),): 1})

    def __mod__(self, other: object) -> Size | int:
        return self - self // other * other if isinstance(other, (int, Size)) else NotImplemented

    def __rmod__(self, other: object) -> Size | int:
        return other - other // self * self if isinstance(other, int) else NotImplemented

    def __divmod__(self, other: object) -> tuple[Size | int, Size | int]:
        return self // other, self % other

    def __lt__(self, other: object) -> bool:
        return self._decided(other, lambda low, high: high < 0, lambda low, high: low >= 0, "<")

    def __le__(self, other: object) -> bool:
        return self._decided(other, lambda low, high: high <= 0, lambda low, high: low > 0, "<=")

    def __gt__(self, other: object) -> bool:
        return self._decided(other, lambda low, high: low > 0, lambda low, high: high <= 0, ">")

    def __ge__(self, other: object) -> bool:
        return self._decided(other, lambda low, high: low >= 0, lambda low, high: high < 0, ">=")

    def _decided(self, other: object, yes: _Answer, no: _Answer, word: str) -> bool:
        if not isinstance(other, (int, Size)):
            raise TypeError(f"{self.formula} is not compared with {other!r}.")
        low, high = range_of(self - other)
        if yes(low, high):
            return True
        if no(low, high):
            return False
        raise OfOneSize(f"whether {self.formula} {word} {other} depends on the sizes of a run.")

    def __bool__(self) -> bool:
        low, high = self.range
        if low > 0 or high < 0:
            return True
        raise OfOneSize(f"whether {self.formula} is 0 depends on the sizes of a run.")

    def __rtruediv__(self, other: object) -> float:
        raise OfOneSize(f"{other} / {self.formula} is known only when the program runs.")

    def __float__(self) -> float:
        raise OfOneSize(f"{self.formula} is known only when the program runs.")

    def __index__(self) -> int:
        raise OfOneSize(f"{self.formula} is known only when the program runs.")


def size_of(terms: Mapping[Product, int]) -> Size | int:
    """A sum of products by their factors; a number where nothing else is left."""
    left = {product: factor for product, factor in terms.items() if factor}
    if not left or tuple(left) == ((),):
        return left.get((), 0)
    ordered = sorted(left.items(), key=lambda term: (not term[0], [_order(atom) for atom in term[0]]))
    return Size(tuple(ordered))


def free(dim: Dim) -> Size:
    """A dim as a number."""
    return Size((((dim,), 1),))


@overload
def least(left: int, right: int) -> int: ...
@overload
def least(left: Size | int, right: Size | int) -> Size | int: ...
def least(left: Size | int, right: Size | int) -> Size | int:
    """The smaller one."""
    return _extreme("least", left, right)


@overload
def greatest(left: int, right: int) -> int: ...
@overload
def greatest(left: Size | int, right: Size | int) -> Size | int: ...
def greatest(left: Size | int, right: Size | int) -> Size | int:
    """The larger one."""
    return _extreme("greatest", left, right)


def _extreme(kind: Literal["least", "greatest"], left: Size | int, right: Size | int) -> Size | int:
    low, high = range_of(left - right)
    if low >= 0:
        return right if kind == "least" else left
    if high <= 0:
        return left if kind == "least" else right
    return size_of({(Operation(kind, left, right),): 1})


def as_size(value: object) -> Size | None:
    """A number that only a run knows; None for any other."""
    return value if isinstance(value, Size) else None


def is_free(value: object) -> bool:
    """Whether only a run knows a number."""
    return isinstance(value, Size)


def nothing(*values: Size | int) -> bool:
    """Whether one of some numbers is 0 in every run; where it is in some runs, these have no blocks."""
    return any(range_of(value)[1] == 0 for value in values)


@cache
def _tried(value: Size) -> tuple[int, int]:
    """The least and the greatest number at any sizes."""
    dims = sorted(value.dims, key=_order)
    axes = np.meshgrid(*(np.arange(dim.least, dim.most + 1) for dim in dims))
    values = _at_all(value, dict(zip((dim.name for dim in dims), axes, strict=True)))
    return int(values.min()), int(values.max())


def _at_all(value: Size | int, sizes: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    if not isinstance(value, Size):
        return np.array(value)
    total = np.array(0)
    for product, factor in value.terms:
        atoms = (
            sizes[one.name] if isinstance(one, Dim)
            else _COMBINED[one.kind](_at_all(one.left, sizes), _at_all(one.right, sizes))
            for one in product
        )  # fmt: skip
        total = total + reduce(np.multiply, atoms, np.array(factor))
    return total


def bound(value: Size | int) -> int:
    """A number that no run exceeds."""
    return value.bound if isinstance(value, Size) else value


def at(value: Size | int, sizes: Mapping[str, int]) -> int:
    """A number in a run of these sizes."""
    return value.at(sizes) if isinstance(value, Size) else value


def range_of(value: Size | int) -> tuple[int, int]:
    """Numbers that a value lies between."""
    return value.range if isinstance(value, Size) else (value, value)


def dims_of(value: Size | int) -> frozenset[Dim]:
    """The free dims that a number follows from."""
    return value.dims if isinstance(value, Size) else frozenset()


def _terms(value: Size | int) -> tuple[tuple[Product, int], ...]:
    return value.terms if isinstance(value, Size) else (((), value),)


def _order(atom: Atom) -> str:
    return atom.text
