"""Resize, Upsample and AffineGrid."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators.gradients import resampling as gradients
from graphopt.model.operators.parts import Part, Range, Wanted
from graphopt.model.operators.record import Operator, no_flops, per_element
from graphopt.model.operators.shapes import Result, like_first, source_shape

DOUBLINGS = (2, 4, 8)  # factors of linear Resize whose positions have no rounding, so that a shift keeps their bits


def _resized_dims(node: ir.Node, facts: Knowledge) -> Result:
    """Dims times constant scales, or the sizes given; a symbol survives where its scale is a whole number."""
    source = source_shape(node, facts)
    if source is None or dims.is_static(source) or "axes" in node.attributes:
        return None
    if nodes.string_attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    place = 1 if node.op_type == "Upsample" or facts.opset(node) < 11 else 2
    sizes = nodes.input_at(node, 3) if place == 2 else None
    if sizes is not None and nodes.string_attribute(node, "keep_aspect_ratio_policy", "stretch") == "stretch":
        told = facts.content(sizes)
        return None if told is None or told.shape != (len(source),) else like_first(node, facts, tuple(told.tolist()))
    given = nodes.input_at(node, place)
    scales = facts.array(given) if given is not None and facts.is_constant(given) else None
    if scales is None or scales.size != len(source) or not np.isfinite(scales).all():
        return None
    result: list[dims.Dim] = []
    for size, scale in zip(source, scales.reshape(-1).astype(np.float32), strict=True):
        if isinstance(size, int):
            result.append(int(np.floor(np.float32(size) * scale)))
        else:
            result.append(_scaled(size, float(scale)) or facts.fresh())
    return like_first(node, facts, tuple(result))


def _scaled(size: dims.Dim, scale: float) -> dims.Dim | None:
    """A symbol by a whole number, or by a power of 1/2, whose product is exact; None for other scales."""
    mantissa, exponent = math.frexp(scale)
    if scale >= 1 and scale == int(scale):
        return dims.normal(size * int(scale))
    return dims.normal(size // (1 << (1 - exponent))) if mantissa == 0.5 else None


def _resized_part(wanted: Wanted) -> Part | None:
    """Enlarging by a whole number, where the positions of a later range are those of the first one, moved."""
    size, result = wanted.shapes[0][wanted.axis], wanted.result[wanted.axis]
    sizes = wanted.ints(3)
    if size == result and sizes is None:
        return wanted.same()
    if size == 0 or result % size or wanted.facts.opset(wanted.node) < 11:
        return None
    times = result // size
    mode = nodes.string_attribute(wanted.node, "mode", "nearest")
    positions = nodes.string_attribute(wanted.node, "coordinate_transformation_mode", "half_pixel")
    rounding = nodes.string_attribute(wanted.node, "nearest_mode", "round_prefer_floor")
    low, high = wanted.range.low // times, -(-wanted.range.high // times)
    if mode == "linear" and positions in ("half_pixel", "pytorch_half_pixel") and times in DOUBLINGS:
        low, high = max(0, low - 1), min(size, high + 1)
    elif mode != "nearest" or (positions, rounding) not in gradients.BLOCKS:
        return None
    if nodes.int_attribute(wanted.node, "antialias", 0) or nodes.ints_attribute(wanted.node, "axes") is not None:
        return None
    constants = {}
    if sizes is not None:
        changed = list(sizes)
        changed[wanted.axis] = (high - low) * times
        constants[3] = np.array(changed, np.int64)
    elif nodes.input_at(wanted.node, 2) is None:
        return None
    inputs = (Range(wanted.axis, low, high), *(None,) * (len(wanted.shapes) - 1))
    return Part(inputs, (low * times, high * times), constants=constants)


OPERATORS = (
    Operator(
        name="Resize", shape=_resized_dims, flops=per_element(7), epilogue=True, part=_resized_part, images=(0,),
        gradient=gradients.resized,
    ),
    Operator(name="AffineGrid", flops=per_element(6), gradient=gradients.affine_grid),
    Operator(
        name="Upsample", shape=_resized_dims, flops=no_flops, epilogue=True, images=(0,), gradient=gradients.resized,
    ),
)  # fmt: skip
