"""Gradients of Resize, Upsample and AffineGrid.

Nearest neighbours by a whole factor copy each element into a block, whose sum flows back. All else is linear along each
axis and leaves the others as they are: the matrix of an axis is the operator's own result for an identity matrix, which
no data enters, and the gradient is a product with it along that axis.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import dims
from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import AttributeValue, NoGradient, Term

# Ways of nearest Resize in which every element becomes a block of `times` equal ones.
BLOCKS = frozenset({
    ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"), ("pytorch_half_pixel", "round_prefer_ceil"),
})  # fmt: skip
COPIED = ("coordinate_transformation_mode", "mode", "nearest_mode")  # texts of the node that its matrices have too


def resized(back: Backward) -> Gradients:
    """The sums of blocks, or a product along each axis that changes."""
    back.only(0)
    if back.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NoGradient("there is no rule for keep_aspect_ratio_policy other than stretch")
    x, found = back.x(), back.dy
    result = Term(back.maker, back.node.outputs[0])
    crops = back.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    changed = [axis for axis in _listed(back) if crops or not dims.equal(x.shape[axis], result.shape[axis])]
    times = _times(back, changed, result)
    if times is not None:
        sizes = [part for axis in range(x.rank) for part in (x.dim(axis), times.get(axis, 0)) if part]
        summed = [axis + number + 1 for number, axis in enumerate(changed)]
        return (found.reshape(*sizes).sum(*summed, keep=False),)
    for axis in sorted(changed, reverse=True):
        matrix = _matrix(back, axis, result)
        if axis == x.rank - 1:
            found = found @ matrix.swapped()
        elif axis == x.rank - 2:
            found = matrix @ found
        else:
            order = [at for at in range(x.rank) if at != axis]
            product = found.transpose(*order, axis) @ matrix.swapped()
            found = product.transpose(*(order.index(at) if at != axis else x.rank - 1 for at in range(x.rank)))
    return (found.reshape_like(x),)


def _listed(back: Backward) -> list[int]:
    """The axes that scales and sizes tell of."""
    x, axes = back.x(), back.integers("axes")
    return list(range(x.rank)) if axes is None else [x.axis(axis) for axis in axes]


def _given(back: Backward, position: int) -> Term | None:
    """An operand; None where it is left out, or an empty tensor in its place."""
    found = back.optional(position)
    return None if found is None or back.facts.static_shape(found.value) == (0,) else found


def _scales(back: Backward) -> Term | None:
    """The scales by axis, None where sizes are given."""
    return _given(back, 1 if back.maker.opset < 11 else 2)


def _times(back: Backward, changed: list[int], result: Term) -> dict[int, int] | None:
    """How many copies each element gets along the axes that change; None where it is not copied into whole blocks."""
    positions = (
        back.text("coordinate_transformation_mode", "half_pixel"),
        back.text("nearest_mode", "round_prefer_floor"),
    )
    if back.text("mode", "nearest") != "nearest" or (back.maker.opset >= 11 and positions not in BLOCKS):
        return None
    scales = _scales(back)
    numbers = None if scales is None else back.facts.array(scales.value)
    found = {}
    for place, axis in enumerate(_listed(back)):
        if axis not in changed:
            continue
        times = dims.quotient(result.shape[axis], back.x().shape[axis])
        if not isinstance(times, int) or (scales is not None and (numbers is None or numbers[place] != times)):
            return None
        found[axis] = times
    return found


def _matrix(back: Backward, axis: int, result: Term) -> Term:
    """[size, result]: how much of each element of an axis enters each element of the result."""
    maker, x = back.maker, back.x()
    size, place = x.dim(axis), _listed(back).index(axis)
    zeros = maker.op("ConstantOfShape", maker.join([size, size], 0))
    identity = maker.op("EyeLike", zeros, attributes={"dtype": int(ir.DataType.FLOAT)}).cast(x.dtype)
    attributes: dict[str, AttributeValue] = {
        name: back.text(name, "") for name in COPIED if name in back.node.attributes
    }
    for name in ("exclude_outside", "antialias"):
        if back.integer(name, 0):
            attributes[name] = back.integer(name, 0)
    if "cubic_coeff_a" in back.node.attributes:
        attributes["cubic_coeff_a"] = back.real("cubic_coeff_a", -0.75)
    scales = _scales(back)
    if scales is not None:
        known, one = back.facts.array(scales.value), np.ones(1, np.float32)
        scales = (
            maker.join([maker.array(one), scales.slice(0, place, place + 1)], 0)
            if known is None
            else maker.array(np.append(one, known[place]))
        )
    if maker.opset < 11:
        return maker.op(back.node.op_type, identity, scales, attributes=attributes)
    none = maker.array(np.zeros(0, np.float32)) if maker.opset < 13 else None
    area = _given(back, 1)
    if area is not None:
        count = len(_listed(back))
        ends = [area.slice(0, start, start + 1) for start in (place, count + place)]
        whole = [maker.array(np.array([number]).astype(area.dtype.numpy()), area.dtype) for number in (0, 1)]
        area = maker.join([whole[0], ends[0], whole[1], ends[1]], 0)
    sizes = None if scales is not None else maker.join([size, result.dim(axis)], 0)
    return maker.op("Resize", identity, area or none, scales or none, sizes, attributes=attributes)


def affine_grid(back: Backward) -> Gradients:
    """Positions are the product of theta with the identity's positions and a one: dtheta is that with the gradient."""
    theta, size, dy, maker = back.x(), back.x(1), back.dy, back.maker
    rank = theta.shape[1]
    if not isinstance(rank, int):
        raise NoGradient(f"the dims of '{theta.value.name}' are not known")
    identity = maker.array(np.eye(rank, rank + 1)[None].astype(theta.dtype.numpy()), theta.dtype)
    one = maker.join([maker.ints(1), size.slice(0, 1, rank + 2)], 0)
    attributes = {"align_corners": back.integer("align_corners", 0)}
    base = maker.op("AffineGrid", identity, one, attributes=attributes).reshape(-1, rank)
    whole = maker.join([base, base.slice(1, 0, 1).zeros() + 1.0], 1)  # [positions, rank + 1]
    return ((dy.reshape(theta.dim(0), -1, rank).transpose(0, 2, 1) @ whole),)
