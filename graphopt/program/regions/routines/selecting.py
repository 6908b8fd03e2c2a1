"""Operators that choose elements: NonZero, Compress, Unique, ArgMax and ArgMin.

Where the count depends on the data and the model declares no number, it is stored beside the result. As many are
written as the model declares, or as there can be; zeros follow where there are fewer, if anybody reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from graphopt.program.regions.routines.moving import bits
from graphopt.program.regions.routines.sorting import UNSIGNED, Keys, above, below, key_of, sort
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    either,
    eq,
    integer,
    lt,
    minimum,
    ne,
    number,
    pick,
    remainder,
)
from kernels.size import greatest
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
            if node.zeros_follow(0, counter):
                with w.loop(rank) as axis_here, w.loop(count, found) as at:
                    y[axis_here, at] = 0


def _keep(w: Stage, counter: View | None, found: Expression) -> None:
    """Store how many were found, where data decides that."""
    if counter is not None:
        w.writes(counter).put(0, found)


def compress(node: Defined) -> None:
    """The slices whose condition holds; elements of the flat operand without an axis.

    Their places are listed once, without a branch that depends on the data, and copied from for each outer index.
    """
    shape = node.shape(0)
    is_flat = "axis" not in node.node.attributes
    axis = node.axis(0, len(shape))
    size, inner = (prod(shape), 1) if is_flat else (shape[axis], prod(shape[axis + 1 :]))
    place = 0 if is_flat else axis
    count, counter = node.output_shape(0)[place], node.counter(0, place)
    places = node.temporary(DType.I32, (greatest(size, 1),))
    total = node.temporary(DType.I64, (1,)) if counter is None else counter
    with node.stage() as w:
        condition, listed, number_of = w.reads(node.input(1)), w.writes(places), w.writes(total)
        with w.shared(1):
            given = node.extents(w, (node.dims(1)[0], size if is_flat else node.dims(0)[axis]))
            found = w.local(DType.I64, 0)
            with w.loop(minimum(*given)) as at:
                listed.put(found, as_type(at, DType.I32))
                w.set(found, found + pick(condition.at(at), integer(1), 0))
            number_of.put(0, found)
    with node.stage() as w:
        x, y = w.reads(bits(node.input(0))), w.writes(bits(node.output(0)))
        listed, number_of = w.reads(places), w.reads(total)
        with w.shared(1 if is_flat else prod(shape[:axis])) as (before,):
            found = w.local(DType.I64, minimum(number_of.at(0), count))
            aim, source = w.local(DType.I64, before * (count * inner)), w.local(DType.I64, before * (size * inner))
            with w.loop(found) as one:
                here = w.local(DType.I64, source + as_type(listed.at(one), DType.I64) * inner)
                with w.loop(inner) as after:
                    y.put(aim + one * inner + after, x.at(here + after))
            if node.zeros_follow(0, counter):
                with w.loop(count * inner, found * inner) as at:
                    y.put(aim + at, number(0, y.dtype))


def unique(node: Defined) -> None:
    """The different elements, or slices along an axis: sorted, or in the order of their first places."""
    shape = node.shape(0)
    is_flat = "axis" not in node.node.attributes
    axis = node.axis(0, len(shape))
    size, inner = (prod(shape), 1) if is_flat else (shape[axis], prod(shape[axis + 1 :]))
    outer = 1 if is_flat else prod(shape[:axis])
    count = next(node.output_shape(at)[axis if at == 0 and not is_flat else 0] for at in (0, 1, 3) if node.wants(at))
    counter = next(node.counter(at, axis if at == 0 and not is_flat else 0) for at in (0, 1, 3) if node.wants(at))
    is_sorted, source, aim = bool(node.integer("sorted", 1)), node.input(0), node.output(0)
    kind, key = source.dtype, UNSIGNED[source.dtype.bytes]
    with node.stage() as w:
        x, y = (w.reads(replace(source, dtype=key)), w.writes(replace(aim, dtype=key)))
        results = [w.writes(node.output(at)) if node.wants(at) else None for at in (1, 2, 3)]
        first, begin = w.scratch(DType.I64, (size,)), w.scratch(DType.I64, (size + 1,))
        names, group = (w.scratch(DType.I64, (size,)) for _ in range(2)) if not is_sorted else (None, None)
        with w.shared(1):
            (there,) = (
                node.extents(w, node.dims(0)[axis : axis + 1]) if len(shape) == 1 or not is_flat else (integer(size),)
            )
            if inner == 1 and outer == 1:
                place_of, is_new_at = _by_keys(w, x, kind, there)
            else:
                place_of, is_new_at = _by_slices(w, w.reads(source), size, outer, inner, there)
            found = w.local(DType.I64, -1)
            named = results[1] if group is None else group
            with w.loop(there) as at:
                here, is_new = w.local(DType.I64, place_of(at)), w.local(DType.BOOL, eq(at, 0))
                with w.when(lt(integer(0), at)):
                    w.set(is_new, is_new_at(at))
                with w.when(is_new):
                    w.set(found, found + 1)
                    first.put(found, here)
                    begin.put(found, at)
                if named is not None:
                    named.put(here, found)
            w.set(found, found + 1)
            begin.put(found, there)
            _keep(w, counter, found)
            if names is not None and group is not None:
                given = w.local(DType.I64, 0)
                with w.loop(there) as at, w.when(eq(first.at(group.at(at)), at)):
                    names.put(group.at(at), given)
                    w.set(given, given + 1)
            end = w.local(DType.I64, minimum(found, count))
            if node.zeros_follow(0, counter):
                with w.loop(outer) as above_here, w.loop(count, end) as at, w.loop(inner) as after:
                    y.put((above_here * count + at) * inner + after, number(0, y.dtype))
            for number_of, result in ((1, results[0]), (3, results[2])):
                if result is not None and node.zeros_follow(number_of, counter):
                    with w.loop(count, end) as at:
                        result.put(at, 0)
            with w.loop(found) as one:
                name, place = (
                    w.local(DType.I64, one if names is None else names.at(one)),
                    w.local(DType.I64, first.at(one)),
                )
                with w.when(lt(name, count)):
                    with w.loops(outer, inner) as (above_here, after):
                        y.put(
                            (above_here * count + name) * inner + after,
                            x.at((above_here * size + place) * inner + after),
                        )
                    for result, value in ((results[0], place), (results[2], begin.at(one + 1) - begin.at(one))):
                        if result is not None:
                            result.put(name, value)
            if results[1] is not None and names is not None and group is not None:
                with w.loop(there) as at:
                    results[1].put(at, names.at(group.at(at)))


_Sorted = tuple[Callable[[Expression], Expression], Callable[[Expression], Expression]]


def _by_keys(w: Stage, x: Grid, kind: DType, count: Expression) -> _Sorted:
    """The place of the element that comes at a position, and whether it is another one than that before it."""
    keys = Keys(w, x.dtype, prod(x.shape))
    with w.loop(count) as at:
        keys.put(at, key_of(x.at(at), kind, is_largest=False), at)
    keys.sort(count)
    return keys.place, lambda at: ne(keys.key(at), keys.key(at - 1))


def _by_slices(w: Stage, x: Grid, size: int, outer: int, inner: int, count: Expression) -> _Sorted:
    """The same of slices, each of which has an element for each of `outer` and `inner`."""
    order, spare = (w.scratch(DType.I64, (size,)) for _ in range(2))

    def slice_at(place: Expression, element: Expression) -> Expression:
        """A number of a slice, counted row-major with the axis taken out."""
        after = remainder(element, inner)
        return x.at(element * size - after * (size - 1) + place * inner)

    def before(a: Expression, b: Expression) -> Expression:
        return _slice_below(w, slice_at, outer * inner, held(x.dtype), a, b)

    with w.loop(count) as at:
        order.put(at, at)
    sort(w, order, spare, count, before)
    return order.at, lambda at: before(order.at(at - 1), order.at(at))


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
