"""Gradients of Gather, Scatter and their kind: what is read several times adds up.

Scatters add from opset 16 on. Before, rows of a Gather add up in a product with a matrix of ones and zeros.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import Attributes, AttributeValue, NoGradient, Term

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
    return (_adding(back, "ScatterND", _places(back), None),)


def _places(back: Backward) -> Term:
    """The indices of a GatherND with those of the batch in front."""
    x, indices, batch = back.x(), back.x(1), back.integer("batch_dims", 0)
    if not batch:
        return indices
    sizes = [size for size in x.shape[:batch] if isinstance(size, int)]
    if len(sizes) != batch:
        raise NoGradient(f"the dims of '{x.value.name}' that batch_dims counts are not known; fix them with --dim")
    grid = np.stack(list(np.indices(sizes, np.int64)), -1).reshape(*sizes, *(1,) * (indices.rank - 1 - batch), batch)
    dims = [indices.dim(axis) for axis in range(indices.rank - 1)]
    whole = back.maker.array(grid).expand_to(back.maker.join([*dims, back.maker.ints(batch)], 0))
    return back.maker.join([whole, indices.cast(ir.DataType.INT64)], indices.rank - 1)


def scattered_elements(back: Backward) -> Gradients:
    """To the data what was not written over, to the updates what they wrote."""
    return _scattered(back, "ScatterElements", "GatherElements", {"axis": back.integer("axis", 0)})


def scattered_slices(back: Backward) -> Gradients:
    """To the data what was not written over, to the updates what they wrote."""
    return _scattered(back, "ScatterND", "GatherND", {})


def _scattered(back: Backward, scatter: str, gather: str, axis: Attributes) -> Gradients:
    """The rule of a scatter by its reduction; those that have the largest or smallest number share evenly."""
    data, places, updates, dy, maker = back.x(), back.x(1), back.x(2), back.dy, back.maker
    reduction = back.text("reduction", "none")

    def written(into: Term, what: Term, how: str) -> Term:
        named: dict[str, AttributeValue] = {} if how == "none" else {"reduction": how}
        return maker.op(scatter, into, places, what, attributes={**axis, **named})

    def read(term: Term) -> Term:
        return maker.op(gather, term, places, attributes=axis)

    if reduction in ("none", "add"):
        kept = written(dy, updates.zeros(), "none") if reduction == "none" and back.wants(0) else dy
        return kept, None, read(dy) if back.wants(2) else None
    y = back.y()
    if reduction in ("max", "min"):
        first, others = data.equals(y).cast(dy.dtype), updates.equals(read(y)).cast(dy.dtype)
        share = dy / written(first, others, "add")
        return share * first, None, read(share) * others
    zero = updates.equals(0.0)
    zeros = written(dy.zeros(), zero.cast(dy.dtype), "add")  # by element, the updates that are 0
    products = written(data, updates.number(1.0).where(zero, updates), "mul") * dy  # of all others
    alone = read(products.where(zeros.equals(1.0)))
    rest = read(products.where(zeros.equals(0.0))) / updates.number(1.0).where(zero, updates)
    factors = written(dy.zeros() + 1.0, updates, "mul")
    return dy * factors, None, alone.where(zero, rest)


def selected(back: Backward) -> Gradients:
    """Compress: what was kept goes back to where it came from."""
    x, maker, axis = back.x(), back.maker, back.node.attributes.get("axis")
    places = maker.op("NonZero", back.x(1)).transpose(1, 0)
    if axis is None:
        flat = maker.op("ScatterND", x.zeros().reshape(-1), places, back.dy)
        return (flat.reshape_like(x),)
    at = x.axis(back.integer("axis", 0))
    order = (at, *(other for other in range(x.rank) if other != at))
    found = maker.op("ScatterND", x.zeros().transpose(*order), places, back.dy.transpose(*order))
    return (found.transpose(*(order.index(other) for other in range(x.rank))),)


def one_hot(back: Backward) -> Gradients:
    """To the two values: the sums of the gradient where each of them stands."""
    back.only(2)
    maker, dy = back.maker, back.dy
    choice = maker.array(np.array([0, 1]).astype(dy.dtype.numpy()), dy.dtype)
    chosen = maker.op("OneHot", back.x(0), back.x(1), choice, attributes={"axis": back.integer("axis", -1)})
    axes = tuple(range(dy.rank))
    parts = [(dy * mask).sum(*axes, keep=False).unsqueeze(0) for mask in (1.0 - chosen, chosen)]
    return None, None, maker.join(parts, 0)


def cached(back: Backward) -> Gradients:
    """TensorScatter: to the cache what was not written over, to the update the range that it wrote."""
    x, update, maker, mode = back.x(), back.x(1), back.maker, back.text("mode", "linear")
    axis = x.axis(back.integer("axis", -2))
    attributes: dict[str, AttributeValue] = {"axis": back.integer("axis", -2), "mode": mode}
    kept = maker.op("TensorScatter", back.dy, update.zeros(), back.optional(2), attributes=attributes)
    zero, one = (maker.array(np.array(number, np.int64)) for number in (0, 1))
    steps = maker.op("Range", zero, update.dim(axis).squeeze(0), one).unsqueeze(*range(1, x.rank - axis))
    first = back.optional(2)
    places = steps if first is None else steps + first.unsqueeze(*range(1, x.rank))
    if mode == "circular":
        places = maker.op("Mod", places, x.dim(axis))
    return kept, maker.op("GatherElements", back.dy, places.expand_to(update.dims()), attributes={"axis": axis})
