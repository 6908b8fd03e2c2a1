"""The live peak as a formula of a model's dims.

The order and what lies in what are those of a plan made for numbers; each value's size is then taken as a polynomial in
the dims, and the peak is the largest of the sums that live together; those are told that are the largest for some dims
up to 65536. Sizes are not rounded up to the alignment.

The polynomials are fitted to sizes at multiples of the given dims, and confirmed at one further. So they are found too
where an exporter cut a table to the length of the input, which holds only up to the table's own length.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import sympy

from graphopt.memory.plan import Planned
from graphopt.model import dims
from memplan.bounds import alias_classes

SHOWN = 4  # sums in one formula
MOST_DIMS = 2  # each further one takes three times as many sizes


def peak_formula(
    planned: Planned, sizes: Mapping[str, int], sizes_at: Callable[[Mapping[str, int]], Mapping[str, int] | None]
) -> str | None:
    """`3072*batch*seq`-like text in bytes; None where dims are all fixed or sizes are no polynomials of them.

    `sizes` are the dims that `planned` was made for; `sizes_at` gives the bytes of every value for other dims, or None
    where the model does not take them.
    """
    if not 0 < len(sizes) <= MOST_DIMS:
        return None
    expressions = _fitted(sizes, sizes_at)
    if expressions is None:
        return None
    by_name = {buffer.name: buffer for buffer in planned.problem.buffers}
    ranges = alias_classes(planned.problem)
    held: dict[str, sympy.Expr] = {}
    for root in ranges:
        size = sympy.Integer(by_name[root].size)  # of a workspace, which no expression tells
        held[root] = expressions.get(by_name[root].value or "", size)
    largest = _largest_somewhere(_sums(ranges, held), list(sizes))
    if not any(one.free_symbols for one in largest):
        return None
    numbers = {dims.symbol(name): size for name, size in sizes.items()}
    largest.sort(key=lambda one: (-_value(one, numbers), str(one)))
    shown = [str(sympy.factor(one)) for one in largest[:SHOWN]]
    more = f", {len(largest) - SHOWN} more" if len(largest) > SHOWN else ""
    return shown[0] if len(largest) == 1 else f"max({', '.join(shown)}{more})"


def _fitted(
    sizes: Mapping[str, int], sizes_at: Callable[[Mapping[str, int]], Mapping[str, int] | None]
) -> dict[str, sympy.Expr] | None:
    """Every value's bytes as a polynomial: of degree two in each dim, which further sizes have to confirm."""
    names = list(sizes)
    points = list(itertools.product((1, 2, 3), repeat=len(names)))
    monomials = list(itertools.product((0, 1, 2), repeat=len(names)))
    seen = [
        sizes_at({name: sizes[name] * factor for name, factor in zip(names, point, strict=True)}) for point in points
    ]
    check = sizes_at({name: 4 * size for name, size in sizes.items()})
    if check is None or any(one is None for one in seen):
        return None
    found = [one for one in seen if one is not None]
    at = np.array([[np.prod(np.power(point, powers, dtype=float)) for powers in monomials] for point in points])
    values = list(found[0])
    if any(list(one) != values for one in (*found, check)):
        return None
    factors = np.linalg.solve(at, np.array([[one[name] for name in values] for one in found], dtype=float))
    last = np.array([np.prod(np.power([4.0] * len(names), powers)) for powers in monomials])
    told = last @ factors
    expressions = {}
    for column, name in enumerate(values):
        if abs(told[column] - check[name]) > 0.5:
            return None
        terms = []
        for row, powers in enumerate(monomials):
            # The factors are of multiples of the given dims.
            base = math.prod(sizes[one] ** power for one, power in zip(names, powers, strict=True))
            factor = sympy.nsimplify(round(factors[row, column]), rational=True) / base
            product = sympy.prod(dims.symbol(one) ** power for one, power in zip(names, powers, strict=True))
            terms.append(factor * product)
        expressions[name] = sympy.Add(*terms)
    return expressions


def _sums(ranges: Mapping[str, Sequence[tuple[int, int]]], expressions: Mapping[str, sympy.Expr]) -> set[sympy.Expr]:
    """What lives together, between each two steps at which that changes."""
    steps = sorted({step for found in ranges.values() for one in found for step in one})
    changes: dict[int, list[tuple[str, int]]] = {step: [] for step in steps}
    for root, found in ranges.items():
        for begin, end in found:
            changes[begin].append((root, 1))
            changes[end].append((root, -1))
    counts: dict[sympy.Expr, int] = {}  # monomial -> bytes
    sums: set[sympy.Expr] = set()
    for step, _ in pairwise(steps):
        for root, sign in changes[step]:
            for monomial, factor in expressions[root].as_coefficients_dict().items():
                counts[monomial] = counts.get(monomial, 0) + sign * factor
        sums.add(sympy.Add(*(monomial * factor for monomial, factor in counts.items() if factor)))
    return sums


def _largest_somewhere(sums: set[sympy.Expr], names: Sequence[str]) -> list[sympy.Expr]:
    """The sums that are the largest at some point of a grid of powers of two."""
    symbols = [dims.symbol(name) for name in names]
    ordered = sorted(sums, key=str)
    grid = np.array(list(itertools.product([float(1 << power) for power in range(17)], repeat=len(names)))).T
    values = np.array([np.broadcast_to(sympy.lambdify(symbols, one, "numpy")(*grid), grid.shape[1]) for one in ordered])
    return [ordered[number] for number in sorted(set(np.argmax(values, axis=0).tolist()))]


def _value(expression: sympy.Expr, numbers: Mapping[sympy.Symbol, int]) -> float:
    found = expression.subs(dict(numbers))
    return float(found) if found.is_number else 0.0
