"""A tensor as a polynomial in other tensors, read off the arithmetic with numbers that computes it.

Exporters spell 0.5 * x * (1 + erf(x / sqrt 2)) in many orders. Read as a polynomial in x and e = erf(...) they are all
the same two terms: 0.5 x + 0.5 x e.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts

Powers = tuple[int, ...]  # the exponent of each atom
Polynomial = dict[Powers, float]

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Pow")
DEEPEST = 8
HIGHEST = 4  # no formula here has a higher degree


def expand(facts: Facts, value: ir.Value, atoms: Sequence[ir.Value], group: dict[ir.Node, None]) -> Polynomial | None:
    """The value as a polynomial in `atoms`, None when something else is in it; nodes passed are added to `group`."""
    return _expand(facts, value, atoms, group, DEEPEST)


def _expand(
    facts: Facts, value: ir.Value, atoms: Sequence[ir.Value], group: dict[ir.Node, None], depth: int
) -> Polynomial | None:
    for place, atom in enumerate(atoms):
        if value is atom:
            return {tuple(int(place == other) for other in range(len(atoms))): 1.0}
    number = facts.scalar(value)
    if number is not None:
        return {(0,) * len(atoms): float(number)}
    node = value.producer()
    if node is None or depth == 0 or node.op_type not in ARITHMETIC or not nodes.is_standard(node):
        return None
    operands = [_expand(facts, v, atoms, group, depth - 1) if v is not None else None for v in node.inputs]
    group[node] = None
    if any(operand is None for operand in operands):
        return None
    return _combined(node.op_type, [operand for operand in operands if operand is not None], (0,) * len(atoms))


def _combined(kind: str, operands: Sequence[Polynomial], unit: Powers) -> Polynomial | None:
    left = operands[0]
    if kind == "Neg":
        return {powers: -factor for powers, factor in left.items()}
    right = operands[1]
    if kind == "Add":
        return _sum(left, right)
    if kind == "Sub":
        return _sum(left, {powers: -factor for powers, factor in right.items()})
    if kind == "Mul":
        return _product(left, right)
    if set(right) != {unit}:
        return None
    number = right[unit]
    if kind == "Div":
        return {powers: factor / number for powers, factor in left.items()} if number else None
    if number not in (1, 2, 3):
        return None
    result: Polynomial | None = left
    for _ in range(int(number) - 1):
        result = None if result is None else _product(result, left)
    return result


def _sum(left: Polynomial, right: Polynomial) -> Polynomial:
    result = dict(left)
    for powers, factor in right.items():
        result[powers] = result.get(powers, 0.0) + factor
    return result


def _product(left: Polynomial, right: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for first, a in left.items():
        for second, b in right.items():
            powers = tuple(i + j for i, j in zip(first, second, strict=True))
            result[powers] = result.get(powers, 0.0) + a * b
    return result if all(sum(powers) <= HIGHEST for powers in result) else None


def agrees(found: Polynomial | None, wanted: Mapping[Powers, float], tolerance: float) -> bool:
    """Whether two polynomials have the same terms, each factor within `tolerance` (relative)."""
    if found is None:
        return False
    terms = {powers: factor for powers, factor in found.items() if abs(factor) > 1e-12}
    return terms.keys() == wanted.keys() and all(
        abs(terms[powers] - factor) <= tolerance * abs(factor) for powers, factor in wanted.items()
    )


def ingredients(value: ir.Value) -> list[ir.Value]:
    """The value and what arithmetic computes it from, nearest first: the candidates for an atom."""
    found: dict[ir.Value, None] = {value: None}
    level = [value]
    for _ in range(DEEPEST):
        producers = [current.producer() for current in level]
        level = [
            operand
            for node in producers
            if node is not None and node.op_type in ARITHMETIC and nodes.is_standard(node)
            for operand in node.inputs
            if operand is not None and operand not in found
        ]
        found.update(dict.fromkeys(level))
        if len(found) > 32:
            break
    return list(found)
