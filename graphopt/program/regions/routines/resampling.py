"""Images read between pixels: GridSample of every mode and rank, AffineGrid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from kernels.dtype import DType
from kernels.routine.writer import (
    as_type,
    both,
    eq,
    ge,
    gt,
    integer,
    le,
    lt,
    maximum,
    minimum,
    number,
    pick,
    remainder,
)
from kernels.tensor.expression import Expression, Unary

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}  # along each axis
_FARTHEST = float(1 << 62)  # pixels from the first one
_CUBIC = -0.75  # of the weights, as PyTorch has them

Tap = tuple[Expression, Expression]  # a pixel along one axis and its weight, which is 0 for one that is outside


def grid_sample(node: Defined) -> None:
    """Pixels where a grid says, in [-1, 1] along every axis; the last of its coordinates is that of the first axis."""
    shape, size = node.output_shape(0), node.shape(0)[2:]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(node.text("mode", "linear"), node.text("mode", "linear"))
    padding, aligned = node.text("padding_mode", "zeros"), bool(node.integer("align_corners", 0))
    channels, plane, points = shape[1], prod(size), prod(shape[2:])
    node.require(node.shape(1) == (shape[0], *shape[2:], len(size)), "has a grid for other images")
    node.require(0 not in size or 0 in shape, "samples no pixels")
    kind = DType.F64 if DType.F64 in (node.dtype(0), node.dtype(1)) else DType.F32
    acts = kind if node.dtype(0).is_float else held(node.dtype(0))
    with node.stage() as w:
        x, grid, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        width, corners = shape[-1], TAPS[mode] ** len(size)
        pixels, shares = w.scratch(DType.I64, (corners, width)), w.scratch(kind, (corners, width))
        with w.shared(shape[0], prod(shape[2:-1])) as (image, row):
            with w.loop(width) as column:
                point = w.local(DType.I64, row * width + column)
                taps: list[tuple[Tap, ...]] = []
                for axis, count in enumerate(size):
                    given = as_type(grid.at((image * points + point) * len(size) + len(size) - 1 - axis), kind)
                    place = _held(w, w.local(kind, _unnormalized(given, count, aligned=aligned)))
                    taps.append(tuple(_taps(w, place, count, mode, padding, aligned=aligned)))
                for corner, found in enumerate(product(*taps)):
                    at: Expression = integer(0)
                    weight: Expression = number(1.0, kind)
                    for (pixel, one), count in zip(found, size, strict=True):
                        at, weight = at * count + pixel, one if weight == number(1.0, kind) else weight * one
                    pixels[corner, column], shares[corner, column] = at, weight
            first = w.local(DType.I64, image * (channels * plane))
            here = w.local(DType.I64, image * (channels * points) + row * width)
            with w.loop(channels) as channel, w.loop(width) as column:
                source = first + channel * plane
                if mode == "nearest":
                    value = as_type(x.at(source + pixels[0, column]), acts)
                    made = pick(gt(shares[0, column], 0.0), value, 0)
                    y.put(here + channel * points + column, as_type(made, y.dtype))
                else:
                    total: Expression = number(0.0, kind)
                    for corner in range(corners):
                        total = total + shares[corner, column] * as_type(x.at(source + pixels[corner, column]), kind)
                    y.put(here + channel * points + column, as_type(total, y.dtype))


def _unnormalized(place: Expression, size: int, *, aligned: bool) -> Expression:
    """From [-1, 1] to pixels: -1 and 1 are the centres of the border's pixels, or their outer edges."""
    if aligned:
        return (place + 1.0) / 2.0 * float(size - 1)
    return ((place + 1.0) * float(size) - 1.0) / 2.0


def _held(w: Stage, place: Expression) -> Expression:
    """A pixel's place; the first one for what is no number or beyond all pixels, as ONNX Runtime reads it."""
    return w.local(place.dtype, pick(both(gt(place, -_FARTHEST), lt(place, _FARTHEST)), place, 0.0))


def _taps(w: Stage, place: Expression, size: int, mode: str, padding: str, *, aligned: bool) -> Sequence[Tap]:
    """The pixels that a place reads along one axis; of a cubic sum each pixel is moved inside by itself."""
    kind = place.dtype
    place = w.local(kind, Unary("round", place)) if mode == "nearest" else place
    if padding == "border" and mode != "cubic":
        low_end, high_end = _ends(size, aligned=aligned)
        inside = both(ge(place, low_end), le(place, high_end))
        place = w.local(kind, pick(inside, place, minimum(maximum(place, 0.0), float(size - 1))))
    elif padding == "reflection" and mode != "cubic":
        place = _reflected(w, place, size, aligned=aligned)
    if mode == "nearest":
        return [_tap(w, place, number(1.0, kind), size, padding, aligned=aligned)]
    low = w.local(kind, Unary("floor", place))
    part = w.local(kind, place - low)
    if mode == "linear":
        pairs = [(low, 1.0 - part), (low + 1.0, part)]
    else:
        pairs = [(low + float(at - 1), weight) for at, weight in enumerate(cubic_weights(w, part, _CUBIC))]
    return [_tap(w, at, weight, size, padding, aligned=aligned) for at, weight in pairs]


def cubic_weights(w: Stage, part: Expression, a: float) -> list[Expression]:
    """The weights of the pixels at -1, 0, 1 and 2 around a place between 0 and 1 (Keys' cubic convolution)."""
    kind, rest = part.dtype, 1.0 - part
    far = [((one + 1.0) * a - 5.0 * a, one + 1.0) for one in (part, rest)]
    outer = [(one * x + 8.0 * a) * x - 4.0 * a for one, x in far]
    inner = [((a + 2.0) * one - (a + 3.0)) * one * one + 1.0 for one in (part, rest)]
    return [w.local(kind, one) for one in (outer[0], inner[0], inner[1], outer[1])]


def _tap(w: Stage, place: Expression, weight: Expression, size: int, padding: str, *, aligned: bool) -> Tap:
    """One pixel: outside of the image it is 0, the border's, or the one that a mirror shows."""
    kind = place.dtype
    if padding == "reflection":
        place = _reflected(w, place, size, aligned=aligned)
    if padding == "zeros":
        inside = both(ge(place, 0.0), le(place, float(size - 1)))
        weight = w.local(kind, pick(inside, weight, 0.0))
    return w.local(DType.I64, as_type(minimum(maximum(place, 0.0), float(max(size - 1, 0))), DType.I64)), weight


def _ends(size: int, *, aligned: bool) -> tuple[float, float]:
    """Where an image begins and ends: at the centres of the border's pixels, or at their outer edges."""
    return (0.0, float(size - 1)) if aligned else (-0.5, size - 0.5)


def _reflected(w: Stage, place: Expression, size: int, *, aligned: bool) -> Expression:
    """A place folded back at the border, as often as it takes."""
    kind = place.dtype
    low, high = _ends(size, aligned=aligned)
    span = high - low
    if span <= 0:
        return number(0.0, kind)
    beyond = w.local(kind, pick(lt(place, low), low - place, place - high))
    folds = w.local(kind, Unary("floor", beyond / span))
    rest = w.local(kind, beyond - folds * span)
    is_even = w.local(DType.BOOL, eq(remainder(as_type(folds, DType.I64), 2), 0))
    from_low = pick(is_even, rest + low, high - rest)
    from_high = pick(is_even, high - rest, rest + low)
    folded = pick(lt(place, low), from_low, from_high)
    return w.local(kind, pick(both(ge(place, low), le(place, high)), place, folded))


def affine_grid(node: Defined) -> None:
    """The grid that an affine map makes of the places of an image."""
    shape = node.output_shape(0)
    size, rank = shape[1:-1], shape[-1]
    aligned, kind = bool(node.integer("align_corners", 0)), held(node.output_dtype(0))
    with node.stage() as w:
        theta, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(shape[0], *size[:-1]) as (image, *outer):
            rows = [
                [w.local(kind, as_type(theta[image, one, at], kind)) for at in range(rank + 1)] for one in range(rank)
            ]
            with w.loop(size[-1]) as last:
                places = []
                for at, count in zip((*outer, last), size, strict=True):
                    step = 2.0 / max(count - 1, 1) if aligned else 2.0 / count
                    first = -1.0 if aligned and count > 1 else 0.0 if aligned else -1.0 + 1.0 / count
                    places.append(w.local(kind, as_type(at, kind) * step + first))
                for one, row in enumerate(rows):
                    total = row[rank]
                    for factor, place in zip(row, reversed(places), strict=False):
                        total = w.local(kind, total + factor * place)
                    y[(image, *outer, last, one)] = as_type(total, y.dtype)


DEFINITIONS: dict[str, Definition] = {"AffineGrid": affine_grid, "GridSample": grid_sample}
