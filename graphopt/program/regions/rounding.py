"""Templates for products and convolutions that may be rounded, where that is estimated to be faster.

Both run on matrix units or on dot products of pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir

from graphopt.program.regions.region import Origin
from graphopt.program.regions.scope import Scope
from kernels.dtype import DType
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.ways import CONVOLUTION, EXACT_CONVOLUTION
from kernels.templates.dots import image_choice as dot_images
from kernels.templates.dots import product_choice as dots
from kernels.templates.dots.image import DOT_CONVOLUTION
from kernels.templates.dots.product import DOT_PRODUCT
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.template import Template
from kernels.templates.units import image_choice, product_choice
from kernels.templates.units.image import UNIT_CONVOLUTION
from kernels.templates.units.product import UNIT_PRODUCT


def product_template(scope: Scope, node: ir.Node, problem: Gemm) -> tuple[Template[Gemm, Any], Gemm]:
    """The template for a product, and the problem, whose numbers are rounded where they may be and it is faster."""
    rounded, target = replace(problem, arithmetic="rounded", b_dtype=DType.F32), scope.target
    if problem.arithmetic != "f32" or not scope.precision.rounds(Origin.of(node).name):
        return GEMM, problem
    ways: list[tuple[Template[Gemm, Any], Gemm]] = [(GEMM, problem)]
    if product_choice.serves(rounded, target):
        ways.append((UNIT_PRODUCT, rounded))
    if dots.are_faster(target) and dots.serves(rounded, target):
        ways.append((DOT_PRODUCT, rounded))
    return min(ways, key=lambda way: scope.likely(*way))


def convolution_template(scope: Scope, node: ir.Node, problem: Convolution) -> Template[Convolution, Any]:
    """The template for a convolution: one that rounds where that is allowed and faster."""
    wide, target = EXACT_CONVOLUTION if scope.exact else CONVOLUTION, scope.target
    if not scope.precision.rounds(Origin.of(node).name):
        return wide
    ways: list[Template[Convolution, Any]] = [wide]
    if image_choice.serves(problem, target):
        ways.append(UNIT_CONVOLUTION)
    if dots.are_faster(target) and dot_images.serves(problem, target):
        ways.append(DOT_CONVOLUTION)
    return min(ways, key=lambda way: scope.likely(way, problem))
