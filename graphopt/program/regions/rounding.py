"""Templates for products and convolutions that may be rounded, where that is estimated to be faster.

Both run on matrix units or on dot products of pairs; units are for problems of one size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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

ROUNDING = (UNIT_PRODUCT, UNIT_CONVOLUTION, DOT_PRODUCT, DOT_CONVOLUTION)  # templates of kernels that round


@dataclass(frozen=True, slots=True)
class RoundedRegion:
    """A product, convolution or layer that was rounded: its origin's name, and how many operations it has."""

    name: str
    flops: int


def product_template(scope: Scope, node: ir.Node, problem: Gemm) -> tuple[Template[Gemm, Any], Gemm]:
    """The template for a product, and the problem, whose numbers are rounded where they may be and it is faster."""
    rounded, target = replace(problem, arithmetic="rounded", b_dtype=DType.F32), scope.target
    if problem.arithmetic != "f32" or not scope.precision.rounds(Origin.of(node).name):
        return GEMM, problem
    ways: list[tuple[Template[Gemm, Any], Gemm]] = []
    if not scope.steady and product_choice.serves(rounded, target):
        ways.append((UNIT_PRODUCT, rounded))
    if dots.are_faster(target) and dots.serves(rounded, target):
        ways.append((DOT_PRODUCT, rounded))
    if not ways or scope.precision.only is None:
        ways.insert(0, (GEMM, problem))
    return min(ways, key=lambda way: scope.likely(*way))


def convolution_template(scope: Scope, node: ir.Node, problem: Convolution) -> Template[Convolution, Any]:
    """The template for a convolution: one that rounds where that is allowed and faster."""
    wide, target = EXACT_CONVOLUTION if scope.exact else CONVOLUTION, scope.target
    if not scope.precision.rounds(Origin.of(node).name):
        return wide
    ways: list[Template[Convolution, Any]] = []
    if not scope.steady and image_choice.serves(problem, target):
        ways.append(UNIT_CONVOLUTION)
    if dots.are_faster(target) and dot_images.serves(problem, target):
        ways.append(DOT_CONVOLUTION)
    if not ways or scope.precision.only is None:
        ways.insert(0, wide)
    return min(ways, key=lambda way: scope.likely(way, problem))


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
