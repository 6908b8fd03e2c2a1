"""Windows of signals: sums of a few cosines. The size is an operand; the result's dim, where it is declared, is it."""

from __future__ import annotations

import math
from functools import partial

from graphopt.program.regions.routines.stage import Defined, Definition
from kernels.dtype import DType
from kernels.routine.writer import as_type, number
from kernels.tensor.expression import Expression, Unary

_HANN, _HAMMING, _BLACKMAN = (0.5, -0.5), (25 / 46, -21 / 46), (0.42, -0.5, 0.08)


def _window(node: Defined, *, factors: tuple[float, ...]) -> None:
    """The sum over n of factor n times cos(2 pi n i / size), or size - 1 for a window that is not periodic."""
    (size,) = node.output_shape(0)
    with node.stage() as w:
        y = w.writes(node.output(0))
        step = 2 * math.pi / max(size if node.integer("periodic", 1) else size - 1, 1)
        with w.shared(size) as (i,):
            angle = w.local(DType.F64, as_type(i, DType.F64) * step)
            total: Expression = number(factors[0], DType.F64)
            for times, factor in enumerate(factors[1:], 1):
                total = total + Unary("cos", angle * float(times)) * factor
            y[i] = as_type(total, y.dtype)


DEFINITIONS: dict[str, Definition] = {
    "HannWindow": partial(_window, factors=_HANN), "HammingWindow": partial(_window, factors=_HAMMING),
    "BlackmanWindow": partial(_window, factors=_BLACKMAN),
}  # fmt: skip
