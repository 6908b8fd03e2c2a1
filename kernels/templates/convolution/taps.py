"""Which taps of a kernel a tile of outputs needs: those that see the image, and not its zeros alone.

With a dilation of 12 and an image of 14 rows most tiles need the middle tap only. Where few are left, tiles loop over
these, and the copy of a window has no more zeros than a tile reads beside the image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernels.llvm.function import Amount, Function, Value
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.windows import Rows
from kernels.templates.grid import Group

ENOUGH = 0.75  # share of the taps that is needed, above which all are taken: narrow tiles and short loops cost some
ENOUGH_APART = 0.88  # the same of a kernel with dilations, whose window is copied with many more zeros otherwise


def needed(problem: Convolution, axis: int, start: int, size: int) -> tuple[int, int]:
    """The first tap of an axis that one of `size` outputs from `start` on needs, and the end."""
    stride, dilation, pad = problem.strides[axis], problem.dilations[axis], problem.pads[axis]
    first = max(0, pad - (start + size - 1) * stride + dilation - 1) // dilation
    end = max(0, problem.input.size[axis] + pad - start * stride + dilation - 1) // dilation
    return first, max(first, min(problem.kernel[axis], end))


def share(problem: Convolution, axis: int, groups: Iterable[Group]) -> float:
    """Which part of an axis' taps the tiles need, by outputs."""
    stride, pad, taps = problem.strides[axis], problem.pads[axis], problem.kernel[axis]
    behind = (problem.input.size[axis] + pad - problem.reach[axis]) // stride  # the last that needs the last tap
    taken = whole = 0
    for group in groups:
        size = group.size
        first = -(-pad // stride) - size + 1  # where a piece begins that needs the first tap, at the least
        low = min(group.count, max(0, -(-(first - group.start) // size)))
        high = max(low, min(group.count, (behind - group.start) // size + 1))
        for piece in (*range(low), *range(high, group.count)):
            begin, end = needed(problem, axis, group.start + piece * size, size)
            taken += (end - begin) * size
        taken += (high - low) * taps * size
        whole += taps * group.count * size
    return taken / whole if whole else 1.0


def skips(problem: Convolution, rows: Iterable[Group], columns: Iterable[Group]) -> bool:
    """Whether tiles of these rows and columns leave out enough taps."""
    if problem.input_dilations != (1, 1, 1) or problem.kernel[1] * problem.kernel[2] == 1:
        return False
    enough = ENOUGH if problem.dilations[1:] == (1, 1) else ENOUGH_APART
    return share(problem, 1, rows) * share(problem, 2, columns) <= enough


def around(
    problem: Convolution, rows: Sequence[Group], columns: Sequence[Group]
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Zeros before and behind the image's rows, and its columns, that tiles read; None where they take all taps."""
    if not skips(problem, rows, columns):
        return None
    before, behind = (
        _beside(problem, axis, max(group.size for group in groups)) for axis, groups in ((1, rows), (2, columns))
    )
    return before, behind


def _beside(problem: Convolution, axis: int, most: int) -> tuple[int, int]:
    """Those of tiles of up to `most` outputs: one of them sees the image by each tap that is taken."""
    stride, pad = problem.strides[axis], problem.pads[axis]
    after = (problem.output.size[axis] - 1) * stride + problem.reach[axis] - pad - problem.input.size[axis]
    return min(pad, (most - 1) * stride), max(0, min(after, (most - 1) * stride))


def write_needed(
    f: Function, problem: Convolution, place: tuple[Value, Value], sizes: tuple[int, int]
) -> tuple[Value, Value, Value, Value]:
    """The first row and column of taps that a tile needs, and the ends: `needed` of a place that the run knows."""
    (first_row, end_row), (first_column, end_column) = (
        needed_of_place(f, problem, axis, start, size) for axis, start, size in zip((1, 2), place, sizes, strict=True)
    )
    return first_row, first_column, end_row, end_column


def needed_of_place(f: Function, problem: Convolution, axis: int, start: Value, size: int) -> tuple[Value, Value]:
    """`needed` of a place that the run knows."""
    stride, dilation, pad = problem.strides[axis], problem.dilations[axis], problem.pads[axis]
    at, zero = f.mul(start, stride), f.integer(0)
    before = f.maximum(f.sub(f.integer(pad - (size - 1) * stride + dilation - 1), at), zero)
    after = f.maximum(f.sub(f.integer(problem.input.size[axis] + pad + dilation - 1), at), zero)
    first, end = (f.div(one, f.integer(dilation), signed=False) for one in (before, after))
    return first, f.minimum(end, f.integer(problem.kernel[axis]))


def taps_of_row(f: Function, problem: Convolution, down: Rows, row: Value) -> tuple[Value, Value]:
    """The first row of taps that a row of outputs sees, and how many: those of its kind, or its own at a border."""
    if not down.at_border:
        return f.integer(down.low), f.integer(down.high - down.low)
    low, end = needed_of_place(f, problem, 1, row, 1)
    return low, f.maximum(f.sub(end, low), f.integer(0))


class Planes(NamedTuple):
    """Which plane of the output is made, and what of the image and the kernel it sees."""

    number: Value
    seen: Value | None  # planes of the kernel; None: there is one alone
    elements: Value  # from the image's first plane to the first that is seen
    weights: Amount  # likewise of a vector's weights


def planes_seen(f: Function, problem: Convolution, plane: Value, lanes: int) -> Planes:
    """The planes that one of the output sees, where each vector of channels has its weights one tap after the other."""
    start = f.add(f.mul(plane, problem.strides[0]), -problem.pads[0])
    step = f.integer(problem.dilations[0])
    outside = f.maximum(f.sub(f.integer(0), start), f.integer(0))
    low = f.binary("udiv", f.add(outside, problem.dilations[0] - 1), step)
    room = f.maximum(f.sub(f.integer(problem.input.size[0]), start), f.integer(0))
    end = f.minimum(f.binary("udiv", f.add(room, problem.dilations[0] - 1), step), f.integer(problem.kernel[0]))
    first = f.add(start, f.mul(low, problem.dilations[0]))
    taps = problem.kernel[1] * problem.kernel[2] * lanes
    return Planes(plane, f.sub(end, low), f.mul(first, problem.input.plane_stride), f.mul(low, taps))
