"""Kinds of Winograd's tiles: those in one direction that see the same part of the image, and have as many outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernels.size import greatest, is_free, least
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.toom_cook import Filtering
from kernels.templates.convolution.winograd_parts import Sides, offset_of, outputs_apart


@dataclass(frozen=True, slots=True)
class Kind:
    """Tiles in one direction that are alike: from `first`, `count` of them.

    Of a window, the elements from `low` to before `high` are stored; of a tile, `outputs` exist. At a border that only
    the run knows these are the most, and each tile is looked at.
    """

    first: int
    count: int
    low: int
    high: int
    outputs: int
    at_border: bool = False


def kinds_of(problem: Convolution, axis: int, made: Filtering, part: int = 0) -> tuple[Kind, ...]:
    """Tiles that see the same part of the image, by the taps of a part of the kernel, and have as many outputs."""
    size, apart, stride = problem.output.size[axis], outputs_apart(problem, axis), problem.strides[axis]
    offset, step = offset_of(problem, axis, len(made.taps[0]), part), stride * problem.dilations[axis]
    begin, end = stored_of(problem, axis)
    found: list[Kind] = []
    for tile in range(tiles_of(problem, axis, made.outputs)):
        first = tile + tile // apart * (made.outputs - 1) * apart
        start = first * stride - problem.pads[axis] + offset
        low, high = (min(max(0, -((start - one) // step)), made.size) for one in (begin, end))
        found.append(Kind(tile, 1, low, max(low, high), min(made.outputs, -((first - size) // apart))))
    return merged_kinds(found)


def windows_of_any_size(problem: Convolution, axis: int, made: Filtering, part: int = 0) -> tuple[Kind, ...]:
    """Tiles whose windows lie inside of an image of any size, between those that may reach beyond it."""
    apart, stride = outputs_apart(problem, axis), problem.strides[axis]
    begin, end = stored_of(problem, axis)
    start = offset_of(problem, axis, len(made.taps[0]), part) - problem.pads[axis]  # of the first window
    row = made.outputs * apart * stride  # from tiles side by side to those that follow them
    reach = (
        apart - 1 + (made.size - 1) * problem.dilations[axis]
    ) * stride  # of tiles side by side, to the last element
    tiles = tiles_of(problem, axis, made.outputs)
    first = least(max(0, -((start - begin) // row)) * apart, tiles)
    behind = greatest(0, end - start - reach + row - 1) // row * apart
    return _between(first, greatest(first, least(behind, tiles)), tiles, made)


def tiles_of_any_size(problem: Convolution, axis: int, made: Filtering) -> tuple[Kind, ...]:
    """Tiles all of whose outputs exist in an image of any size, and those of which some may not."""
    apart = outputs_apart(problem, axis)
    whole = problem.output.size[axis] // (made.outputs * apart) * apart
    return _between(0, whole, tiles_of(problem, axis, made.outputs), made)


def _between(first: int, behind: int, tiles: int, made: Filtering) -> tuple[Kind, ...]:
    """Tiles at the border, those from the `first` inside to the first `behind` them, and at the border again."""
    ends = ((0, first, True), (first, behind, False), (behind, tiles, True))
    kinds = (Kind(start, end - start, 0, made.size, made.outputs, at) for start, end, at in ends)
    return tuple(kind for kind in kinds if is_free(kind.count) or kind.count)


def tiles_of(problem: Convolution, axis: int, outputs: int) -> int:
    """Tiles along an axis; of any size with those behind the last one, up to a multiple of those side by side."""
    size, apart = problem.output.size[axis], outputs_apart(problem, axis)
    if is_free(size):
        return (size + outputs * apart - 1) // (outputs * apart) * apart
    whole, rest = divmod(size, outputs * apart)
    return whole * apart + min(apart, rest)


def merged_kinds(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Neighbours that are alike as one."""
    found: list[Kind] = []
    for kind in kinds:
        if found and replace(kind, first=found[-1].first, count=found[-1].count) == found[-1]:
            found[-1] = replace(found[-1], count=found[-1].count + kind.count)
        else:
            found.append(kind)
    return tuple(found)


def axis_of(problem: Convolution) -> Literal[1, 2]:
    """The axis whose tiles blocks divide: rows, and columns where images have one row."""
    return 2 if problem.output.size[1] == 1 else 1


def lines_of(problem: Convolution, sides: Sides) -> tuple[int, int]:
    """Lines of tiles that blocks divide, and the tiles of a line: rows, but single tiles of images of one row."""
    rows, columns = (tiles_of(problem, axis, outputs) for axis, (outputs, _) in enumerate(sides, 1))
    return (rows, columns) if axis_of(problem) == 1 else (columns, 1)


def stored_of(problem: Convolution, axis: int) -> tuple[int, int]:
    """Between which elements an image has any: with those around it that are stored."""
    layout = problem.input
    return -layout.before[axis], layout.size[axis] + layout.after[axis]
