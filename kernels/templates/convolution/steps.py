"""The order in which a direct convolution sums: chunks of steps that follow one pattern, and weights packed to match.

A step is one input channel at one place of the kernel; it costs one vector of weights per vector of output channels.
A chunk is a run of channels at one place of the kernel; its steps are written out one after the other, and a loop
runs over the chunks' starts from a table. Steps at two places of a kernel in one chunk would read some inputs twice:
LLVM then keeps them in registers that the sums need.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.grid import Group, balanced

RUN = 4  # channels of a chunk; more take longer to compile and run no faster, and 16 make LLVM keep sums on the stack


@dataclass(frozen=True, slots=True)
class Step:
    """An input channel of a group, and a place of the kernel (plane, row, column)."""

    channel: int
    plane: int
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of one pattern: every start, combined with every inner step (whose numbers are added to the start's)."""

    starts: tuple[Step, ...]
    inner: tuple[Step, ...]

    @property
    def steps(self) -> int:
        """All steps of all chunks."""
        return len(self.starts) * len(self.inner)


def merged_groups(problem: Convolution) -> int:
    """How many groups are computed together, as one dense group with zeros in its weights.

    A group of a blocked layout must start and end with a block; groups too small for that are merged until they do.
    """
    if problem.groups == 1:
        return 1

    def whole(count: int) -> bool:
        fits = []
        for layout, channels in ((problem.input, problem.depth), (problem.output, problem.width)):
            fits.append(layout.order != "NCHWc" or channels * count % layout.block == 0)
        return problem.groups % count == 0 and all(fits)

    return next((count for count in range(1, problem.groups) if whole(count)), problem.groups)


def chunks(problem: Convolution, source: Layout, depth: int) -> tuple[Chunks, ...]:
    """All steps over `depth` channels of a source layout, the channels outermost."""
    planes, rows, columns = problem.kernel
    places = [(p, r, c) for p in range(planes) for r in range(rows) for c in range(columns)]
    border = depth if source.order == "NHWC" or source.block == 1 else source.block
    found: dict[int, list[Step]] = {}
    first = 0
    while first < depth:
        size = min(RUN, depth - first, border - first % border)
        found.setdefault(size, []).extend(Step(first, p, r, c) for p, r, c in places)
        first += size
    return tuple(Chunks(tuple(starts), tuple(Step(i, 0, 0, 0) for i in range(size))) for size, starts in found.items())


def distance(problem: Convolution, source: Layout, step: Step) -> int:
    """Elements of the source from an output's first place to what a step reads."""
    block, lane = divmod(step.channel, source.block)
    return (
        block * source.block_stride
        + lane
        + step.plane * problem.dilations[0] * source.plane_stride
        + step.row * problem.dilations[1] * source.row_stride
        + step.column * problem.dilations[2] * source.column_stride
    )


@dataclass(frozen=True, slots=True)
class DirectPacking:
    """Weights as [group][tile of vectors][step][channel of the tile], zeros where a tile has more lanes than channels.

    `vectors` is the most that a tile has.
    """

    problem: Convolution
    lanes: int
    vectors: int

    @property
    def group_vectors(self) -> int:
        """Vectors of output channels of a merged group."""
        return sum(group.size * group.count for group in vector_groups(self.problem, self.lanes, self.vectors))

    @property
    def group_steps(self) -> int:
        """Steps of one output."""
        planes, rows, columns = self.problem.kernel
        return self.problem.depth * merged_groups(self.problem) * planes * rows * columns

    @property
    def group_elements(self) -> int:
        """Elements of a merged group."""
        return self.group_steps * self.group_vectors * self.lanes

    @property
    def elements(self) -> int:
        """Elements of all groups."""
        return self.problem.groups // merged_groups(self.problem) * self.group_elements

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        problem, together = self.problem, merged_groups(self.problem)
        depth, width = problem.depth * together, problem.width * together
        plain = dense_groups(problem, array, together)
        steps = [
            Step(s.channel + i.channel, s.plane, s.row, s.column + i.column)
            for group in chunks(problem, problem.input, depth)
            for s in group.starts
            for i in group.inner
        ]
        taken = plain[
            :,
            :,
            [s.channel for s in steps],
            [s.plane for s in steps],
            [s.row for s in steps],
            [s.column for s in steps],
        ]
        whole = np.zeros((len(plain), self.group_vectors * self.lanes, len(steps)), array.dtype)
        whole[:, :width] = taken
        parts = []
        for group in whole:
            for tiles in vector_groups(problem, self.lanes, self.vectors):
                size = tiles.size * self.lanes
                for tile in range(tiles.count):
                    first = tiles.start * self.lanes + tile * size
                    parts.append(group[first : first + size].T.reshape(-1))
        return np.concatenate(parts)


def vector_groups(problem: Convolution, lanes: int, vectors: int) -> tuple[Group, ...]:
    """How the vectors of output channels of a merged group fall into tiles of at most `vectors`.

    A tile of a blocked layout never holds the end of one block and the start of another: it is whole blocks, or a part
    of one.
    """
    layout, channels = problem.output, problem.width * merged_groups(problem)
    if layout.order != "NCHWc":
        return balanced(-(-channels // lanes), vectors)
    each, blocks = layout.block // lanes, -(-channels // layout.block)
    if vectors < each:
        part = max(size for size in range(1, vectors + 1) if each % size == 0)
        return (Group(part, blocks * each // part, 0, 0),)
    return tuple(
        Group(group.size * each, group.count, group.first, group.start * each)
        for group in balanced(blocks, vectors // each)
    )


def dense_groups(problem: Convolution, array: npt.NDArray[np.generic], together: int = 1) -> npt.NDArray[np.generic]:
    """Weights as (merged group, output channel, channel, *kernel), zeros between the groups that are merged."""
    groups, depth, width = problem.groups, problem.depth, problem.width
    if problem.transposed:
        given = array.reshape(groups, depth, width, *problem.kernel)[..., ::-1, ::-1, ::-1].swapaxes(1, 2)
    else:
        given = array.reshape(groups, width, depth, *problem.kernel)
    if together == 1:
        return given
    found = np.zeros((groups // together, together * width, together * depth, *problem.kernel), array.dtype)
    for group in range(groups):
        merged, place = divmod(group, together)
        found[merged, place * width : (place + 1) * width, place * depth : (place + 1) * depth] = given[group]
    return found
