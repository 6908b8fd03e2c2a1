"""Which pixels every place along an axis of a Resize reads, and their weights: a stage that writes them as a table.

As in ONNX Runtime, places are computed in f32. Sizes and scales may be known only when the program runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from graphopt.program.regions.routines.resampling import cubic_weights
from graphopt.program.regions.routines.stage import Defined, Stage
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    either,
    ge,
    gt,
    integer,
    le,
    lt,
    maximum,
    minimum,
    number,
    pick,
)
from kernels.tensor.expression import Expression, Unary

_ANTIALIAS_SLACK = 2  # taps more than the dims ask for, where a scale rounds


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis on its way: its number, its sizes, and how many pixels a place reads at most."""

    number: int
    size: int
    count: int
    taps: int


@dataclass(frozen=True, slots=True)
class Table:
    """For each place: its first pixel, the weights of the pixels from there on, and whether it lies outside."""

    first: View
    weights: View | None
    outside: View | None


# -- what the operands say ---------------------------------------------------------------------------------------------


def changing_axes(node: Defined) -> list[Axis]:
    """The axes along which places are not simply those of the operand."""
    return [_axis(node, number_of) for number_of in range(len(node.shape(0))) if _changes(node, number_of)]


def is_old(node: Defined) -> bool:
    """Whether a node is of the operators before opset 11, which have one way to map places."""
    return node.node.op_type == "Upsample" or node.opset < 11


def chosen_axes(node: Defined) -> tuple[int, ...]:
    """The axes that scales, sizes and regions are given for, in their order."""
    rank = len(node.shape(0))
    return tuple(axis % rank for axis in node.integers("axes", range(rank)))


def _scales_at(node: Defined) -> int | None:
    """The input that has the scales; None where sizes are given."""
    at = 1 if is_old(node) else 2
    return at if node.has(at) and 0 not in node.shape(at) else None


def _attribute_scales(node: Defined) -> tuple[float, ...]:
    """The scales of an Upsample before opset 9; before opset 7 those of rows and columns."""
    if node.opset < 7:
        return 1.0, 1.0, node.number("height_scale", 1.0), node.number("width_scale", 1.0)
    return node.numbers("scales")


def _changes(node: Defined, axis: int) -> bool:
    """Whether places along an axis are not simply those of the operand."""
    if axis not in chosen_axes(node):
        return False
    at, mode = _scales_at(node), node.text("coordinate_transformation_mode", "half_pixel")
    if node.shape(0)[axis] != node.output_shape(0)[axis] or (mode == "tf_crop_and_resize" and not is_old(node)):
        return True
    if node.node.op_type == "Upsample" and not node.has(1):
        return _attribute_scales(node)[axis] != 1.0
    if at is None:
        return node.text("keep_aspect_ratio_policy", "stretch") != "stretch" and _is_float_scale(node)
    scales = node.constant(at)
    return scales is None or float(scales.reshape(-1)[chosen_axes(node).index(axis)]) != 1.0


def _is_float_scale(node: Defined) -> bool:
    """Whether a kept aspect ratio may give an axis of the same size a scale that is not 1."""
    return any(node.shape(0)[axis] != node.output_shape(0)[axis] for axis in chosen_axes(node))


def _axis(node: Defined, axis: int) -> Axis:
    size, count = node.shape(0)[axis], node.output_shape(0)[axis]
    reach = {"nearest": 0, "cubic": 2}.get(node.text("mode", "nearest"), 1)
    if node.integer("antialias", 0) and count < size:
        taps = 2 * ceil(reach * size / (count - 0.5)) + _ANTIALIAS_SLACK
    else:
        taps = max(1, 2 * reach)
    return Axis(axis, size, count, taps)


def _scale(node: Defined, w: Stage, axis: Axis) -> Expression:
    """Output over input, as a number of f32."""
    at, place = _scales_at(node), chosen_axes(node).index(axis.number)
    if at is not None:
        return w.local(DType.F32, as_type(w.reads(node.input(at)).at(place), DType.F32))
    if node.node.op_type == "Upsample":
        return number(_attribute_scales(node)[place], DType.F32)
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return w.local(DType.F32, number(axis.count, DType.F32) / float(axis.size))
    sizes, found = w.reads(node.input(3)), None
    for one, number_of in enumerate(chosen_axes(node)):
        ratio = as_type(sizes.at(one), DType.F32) / float(node.shape(0)[number_of])
        found = ratio if found is None else (minimum if policy == "not_larger" else maximum)(found, ratio)
    assert found is not None, "a resizing has axes"
    return w.local(DType.F32, found)


# -- places ---------------------------------------------------------------------------------------------------------


def table_of(node: Defined, axis: Axis) -> Table:
    """The stage that writes what each place along an axis reads."""
    mode = node.text("mode", "nearest")
    crops = not is_old(node) and node.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    first = node.temporary(DType.I64, (axis.count,))
    outside = node.temporary(DType.BOOL, (axis.count,)) if crops else None
    window = 1 if mode == "nearest" else min(axis.taps, axis.size)
    weights = None if mode == "nearest" else node.temporary(DType.F32, (axis.count, window))
    with node.stage() as w:
        starts = w.writes(first)
        kept = None if weights is None else w.writes(weights)
        flags = None if outside is None else w.writes(outside)
        with w.shared(1):
            scale = _scale(node, w, axis)
            with w.loop(axis.count) as at:
                place = w.local(DType.F32, _place(node, w, axis, scale, as_type(at, DType.F32)))
                if flags is not None:
                    flags.put(at, either(lt(place, 0.0), gt(place, float(axis.size - 1))))
                if kept is None:
                    starts.put(at, w.clamped(as_type(_rounded(node, place, scale), DType.I64), 0, axis.size - 1))
                else:
                    _put_weights(node, w, axis, place, scale, at, starts, kept)
    return Table(first, weights, outside)


def _place(node: Defined, w: Stage, axis: Axis, scale: Expression, at: Expression) -> Expression:
    """Where a place of the result lies in the operand, in pixels."""
    mode = "asymmetric" if is_old(node) else node.text("coordinate_transformation_mode", "half_pixel")
    size, count = float(axis.size), float(axis.count)
    zero = number(0.0, DType.F32)
    match mode:
        case "asymmetric":
            return at / scale
        case "align_corners":
            return at * (size - 1.0) / (count - 1.0) if axis.count > 1 else zero
        case "tf_crop_and_resize":
            return _cropped(node, w, axis, at)
        case "pytorch_half_pixel" if axis.count == 1:
            return zero
        case "tf_half_pixel_for_nn":
            return (at + 0.5) / scale
        case "half_pixel" | "pytorch_half_pixel" | "half_pixel_symmetric":
            whole = w.local(DType.F32, (at + 0.5) / scale)
            if mode != "half_pixel_symmetric":
                return whole - 0.5
            offset = w.local(DType.F32, (1.0 - number(count, DType.F32) / (scale * size)) * (size / 2.0))
            return offset + whole - 0.5
    raise node.refuse(f"has coordinates '{mode}'")


def _cropped(node: Defined, w: Stage, axis: Axis, at: Expression) -> Expression:
    """A place inside the region of interest, whose ends are shares of the axis."""
    roi, chosen = w.reads(node.input(1)), chosen_axes(node)
    place, last = chosen.index(axis.number), float(axis.size - 1)
    start, end = (w.local(DType.F32, as_type(roi.at(one), DType.F32)) for one in (place, place + len(chosen)))
    if axis.count == 1:
        return (start + end) * 0.5 * last
    begin, step = w.local(DType.F32, start * last), w.local(DType.F32, at * (end - start) * last)
    return begin + step / float(axis.count - 1)


def _rounded(node: Defined, place: Expression, scale: Expression) -> Expression:
    """The pixel that is nearest, as `nearest_mode` says; before opset 11 up where pixels get fewer, else down."""
    low, high = Unary("floor", place), Unary("ceil", place)
    if is_old(node):
        return pick(lt(scale, 1.0), high, low)
    match node.text("nearest_mode", "round_prefer_floor"):
        case "floor":
            return low
        case "ceil":
            return high
        case "round_prefer_ceil":
            return pick(ge(place - low, 0.5), low + 1.0, low)
    return pick(gt(place - low, 0.5), low + 1.0, low)


def _put_weights(
    node: Defined, w: Stage, axis: Axis, place: Expression, scale: Expression, at: Expression,
    starts: Grid, kept: Grid,
) -> None:  # fmt: skip
    """The window of pixels that a place reads; those beyond a border are the border's, or left out."""
    window, excludes = kept.shape[1], bool(node.integer("exclude_outside", 0))
    low = w.local(DType.F32, Unary("floor", place))
    part = w.local(DType.F32, place - low)
    raw = w.scratch(DType.F32, (axis.taps,))
    count, before = _filter(node, w, axis, part, scale, raw)
    begin = w.local(DType.I64, as_type(low, DType.I64) + before)
    first = w.local(DType.I64, w.clamped(begin, 0, axis.size - window))
    starts.put(at, first)
    with w.loop(window) as tap:
        kept[at, tap] = 0.0
    total = w.local(DType.F32, 1.0)
    if excludes or node.integer("antialias", 0):
        w.set(total, 0.0)
        with w.loop(count) as tap:
            if excludes:
                inside = both(ge(begin + tap, 0), lt(begin + tap, axis.size))
                raw.put(tap, pick(inside, raw.at(tap), 0.0))
            w.set(total, total + raw.at(tap))
    with w.loop(count) as tap:
        pixel = w.clamped(begin + tap, 0, axis.size - 1)
        here = w.local(DType.I64, w.clamped(pixel - first, 0, window - 1))
        kept[at, here] = kept[at, here] + raw.at(tap) / total


def _filter(
    node: Defined, w: Stage, axis: Axis, part: Expression, scale: Expression, raw: Grid
) -> tuple[Expression, Expression]:
    """Fill in the weights around a place; how many there are, and where the first is from the pixel below."""
    is_linear, a = node.text("mode", "nearest") != "cubic", node.number("cubic_coeff_a", -0.75)
    if not node.integer("antialias", 0):
        weights = [1.0 - part, part] if is_linear else cubic_weights(w, part, a)
        for number_of, weight in enumerate(weights):
            raw.put(number_of, weight)
        return integer(len(weights)), integer(0 if is_linear else -1)
    narrow = w.local(DType.F32, minimum(scale, 1.0))
    lowest = as_type(Unary("floor", number(-1.0 if is_linear else -2.0, DType.F32) / narrow), DType.I64) + 1
    start = w.local(DType.I64, maximum(lowest, 1 - axis.taps // 2))
    count = w.local(DType.I64, 2 - start * 2)
    with w.loop(count) as tap:
        distance = w.local(DType.F32, Unary("abs", (as_type(start + tap, DType.F32) - part) * narrow))
        if is_linear:
            raw.put(tap, maximum(1.0 - distance, 0.0))
        else:
            near = (distance * (a + 2.0) - (a + 3.0)) * distance * distance + 1.0
            far = ((distance - 5.0) * a * distance + 8.0 * a) * distance - 4.0 * a
            raw.put(tap, pick(le(distance, 1.0), near, pick(lt(distance, 2.0), far, 0.0)))
    return count, start
