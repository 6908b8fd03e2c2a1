"""Recurrent layers: LSTM, GRU, RNN."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.operators.gradients import recurrent as gradients
from graphopt.model.operators.gradients.backward import GradientRule
from graphopt.model.operators.parts import Shape
from graphopt.model.operators.record import Operator


def _cell(name: str, gates: int, gradient: GradientRule) -> Operator:
    """Per step, batch and direction: products of input and state with `gates` matrices, and some elementwise work."""

    def flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
        data, weights, state = inputs[0], inputs[1], inputs[2]
        directions, hidden = weights[0], state[-1]
        return data[0] * data[1] * directions * gates * hidden * (2 * data[-1] + 2 * hidden + 5)

    return Operator(name=name, flops=flops, gradient=gradient)


OPERATORS = (
    _cell("LSTM", 4, gradients.long_short_term),
    _cell("GRU", 3, gradients.gated),
    _cell("RNN", 1, gradients.plain),
)
