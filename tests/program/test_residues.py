"""Systems in whole numbers, solved by residues."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphopt.program.residues import PRIMES, System, joined, residues

_numbers = st.integers(-(2**40), 2**40)


def _systems(rows: list[list[int]]) -> list[System]:
    return [System.of([residues(column, prime) for column in zip(*rows, strict=True)], prime) for prime in PRIMES]


def _rank(rows: list[list[int]]) -> int:
    """By elimination in fractions."""
    left, rank = [[Fraction(one) for one in row] for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((row for row in left[rank:] if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        left.insert(rank, pivot)
        for place in range(rank + 1, len(left)):
            factor = left[place][column] / pivot[column]
            left[place] = [one - factor * other for one, other in zip(left[place], pivot, strict=True)]
        rank += 1
    return rank


@given(st.data())
def test_whole_solutions_come_back(data: st.DataObject) -> None:
    unknown = data.draw(st.integers(1, 5))
    factors = data.draw(st.lists(_numbers, min_size=unknown, max_size=unknown))
    rows = [[one**power for power in range(unknown)] for one in range(2, 2 + unknown + data.draw(st.integers(0, 4)))]
    right = [sum(factor * one for factor, one in zip(factors, row, strict=True)) for row in rows]
    found = [
        system.solution(residues(right, prime)) for system, prime in zip(_systems(rows), PRIMES, strict=True)
    ]  # fmt: skip
    assert [joined(int(one), int(other)) for one, other in zip(*found, strict=True)] == factors


@given(st.data())
def test_what_no_solution_gives_is_told(data: st.DataObject) -> None:
    """Rows that depend on one another too: solvable is what does not add to the rank."""
    unknown, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    some = st.integers(-3, 3)
    rows = [data.draw(st.lists(some, min_size=unknown, max_size=unknown)) for _ in range(count)]
    right = data.draw(st.lists(some, min_size=count, max_size=count))
    rank = _rank(rows)
    is_solvable = _rank([[*row, one] for row, one in zip(rows, right, strict=True)]) == rank
    for system, prime in zip(_systems(rows), PRIMES, strict=True):
        assert len(system.pivots) == rank
        assert system.is_solvable(residues(right, prime)) == is_solvable


def test_numbers_are_put_together_of_two_residues() -> None:
    for number in (0, 1, -1, 2**31, -(2**31) - 5, 2**59 + 7, -(2**60) + 1):
        assert joined(*(number % prime for prime in PRIMES)) == number
    assert all(pow(2, prime - 1, prime) == 1 and np.gcd(*PRIMES) == 1 for prime in PRIMES)
