"""Kinds of Winograd's tiles: those in one direction that see the same part of the image, and have as many outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.toom_cook import Filtering


@dataclass(frozen=True, slots=True)
class Kind:
    """Tiles in one direction that are alike: from `first`, `count` of them.

    Of a window, the elements from `low` to before `high` are stored; of a tile, `outputs` exist.
    """

    first: int
    count: int
    low: int
    high: int
    outputs: int


def kinds_of(problem: Convolution, axis: int, made: Filtering) -> tuple[Kind, ...]:
    """Tiles that see the same part of the image and have as many outputs."""
    size, pad = problem.output.size[axis], problem.pads[axis]
    begin, end = stored_of(problem, axis)
    found: list[Kind] = []
    for tile in range(-(-size // made.outputs)):
        start = tile * made.outputs - pad
        low, high = min(max(0, begin - start), made.size), max(0, min(made.size, end - start))
        found.append(Kind(tile, 1, low, max(low, high), min(made.outputs, size - tile * made.outputs)))
    return merged_kinds(found)


def merged_kinds(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Neighbours that are alike as one."""
    found: list[Kind] = []
    for kind in kinds:
        if found and replace(kind, first=found[-1].first, count=found[-1].count) == found[-1]:
            found[-1] = replace(found[-1], count=found[-1].count + kind.count)
        else:
            found.append(kind)
    return tuple(found)


def stored_of(problem: Convolution, axis: int) -> tuple[int, int]:
    """Between which elements an image has any: with those around it that are stored."""
    layout = problem.input
    return -layout.before[axis], layout.size[axis] + layout.after[axis]
