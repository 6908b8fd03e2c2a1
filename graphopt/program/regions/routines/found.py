"""Concat, Gather, GatherND, Reshape and Slice of values of which data decides how many elements they have.

Elements lie by the most that each dim can be. Where a dim begins behind another that data decides, they move; and
what counts from the end counts from where a run has found it.
"""

from __future__ import annotations

from math import prod

from graphopt.program.regions.routines.moving import bits
from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from kernels.dtype import DType
from kernels.routine.writer import as_type, integer, lt, maximum, minimum, number, pick, quotient, remainder
from kernels.tensor.expression import Expression


def concat(node: Defined) -> None:
    """One operand behind the other, each from where the one before ends.

    Along the other axes all have as many elements; but of one whose count data decides, there is room for more.
    """
    shape = node.output_shape(0)
    axis = node.axis(0, len(shape))
    size, inner = shape[axis], prod(shape[axis + 1 :])
    with node.stage() as w:
        operands = [w.reads(bits(node.input(at))) for at in range(len(node.node.inputs))]
        y = w.writes(bits(node.output(0)))
        with w.shared(prod(shape[:axis])) as (before,):
            start = w.local(DType.I64, before * size)
            for at, x in enumerate(operands):
                (count,) = node.extents(w, node.dims(at)[axis : axis + 1])
                alike = x.shape[:axis] == shape[:axis] and x.shape[axis + 1 :] == shape[axis + 1 :]
                with w.loop(count) as place, w.loop(inner) as after:
                    if alike:
                        element = x.at((before * x.shape[axis] + place) * inner + after)
                    else:
                        ahead, behind = _places(before, shape[:axis]), _places(after, shape[axis + 1 :])
                        places = (*ahead, place, *behind)
                        element = x[tuple(minimum(one, size - 1) for one, size in zip(places, x.shape, strict=True))]
                    y.put((start + place) * inner + after, element)
                w.set(start, start + count)
            with w.loop((before + 1) * size, start) as place, w.loop(inner) as after:
                y.put(place * inner + after, number(0, y.dtype))


def _places(flat: Expression, shape: tuple[int, ...]) -> list[Expression]:
    """The place along each of several axes that are counted through as one."""
    found: list[Expression] = []
    for size in reversed(shape):
        found.insert(0, remainder(flat, max(size, 1)))
        flat = quotient(flat, max(size, 1))
    return found


def slice_(node: Defined) -> None:
    """Every axis from its start to its end, as a run gives or finds them, and as far as there are elements."""
    rank, axes, shape = len(node.shape(0)), node.constant(3), node.output_shape(0)
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        starts, ends = w.reads(node.input(1)), w.reads(node.input(2))
        steps = w.reads(node.input(4)) if node.has(4) else None
        names = range(starts.shape[0]) if axes is None else [int(axis) % rank for axis in axes.reshape(-1)]
        counters = {axis: counter for axis in names if (counter := node.counter(0, axis)) is not None}
        with w.shared(1):
            with w.loop(prod(shape)) as at:
                y.put(at, number(0, y.dtype))
            counts = list(node.extents(w, node.dims(0)))
            taken: list[tuple[Expression, Expression]] = [(integer(0), integer(1))] * rank
            for place, axis in enumerate(names):
                step = w.local(DType.I64, 1 if steps is None else as_type(steps.at(place), DType.I64))
                first, last = (as_type(one.at(place), DType.I64) for one in (starts, ends))
                start, counts[axis] = _range(w, first, last, step, counts[axis], shape[axis])
                taken[axis] = start, step
                if axis in counters:
                    w.writes(counters[axis]).put(0, counts[axis])
            with w.loops(*counts) as indices:
                y[indices] = x[[start + at * step for at, (start, step) in zip(indices, taken, strict=True)]]


def _range(
    w: Stage, start: Expression, end: Expression, step: Expression, size: Expression, most: int
) -> tuple[Expression, Expression]:
    """The first position of a slice of an axis, and how many there are."""
    is_back = w.local(DType.BOOL, lt(step, 0))
    low, high = pick(is_back, integer(-1), 0), pick(is_back, size - 1, size)
    first, last = (
        w.local(DType.I64, minimum(maximum(pick(lt(one, 0), one + size, one), low), high)) for one in (start, end)
    )
    length = pick(is_back, first - last, last - first)
    stride = maximum(pick(is_back, integer(0) - step, step), 1)
    count = w.local(DType.I64, quotient(maximum(length + stride - 1, 0), stride))
    return first, w.local(DType.I64, minimum(count, most))


def gather(node: Defined) -> None:
    """What indices name along an axis."""
    shape = node.shape(0)
    axis = node.axis(0, len(shape))
    size, inner, count = shape[axis], prod(shape[axis + 1 :]), prod(node.shape(1))
    with node.stage() as w:
        x, indices, y = w.reads(bits(node.input(0))), w.reads(node.input(1)), w.writes(bits(node.output(0)))
        with w.shared(prod(shape[:axis])) as (before,):
            (there,) = node.extents(w, node.dims(0)[axis : axis + 1])
            with w.loop(count if size else 0) as at:
                index = w.local(DType.I64, as_type(indices.at(at), DType.I64))
                w.set(index, pick(lt(index, 0), index + there, index))
                w.set(index, minimum(maximum(index, 0), size - 1))
                with w.loop(inner) as after:
                    y.put((before * count + at) * inner + after, x.at((before * size + index) * inner + after))


def gather_by_tuples(node: Defined) -> None:
    """What tuples of indices name along the first axes; there are no batches."""
    shape, indices_shape = node.shape(0), node.shape(1)
    named = indices_shape[-1]
    inner = prod(shape[named:])
    with node.stage() as w:
        x, indices, y = w.reads(bits(node.input(0))), w.reads(node.input(1)), w.writes(bits(node.output(0)))
        with w.shared(prod(indices_shape[:-1]) if all(shape[:named]) else 0) as (at,):
            sizes = node.extents(w, node.dims(0)[:named])
            place: Expression = integer(0)
            for axis, there in enumerate(sizes):
                index = w.local(DType.I64, as_type(indices.at(at * named + axis), DType.I64))
                w.set(index, pick(lt(index, 0), index + there, index))
                place = place * shape[axis] + minimum(maximum(index, 0), shape[axis] - 1)
            row = w.local(DType.I64, place)
            with w.loop(inner) as after:
                y.put(at * inner + after, x.at(row * inner + after))


def reshape(node: Defined) -> None:
    """Elements in the order in which they were found, under other dims."""
    node.require(bool(node.shape(0)), "makes more of one element")
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        with w.shared(1):
            with w.loop(prod(y.shape)) as at:
                y.put(at, number(0, y.dtype))
            sizes, others = node.extents(w, node.dims(0)), node.extents(w, node.output_dims(0))
            taken = w.local(DType.I64, 0)
            with w.loops(*sizes) as indices:
                rest: Expression = w.local(DType.I64, taken)
                place: Expression = integer(0)
                step = 1
                for size, most in reversed(list(zip(others, y.shape, strict=True))):
                    place = place + remainder(rest, size) * step
                    rest = w.local(DType.I64, quotient(rest, size))
                    step *= most
                with w.when(lt(place, prod(y.shape))):
                    y.put(place, x[indices])
                w.set(taken, taken + 1)


DEFINITIONS: dict[str, Definition] = {
    "Concat": concat,
    "Flatten": reshape,
    "Gather": gather,
    "GatherND": gather_by_tuples,
    "Reshape": reshape,
    "Slice": slice_,
}
