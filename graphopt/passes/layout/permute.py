"""Permutations of axes. The other form of a value is Transpose(value, perm): its axis i is the value's axis perm[i]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Perm: TypeAlias = tuple[int, ...]


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes `perm`."""
    result = [0] * len(perm)
    for place, axis in enumerate(perm):
        result[axis] = place
    return tuple(result)


def is_identity(perm: Perm) -> bool:
    """Whether nothing moves."""
    return perm == tuple(range(len(perm)))


def moved(axis: int, perm: Perm) -> int:
    """Where an axis (negative: counted from the end) stands in the other form."""
    return perm.index(axis % len(perm))


def between(source: Perm, perm: Perm, target: Perm) -> Perm:
    """What leads from the other form of x to the other form of y, for y = Transpose(x, perm)."""
    back = inverse(source)
    return tuple(back[perm[axis]] for axis in target)


def without(perm: Perm, axes: Iterable[int]) -> Perm:
    """The permutation of what is left when axes (of the original form) are taken out."""
    gone = {axis % len(perm) for axis in axes}
    left = [axis for axis in range(len(perm)) if axis not in gone]
    return tuple(left.index(axis) for axis in perm if axis not in gone)


def with_axes(perm: Perm, axes: Iterable[int]) -> Perm:
    """The permutation after new axes, which stay at their places `axes` in both forms, have been put in."""
    places = sorted(axes)
    rank = len(perm) + len(places)
    old = [axis for axis in range(rank) if axis not in places]
    rest = iter(perm)
    return tuple(place if place in places else old[next(rest)] for place in range(rank))


def to_last(rank: int) -> Perm:
    """From channels first to channels last: [N, C, H, W] to [N, H, W, C]."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> Perm:
    """From channels last to channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def paired(numbers: Sequence[int], perm: Perm) -> tuple[int, ...]:
    """`begin` and `end` numbers of every axis, as Pad has them, for the other form."""
    rank = len(perm)
    return tuple(numbers[half * rank + axis] for half in (0, 1) for axis in perm)
