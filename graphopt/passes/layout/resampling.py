"""Resize and Upsample: their scales and sizes are permuted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.layout.flip import Flip, Question, copied
from graphopt.passes.layout.permute import Perm, moved, to_first
from graphopt.rewrite.rule import Match


def resize(question: Question) -> Flip:
    """Resize(x, roi, scales, sizes) and Upsample(x, scales)

    ONNX Runtime interpolates linearly and cubically over the last axes only, so those come to channels first, and never
    leave it.
    """
    node, opset = question.node, question.opset
    value = question.operand()
    perm = question.full(value)
    mode = nodes.string_attribute(node, "mode", "nearest")
    nearest = mode == "nearest" and not nodes.int_attribute(node, "antialias", 0)
    question.require(nearest or perm == to_first(len(perm)), "it interpolates over the last axes")
    if opset < 9:
        attribute = node.attributes.get("scales")
        if attribute is None or len(attribute.as_floats()) != len(perm):
            question.refuse("it lacks its scales")
        scales = tuple(attribute.as_floats())
        changed = ir.AttrFloat32s("scales", [scales[axis] for axis in perm])
        return Flip({0: perm}, {0: perm}, copied(question, {"scales": changed}))
    if "axes" in node.attributes:
        axes = nodes.ints_attribute(node, "axes") or ()
        new = [moved(axis, perm) for axis in axes]
        return Flip({0: perm}, {0: perm}, copied(question, {"axes": new}))
    first = 1 if opset < 11 else 2
    crops = nodes.string_attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    for index in range(1, len(node.inputs)):
        given = nodes.input_at(node, index)
        if given is None or (index < first and not crops):
            continue
        shape = question.facts.static_shape(given)
        question.require(question.facts.is_constant(given), "its scales or sizes are not constant")
        wanted = (0, (2 if index < first else 1) * len(perm))
        question.require(shape is not None and shape[0] in wanted, "it has not one scale for each axis")

    def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
        operands = list(inputs)
        for index in range(1, len(operands)):
            given = operands[index]
            if given is not None and (index >= first or crops):
                operands[index] = match.constant(_permuted(match.array(given), perm), match.dtype(given))
        return match.node_of(node.op_type, *operands, like=node)

    return Flip({0: perm}, {0: perm}, build)


def _permuted(array: np.ndarray, perm: Perm) -> np.ndarray:
    if array.size == 0:
        return array
    return np.ascontiguousarray(array.reshape(-1, len(perm))[:, list(perm)]).reshape(-1)
