"""Systems of equations whose solutions are whole numbers, solved by residues: in arrays, as no fraction is.

A system is eliminated once, by each of two primes of 31 bits, and then serves any right sides. A right side that no
solution gives leaves a residue of a sum that is 0 for all that solutions give; a whole solution below 2**60 is put
together of its two residues. What residues say of being solvable is right but for one in 2**31 chances; what they give
as a solution is to be tried in the equations.

Source: the modular method, as in von zur Gathen and Gerhard, "Modern Computer Algebra", chapter 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PRIMES = (2**31 - 1, 2**31 - 19)
Residues = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """Equations by one prime: what gives the unknowns of right sides, and what gives 0 of those that have any."""

    prime: int
    solving: Residues  # a row for each unknown that is found, a column for each equation
    nothing: Residues
    pivots: tuple[int, ...]  # the unknowns that are found; the others are 0

    @classmethod
    def of(cls, columns: Sequence[Residues], prime: int) -> System:
        """The system with these factors of its unknowns, as residues."""
        count, unknown = len(columns[0]), len(columns)
        table = np.concatenate([np.stack(columns, axis=1), np.eye(count, dtype=np.int64)], axis=1)
        pivots: list[int] = []
        for column in range(unknown):
            done = len(pivots)
            some = np.flatnonzero(table[done:, column])
            if not len(some):
                continue
            pivot = done + int(some[0])
            table[[done, pivot]] = table[[pivot, done]]
            table[done] = table[done] * pow(int(table[done, column]), -1, prime) % prime
            others = table[:, column].copy()
            others[done] = 0
            table = (table - others[:, None] * table[done] % prime) % prime
            pivots.append(column)
        done = len(pivots)
        return cls(prime, table[:done, unknown:].copy(), table[done:, unknown:].copy(), tuple(pivots))

    def is_solvable(self, right: Residues) -> bool:
        """Whether right sides, as residues, have a solution."""
        return not _products(self.nothing, right, self.prime).any()

    def solution(self, right: Residues) -> Residues:
        """The residues of the unknowns that are found."""
        return _products(self.solving, right, self.prime)


def residues(numbers: Sequence[int], prime: int) -> Residues:
    """Numbers by a prime."""
    return np.array([one % prime for one in numbers], np.int64)


def joined(one: int, other: int) -> int:
    """The number of least amount that leaves these residues by the two primes."""
    first, second = PRIMES
    found = one + first * ((other - one) * pow(first, -1, second) % second)
    return found if 2 * found < first * second else found - first * second


def _products(rows: Residues, right: Residues, prime: int) -> Residues:
    found: Residues = (rows * right % prime).sum(axis=1) % prime
    return found
