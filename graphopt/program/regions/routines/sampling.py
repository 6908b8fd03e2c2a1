"""Windows of signals, grids for sampling, and images cut or padded around their center.

Their sizes are operands; a result's dims, where the model declares them, are these sizes.
"""

from __future__ import annotations

import math
from functools import partial

from graphopt.program.regions.routines.stage import Defined, Definition
from kernels.dtype import DType
from kernels.routine.writer import as_type, integer, number
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


def affine_grid(node: Defined) -> None:
    """The places, from -1 to 1 along each dim, that an affine map sends those of the result to, the last dim first."""
    _, *sizes, rank = node.output_shape(0)
    aligned = node.integer("align_corners", 0)
    with node.stage() as w:
        theta, y = w.reads(node.input(0)), w.writes(node.output(0))
        kind = theta.dtype.held
        with w.shared(*y.shape[:-2]) as (image, *outer), w.loop(sizes[-1]) as last:
            places = []
            for one, size in zip((*outer, last), sizes, strict=True):
                step = 2.0 / size if not aligned else 2.0 / (size - 1) if size > 1 else 0.0
                start = -1.0 if aligned else -1.0 + step / 2
                places.append(w.local(kind, as_type(one, kind) * step + start))
            for row in range(rank):
                total = as_type(theta[image, row, rank], kind)
                for column, place in enumerate(reversed(places)):
                    total = total + as_type(theta[image, row, column], kind) * place
                y[(image, *outer, last, row)] = as_type(total, y.dtype)


def center_crop_pad(node: Defined) -> None:
    """Each dim cut, or filled up with zeros, as much before as behind, or one less before."""
    shape, wanted = node.shape(0), node.output_shape(0)
    before = [max(0, new - old) // 2 for old, new in zip(shape, wanted, strict=True)]
    cut = [max(0, old - new) // 2 for old, new in zip(shape, wanted, strict=True)]
    if any(before):
        with node.stage() as w:
            y = w.writes(node.output(0))
            with w.shared(y.area.elements) as (i,):
                y.put(i, number(0, y.dtype))
    inside = [min(old, new) for old, new in zip(shape, wanted, strict=True)]
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(*inside[:-1]) as outer, w.loop(inside[-1]) as last:
            at = (*outer, last)
            target = [one + integer(first) for one, first in zip(at, before, strict=True)]
            y[target] = x[[one + integer(first) for one, first in zip(at, cut, strict=True)]]


DEFINITIONS: dict[str, Definition] = {
    "HannWindow": partial(_window, factors=_HANN), "HammingWindow": partial(_window, factors=_HAMMING),
    "BlackmanWindow": partial(_window, factors=_BLACKMAN), "AffineGrid": affine_grid,
    "CenterCropPad": center_crop_pad,
}  # fmt: skip
