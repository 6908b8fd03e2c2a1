"""Small constant matrices times vectors, written with few instructions: the transforms of Winograd's filtering.

Rows for the points p and -p of a transform differ in the signs of every second term, and so do the columns of its
transpose: what they share is computed once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from kernels.llvm.function import Function, Value
from kernels.templates.convolution.toom_cook import Factors

Vectors = Sequence[Value | None]  # None: zero


def product(f: Function, matrix: Factors, vectors: Vectors) -> list[Value | None]:
    """A matrix @ vectors."""
    by_rows = _row_pairs(matrix)
    if by_rows:
        return _with_row_pairs(f, matrix, vectors, by_rows)
    columns = tuple(zip(*matrix, strict=True))
    by_columns = _row_pairs(columns)
    if by_columns:
        return _with_column_pairs(f, matrix, vectors, by_columns)
    return [combination(f, row, vectors) for row in matrix]


def operations(matrix: Factors) -> int:
    """Instructions that `product` writes for a matrix: sums, products and both in one."""
    rows, columns = _row_pairs(matrix), _row_pairs(tuple(zip(*matrix, strict=True)))
    if rows:
        paired = {number for pair in rows for number in pair}
        alone = sum(_terms(row) for number, row in enumerate(matrix) if number not in paired)
        for first, second in rows:
            terms = list(zip(matrix[first], matrix[second], strict=True))
            alone += 2 + sum(_terms([c if (c == a) == same else 0 for c, a in terms]) for same in (True, False))
        return alone
    partners = {second for _, second in columns}
    entering = [[c for number, c in enumerate(row) if number not in partners] for row in matrix]
    return 2 * len(columns) + sum(map(_terms, entering))


def _terms(factors: Sequence[float]) -> int:
    """Instructions of a `combination`: the first vector needs none where one enters as it is."""
    return sum(map(bool, factors)) - any(abs(factor) == 1 for factor in factors)


def combination(f: Function, factors: Sequence[float], vectors: Vectors) -> Value | None:
    """The sum of factors times vectors; None when it is zero."""
    terms = [(c, v) for c, v in zip(factors, vectors, strict=True) if c and v is not None]
    terms.sort(key=lambda term: abs(term[0]) != 1)  # those that need no multiplication first
    found: Value | None = None
    for factor, vector in terms:
        found = _added(f, found, factor, vector)
    return found


def _added(f: Function, total: Value | None, factor: float, vector: Value) -> Value:
    if total is None:
        if factor == 1:
            return vector
        return f.neg(vector) if factor == -1 else f.mul(vector, f.number(vector.type, factor))
    if abs(factor) == 1:
        return f.add(total, vector) if factor == 1 else f.sub(total, vector)
    return f.fma(vector, f.number(vector.type, factor), total)


def _sum(f: Function, left: Value | None, right: Value | None, sign: int = 1) -> Value | None:
    if right is None:
        return left
    return _added(f, left, sign, right)


@functools.cache
def _row_pairs(matrix: Factors) -> list[tuple[int, int]]:
    """Pairs of rows that are equal in the even places and opposite in the odd ones, or the other way round."""
    found: list[tuple[int, int]] = []
    used: set[int] = set()
    for first, row in enumerate(matrix):
        for second in range(first + 1, len(matrix)):
            other = matrix[second]
            if {first, second} & used or row == other:
                continue
            for parity in (0, 1):
                if all(
                    b == (a if place % 2 == parity else -a) for place, (a, b) in enumerate(zip(row, other, strict=True))
                ):
                    found.append((first, second))
                    used |= {first, second}
                    break
    return found


def _with_row_pairs(f: Function, matrix: Factors, vectors: Vectors, pairs: list[tuple[int, int]]) -> list[Value | None]:
    """row = even + odd, its partner even - odd or odd - even."""
    found: list[Value | None] = [None] * len(matrix)
    paired = {number for pair in pairs for number in pair}
    for number, row in enumerate(matrix):
        if number not in paired:
            found[number] = combination(f, row, vectors)
    for first, second in pairs:
        row, other = matrix[first], matrix[second]
        same = [c if a == c else 0.0 for c, a in zip(row, other, strict=True)]
        opposite = [c if a != c else 0.0 for c, a in zip(row, other, strict=True)]
        kept, turned = combination(f, same, vectors), combination(f, opposite, vectors)
        found[first], found[second] = _sum(f, kept, turned), _sum(f, kept, turned, -1)
    return found


def _with_column_pairs(
    f: Function, matrix: Factors, vectors: Vectors, pairs: list[tuple[int, int]]
) -> list[Value | None]:
    """Two vectors whose factors are equal in some rows and opposite in the others enter as their sum and difference."""
    sums = {first: _sum(f, vectors[first], vectors[second]) for first, second in pairs}
    differences = {first: _sum(f, vectors[first], vectors[second], -1) for first, second in pairs}
    partners = {second for _, second in pairs}
    found = []
    for row in matrix:
        entering: list[Value | None] = []
        for number, vector in enumerate(vectors):
            if number in partners:
                entering.append(None)
            elif number in sums:
                partner = next(second for first, second in pairs if first == number)
                entering.append(sums[number] if row[partner] == row[number] else differences[number])
            else:
                entering.append(vector)
        found.append(combination(f, row, entering))
    return found
