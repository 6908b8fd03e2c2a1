"""All ways to compute a convolution, the likely fastest first, and the kernel of any of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache, partial

from kernels.kernel import Kernel
from kernels.target import Target
from kernels.templates.convolution import choose, depthwise, direct, winograd, winograd_choice
from kernels.templates.convolution.depthwise import Depthwise
from kernels.templates.convolution.direct_candidate import Direct
from kernels.templates.convolution.problem import Convolution, of_any_sides
from kernels.templates.convolution.winograd_choice import Winograd
from kernels.templates.template import Template

Way = Direct | Depthwise | Winograd


@lru_cache(maxsize=1 << 10)
def candidates(problem: Convolution, target: Target, *, exact: bool = False) -> tuple[Way, ...]:
    """Candidates by the guess at their cycles; `exact` leaves out those whose rounding is not a direct sum's."""
    alone = depthwise.candidates(problem, target)
    direct_ones = choose.candidates(problem, target)
    if alone:
        return (*alone, *direct_ones[:1])
    transformed = () if exact else winograd_choice.candidates(problem, target)
    if not transformed:
        return direct_ones
    if estimate(problem, transformed[0], target) < estimate(problem, direct_ones[0], target):
        return (*transformed, *direct_ones)
    return (*direct_ones, *transformed)


def estimate(problem: Convolution, candidate: Way, target: Target) -> float:
    """Nanoseconds of the whole convolution on one core; weights are not counted where they lie far."""
    match candidate:
        case Direct():
            return choose.estimate(problem, candidate, target)
        case Depthwise():
            return depthwise.estimate(problem, candidate, target)
        case Winograd():
            return winograd_choice.estimate(problem, candidate, target)


def build(problem: Convolution, candidate: Way, target: Target, name: str = "convolution") -> Kernel:
    """The kernel: operands "x", "weights" (packed), those of the epilogue, "y"."""
    match candidate:
        case Direct():
            return direct.build(problem, candidate, target, name)
        case Depthwise():
            return depthwise.build(problem, candidate, target, name)
        case Winograd():
            return winograd.build(problem, candidate, target, name)


def share(problem: Convolution, candidate: Way, target: Target) -> Way:
    """The candidate with blocks for several workers."""
    match candidate:
        case Direct():
            return choose.share(problem, candidate, target)
        case Depthwise():
            return depthwise.share(problem, candidate, target)
        case Winograd():
            return winograd_choice.share(problem, candidate, target)


def repeats(problem: Convolution, candidate: Way, cut: Way) -> bool:
    """Whether smaller blocks read an input again, for other channels or in rows that overlap, or transform it again."""
    if isinstance(candidate, Direct) and isinstance(cut, Direct):
        return cut.channel_stretch != candidate.channel_stretch or problem.reach[1] > 1
    return not isinstance(cut, Depthwise)  # rows that overlap are few, and near


def family(candidate: Way) -> tuple[str, Hashable]:
    """The algorithm and the tile: direct ones whose weights pass part by part are a family of their own.

    Direct tiles of as many vectors hardly differ, whether two rows or four are in them; one row alone does.
    """
    match candidate:
        case Direct():
            tile = (candidate.rows > 1, candidate.vectors)
            return ("direct", tile) if candidate.splits == 1 else ("direct in parts", (*tile, candidate.splits))
        case Depthwise():
            return "depthwise", (candidate.rows, candidate.columns)
        case Winograd():
            return winograd_choice.algorithm_of(candidate.sides), (
                candidate.rows,
                candidate.vectors,
                candidate.chunk * candidate.images,
            )


def serves(problem: Convolution, candidate: Way) -> bool:
    """Whether a candidate can be built for images whose sides only the run knows."""
    match candidate:
        case Winograd():
            return candidate.images == 1 or not of_any_sides(problem)
        case Depthwise():
            return True
        case Direct():
            return not of_any_sides(problem)


def form(candidate: Way) -> Hashable:
    """What the weights of a candidate are stored by: points of filterings with as many taps are made of the same."""
    match candidate:
        case Winograd():
            return "taps", candidate.vectors, tuple(taps for _, taps in candidate.sides), candidate.from_taps
        case Depthwise():
            return "depthwise"
        case Direct():
            return "direct", candidate.vectors


CONVOLUTION = Template(
    "convolution", Convolution, candidates, build, estimate, share, repeats, family, serves=serves, form=form
)
EXACT_CONVOLUTION = replace(CONVOLUTION, candidates=partial(candidates, exact=True), variant="exact")
