"""Resize along sides that a run sets.

    nearest, s times as many elements  -->  Expand(x as [n, h, 1, w, 1, c]) to [n, h, s, w, s, c]
    linear, s times as many elements   -->  y = Concat(x[:1], x, x[-1:]); for each place among the s the sum of two
                                            parts of y by their shares, side by side
    else, nearest                      -->  Gather(x, places)
    else, linear                       -->  Gather(x, low) * (1 - share) + Gather(x, low + 1) * share

Places are computed in float32, as ONNX Runtime does.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from graphopt.model.nodes import input_at, int_attribute, string_attribute
from graphopt.program.free_sides.writer import END, Sides, Writer

SCALED_BY_SIZES = 11  # the opset from which on Resize takes scales third and sizes fourth
REPEATED = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"))
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = {"floor": "Floor", "ceil": "Ceil"}


def resized(writer: Writer, sides: Sides) -> None:
    """Elements again, or the mean of two of them by their distance, along each side that changes."""
    node = writer.node
    if (
        writer.opset < SCALED_BY_SIZES
        or "axes" in node.attributes
        or any(given[:2] != made[:2] for given, made in zip(sides.given, sides.made, strict=True))
        or int_attribute(node, "antialias", 0)
        or string_attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
        or writer.facts.dtype(writer.x) is not ir.DataType.FLOAT
    ):
        return
    mode = string_attribute(node, "mode", "nearest")
    coordinates = string_attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = string_attribute(node, "nearest_mode", "round_prefer_floor")
    if coordinates not in COORDINATES or mode not in ("nearest", "linear"):
        return
    times = [_times(sides, at) for at in range(sides.rank)]
    plain = "half_pixel" if coordinates == "pytorch_half_pixel" else coordinates
    whole = [one for one in times if one is not None]
    if mode == "nearest" and (plain, rounding) in REPEATED and len(whole) == len(times):
        writer.put(writer.channels_first(_repeated(writer, whole), sides.rank))
        return
    if mode == "nearest" and rounding not in ROUNDINGS:
        return
    x = writer.channels_last(writer.x, sides.rank)
    for at in range(sides.rank):
        count = times[at]
        if count is not None and mode == "linear" and coordinates != "align_corners":
            x = x if count == 1 else _in_phases(writer, x, at, sides.rank, count, coordinates)
        elif count != 1:
            made = _along(writer, x, at, sides.rank, count, mode, coordinates, rounding)
            if made is None:
                return
            x = made
    writer.put(writer.channels_first(x, sides.rank))


def _times(sides: Sides, at: int) -> int | None:
    """How many elements one of a side becomes at every size; None where that is no whole number."""
    pairs = [(given[2 + at], made[2 + at]) for given, made in zip(sides.given, sides.made, strict=True)]
    found = pairs[0][1] // max(1, pairs[0][0])
    return found if all(made == given * found for given, made in pairs) else None


def _repeated(writer: Writer, times: list[int]) -> ir.Value:
    """Every element as often as its sides have strides."""
    x, rank = writer.channels_last(writer.x, len(times)), len(times)
    images, *sides, channels = (writer.dims(x, at, 1) for at in range(2 + rank))
    pairs = [one for side, count in zip(sides, times, strict=True) for one in (side, count)]
    apart = writer.reshape(x, [images, *(one for side in sides for one in (side, 1)), channels])
    parts = [
        images, *(one if isinstance(one, ir.Value) else writer.constant(np.array([one])) for one in pairs), channels
    ]  # fmt: skip
    spread = writer.add("Expand", [apart, writer.add("Concat", parts, {"axis": 0})])
    whole = [
        writer.add("Mul", [side, writer.constant(np.array([count]))]) for side, count in zip(sides, times, strict=True)
    ]
    return writer.reshape(spread, [images, *whole, channels])


def _in_phases(writer: Writer, x: ir.Value, at: int, rank: int, count: int, coordinates: str) -> ir.Value:
    """An image, channels last, with `count` elements along one side for each, which lie evenly between two of it."""
    axis, shift = 1 + at, 0.0 if coordinates == "asymmetric" else 0.5
    first, last = (
        writer.add("Slice", [x, *(writer.constant(np.array([one])) for one in (begin, end, axis))])
        for begin, end in ((0, 1), (-1, END))
    )
    around = writer.add("Concat", [first, x, last], {"axis": axis})
    phases = []
    for phase in range(count):
        distance = (phase + shift) / count - shift  # from an element to the one that is made, in elements
        begin = 1 if distance >= 0 else 0
        share = distance - (begin - 1)
        low, high = (writer.part(around, (one,), (2 - one,), (1,), axis) for one in (begin, begin + 1))
        if share == 0:
            made = low
        else:
            factors = [writer.constant(np.array(one, np.float32)) for one in (1 - share, share)]
            made = writer.add("Add", [writer.add("Mul", [low, factors[0]]), writer.add("Mul", [high, factors[1]])])
        phases.append(writer.add("Unsqueeze", [made, writer.constant(np.array([axis + 1]))]))
    apart = writer.add("Concat", phases, {"axis": axis + 1})
    side = writer.add("Mul", [writer.dims(x, axis, 1), writer.constant(np.array([count]))])
    return writer.reshape(apart, [*[0] * axis, side, *[writer.dims(x, one, 1) for one in range(axis + 1, 2 + rank)]])


def _along(
    writer: Writer, x: ir.Value, at: int, rank: int, times: int | None, mode: str, coordinates: str,
    rounding: str,
) -> ir.Value | None:  # fmt: skip
    """An image, channels last, resized along one side; None where nothing says to how many elements."""
    before = _scalar(writer, writer.dims(x, 1 + at, 1))
    sizes, scales = input_at(writer.node, 3), input_at(writer.node, 2)
    known = None if scales is None else writer.facts.array(scales)
    scale = None
    if sizes is not None:
        after = _scalar(writer, writer.add("Gather", [sizes, writer.constant(np.array([2 + at]))]))
    elif known is not None and known.size > 2 + at:
        scale = float(known.reshape(-1)[2 + at])
        found = _scaled(writer, before, scale)
        if found is None:
            return None
        after = found
    else:
        return None
    if times is not None:
        after = writer.add("Mul", [before, writer.constant(np.array(times))])
    length, ends = _float(writer, before), _float(writer, after)
    one, zero = writer.constant(np.array(1, np.float32)), writer.constant(np.array(0, np.float32))
    last = writer.add("Sub", [length, one])
    numbers = writer.add("Range", [writer.constant(np.array(0)), after, writer.constant(np.array(1))])
    place = _float(writer, numbers)
    half = writer.constant(np.array(0.5, np.float32))
    factor = writer.add("Div", [ends, length]) if scale is None else writer.constant(np.array(scale, np.float32))
    if coordinates == "align_corners":
        gaps = writer.add("Max", [writer.add("Sub", [ends, one]), one])  # one element alone is the first
        place = writer.add("Div", [writer.add("Mul", [place, last]), gaps])
    elif coordinates == "asymmetric":
        place = writer.add("Div", [place, factor])
    else:
        place = writer.add("Sub", [writer.add("Div", [writer.add("Add", [place, half]), factor]), half])
        if coordinates == "pytorch_half_pixel":
            place = writer.add("Mul", [place, writer.add("Min", [writer.add("Sub", [ends, one]), one])])
    if mode == "nearest":
        place = writer.add(ROUNDINGS[rounding], [place])
    place = writer.add("Min", [writer.add("Max", [place, zero]), last])
    low = writer.add("Floor", [place])
    first = _gathered(writer, x, low, at)
    if mode == "nearest":
        return first
    second = _gathered(writer, x, writer.add("Min", [writer.add("Add", [low, one]), last]), at)
    share = writer.reshape(writer.add("Sub", [place, low]), [-1, *[1] * (rank - at)])
    rest = writer.add("Sub", [one, share])
    return writer.add("Add", [writer.add("Mul", [first, rest]), writer.add("Mul", [second, share])])


def _scaled(writer: Writer, before: ir.Value, scale: float) -> ir.Value | None:
    """How many elements a side becomes by a scale of a whole number, or by a power of 1/2, whose product is exact."""
    mantissa, exponent = math.frexp(scale)
    if scale >= 1 and scale == int(scale):
        return writer.add("Mul", [before, writer.constant(np.array(int(scale)))])
    return writer.add("Div", [before, writer.constant(np.array(1 << (1 - exponent)))]) if mantissa == 0.5 else None


def _gathered(writer: Writer, x: ir.Value, places: ir.Value, at: int) -> ir.Value:
    return writer.add("Gather", [x, writer.add("Cast", [places], {"to": int(ir.DataType.INT64)})], {"axis": 1 + at})


def _float(writer: Writer, x: ir.Value) -> ir.Value:
    return writer.add("Cast", [x], {"to": int(ir.DataType.FLOAT)})


def _scalar(writer: Writer, x: ir.Value) -> ir.Value:
    return writer.add("Reshape", [x, writer.constant(np.zeros(0, np.int64))])
