"""Numbers of free dims in other dims: those of a model in those that a run sets."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.size import Atom, Dim, Size, greatest, least


def in_dims(value: Size | int, dims: Mapping[str, Size]) -> Size | int:
    """A number in other dims that take the place of its own, by name."""
    if not isinstance(value, Size):
        return value
    total: Size | int = 0
    for product, factor in value.terms:
        term: Size | int = factor
        for atom in product:
            term = term * _atom_in_dims(atom, dims)
        total = total + term
    return total


def _atom_in_dims(atom: Atom, dims: Mapping[str, Size]) -> Size | int:
    if isinstance(atom, Dim):
        return dims[atom.name]
    left, right = in_dims(atom.left, dims), in_dims(atom.right, dims)
    if atom.kind == "quotient":
        return left // right
    return least(left, right) if atom.kind == "least" else greatest(left, right)
