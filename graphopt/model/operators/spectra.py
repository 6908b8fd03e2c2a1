"""Fourier transforms."""

from __future__ import annotations

from math import prod

import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators.gradients import spectra as gradients
from graphopt.model.operators.parts import Shape
from graphopt.model.operators.record import Operator
from graphopt.model.operators.shapes import Result, like_first, source_shape


def _transform_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Of a fast one: five for each number and each halving of the length, which is taken for the longest dim."""
    return 5 * prod(outputs[0]) * max(outputs[0], default=1).bit_length() // 2


def _frame_dims(node: ir.Node, facts: Knowledge) -> Result:
    """[batch, frames, bins, 2] of an STFT: the schema takes its "onesided" for 0 where it is left out, and it is 1."""
    signal, step = source_shape(node, facts), facts.ints(nodes.input_at(node, 1))
    window, given = nodes.input_at(node, 2), facts.ints(nodes.input_at(node, 3))
    length = given[0] if given else None
    if window is not None:
        shape = facts.static_shape(window)
        length = shape[0] if shape else length
    if signal is None or step is None or length is None or step[0] < 1:
        return None
    bins = length // 2 + 1 if nodes.int_attribute(node, "onesided", 1) else length
    frames = dims.floor((sympy.sympify(signal[1]) - length) / step[0] + 1)
    result: dims.Dims = (signal[0], frames, bins, 2)
    return like_first(node, facts, result)


OPERATORS = (
    Operator(
        name="DFT", parameters={"axis": gradients.AXIS}, flops=_transform_flops, gradient=gradients.transformed
    ),
    Operator(name="STFT", shape=_frame_dims),
)  # fmt: skip
