"""Gelu below opset 20, where the standard has no operator for it, and the approximation by Tanh.

ONNX Runtime fuses some spellings at load and misses others: 0.5 * (1 + Erf(x / sqrt 2)) * x of today's exporters stays
four passes over the tensor.
"""

from __future__ import annotations

from graphopt.passes.fusion.activations import spelled_gelu
from graphopt.passes.ort.kernels import DOMAIN, require_kernel
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


@any_node("Mul", "Div", level=2)
def gelu_of_runtime(match: Match) -> Replacement:
    """0.5 * x * (1 + Erf(x / sqrt 2))  -->  com.microsoft.Gelu(x)      (in every order and association)

    0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))  -->  com.microsoft.FastGelu(x)

    From opset 20 on the standard's Gelu has been made already. Leaves alone types for which ONNX Runtime has no kernel.
    """
    x, approximate = spelled_gelu(match)
    name = "FastGelu" if approximate else "Gelu"
    require_kernel(match, name, match.dtype(x))
    return match.op(name, x, domain=DOMAIN)


RULES: tuple[Rule, ...] = (gelu_of_runtime,)
