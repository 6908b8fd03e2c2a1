"""Which convolutions of rounded numbers dot products compute, in which blocks, and a guess at their time."""

from __future__ import annotations

from dataclasses import replace

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.target import Target
from kernels.templates import cost
from kernels.templates.convolution import choose, ways
from kernels.templates.convolution.direct_candidate import Direct
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import merged_groups
from kernels.templates.dots.product_choice import ROUNDING
from kernels.units.instructions import LANES

LEAST_DEPTH = 8  # channels: fewer are hardly worth a copy


class NoDotConvolution(KernelsError):
    """The target has no dot products of bfloat16, or the problem none of their form."""


def serves(problem: Convolution, target: Target) -> bool:
    """Whether a convolution may run on dot products of rounded numbers."""
    source, together = problem.input, merged_groups(problem)
    return (
        target.vector_bytes == 4 * LANES and target.has("avx512bf16")
        and (source.order == "NHWC" or (source.order == "NCHWc" and source.block == LANES))
        and (problem.groups == 1 or problem.depth % 2 == 0) and problem.depth * together >= LEAST_DEPTH
        and merged_groups(of_pairs(problem)) == together
    )  # fmt: skip


def of_pairs(problem: Convolution) -> Convolution:
    """The convolution of what blocks round: of words, in blocks of 16 where groups end with those, of 8 otherwise."""
    given, words = problem.input, -(-problem.depth // 2) * problem.groups
    blocked = given.order == "NCHWc" or problem.groups == 1
    block = LANES if problem.groups == 1 or problem.depth * merged_groups(problem) % (2 * LANES) == 0 else LANES // 2
    image = Layout(given.batch, words, given.size, "NCHWc" if blocked else "NHWC", block if blocked else 0)
    return replace(problem, input=image, weights_dtype=DType.F32, pairs=True)


def candidates(problem: Convolution, target: Target) -> tuple[Direct, ...]:
    """The likely best first; raises NoDotConvolution where the target has none for the problem."""
    if not serves(problem, target):
        raise NoDotConvolution(f"{target.cpu} has no dot products for this convolution of rounded numbers.")
    found = choose.candidates(of_pairs(problem), _of_dots(target))
    return tuple(sorted(found, key=lambda one: estimate(problem, one, target)))


def share(problem: Convolution, candidate: Direct, target: Target) -> Direct:
    """The candidate with blocks for several workers."""
    return choose.share(of_pairs(problem), candidate, _of_dots(target))


def repeats(problem: Convolution, candidate: Direct, cut: Direct) -> bool:
    """Whether smaller blocks round an input again."""
    return ways.repeats(problem, candidate, cut)


def estimate(problem: Convolution, candidate: Direct, target: Target) -> float:
    """Nanoseconds of all images on one core."""
    pairs = of_pairs(problem)
    words = choose.copied_words(pairs, candidate, target)
    rounding = cost.nanoseconds(ROUNDING * problem.output.batch * words / LANES, target)
    return choose.estimate(pairs, candidate, _of_dots(target)) + rounding


def _of_dots(target: Target) -> Target:
    return replace(target, core=replace(target.core, products=target.core.dot_products))
