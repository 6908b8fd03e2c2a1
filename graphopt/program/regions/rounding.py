"""Templates for products and convolutions that may be rounded, where that is estimated to be faster.

Products run on matrix units or on dot products of pairs, convolutions on matrix units alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir

from graphopt.program.regions.region import Origin
from graphopt.program.regions.scope import Scope
from kernels.dtype import DType
from kernels.templates.convolution import ways
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.ways import CONVOLUTION, EXACT_CONVOLUTION
from kernels.templates.dots import product_choice as dots
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
    if not scope.precision.rounds(Origin.of(node).name) or not image_choice.serves(problem, target):
        return wide
    on_units, likely = UNIT_CONVOLUTION.candidates(problem, target)[0], wide.candidates(problem, target)[0]
    faster = image_choice.estimate(problem, on_units, target) < ways.estimate(problem, likely, target)
    return UNIT_CONVOLUTION if faster else wide
