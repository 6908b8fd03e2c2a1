"""What a Winograd convolution filters by: algorithms for a kernel, parts of it with taps of their own, distances.

The taps of a long kernel are parts, and with a stride so are those that see rows of one phase: every stride-th one. An
output is the sum over all parts, each of which has windows of its own.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product

from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import merged_groups
from kernels.templates.convolution.toom_cook import (
    F2_POINTS,
    F4_POINTS,
    LINE_POINTS,
    NINE_POINTS,
    Filtering,
    filtering,
)

PAIR = 2  # taps, of which no parts are made: three and more gain more
BOTH = 6  # elements at most of a window in each of two directions; those in one alone are exact enough with more
FILTERINGS = {
    (outputs, taps): filtering(outputs, taps, points)
    for outputs, taps, points in (
        (1, 1, ()), (3, 2, F2_POINTS), (5, 2, F4_POINTS), (2, 3, F2_POINTS), (4, 3, F4_POINTS), (6, 3, LINE_POINTS),
        (3, 4, F4_POINTS), (5, 4, LINE_POINTS), (2, 5, F4_POINTS), (4, 5, LINE_POINTS), (2, 7, LINE_POINTS),
        (3, 7, NINE_POINTS),
    )
}  # fmt: skip
Sides = tuple[tuple[int, int], tuple[int, int]]  # F(outputs, taps) down and across


@cache
def sides_of(kernel: tuple[int, int], strides: tuple[int, int] = (1, 1)) -> tuple[Sides, ...]:
    """Filterings for a kernel of so many rows and columns, the same both ways where they are as many.

    With a stride the taps that see rows (or columns) of one phase are a kernel of stride 1 for those.
    """
    down, across = (-(-taps // stride) for taps, stride in zip(kernel, strides, strict=True))
    if down == across == 1:
        return ()
    if down == across:
        return tuple((one, one) for one in _along(down, BOTH))
    most = 0 if 1 in (down, across) else BOTH
    return tuple(product(_along(down, most), _along(across, most)))


def _along(taps: int, most: int) -> list[tuple[int, int]]:
    """Filterings along a direction with windows of `most` elements, or of any number where that is 0.

    More taps than any has are a sum of parts, each with taps of its own, and one zero behind them at most where that is
    possible.
    """
    if taps == 1:
        return [(1, 1)]
    fitting = [one for one, made in FILTERINGS.items() if one[1] > 1 and (not most or made.size <= most)]
    whole = [one for one in fitting if one[1] == taps]
    least = max(1, min(-taps % one for _, one in fitting if one > PAIR))
    return whole or [one for one in fitting if PAIR < one[1] < taps and -taps % one[1] <= least]


def filterings(sides: Sides) -> tuple[Filtering, Filtering]:
    """Those down and across."""
    return FILTERINGS[sides[0]], FILTERINGS[sides[1]]


def points_of(made: tuple[Filtering, Filtering]) -> int:
    """Points of a window."""
    return made[0].size * made[1].size


def phases_seen(problem: Convolution, axis: int) -> int:
    """Phases of rows (or columns) that an output sees, each by taps of its own: every stride-th ones."""
    return min(problem.strides[axis], problem.kernel[axis])


def parts_of(problem: Convolution, sides: Sides) -> tuple[int, int]:
    """Parts of a kernel that have taps of their own, down and across."""
    down, across = (
        phases_seen(problem, axis) * -(-problem.kernel[axis] // (problem.strides[axis] * taps))
        for axis, (_, taps) in enumerate(sides, 1)
    )
    return down, across


def offset_of(problem: Convolution, axis: int, taps: int, part: int) -> int:
    """How far from the first element that an output sees a part of so many taps begins."""
    group, phase = divmod(part, phases_seen(problem, axis))
    return phase + group * taps * problem.strides[axis] * problem.dilations[axis]


def outputs_apart(problem: Convolution, axis: int) -> int:
    """The distance of a tile's outputs along an axis: as many tiles begin side by side."""
    return problem.dilations[axis] if problem.strides[axis] == 1 else 1


def sums_of(problem: Convolution, sides: Sides) -> int:
    """Over how many sets of channels the products of an output go: parts of the kernel in each plane that it sees."""
    return math.prod((problem.kernel[0], *parts_of(problem, sides)))


def channels_of_plane(problem: Convolution, sides: Sides) -> int:
    """Channels of a dense group in one plane that a kernel sees: whole blocks where there are several such planes.

    The products then go over those of all planes, and of all parts of the kernel, one after the other, as over so many
    channels.
    """
    depth, layout = problem.depth * merged_groups(problem), problem.input
    if sums_of(problem, sides) == 1 or layout.order == "NHWC":
        return depth
    return -(-depth // layout.block) * layout.block
