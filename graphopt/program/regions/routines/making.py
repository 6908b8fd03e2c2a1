"""Operators that make tensors of numbers and dims: Range, ConstantOfShape, EyeLike, OneHot, Shape, Size."""

from __future__ import annotations

from math import prod

import numpy as np

from graphopt.model.operators.sources import described, filler
from graphopt.program.regions.routines.moving import bits
from graphopt.program.regions.routines.stage import Defined, Definition, held
from kernels.dtype import DType
from kernels.routine.writer import as_type, eq, lt, pick
from kernels.tensor.expression import Number


def range_(node: Defined) -> None:
    """start + i * delta, as the specification says."""
    (count,) = node.output_shape(0)
    kind = held(node.output_dtype(0))
    with node.stage() as w:
        start, delta, y = w.reads(node.input(0)), w.reads(node.input(2)), w.writes(node.output(0))
        with w.shared(1):
            first = w.local(kind, as_type(start.at(0), kind))
            step = w.local(kind, as_type(delta.at(0), kind))
            with w.loop(count) as at:
                y.put(at, as_type(first + as_type(at, kind) * step, y.dtype))


def constant_of_shape(node: Defined) -> None:
    """One element for the whole result."""
    with node.stage() as w:
        y = w.writes(bits(node.output(0)))
        value = np.atleast_1d(filler(node.node)).view(y.dtype.numpy).reshape(-1)[0].item()
        with w.shared(1), w.loop(prod(y.shape)) as at:
            y.put(at, Number(value, y.dtype))


def eye_like(node: Defined) -> None:
    """Ones on a diagonal."""
    rows, columns = node.output_shape(0)
    diagonal = node.integer("k", 0)
    with node.stage() as w:
        y = w.writes(node.output(0))
        one, zero = ((Number(value, y.dtype)) for value in (1, 0))
        if y.dtype is DType.BOOL:
            one, zero = Number(True, DType.BOOL), Number(False, DType.BOOL)
        with w.shared(rows) as (row,), w.loop(columns) as column:
            y[row, column] = pick(eq(column, row + diagonal), one, zero)


def one_hot(node: Defined) -> None:
    """The second of two values where an index says so, else the first; indices count from the end where negative."""
    shape = node.output_shape(0)
    axis = node.axis(-1, len(shape))
    depth, inner = shape[axis], prod(shape[axis + 1 :])
    with node.stage() as w:
        indices, values, y = w.reads(node.input(0)), w.reads(bits(node.input(2))), w.writes(bits(node.output(0)))
        with w.shared(prod(shape[:axis])) as (before,):
            off, on = (w.local(values.dtype, values.at(at)) for at in (0, 1))
            if inner == 1:
                chosen = w.local(DType.I64, as_type(indices.at(before), DType.I64))
                w.set(chosen, pick(lt(chosen, 0), chosen + depth, chosen))
                with w.loop(depth) as place:
                    y.put(before * depth + place, pick(eq(place, chosen), on, off))
                return
            with w.loops(depth, inner) as (place, after):
                index = as_type(indices.at(before * inner + after), DType.I64)
                hit = eq(pick(lt(index, 0), index + depth, index), place)
                y.put((before * depth + place) * inner + after, pick(hit, on, off))


def dims_of(node: Defined) -> None:
    """Shape and Size of an operand."""
    numbers = described(node.node, node.dims(0)).reshape(-1)
    with node.stage() as w:
        y = w.writes(node.output(0))
        with w.shared(1):
            for at, one in enumerate(node.extents(w, numbers.tolist())):
                y.put(at, one)


DEFINITIONS: dict[str, Definition] = {
    "ConstantOfShape": constant_of_shape,
    "EyeLike": eye_like,
    "OneHot": one_hot,
    "Range": range_,
    "Shape": dims_of,
    "Size": dims_of,
}
