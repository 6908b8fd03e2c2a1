"""Gradients of Gather and Scatter: what is read several times adds up.

Scatters add from opset 16 on. Before, rows of a Gather add up in a product with a matrix of ones and zeros.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import NoGradient, Term

ADDING_SINCE = 16  # opset


def gathered(back: Backward) -> Gradients:
    """Rows go back to where they came from, and add up there."""
    x, indices, dy = back.x(), back.x(1), back.dy
    axis = x.axis(back.integer("axis", 0))
    known = back.facts.ints(indices.value)
    size = x.shape[axis]
    if known is not None and len(known) == 1 and isinstance(size, int):
        dy = dy if indices.rank else dy.unsqueeze(axis)
        for _ in range(indices.rank - 1):
            dy = dy.squeeze(axis)
        before, after = [0] * x.rank, [0] * x.rank
        before[axis], after[axis] = known[0] % size, size - 1 - known[0] % size
        return (dy.pad(before, after),)
    order = (*range(axis, axis + indices.rank), *range(axis), *range(axis + indices.rank, dy.rank))
    rows = dy.transpose(*order)  # the indices' axes first, then the others in order
    turned = (axis, *(at for at in range(x.rank) if at != axis))
    sizes = [x.dim(at) for at in turned]
    if back.maker.opset >= ADDING_SINCE:
        zeros = _zeros(x, sizes)
        places = indices.unsqueeze(indices.rank).cast(ir.DataType.INT64)
        found = back.maker.op("ScatterND", zeros, places, rows, attributes={"reduction": "add"})
    else:
        found = _by_product(x, indices, rows, sizes)
    return (found.transpose(*(turned.index(at) for at in range(x.rank))),)


def _zeros(like: Term, sizes: list[Term]) -> Term:
    filler = ir.Tensor(np.zeros(1, like.dtype.numpy()), dtype=like.dtype)
    return like.maker.op("ConstantOfShape", like.maker.join(sizes, 0), attributes={"value": filler})


def _by_product(x: Term, indices: Term, rows: Term, sizes: list[Term]) -> Term:
    """The matrix that has a one where a row was read from, times the rows."""
    flat = indices.reshape(-1)
    choice = x.maker.array(np.array([0, 1]).astype(x.dtype.numpy()), x.dtype)
    chosen = x.maker.op("OneHot", flat, sizes[0], choice, attributes={"axis": 0})  # [size, rows]
    rest = sizes[1] if len(sizes) > 1 else x.maker.ints(1)
    for size in sizes[2:]:
        rest = rest * size
    return (chosen @ rows.reshape(flat.dim(0), rest)).reshape(*sizes)


def _adding(back: Backward, op_type: str, places: Term, axis: int | None) -> Term:
    """The gradient added into zeros of the first operand's dims."""
    if back.maker.opset < ADDING_SINCE:
        raise NoGradient(f"{op_type} adds from opset 16 on; lift the model with 'graphopt optimize --opset 16'")
    attributes: dict[str, int | str] = {"reduction": "add"}
    if axis is not None:
        attributes["axis"] = axis
    return back.maker.op(op_type, back.x().zeros(), places, back.dy, attributes=attributes)


def gathered_elements(back: Backward) -> Gradients:
    """Elements go back to where they came from, and add up there."""
    return (_adding(back, "ScatterElements", back.x(1), back.integer("axis", 0)),)


def gathered_slices(back: Backward) -> Gradients:
    """Slices go back to where they came from, and add up there."""
    if back.integer("batch_dims", 0):
        raise NoGradient("there is no rule for batch_dims")
    return (_adding(back, "ScatterND", back.x(1), None),)


def scattered_elements(back: Backward) -> Gradients:
    """To the data what was not written over, to the updates what they wrote."""
    axis, reduction = {"axis": back.integer("axis", 0)}, back.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise NoGradient(f"there is no rule for reduction '{reduction}'")
    data: Term | None = back.dy
    if reduction == "none" and back.wants(0):
        data = back.maker.op("ScatterElements", back.dy, back.x(1), back.x(2).zeros(), attributes=axis)
    updates = back.maker.op("GatherElements", back.dy, back.x(1), attributes=axis) if back.wants(2) else None
    return data, None, updates


def scattered_slices(back: Backward) -> Gradients:
    """To the data what was not written over, to the updates what they wrote."""
    reduction = back.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise NoGradient(f"there is no rule for reduction '{reduction}'")
    data: Term | None = back.dy
    if reduction == "none" and back.wants(0):
        data = back.maker.op("ScatterND", back.dy, back.x(1), back.x(2).zeros())
    return data, None, back.maker.op("GatherND", back.dy, back.x(1)) if back.wants(2) else None
