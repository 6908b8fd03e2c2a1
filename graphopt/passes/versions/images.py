"""Operators on images whose definition changed: Upsample and Resize, RoiAlign, GridSample."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.versions.inputs import remade, source
from graphopt.rewrite.rule import Match, Replacement

GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def upsample_scales(match: Match) -> Replacement:
    """Upsample(x, scales=s)  -->  Upsample(x, [s])"""
    attribute = nodes.attribute_of(match.root, "scales")
    assert attribute is not None, "every Upsample of that opset has them"
    scales = match.constant(np.array(attribute.as_floats(), np.float32))
    return remade(match, source(match), scales, scales=None)


def upsample(match: Match) -> Replacement:
    """Upsample(x, s)  -->  Resize(x, s)"""
    return match.op("Resize", *match.root.inputs, like=match.root)


def resize_of_opset_10(match: Match) -> Replacement:
    """Resize(x, s)  -->  Resize(x, , s, coordinate_transformation_mode="asymmetric", nearest_mode="floor")

    Where an image shrinks, the nearest pixel was the next one, not the last one.
    """
    scales = nodes.input_at(match.root, 1)
    rounding = None
    if nodes.string_attribute(match.root, "mode", "nearest") == "nearest":
        numbers = None if scales is None else match.facts.array(scales)
        rounding = "floor"
        if numbers is not None and (numbers < 1).any():
            match.require(not (numbers > 1).any(), "one side grows and another shrinks")
            rounding = "ceil"
    nothing = match.constant(np.zeros(0, np.float32), ir.DataType.FLOAT)
    return remade(
        match, source(match), nothing, scales, coordinate_transformation_mode="asymmetric", nearest_mode=rounding
    )


def resize_of_opset_11(match: Match) -> Replacement | None:
    """Resize(x, roi, [], sizes)  -->  Resize(x, , , sizes)      what is empty is left out"""
    mode = nodes.string_attribute(match.root, "coordinate_transformation_mode", "half_pixel")
    match.require(mode != "tf_half_pixel_for_nn", "its coordinate_transformation_mode was taken out")
    given = list(match.root.inputs)
    kept = [value for value in given if value is not None and match.facts.static_shape(value) == (0,)]
    if not kept:
        return None
    return remade(match, *(None if value in kept else value for value in given))


def roi_align(match: Match) -> Replacement:
    """RoiAlign(...)  -->  RoiAlign(..., coordinate_transformation_mode="output_half_pixel")"""
    return remade(match, *match.root.inputs, coordinate_transformation_mode="output_half_pixel")


def grid_sample(match: Match) -> Replacement:
    """GridSample(..., mode="bilinear")  -->  GridSample(..., mode="linear")"""
    mode = nodes.string_attribute(match.root, "mode", "bilinear")
    return remade(match, *match.root.inputs, mode=GRID_MODES.get(mode, mode))
