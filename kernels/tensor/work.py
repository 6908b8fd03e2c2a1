"""What an operation on one element costs, in cheap operations: one table for templates and nests."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.tensor.expression import Binary, Expression, Load, Unary
from kernels.tensor.traverse import nodes

POLYNOMIALS: Mapping[str, int] = {
    "exp": 12, "log": 16, "erf": 16, "tanh": 14, "sigmoid": 16, "sin": 24, "cos": 24, "pow": 40,
    "asin": 18, "acos": 20, "atan": 22, "sinh": 24, "cosh": 20, "asinh": 38, "acosh": 32, "atanh": 26,
}  # fmt: skip
DIVISIONS: Mapping[str, int] = {"sqrt": 6, "rsqrt": 10, "reciprocal": 5, "div": 5, "mod": 12, "fmod": 12}
_DEAR = {**POLYNOMIALS, **DIVISIONS}


def work(value: Expression) -> int:
    """About what one element costs, in cheap operations; loads count as one."""
    total = 0
    for node in nodes(value):
        if isinstance(node, Unary | Binary):
            total += _DEAR.get(node.op, 1)
        elif isinstance(node, Load):
            total += 1
    return total
