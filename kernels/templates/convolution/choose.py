"""Which direct candidates are worth trying, and a guess at their cycles that picks a good one without measuring."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.target import Target
from kernels.templates.convolution.direct import build
from kernels.templates.convolution.direct_candidate import Direct, can_be_flat, can_split
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.stage import window
from kernels.templates.convolution.steps import dense_count, merged_groups, vector_groups
from kernels.templates.convolution.taps import around, skips
from kernels.templates.convolution.taps import share as needed_share
from kernels.templates.cost import (
    NEAR_HELD,
    NEAR_PASSED,
    PAGE,
    ROW,
    beside_again,
    lost,
    nanoseconds,
    step_cycles,
    with_weights,
)
from kernels.templates.grid import balanced, even, pieces
from kernels.templates.narrow import CYCLES, NARROW
from kernels.templates.template import Template

WIDENED = 4  # times the flops of a block that widens weights: a smaller one widens them as often
TWO_WHOLE = 1.5  # products a cycle: cores that compute fewer of 64 bytes compute twice as many of 32
LINE = 0.25  # share of reading a line of the input that a tile sees from the second cache
LINE_BYTES = 64
FAR = 10.0  # cycles of the first line of a row of pixels, to which none before it leads: what a second cache takes
SHAPE = 0.004  # share that a further shape of tile must gain: each is a function to compile
CALL = 24.0  # cycles of entering and leaving a tile, its addresses included
BLOCK_FLOPS = 20_000_000  # about 70 to 300 microseconds
STAGED_FLOPS = 40_000_000  # a block that copies its window is larger, so that little is copied twice
SHARED_FLOPS = 2_000_000  # of a block for several workers: about 8 to 30 microseconds
SHARED_BLOCKS = 32  # more are not made than this takes, nor larger ones than those for one worker
STAGED_SHARED_FLOPS = 5_000_000  # of one that copies its window
STAGED_SHARED_BLOCKS = 16
BLOCKS_EACH = 4  # of these for each worker, where it is known how many there are: each block copies its window
TRIED = 6


@dataclass(frozen=True, slots=True)
class Shape:
    """A tile: rows and columns of pixels, vectors of channels."""

    rows: int
    columns: int
    vectors: int


def candidates(problem: Convolution, target: Target) -> tuple[Direct, ...]:
    """Direct candidates, the likely best first."""
    flat = can_be_flat(problem)
    shapes = sorted(_shapes(problem, target, flat), key=lambda shape: cycles(problem, target, shape, flat))[:TRIED]
    found = []
    for shape in shapes:
        found += _with_blocks(problem, target, shape, flat)
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(problem, one, target)))


def most_pixels(target: Target, vectors: int) -> int:
    """How many pixels a tile of so many vectors may have so that LLVM keeps no sum on the stack.

    More than 10 with 16 registers and one vector were seen there.
    """
    architecture = target.architecture
    most = (target.vector_registers - architecture.free_of_convolution - 1 - vectors) // vectors
    return min(most, architecture.sums_of_convolution // vectors if target.vector_registers >= 32 else 10)


def _shapes(problem: Convolution, target: Target, flat: bool) -> list[Shape]:
    """Shapes whose sums, weights and a broadcast fit the registers; sizes that leave no small rest behind."""
    height, width = problem.output.size[1:]
    if flat:
        height, width = 1, height * width
    total = sum(group.size * group.count for group in vector_groups(problem, target.lanes(), 1))
    each = problem.output.block // target.lanes() if problem.output.order == "NCHWc" else 1
    found = []
    for vectors in range(1, min(total, 6) + 1):
        if vectors % each and each % vectors:
            continue
        pixels = most_pixels(target, vectors)
        for rows in range(1, min(height, 4) + 1):
            if pixels < rows:
                break
            columns = -(-width // -(-width // (pixels // rows)))  # as many tiles, of even width
            found.append(Shape(rows, columns, vectors))
    return list(dict.fromkeys(found))


def cycles(problem: Convolution, target: Target, shape: Shape, flat: bool, parts: int = 1) -> float:
    """A guess at the cycles of one plane of one image, weights passing in so many parts.

    A step takes as long as its products, its loads or the latency of its chains; narrow rests of rows, columns and
    channels are tiles of their own, and as slow as their shape is.
    """
    height, width = problem.output.size[1:]
    columns = balanced(height * width if flat else width, shape.columns)
    rows = balanced(1 if flat else height, shape.rows)
    taps = problem.kernel[0] * problem.kernel[1] * problem.kernel[2]
    steps = problem.depth * merged_groups(problem) * taps
    # Planes a multiple of 4 KB apart share one set of the first cache: wide tiles lose their input to the next planes.
    crowded = taps == 1 and problem.input.block_stride * 4 % PAGE == 0 and problem.input.block * 8 < problem.depth
    groups = vector_groups(problem, target.lanes(), shape.vectors)
    total, line, half = 0.0, LINE * target.vector_bytes / target.core.l2, _half_saved(problem, target)
    skipping = not flat and skips(problem, rows, columns)
    for tall in rows:
        for wide in columns:
            taken = needed_share(problem, 1, [tall]) * needed_share(problem, 2, [wide]) if skipping else 1.0
            # Inputs that a tile sees, in lines of a vector: tiles of several rows share some.
            lines = ((tall.size - 1) * problem.strides[1] + problem.reach[1]) * problem.depth / target.lanes()
            lines *= (wide.size - 1) * problem.strides[2] + problem.reach[2]
            far, seen = _far(problem, tall.size, wide.size)
            for group in groups:
                pixels = tall.size * wide.size
                computed = group.size - (half / group.count if group is groups[-1] else 0.0)
                step = step_cycles(pixels * computed, pixels, group.size, target)
                step = _with_streamed(step, group.size * target.vector_bytes, steps // parts, target)
                step += 0.4 * max(0, pixels - 9) if crowded else 0.0
                around = CALL + (2 * pixels + ROW * (tall.size - 1)) * group.size
                near = seen + group.size * target.vector_bytes * steps
                inputs = line * lines + FAR * far * lost(near, target.l1, NEAR_HELD, NEAR_PASSED)
                total += tall.count * wide.count * group.count * (around + taken * (steps * step + inputs))
    return total * (1 + SHAPE * (len(rows) * len(columns) * len(groups) - 1))


def _half_saved(problem: Convolution, target: Target) -> float:
    """Vectors that the last one saves where its channels fill half of it, and two halves take as long as a whole."""
    channels, lanes = problem.width * merged_groups(problem), target.lanes()
    is_half = 0 < channels % lanes <= lanes // 2 and target.vector_bytes == 64
    return 0.5 if is_half and target.core.products < TWO_WHOLE else 0.0


def _far(problem: Convolution, rows: int, columns: int) -> tuple[int, int]:
    """Rows of pixels that a tile sees where channels lie apart, none behind another, and the bytes of their lines."""
    if problem.input.block > 1:
        return 0, 0
    far = ((rows - 1) * problem.strides[1] + problem.reach[1]) * problem.depth
    width = 4 * ((columns - 1) * problem.strides[2] + problem.reach[2] - 1)
    return far, far * (LINE_BYTES + width)


def _with_streamed(step: float, size: int, steps: int, target: Target) -> float:
    """Cycles of a step that reads `size` bytes of weights, of so many steps, which the next tile reads again."""
    share = lost(size * steps, target.l1, NEAR_HELD, NEAR_PASSED)
    return step + share * (beside_again(step, size, size * steps, target) - step) if share else step


def share(problem: Convolution, candidate: Direct, target: Target) -> Direct:
    """The candidate with smaller blocks."""
    shape = Shape(candidate.rows, candidate.columns, candidate.vectors)
    least, most = (SHARED_FLOPS, SHARED_BLOCKS) if problem.has_halo else (STAGED_SHARED_FLOPS, STAGED_SHARED_BLOCKS)
    if target.workers > 1 and not problem.has_halo:
        most = min(most, BLOCKS_EACH * target.workers)
    goal = max(least, problem.flops // most)
    for cut in _with_blocks(problem, target, shape, candidate.flat, goal):
        if cut.splits == candidate.splits and blocks_of(problem, cut, target) > blocks_of(problem, candidate, target):
            larger = candidate.row_stretch if cut.row_stretch <= candidate.row_stretch else 0
            return replace(cut, channels_outside=candidate.channels_outside, larger=larger)
    return candidate


def blocks_of(problem: Convolution, candidate: Direct, target: Target) -> int:
    """How many blocks a candidate has."""
    channels = pieces(vector_groups(problem, target.lanes(), candidate.vectors))
    planes = problem.output.batch * problem.output.size[0] * dense_count(problem)
    return planes * _row_blocks(problem, candidate) * -(-channels // candidate.channel_stretch)


def _with_blocks(
    problem: Convolution, target: Target, shape: Shape, flat: bool, most: int | None = None
) -> list[Direct]:
    """The stretches of a block of `most` flops and the order of loops, for one shape of tile."""
    height, width = problem.output.size[1:]
    row_pieces = pieces(balanced(height * width, shape.columns) if flat else balanced(height, shape.rows))
    groups = vector_groups(problem, target.lanes(), shape.vectors)
    channel_pieces = pieces(groups)
    taps = problem.kernel[0] * problem.kernel[1] * problem.kernel[2]
    depth = problem.depth * merged_groups(problem)
    size = problem.weights_dtype.bytes
    weights = size * depth * taps * sum(group.size * group.count for group in groups) * target.lanes()  # bytes
    pixels = shape.columns * (1 if flat else shape.rows * -(-width // shape.columns))
    piece_flops = 2 * depth * taps * pixels * shape.vectors * target.lanes()
    staged = not problem.has_halo
    if weights > target.l2:
        found = _cold(problem, shape, flat, row_pieces, channel_pieces, piece_flops, 2 * (most or BLOCK_FLOPS))
        if staged:
            most = 2 * (most or problem.flops)
            found += _cold_staged(problem, target, shape, row_pieces, channel_pieces, piece_flops, most)
        return found
    goal = most or (STAGED_FLOPS if staged else BLOCK_FLOPS) * (WIDENED if problem.weights_dtype in NARROW else 1)
    pieces_of_block = max(1, goal // piece_flops)
    if staged:
        channels = channel_pieces
    else:
        # A block reads rows x (bytes of a row piece) and channels x (bytes of a channel tile): least when even.
        row_bytes = 4 * depth * pixels * problem.strides[1] * problem.strides[2]
        channels = max(1, min(channel_pieces, round((pieces_of_block * row_bytes / (weights / channel_pieces)) ** 0.5)))
    rows = max(1, min(row_pieces, pieces_of_block // channels))
    while staged and rows > 1 and _copied(problem, shape, flat, rows, depth) > target.l2 // 2:
        rows //= 2
    rows, channels = even(row_pieces, rows), even(channel_pieces, channels)
    inside = Direct(shape.rows, shape.columns, shape.vectors, rows, channels, 1, False, flat)
    outside = Direct(shape.rows, shape.columns, shape.vectors, rows, channels, 1, True, flat)
    tile = weights // channel_pieces
    return [inside, outside] if target.l1 // 2 < tile and problem.reach == (1, 1, 1) else [outside, inside]


def _copied(problem: Convolution, shape: Shape, flat: bool, rows: int, depth: int) -> int:
    """Bytes that a block copies into scratch."""
    height, width = problem.output.size[1:]
    zeros = None if flat else around(problem, balanced(height, shape.rows), balanced(width, shape.columns))
    return window(problem, rows * (1 if flat else shape.rows), depth, zeros).elements * 4


def _cold(
    problem: Convolution, shape: Shape, flat: bool, row_pieces: int, channel_pieces: int, piece_flops: int, most: int
) -> list[Direct]:
    """Blocks that read each weight once: all rows by few channel tiles, with and without parts that are prefetched."""
    rows = row_pieces
    channels = max(1, min(channel_pieces, most // max(1, piece_flops * rows)))
    channels = even(channel_pieces, channels)
    depth = problem.depth * merged_groups(problem)
    found = []
    # A part of a 1x1 kernel is small, and costs a round trip of all sums.
    for size in (128, 64, 256, 32) if problem.reach == (1, 1, 1) else (64, 128, 32, 16):
        if depth % size == 0 and depth // size >= 2 and can_split(problem, depth // size):
            found.append(
                Direct(shape.rows, shape.columns, shape.vectors, rows, channels, depth // size, True, flat)
            )  # fmt: skip
    found.append(Direct(shape.rows, shape.columns, shape.vectors, rows, channels, 1, True, flat))
    return found


def _cold_staged(
    problem: Convolution,
    target: Target,
    shape: Shape,
    row_pieces: int,
    channel_pieces: int,
    piece_flops: int,
    most: int,
) -> list[Direct]:
    """Blocks of some rows whose copy stays in the second cache for many channel tiles, which read weights again.

    A part of the depth has weights that the first cache keeps for all pixels of a block, if there is one: seen were 4
    to 9 % beside larger parts.
    """
    depth = problem.depth * merged_groups(problem)
    rows = row_pieces
    while rows > 1 and _copied(problem, shape, False, rows, depth) > target.l2 // 2:
        rows = -(-rows // 2)
    rows = even(row_pieces, max(1, min(rows, most // (piece_flops * channel_pieces))))
    channels = even(channel_pieces, max(1, min(channel_pieces, most // (piece_flops * rows))))
    whole = Direct(shape.rows, shape.columns, shape.vectors, rows, channels, 1, True)
    parts = [size for size in (64, 32, 16) if depth % size == 0 and can_split(problem, depth // size)]
    bytes_of = problem.kernel[0] * problem.kernel[1] * problem.kernel[2] * shape.vectors * target.vector_bytes
    near = [size for size in parts if size * bytes_of <= NEAR_HELD * target.l1] or parts[-1:]
    return [whole, *(replace(whole, splits=depth // size) for size in near[:1])]


def _row_blocks(problem: Convolution, candidate: Direct) -> int:
    """How many blocks of rows a plane has."""
    height, width = problem.output.size[1:]
    rows = balanced(height * width, candidate.columns) if candidate.flat else balanced(height, candidate.rows)
    return -(-pieces(rows) // candidate.row_stretch)


def _copying(problem: Convolution, candidate: Direct, target: Target) -> float:
    """Cycles to copy the windows of all blocks of one plane: from where the input lies to where they have room."""
    blocks, size = _copies(problem, candidate, target)
    return blocks * size * (1 / target.rate(4 * problem.input.passing) + 1 / target.rate(2 * size))


def _copies(problem: Convolution, candidate: Direct, target: Target) -> tuple[int, int]:
    """Blocks of one plane of a dense group, and the bytes that each copies into scratch."""
    channels = pieces(vector_groups(problem, target.lanes(), candidate.vectors))
    shape = Shape(candidate.rows, candidate.columns, candidate.vectors)
    size = _copied(problem, shape, candidate.flat, candidate.row_stretch, problem.depth * merged_groups(problem))
    return _row_blocks(problem, candidate) * -(-channels // candidate.channel_stretch), size


def copied_words(problem: Convolution, candidate: Direct, target: Target) -> int:
    """Elements that all blocks of an image copy into scratch."""
    blocks, size = _copies(problem, candidate, target)
    return problem.output.size[0] * dense_count(problem) * blocks * size // 4


def estimate(problem: Convolution, candidate: Direct, target: Target) -> float:
    """Nanoseconds of all images on one core."""
    shape = Shape(candidate.rows, candidate.columns, candidate.vectors)
    groups, lanes = dense_count(problem), target.lanes()
    taken = cycles(problem, target, shape, candidate.flat, candidate.splits)
    vectors = sum(group.size * group.count for group in vector_groups(problem, lanes, candidate.vectors))
    if candidate.splits > 1:  # sums go to scratch and back for every part
        taken += 2.0 * (candidate.splits - 1) * vectors * problem.output.size[1] * problem.output.size[2]
    if not problem.has_halo:
        taken += _copying(problem, candidate, target)
    taken *= problem.output.batch * problem.output.size[0] * groups
    taps = problem.kernel[0] * problem.kernel[1] * problem.kernel[2]
    steps = groups * problem.depth * merged_groups(problem) * taps * vectors
    if problem.weights_dtype in NARROW:  # once for each stretch of rows; by every tile where channels pass inside
        height, width = problem.output.size[1:]
        rows = balanced(height * width, candidate.columns) if candidate.flat else balanced(height, candidate.rows)
        tiles = pieces(rows)
        if candidate.channels_outside or candidate.splits > 1:
            tiles = -(-tiles // candidate.row_stretch)
        elif not candidate.flat:
            tiles *= pieces(balanced(width, candidate.columns))
        taken += CYCLES * steps * tiles * problem.output.batch * problem.output.size[0]
    weights = steps * target.vector_bytes * problem.weights_dtype.bytes // 4
    ahead = candidate.splits > 1 or (candidate.channels_outside and weights > target.l1)
    again = _row_blocks(problem, candidate) - 1 if weights > target.l2 else 0
    return nanoseconds(with_weights(taken, weights, target, again=again, ahead=ahead), target)


DIRECT = Template("direct", Convolution, candidates, build, estimate)
