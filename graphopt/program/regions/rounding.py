"""Templates for products and convolutions that may be rounded, where that is estimated to be faster.

Both run on matrix units or on dot products of pairs; units are for problems of one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import onnx_ir as ir

from graphopt.program.regions.region import Lowered, Origin
from graphopt.program.regions.scope import Scope
from kernels.dtype import DType
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.ways import CONVOLUTION, EXACT_CONVOLUTION
from kernels.templates.dots import image_choice as dot_images
from kernels.templates.dots import product_choice as dots
from kernels.templates.dots.image import DOT_CONVOLUTION
from kernels.templates.dots.product import DOT_PRODUCT
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.recurrent.step import RecurrentStep
from kernels.templates.template import Template
from kernels.templates.units import image_choice, product_choice
from kernels.templates.units.image import UNIT_CONVOLUTION
from kernels.templates.units.product import UNIT_PRODUCT

P = TypeVar("P", Gemm, Convolution)
Way = tuple[Template[P, Any], P]  # to compute a problem
ROUNDING = (UNIT_PRODUCT, UNIT_CONVOLUTION, DOT_PRODUCT, DOT_CONVOLUTION)  # templates of kernels that round


@dataclass(frozen=True, slots=True)
class RoundedRegion:
    """A product, convolution or layer that was rounded: its origin's name, and how many operations it has."""

    name: str
    flops: int


def product_template(scope: Scope, node: ir.Node, problem: Gemm) -> tuple[Template[Gemm, Any], Gemm]:
    """The template for a product, and the problem, whose numbers are rounded where they may be and it is faster."""
    if problem.arithmetic != "f32" or not scope.precision.rounds(Origin.of(node).name):
        return GEMM, problem
    rounded, target = replace(problem, arithmetic="rounded", b_dtype=DType.F32), scope.target
    ways: list[tuple[Template[Gemm, Any], Gemm]] = []
    if not scope.steady and product_choice.serves(rounded, target):
        ways.append((UNIT_PRODUCT, rounded))
    if dots.are_faster(target) and dots.serves(rounded, target):
        ways.append((DOT_PRODUCT, rounded))
    return _best(scope, node, (GEMM, problem), ways)


def convolution_template(scope: Scope, node: ir.Node, problem: Convolution) -> Template[Convolution, Any]:
    """The template for a convolution: one that rounds where that is allowed and faster."""
    wide, target = EXACT_CONVOLUTION if scope.exact else CONVOLUTION, scope.target
    if not scope.precision.rounds(Origin.of(node).name):
        return wide
    ways: list[tuple[Template[Convolution, Any], Convolution]] = []
    if not scope.steady and image_choice.serves(problem, target):
        ways.append((UNIT_CONVOLUTION, problem))
    if dots.are_faster(target) and dot_images.serves(problem, target):
        ways.append((DOT_CONVOLUTION, problem))
    return _best(scope, node, (wide, problem), ways)[0]


def _best(scope: Scope, node: ir.Node, wide: Way[P], rounded: Sequence[Way[P]]) -> Way[P]:
    """The way that takes least time; of those that round, where that is decided."""
    if not rounded:
        return wide
    times = [scope.likely(*way) for way in rounded]
    best = rounded[times.index(min(times))]
    if scope.precision.only is not None:
        return best
    name, ratio = Origin.of(node).name, min(times) / scope.likely(*wide)
    scope.rounding[name] = max(ratio, scope.rounding.get(name, 0.0))
    return best if ratio < 1.0 else wide


def rounded_at_all(samples: Sequence[Lowered]) -> frozenset[str]:
    """What is rounded at every size of a range: that of which the size that loses most by it loses less than else."""
    found = {one.name for sample in samples for one in rounded_regions(sample)}
    for name in {name for sample in samples for name in sample.rounding}:
        ratios = [sample.rounding[name] for sample in samples if name in sample.rounding]
        if max(ratios) * min(ratios) >= 1.0:
            found.discard(name)
    return frozenset(found)


def rounded_regions(lowered: Lowered) -> tuple[RoundedRegion, ...]:
    """Those of a program whose kernels round, in its order; several kernels of one are one."""
    found: dict[str, int] = {}
    for region in lowered.regions:
        known = lowered.problems.get(region.kernel.name)
        if known is not None and _rounds(*known):
            name = region.nodes[0].name
            found[name] = found.get(name, 0) + region.kernel.flops
    return tuple(RoundedRegion(name, flops) for name, flops in found.items())


def _rounds(template: Template[Any, Any], problem: object) -> bool:
    layer = problem.layer if isinstance(problem, RecurrentStep) else problem
    return template in ROUNDING or (isinstance(layer, Recurrent) and layer.r_dtype is DType.BF16)
