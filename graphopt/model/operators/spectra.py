"""Fourier transforms."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from graphopt.model.operators.gradients import spectra as gradients
from graphopt.model.operators.parts import Shape
from graphopt.model.operators.record import Operator


def _transform_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Of a fast one: five for each number and each halving of the length, which is taken for the longest dim."""
    return 5 * prod(outputs[0]) * max(outputs[0], default=1).bit_length() // 2


OPERATORS = (
    Operator(
        name="DFT", parameters={"axis": gradients.AXIS}, flops=_transform_flops, gradient=gradients.transformed
    ),
)  # fmt: skip
