"""The order in which a direct convolution sums: chunks of steps that follow one pattern, and weights packed to match.

A step is one input channel at one place of the kernel; it costs one vector of weights per vector of output channels.
A chunk is a run of channels at one place of the kernel; its steps are written out one after the other, and a loop
runs over the chunks' starts from a table. Steps at two places of a kernel in one chunk would read some inputs twice:
LLVM then keeps them in registers that the sums need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Merged:
    """Groups that are computed together, as dense groups with zeros in their weights: `count` of `together` groups."""

    first: int  # the dense group, counted over all of them
    count: int
    together: int


def merged(problem: Convolution) -> tuple[Merged, ...]:
    """How groups are computed together: alike, but for the last ones, which may be too few.

    A group of a blocked layout must start with a block; groups too small for that are merged until they do, and so are
    those of other layouts that the problem wants merged. The last ones end where the channels end, perhaps inside a
    block.
    """
    if problem.groups == 1:
        return (Merged(0, 1, 1),)

    def whole(count: int) -> bool:
        sides = ((problem.input, problem.depth), (problem.output, problem.width))
        return all(
            channels * count % (layout.block if layout.order == "NCHWc" else problem.merging) == 0
            for layout, channels in sides
        )

    together = next((count for count in range(1, problem.groups) if whole(count)), problem.groups)
    count, rest = divmod(problem.groups, together)
    return (Merged(0, count, together), *([Merged(count, 1, rest)] if rest else []))


def merged_groups(problem: Convolution) -> int:
    """How many groups most dense groups hold."""
    return merged(problem)[0].together


def dense_count(problem: Convolution) -> int:
    """How many dense groups there are."""
    return sum(one.count for one in merged(problem))


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

    def steps(self, together: int) -> int:
        """Steps of one output where so many groups are merged."""
        planes, rows, columns = self.problem.kernel
        return self.problem.depth * together * planes * rows * columns

    def group_elements(self, together: int) -> int:
        """Elements of a dense group of so many."""
        groups = vector_groups(self.problem, self.lanes, self.vectors, together)
        return self.steps(together) * sum(group.size * group.count for group in groups) * self.lanes

    @property
    def elements(self) -> int:
        """Elements of all groups."""
        return sum(one.count * self.group_elements(one.together) for one in merged(self.problem))

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        return np.concatenate([part for one in merged(self.problem) for part in self._parts(array, one)])

    def _parts(self, array: npt.NDArray[np.generic], some: Merged) -> list[npt.NDArray[np.generic]]:
        """The weights of each tile of dense groups that are alike."""
        problem, together = self.problem, some.together
        plain = dense_groups(problem, array, some)
        planes, rows, columns = problem.kernel
        order = [
            (((s.channel + i.channel) * planes + s.plane) * rows + s.row) * columns + s.column + i.column
            for group in chunks(problem, problem.input, problem.depth * together)
            for s in group.starts
            for i in group.inner
        ]
        parts = []
        for group in plain:
            taken = group.reshape(len(group), -1)
            if order != list(range(len(order))):
                taken = taken.take(order, axis=1)
            for tiles in vector_groups(problem, self.lanes, self.vectors, together):
                size = tiles.size * self.lanes
                for tile in range(tiles.count):
                    first = tiles.start * self.lanes + tile * size
                    part = np.zeros((len(order), size), array.dtype)
                    part[:, : max(len(taken) - first, 0)] = taken[first : first + size].T
                    parts.append(part.reshape(-1))
        return parts


def vector_groups(problem: Convolution, lanes: int, vectors: int, together: int | None = None) -> tuple[Group, ...]:
    """How the vectors of output channels of a dense group fall into tiles of at most `vectors`.

    The dense group has `together` groups; None: as most have.

    A tile of a blocked layout never holds the end of one block and the start of another: it is whole blocks, or a part
    of one.
    """
    layout, channels = problem.output, problem.width * (together or merged_groups(problem))
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


def dense_groups(
    problem: Convolution, array: npt.NDArray[np.generic], some: Merged | None = None
) -> npt.NDArray[np.generic]:
    """Weights as (dense group, output channel, channel, *kernel), zeros between the groups that are merged.

    `some` are the dense groups that are meant; None: each group is one.
    """
    groups, depth, width = problem.groups, problem.depth, problem.width
    if problem.transposed:
        given = array.reshape(groups, depth, width, *problem.kernel)[..., ::-1, ::-1, ::-1].swapaxes(1, 2)
    else:
        given = array.reshape(groups, width, depth, *problem.kernel)
    if some is None:
        return given
    together, first = some.together, some.first * merged_groups(problem)
    if together == 1:
        return given[first : first + some.count]
    found = np.zeros((some.count, together * width, together * depth, *problem.kernel), array.dtype)
    for group in range(some.count * together):
        dense, place = divmod(group, together)
        rows, columns = (slice(place * size, (place + 1) * size) for size in (width, depth))
        found[dense, rows, columns] = given[first + group]
    return found


def split_groups(groups: tuple[Group, ...], channels: int, lanes: int) -> tuple[Group, ...]:
    """The groups cut where fewer of a tile's lanes are channels than before."""
    found: list[Group] = []
    seen: tuple[int, ...] = ()
    for group in groups:
        for piece in range(group.count):
            start = group.start + piece * group.size
            valid = valid_lanes(start, group.size, channels, lanes)
            if found and valid == seen:
                found[-1] = replace(found[-1], count=found[-1].count + 1)
            else:
                found.append(Group(group.size, 1, group.first + piece, start))
            seen = valid
    return tuple(found)


def valid_lanes(start: int, vectors: int, channels: int, lanes: int) -> tuple[int, ...]:
    """Lanes that are channels, of each vector of a tile that starts at a vector."""
    return tuple(max(0, min(lanes, channels - (start + number) * lanes)) for number in range(vectors))
