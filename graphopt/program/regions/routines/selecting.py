"""Operators that choose elements: NonZero, Compress, Unique, ArgMax and ArgMin.

Where the count depends on the data and the model declares no number, it is stored beside the result. As many are
written as the model declares, or as there can be; zeros follow where there are fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from graphopt.program.regions.routines.moving import bits
from graphopt.program.regions.routines.sorting import above, below, sort
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import (
    as_type,
    both,
    either,
    eq,
    integer,
    lt,
    minimum,
    ne,
    number,
    remainder,
)
from kernels.tensor.expression import Expression, Unary


def extreme(node: Defined) -> None:
    """The place of the largest (smallest) element of each row: the first or the last one; that of the first NaN."""
    shape = node.shape(0)
    axis = node.axis(0, len(shape))
    size, inner = shape[axis], prod(shape[axis + 1 :])
    is_better = above if node.node.op_type == "ArgMax" else _below_or_nan
    takes_last, kind = bool(node.integer("select_last_index", 0)), held(node.dtype(0))
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(prod(shape[:axis]), inner) as (before, after):
            start = w.local(DType.I64, before * (size * inner) + after)
            best = w.local(kind, as_type(x.at(start), kind))
            place = w.local(DType.I64, 0)
            (there,) = node.extents(w, node.dims(0)[axis : axis + 1])
            with w.loop(there, 1) as at:
                one = w.local(kind, as_type(x.at(start + at * inner), kind))
                better = is_better(one, best)
                with w.when(either(better, eq(one, best)) if takes_last else better):
                    w.set(best, one)
                    w.set(place, at)
            y.put(before * inner + after, place)


def _below_or_nan(a: Expression, b: Expression) -> Expression:
    """a < b, with NaN in front of all numbers."""
    if not a.dtype.is_float:
        return lt(a, b)
    return either(lt(a, b), both(Unary("is_nan", a), Unary("not", Unary("is_nan", b))))


def non_zero(node: Defined) -> None:
    """The indices of all elements that are not 0, in their order."""
    rank, count = node.output_shape(0)
    counter = node.counter(0, 1)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(1):
            found = w.local(DType.I64, 0)
            with w.loops(*(node.extents(w, node.dims(0)) or (1,))) as indices:
                one = x[indices if x.shape else ()]
                hit = one if x.dtype is DType.BOOL else ne(one, 0)
                with w.when(both(hit, lt(found, count))):
                    for axis in range(rank):
                        y.put(found + axis * count, indices[axis])
                    w.set(found, found + 1)
            _keep(w, counter, found)
            with w.loop(rank) as axis_here, w.loop(count, found) as at:
                y[axis_here, at] = 0


def _keep(w: Stage, counter: View | None, found: Expression) -> None:
    """Store how many were found, where data decides that."""
    if counter is not None:
        w.writes(counter).put(0, found)


def compress(node: Defined) -> None:
    """The slices whose condition holds; elements of the flat operand without an axis."""
    shape = node.shape(0)
    is_flat = "axis" not in node.node.attributes
    axis = node.axis(0, len(shape))
    size, inner = (prod(shape), 1) if is_flat else (shape[axis], prod(shape[axis + 1 :]))
    place = 0 if is_flat else axis
    count, counter = node.output_shape(0)[place], node.counter(0, place)

    def given(w: Stage) -> Expression:
        """How many conditions there are that have a slice."""
        return minimum(*node.extents(w, (node.dims(1)[0], size if is_flat else node.dims(0)[axis])))

    with node.stage() as w:
        x, condition, y = w.reads(bits(node.input(0))), w.reads(node.input(1)), w.writes(bits(node.output(0)))
        with w.shared(1 if is_flat else prod(shape[:axis])) as (before,):
            found = w.local(DType.I64, 0)
            with w.loop(given(w)) as at, w.when(both(condition.at(at), lt(found, count))):
                with w.loop(inner) as after:
                    y.put((before * count + found) * inner + after, x.at((before * size + at) * inner + after))
                w.set(found, found + 1)
            with w.loop(count, found) as at, w.loop(inner) as after:
                y.put((before * count + at) * inner + after, number(0, y.dtype))
    if counter is not None:
        with node.stage() as w:
            condition, total = w.reads(node.input(1)), w.writes(counter)
            with w.shared(1):
                found = w.local(DType.I64, 0)
                with w.loop(given(w)) as at, w.when(condition.at(at)):
                    w.set(found, found + 1)
                total.put(0, found)


def unique(node: Defined) -> None:
    """The different elements, or slices along an axis: sorted, or in the order of their first places."""
    shape = node.shape(0)
    is_flat = "axis" not in node.node.attributes
    axis = node.axis(0, len(shape))
    size, inner = (prod(shape), 1) if is_flat else (shape[axis], prod(shape[axis + 1 :]))
    outer = 1 if is_flat else prod(shape[:axis])
    count = next(node.output_shape(at)[axis if at == 0 and not is_flat else 0] for at in (0, 1, 3) if node.wants(at))
    counter = next(node.counter(at, axis if at == 0 and not is_flat else 0) for at in (0, 1, 3) if node.wants(at))
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        results = [w.writes(node.output(at)) if node.wants(at) else None for at in (1, 2, 3)]
        order, spare, group, first, names, counts = (w.scratch(DType.I64, (size,)) for _ in range(6))

        def slice_at(place: Expression, element: Expression) -> Expression:
            """A number of a slice, counted row-major with the axis taken out."""
            if inner == 1 and outer == 1:
                return x.at(place)
            after = remainder(element, inner)
            return x.at(element * size - after * (size - 1) + place * inner)

        def before(a: Expression, b: Expression) -> Expression:
            return _slice_below(w, slice_at, outer * inner, held(x.dtype), a, b)

        with w.shared(1):
            (there,) = (
                node.extents(w, node.dims(0)[axis : axis + 1]) if len(shape) == 1 or not is_flat else (integer(size),)
            )
            with w.loop(there) as at:
                order.put(at, at)
            sort(w, order, spare, there, before)
            found = w.local(DType.I64, -1)
            with w.loop(there) as at:
                here = w.local(DType.I64, order.at(at))
                is_new = w.local(DType.BOOL, eq(at, 0))
                with w.when(lt(integer(0), at)):
                    w.set(is_new, before(order.at(at - 1), here))
                with w.when(is_new):
                    w.set(found, found + 1)
                    first.put(found, here)
                    names.put(found, found)
                    counts.put(found, 0)
                group.put(here, found)
                counts.put(found, counts.at(found) + 1)
            _keep(w, counter, found + 1)
            if not node.integer("sorted", 1):
                given = w.local(DType.I64, 0)
                with w.loop(there) as at, w.when(eq(first.at(group.at(at)), at)):
                    names.put(group.at(at), given)
                    w.set(given, given + 1)
            for result in (y, results[0], results[2]):
                if result is not None:
                    with w.loop(prod(result.shape)) as at:
                        result.put(at, number(0, result.dtype))
            with w.loop(found + 1) as one:
                name, source = w.local(DType.I64, names.at(one)), w.local(DType.I64, first.at(one))
                with w.when(lt(name, count)):
                    with w.loops(outer, inner) as (above_here, after):
                        y.put(
                            (above_here * count + name) * inner + after,
                            x.at((above_here * size + source) * inner + after),
                        )
                    for result, value in ((results[0], source), (results[2], counts.at(one))):
                        if result is not None:
                            result.put(name, value)
            if results[1] is not None:
                with w.loop(there) as at:
                    results[1].put(at, names.at(group.at(at)))


def _slice_below(
    w: Stage,
    slice_at: Callable[[Expression, Expression], Expression],
    elements: int,
    kind: DType,
    a: Expression,
    b: Expression,
) -> Expression:
    """Whether a slice comes before another one: the first element in which they differ decides."""
    left, right = w.local(DType.I64, a), w.local(DType.I64, b)
    if elements == 1:
        return below(as_type(slice_at(left, integer(0)), kind), as_type(slice_at(right, integer(0)), kind))
    result, at = w.local(DType.BOOL, False), w.local(DType.I64, 0)
    with w.loop_while(lt(at, elements)):
        one, other = (w.local(kind, as_type(slice_at(place, at), kind)) for place in (left, right))
        w.set(at, at + 1)
        w.set(result, below(one, other))
        with w.when(either(result, below(other, one))):
            w.set(at, elements)
    return result


DEFINITIONS: dict[str, Definition] = {
    "ArgMax": extreme,
    "ArgMin": extreme,
    "Compress": compress,
    "NonZero": non_zero,
    "Unique": unique,
}
