"""Which products of rounded numbers on dot products are worth trying, and a guess at their time."""

from __future__ import annotations

from dataclasses import replace

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.size import bound, is_free, nothing
from kernels.target import Target
from kernels.templates import cost, gemm_choice
from kernels.templates.gemm_choice import GemmCandidate
from kernels.templates.gemm_problem import Gemm
from kernels.templates.grid import balanced, cut, pieces
from kernels.templates.matrix import Matrix
from kernels.units.instructions import LANES

ROUNDING = 3.0  # cycles to load two vectors, round them into one and store it
SHARED_BLOCKS = 8  # blocks for several workers
LINE = 32  # elements of bfloat16


class NoDotProduct(KernelsError):
    """The target has no dot products of bfloat16, or the problem none of their form."""


def are_faster(target: Target) -> bool:
    """Whether the processor multiplies more pairs of bfloat16 in a cycle than numbers of float32."""
    return target.has("avx512bf16") and 2 * target.core.dot_products > target.core.products


def serves(gemm: Gemm, target: Target) -> bool:
    """Whether a product may run on dot products: of rounded numbers, a constant B, rows that lie side by side.

    Rows and matrices may be as many as a run says.
    """
    if any(map(is_free, (gemm.columns, gemm.depth, gemm.place_a.row))):
        return False
    return (
        gemm.arithmetic == "rounded" and gemm.constant_b and gemm.place_a.column == 1 and gemm.b_dtype is DType.F32
        and not nothing(gemm.rows, gemm.columns, gemm.depth, gemm.matrices)
        and target.vector_bytes == 4 * LANES and target.has("avx512bf16")
    )  # fmt: skip


def row_elements(gemm: Gemm) -> int:
    """From one rounded row to the next: an odd number of lines, so that rows do not share the places of a cache."""
    return (-(-gemm.depth // LINE) | 1) * LINE


def of_rounded(gemm: Gemm) -> Gemm:
    """The product of what a block has rounded: its rows lie side by side in scratch."""
    rows = Matrix(row_elements(gemm), 1, (0,) * len(gemm.batch))
    return replace(gemm, arithmetic="bf16", a=rows)


def candidates(gemm: Gemm, target: Target) -> tuple[GemmCandidate, ...]:
    """The likely best first; raises NoDotProduct where the target has none for the problem.

    A block has all panels, for which it rounds its rows once.
    """
    if not serves(gemm, target):
        raise NoDotProduct(f"{target.cpu} has no dot products for this product of rounded numbers.")
    found = [replace(one, panel_stretch=_panels(gemm, one)) for one in gemm_choice.candidates(of_rounded(gemm), target)]
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(gemm, one, target)))


def share(gemm: Gemm, candidate: GemmCandidate, target: Target) -> GemmCandidate:
    """The candidate with blocks for several workers."""
    rows = -(-bound(pieces(cut(gemm.rows, candidate.rows))) // candidate.row_stretch)
    wanted = -(-SHARED_BLOCKS // (bound(gemm.matrices) * rows))
    return replace(candidate, panel_stretch=max(1, _panels(gemm, candidate) // wanted))


def estimate(gemm: Gemm, candidate: GemmCandidate, target: Target) -> float:
    """Nanoseconds of all blocks on one core."""
    core = replace(target.core, products=target.core.dot_products)
    nanoseconds = gemm_choice.estimate(of_rounded(gemm), candidate, replace(target, core=core))
    times = -(-_panels(gemm, candidate) // candidate.panel_stretch)
    rounding = ROUNDING * gemm.matrices * gemm.rows * times * -(-gemm.depth // LINE)
    return nanoseconds + cost.nanoseconds(rounding, target)


def _panels(gemm: Gemm, candidate: GemmCandidate) -> int:
    return pieces(balanced(-(-gemm.columns // LANES), candidate.vectors))
