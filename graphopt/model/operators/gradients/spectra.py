"""Gradients of Fourier transforms."""

from __future__ import annotations

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import NoGradient
from graphopt.model.operators.parameters import Parameter

AXIS = Parameter(20, 2, scalar=True)


def transformed(back: Backward) -> Gradients:
    """The transform the other way, without its mean.

    Forward, y_k = sum of x_n e^(-2 pi i k n / L), and dx_n = sum of dy_k e^(2 pi i k n / L), L times what the inverse
    gives. Frequencies that a one-sided result leaves out have no gradient, elements behind the length neither, and of a
    real signal the imaginary part.
    """
    x, dy = back.x(), back.dy
    given = back.parameter("axis", AXIS, "its axis")
    axis = (given[0] if given else 1 if back.maker.opset < AXIS.since else -2) % x.rank
    size, bins = x.shape[axis], dy.shape[axis]
    length = size if back.optional(1) is None else (back.facts.ints(back.x(1).value) or (None,))[0]
    if not (isinstance(size, int) and isinstance(bins, int) and isinstance(length, int)):
        raise NoGradient("its length is not known; fix it with --dim")
    inverse, one_sided = back.integer("inverse", 0), back.integer("onesided", 0)
    if inverse and one_sided:
        raise NoGradient("it is an inverse transform of one-sided frequencies")
    found = dy.pad(*_behind(dy.rank, axis, length - bins))
    found = back.maker.op("DFT", found, attributes={"axis": axis, "inverse": 1 - inverse})
    found = found / length if inverse else found * length
    found = found.pad(*_behind(dy.rank, axis, size - length))
    return (found.slice(x.rank - 1, 0, 1) if x.shape[-1] == 1 else found,)


def _behind(rank: int, axis: int, count: int) -> tuple[list[int], list[int]]:
    """So many zeros behind an axis, as `pad` takes them; fewer elements where the number is negative."""
    return [0] * rank, [count if at == axis else 0 for at in range(rank)]
