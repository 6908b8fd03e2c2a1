"""Which Winograd candidates are worth trying, their blocks, and a guess at their cycles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from kernels.target import Target
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import dense_count, merged, merged_groups, vector_groups
from kernels.templates.convolution.taps import share as share_of_taps
from kernels.templates.convolution.toom_cook import Factors, Filtering, rounded
from kernels.templates.convolution.transform import operations
from kernels.templates.convolution.winograd_kinds import lines_of
from kernels.templates.convolution.winograd_parts import (
    Sides,
    channels_of_plane,
    filterings,
    points_of,
    sides_of,
    sums_of,
)
from kernels.templates.cost import beside, beside_again, nanoseconds, reread_cycles, step_cycles
from kernels.templates.grid import balanced, cut, even, pieces
from kernels.templates.narrow import NARROW
from kernels.templates.template import WORKERS
from kernels.templates.tile import most_accumulators

MOST_PARTS = 8  # of the output channels
PART = 2.0  # passes over the windows in scratch that a further part of the output channels costs
TRANSFORM = 1.08  # cycles of an operation, a load or a store of a transform
FILTER = 1.35  # of those that transform a vector of narrow weights: the second cache takes no more
STRIDED = 1.08  # of the whole with a stride: several times the result's pixels pass
ROOM = 16 << 20  # bytes of points that a kernel with a stride may take
CHUNKS = 24  # sizes of a block's lines that are tried, where there are more
FEW = 1 / 32  # of the bytes of a program's weights
SPILLED = 3.0  # passes over what scratch the second cache does not hold
HELD = 1 / 4  # of the second cache, which scratch has for itself beside weights, inputs and outputs that pass
JOINED = (2, 4, 8)  # planes of outputs that a block may take


@dataclass(frozen=True, slots=True)
class Winograd:
    """Sizes that decide the speed of a Winograd convolution."""

    sides: Sides
    chunk: int  # lines of tiles of a block: rows, but single tiles of images of one row
    rows: int  # tiles of a register tile
    vectors: int  # of output channels of a register tile
    stretch: int | None = None  # register tiles of output channels of a block; None: all
    room: int | None = None  # lines of tiles that scratch is laid out for; None: those of a block
    from_taps: bool = False  # whether narrow weights lie as they are, and blocks transform them
    images: int = 1  # planes of outputs of a block, if more than one all of each

    def __str__(self) -> str:
        channels = "" if self.stretch is None else f" by {self.stretch} tiles of channels"
        block = f"{self.chunk} rows of tiles" if self.images == 1 else f"{self.images} images"
        return f"{algorithm_of(self.sides)} {self.rows}x{self.vectors} block {block}{channels}"


def algorithm_of(sides: Sides) -> str:
    """The algorithm, as lists of candidates show it."""
    down, across = (f"winograd F({outputs},{taps})" for outputs, taps in sides)
    if sides[0] == sides[1]:
        return down
    if (1, 1) not in sides:
        return f"{down} by {across.removeprefix('winograd ')}"
    return f"{across} across" if sides[0] == (1, 1) else f"{down} down"


def applies(problem: Convolution, target: Target) -> bool:
    """Whether a plane's kernel has filterings, and channels lie side by side: in whole vectors, or all of one group."""
    lanes = target.lanes()
    sides = ((problem.input, problem.depth), (problem.output, problem.width))
    count, together = dense_count(problem), merged_groups(problem)
    whole = all(_together(layout, channels * together, count, lanes) for layout, channels in sides)
    plain = all(1 in both for both in zip(problem.strides[1:], problem.dilations[1:], strict=True))
    planes = balanced(problem.output.size[0], 1)
    stored = problem.weights_dtype not in NARROW if problem.kernel[0] > 1 else share_of_taps(problem, 0, planes) == 1
    spread = problem.input_dilations != (1, 1, 1)
    plain = plain and bool(sides_of(problem.kernel[1:], problem.strides[1:]))
    return whole and plain and stored and not spread and _alike(problem) and problem.output.order != "NCHW"


def _together(layout: Layout, channels: int, groups: int, lanes: int) -> bool:
    """Whether channels of a dense group lie side by side in whole vectors, or all channels do."""
    if layout.order == "NHWC":
        return groups == 1 or channels % lanes == 0
    return layout.block % lanes == 0


def _alike(problem: Convolution) -> bool:
    """Whether all dense groups take as many blocks of channels, even where the last one has fewer channels."""
    most, *rest = merged(problem)
    sides = ((problem.input, problem.depth), (problem.output, problem.width))
    return all(
        -(-channels * one.together // layout.block) == -(-channels * most.together // layout.block)
        for one in rest
        for layout, channels in sides
    )


def candidates(problem: Convolution, target: Target) -> tuple[Winograd, ...]:
    """Candidates, the likely best first; none where it does not apply."""
    if not applies(problem, target):
        return ()
    found = [one for sides in sides_of(problem.kernel[1:], problem.strides[1:]) for one in _of(sides, problem, target)]
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(problem, one, target)))


def _of(sides: Sides, problem: Convolution, target: Target) -> list[Winograd]:
    """Candidates whose tiles have these filterings."""
    lanes, most = target.lanes(), most_accumulators(target, asking=True)
    tall, wide = lines_of(problem, sides)
    total = -(-problem.width * merged_groups(problem) // lanes)
    each = problem.output.block // lanes if problem.output.order == "NCHWc" else 1
    found, from_taps = [], _from_taps(problem, sides, target)
    if (from_taps and sums_of(problem, sides) > 1) or _takes_room(problem, sides):
        return []
    for chunk in _chunks(tall):
        for vectors in range(1, min(total, 4) + 1):
            if vectors % each and each % vectors:
                continue
            rows = max(1, min(chunk * wide, most // vectors, 12))
            if vectors + 2 + rows * vectors <= target.vector_registers:
                rows = max(group.size for group in balanced(chunk * wide, rows))
                found.append(Winograd(sides, chunk, rows, vectors, from_taps=from_taps))
    return found + [replace(one, rows=_rows(one, images * tall * wide, most), images=images)
                    for images in _joined(problem) for one in found if one.chunk == tall]  # fmt: skip


def _chunks(lines: int) -> list[int]:
    """How many of them a block may have."""
    tried: Iterable[int] = range(1, lines + 1)
    if lines > CHUNKS:
        tried = {round(lines ** (number / CHUNKS)) for number in range(CHUNKS + 1)}
    return sorted({max(group.size for group in balanced(lines, chunk)) for chunk in tried})


def _joined(problem: Convolution) -> list[int]:
    """How many whole planes of outputs a block may take: they share weights, but not where they see other planes."""
    whole = images_of(problem)
    if share_of_taps(problem, 0, balanced(problem.output.size[0], 1)) < 1:
        return []
    found = {max(group.size for group in balanced(whole, images)) for images in JOINED}
    return sorted(found - {1})


def _rows(candidate: Winograd, tiles: int, most: int) -> int:
    """The rows of register tiles where a block has so many of Winograd's."""
    return max(group.size for group in balanced(tiles, max(1, min(tiles, most // candidate.vectors, 12))))


def _takes_room(problem: Convolution, sides: Sides) -> bool:
    """Whether the points of a kernel with a stride take too many bytes: up to 16 times those of its taps."""
    pairs = sums_of(problem, sides) * problem.input.channels * problem.width
    return problem.strides[1:] != (1, 1) and 4 * points_of(filterings(sides)) * pairs > ROOM


def _from_taps(problem: Convolution, sides: Sides, target: Target) -> bool:
    """Whether weights stay narrow: all but those that take a small share of the program's when they are transformed."""
    size = 4 * points_of(filterings(sides)) * problem.output.channels * problem.depth
    return problem.weights_dtype in NARROW and size > FEW * (target.constants or 0)


def blocks_of(problem: Convolution, candidate: Winograd, target: Target) -> int:
    """How many blocks a candidate has."""
    chunks = (lines_of(problem, candidate.sides)[0] + candidate.chunk - 1) // candidate.chunk
    channels = pieces(vector_groups(problem, target.lanes(), candidate.vectors))
    parts = 1 if candidate.stretch is None else -(-channels // candidate.stretch)
    return groups_of_images(problem, candidate) * dense_count(problem) * chunks * parts


def images_of(problem: Convolution) -> int:
    """Planes of all images of outputs."""
    return problem.output.batch * problem.output.size[0]


def groups_of_images(problem: Convolution, candidate: Winograd) -> int:
    """How many blocks divide the planes of outputs."""
    whole = images_of(problem)
    return whole if candidate.images == 1 else pieces(cut(whole, candidate.images))


def share(problem: Convolution, candidate: Winograd, target: Target) -> Winograd:
    """The candidate with fewer rows of tiles or output channels in a block, as several workers share them best."""
    tall, _ = lines_of(problem, candidate.sides)
    channels = pieces(vector_groups(problem, target.lanes(), candidate.vectors))
    chunks = [chunk for chunk in _chunks(tall) if chunk <= candidate.chunk]
    stretches = {even(channels, -(-channels // parts)) for parts in range(1, min(channels, MOST_PARTS) + 1)}
    ways = [replace(candidate, chunk=chunk, stretch=stretch, room=candidate.chunk)
            for chunk in chunks for stretch in sorted(stretches)]  # fmt: skip
    if candidate.images > 1:
        ways = [replace(candidate, images=images, stretch=stretch, room=candidate.images * tall)
                for images in range(candidate.images, 0, -1) for stretch in sorted(stretches)]  # fmt: skip

    workers = (target.workers,) if target.workers > 1 else WORKERS

    def time(way: Winograd) -> float:
        """The mean over numbers of workers of what blocks of one size take, as one worker's time would be.

        Weights that no cache keeps come from memory for every chunk of rows, and workers wait for them together.
        """
        blocks, alone = blocks_of(problem, way, target), estimate(problem, way, target)
        pairs = sums_of(problem, way.sides) * problem.input.channels * problem.width * merged_groups(problem)
        weights = _bytes_of_pair(problem, way) * pairs
        read = weights * pieces(balanced(tall, way.chunk)) * groups_of_images(problem, way)
        least = nanoseconds(read / target.rate(weights), target) if weights > target.l2 else 0.0
        return sum(max(alone * -(-blocks // one) * one / blocks, least) for one in workers)

    best = min(ways, key=time)
    return best if blocks_of(problem, best, target) > blocks_of(problem, candidate, target) else candidate


def _bytes_of_pair(problem: Convolution, candidate: Winograd) -> int:
    """Bytes of weights for each pair of channels: those of the points, or narrow taps that blocks transform."""
    if candidate.from_taps:
        return problem.kernel[1] * problem.kernel[2] * problem.weights_dtype.bytes
    return 4 * points_of(filterings(candidate.sides))


def _transform(down: Factors, across: Factors) -> int:
    """Operations, loads and stores of a tile that matrices transform, down and across."""
    tall, wide = len(down[0]), len(across[0])
    return wide * operations(down) + len(down) * operations(across) + tall * wide + len(down) * len(across)


@cache
def _transforms(made: tuple[Filtering, Filtering]) -> tuple[int, int, int]:
    """Those to the points of a window, back from them, and to the points of a kernel."""
    down, across = ([rounded(matrix) for matrix in (one.window, one.output, one.taps)] for one in made)
    to, back, taps = map(_transform, down, across)
    return to, back, taps


def estimate(problem: Convolution, candidate: Winograd, target: Target) -> float:
    """Nanoseconds of all images on one core.

    Transformed weights come once per block: the first time from where the program's lie, then from the nearest cache
    that holds them. Panels that outgrow the first cache are read again from the second one, scratch that outgrows its
    share of that from the last.
    """
    lanes = target.lanes()
    tall, wide = lines_of(problem, candidate.sides)
    made = filterings(candidate.sides)
    sums, channels = sums_of(problem, candidate.sides), channels_of_plane(problem, candidate.sides)
    depth, width = sums * channels, problem.width * merged_groups(problem)
    inside = share_of_taps(problem, 0, balanced(problem.output.size[0], 1))  # of the planes, which lie in the images
    seen = depth * inside
    points = points_of(made)
    weights = _bytes_of_pair(problem, candidate) * depth * width
    wide_ones = 4 * points * depth * width if candidate.from_taps else 0  # bytes that a block transforms
    groups = vector_groups(problem, lanes, candidate.vectors)
    parts = 1 if candidate.stretch is None else -(-pieces(groups) // candidate.stretch)
    held = depth * groups[0].size * target.vector_bytes <= target.l1 // 2  # a panel, while all tiles of a block pass
    to, back, filters = _transforms(made)
    total, more = 0.0, 0.0
    joined = candidate.images > 1
    for chunk in balanced(images_of(problem), candidate.images) if joined else balanced(tall, candidate.chunk):
        tiles = chunk.size * (tall * wide if joined else wide)
        scratch = 4 * points * tiles * (depth + width)
        products = 0.0
        for rows in balanced(tiles, candidate.rows):
            for group in groups:
                step = step_cycles(rows.size * group.size, rows.size, group.size, target)
                products += points * rows.count * group.count * (30.0 + seen * step)
        if not held:
            products += points * seen * reread_cycles(balanced(tiles, candidate.rows), groups, target)
        if wide_ones:
            products += FILTER * filters * depth * sum(group.size * group.count for group in groups)
        into = TRANSFORM * tiles * to * sums * inside * -(-channels // lanes) * parts
        transforms = (into + TRANSFORM * tiles * back * -(-width // lanes)) / target.core.products
        again = beside_again(products, weights, weights + scratch, target, wide_ones / target.core.l2)
        panel = 4 * points * depth * groups[0].size * lanes if wide_ones else 0
        spilled = SPILLED * max(0.0, scratch + panel - HELD * target.l2) / target.core.l3
        windows = 4 * points * tiles * depth  # each further part of the channels passes them through scratch again
        spilled += (parts - 1) * PART * windows / (target.core.l2 if windows <= target.l2 // 2 else target.core.memory)
        total += chunk.count * (again + transforms + spilled)
        # The first time weights come from where the program's lie.
        more = more or beside(products, weights / target.constant_rate) - again
    total = (total if joined else total * images_of(problem)) + more
    total *= 1.0 if problem.strides[1:] == (1, 1) else STRIDED
    return nanoseconds(total * dense_count(problem), target)
