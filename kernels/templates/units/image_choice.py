"""Which convolutions matrix units compute, in which blocks, and a guess at their time."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.target import Target
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import Merged, merged, vector_groups
from kernels.templates.cost import nanoseconds, with_weights
from kernels.templates.grid import Group, balanced, even, pieces
from kernels.templates.units.product_choice import FINISH, LOADS, ROUNDING, TILE
from kernels.templates.units.rounding import PAIR
from kernels.templates.units.window import Window
from kernels.units.instructions import LANES, ROWS, TILE_BYTES
from kernels.units.write import NoMatrixUnit, has_unit

LEAST_DEPTH = 8  # channels: fewer leave most of a tile empty
SHARED_FLOPS = 20_000_000  # of a block for several workers
SHARED_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class UnitImage:
    """Sizes that decide the speed of a convolution on matrix units."""

    row_stretch: int  # rows of outputs of a block
    panel_stretch: int  # panels of output channels of a block

    def __str__(self) -> str:
        return f"units block {self.row_stretch}x{self.panel_stretch}"


def serves(problem: Convolution, target: Target) -> bool:
    """Whether a convolution may run on matrix units."""
    source, out = problem.input, problem.output
    return (
        target.vector_bytes == 4 * LANES and has_unit("bf16", target) and target.has("avx512bf16")
        and source.size[0] == out.size[0] == problem.kernel[0] == 1 and not problem.pads[0]
        and problem.input_dilations == (1, 1, 1) and not problem.transposed
        and (source.order == "NHWC" or (source.order == "NCHWc" and source.block == LANES))
        and (out.order != "NCHWc" or out.block == LANES)
        and len(merged(problem)) == 1 and dense(problem).together * problem.depth >= LEAST_DEPTH
    )  # fmt: skip


def dense(problem: Convolution) -> Merged:
    """How groups are computed together."""
    return merged(problem)[0]


def candidates(problem: Convolution, target: Target) -> tuple[UnitImage, ...]:
    """The likely best first; raises NoMatrixUnit where the target has none for the problem."""
    if not serves(problem, target):
        raise NoMatrixUnit(f"{target.cpu} has no matrix unit for this convolution of rounded numbers.")
    height, panels = problem.output.size[1], pieces(panels_of(problem))
    rows = height
    while rows > 1 and _scratch(problem, rows) > target.l2 // 2:
        rows = -(-rows // 2)
    found = [UnitImage(even(height, rows), panels), UnitImage(even(height, -(-rows // 2)), panels)]
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(problem, one, target)))


def share(problem: Convolution, candidate: UnitImage, target: Target) -> UnitImage:
    """The candidate with blocks for several workers: fewer channels where there are enough, then fewer rows."""
    height, panels = problem.output.size[1], pieces(panels_of(problem))
    others = problem.output.batch * dense(problem).count * -(-height // candidate.row_stretch)
    wanted = min(SHARED_BLOCKS, problem.flops // SHARED_FLOPS)
    if wanted <= others:
        return candidate
    more = -(-wanted // others)
    if panels >= 2 * more:
        return UnitImage(candidate.row_stretch, even(panels, -(-panels // more)))
    return UnitImage(even(height, max(1, candidate.row_stretch // more)), candidate.panel_stretch)


def repeats(problem: Convolution, candidate: UnitImage, cut: UnitImage) -> bool:
    """Whether smaller blocks round an input again."""
    return cut.panel_stretch != candidate.panel_stretch or problem.reach[1] > problem.strides[1]


def panels_of(problem: Convolution) -> tuple[Group, ...]:
    """Panels of two vectors of output channels of a dense group."""
    return vector_groups(problem, LANES, 2)


def _scratch(problem: Convolution, rows: int) -> int:
    window = Window(problem, rows, problem.depth * dense(problem).together)
    return window.bytes + sums_bytes(window)


def sums_bytes(window: Window) -> int:
    """Bytes of the sums of a panel at all positions."""
    return -(-window.positions(window.rows) // (2 * ROWS)) * 4 * TILE_BYTES


def estimate(problem: Convolution, candidate: UnitImage, target: Target) -> float:
    """Nanoseconds of all images on one core."""
    groups, (_, height, width) = dense(problem), problem.output.size
    depth = problem.depth * groups.together
    vectors = sum(group.size * group.count for group in panels_of(problem))
    panels = pieces(panels_of(problem))
    taken, steps = 0.0, 0
    for tall in balanced(height, candidate.row_stretch):
        window = Window(problem, tall.size, depth)
        steps = window.blocks * len(window.places)
        pairs = -(-window.positions(tall.size) // (2 * ROWS))
        loads = pairs * steps * 2 * (panels + vectors) * TILE_BYTES
        rate = 2 / (1 / target.core.l1 + 1 / target.core.l2)
        cycles = 2 * pairs * vectors * (steps / target.core.tile_products + TILE) + LOADS * loads / rate
        cycles += FINISH * tall.size * width * vectors
        cycles += ROUNDING * window.blocks * len(window.phases) * window.height * window.pitch
        taken += tall.count * cycles
    weights = groups.count * steps * PAIR * vectors * LANES * 2
    again = problem.output.batch * pieces(balanced(height, candidate.row_stretch)) - 1
    taken = with_weights(taken * problem.output.batch * groups.count, weights, target, again=again, ahead=True)
    return nanoseconds(taken, target)
