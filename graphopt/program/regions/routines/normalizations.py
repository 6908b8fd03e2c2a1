"""Normalizations: softmax and its kin, and what divides by a deviation or a norm, of every axis and every type.

All compute in f32, or in f64 where the operand is of f64; sums run in f64.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, held
from graphopt.program.regions.routines.sums import Term, summed
from kernels.dtype import DType
from kernels.routine.grammar import Local
from kernels.routine.writer import (
    Grid,
    as_type,
    dot,
    eq,
    integer,
    maximum,
    minimum,
    number,
    pick,
)
from kernels.tensor.expression import Binary, Expression, Unary, dense_strides

F64 = DType.F64


def around(node: Defined, shape: Sequence[int], otherwise: int, *, flattens: bool = False) -> tuple[int, int, int]:
    """How many elements lie before the axis, along it and behind it; one that flattens takes all dims from it on."""
    if flattens:
        first = node.integer("axis", 1)
        first = first + len(shape) if first < 0 else first  # may be the rank: rows of one element
        return prod(shape[:first]), prod(shape[first:]), 1
    axis = node.axis(otherwise, len(shape))
    return prod(shape[:axis]), prod(shape[axis : axis + 1]), prod(shape[axis + 1 :])


def softmax(node: Defined) -> None:
    """e^x by the sum of them along the axis, or its logarithm; before opset 13 all dims from the axis on are one."""
    before, along, behind = around(node, node.shape(0), -1, flattens=node.opset < 13)
    kind, logs = held(node.dtype(0)), node.node.op_type == "LogSoftmax"
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(before, behind) as (row, column):
            start = w.local(DType.I64, row * (along * behind) + column)
            largest = w.local(kind, number(-inf, kind))
            with w.loop(along) as at:
                w.set(largest, maximum(largest, as_type(x.at(start + at * behind), kind)))
            power = w.scratch(kind, (along,))
            with w.loop(along) as at:
                power[at] = Unary("exp", as_type(x.at(start + at * behind), kind) - largest)
            total = as_type(summed(w, F64, along, lambda at: as_type(power[at], F64)), kind)
            scale = w.local(kind, Unary("log", total) if logs else 1.0 / total)
            with w.loop(along) as at:
                place = start + at * behind
                found = as_type(x.at(place), kind) - largest - scale if logs else power[at] * scale
                y.put(place, as_type(found, y.dtype))


def lp_normalization(node: Defined) -> None:
    """The elements by the sum of their magnitudes (p = 1) or the root of that of their squares; 0 where it is 0."""
    before, along, behind = around(node, node.shape(0), -1)
    kind, power = held(node.dtype(0)), node.integer("p", 2)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(before, behind) as (row, column):
            start = w.local(DType.I64, row * (along * behind) + column)

            def term(at: Expression) -> Expression:
                one = as_type(x.at(start + at * behind), F64)
                return Unary("abs", one) if power == 1 else one * one

            norm = summed(w, F64, along, term)
            norm = w.local(kind, as_type(norm if power == 1 else Unary("sqrt", norm), kind))
            with w.loop(along) as at:
                place = start + at * behind
                one = as_type(x.at(place), kind)
                y.put(place, as_type(pick(eq(norm, 0), number(0, kind), one / norm), y.dtype))


def lrn(node: Defined) -> None:
    """x / (bias + alpha / size * the sum of squares of the channels around)^beta."""
    batch, channels, *spatial = node.shape(0)
    inner, size, kind = prod(spatial), node.integer("size", 1), held(node.dtype(0))
    alpha, beta, bias = node.number("alpha", 1e-4), node.number("beta", 0.75), node.number("bias", 1.0)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        squares = w.scratch(kind, (inner,))
        with w.shared(batch, channels) as (n, c):
            with w.loop(inner) as at:
                squares[at] = number(0, kind)
            first, last = w.local(DType.I64, maximum(c - before, 0)), minimum(c + after, channels - 1)
            with w.loop(last + 1, first) as channel, w.loop(inner) as at:
                one = as_type(x.at((n * channels + channel) * inner + at), kind)
                squares[at] = squares[at] + one * one
            with w.loop(inner) as at:
                place = (n * channels + c) * inner + at
                base = squares[at] * (alpha / size) + bias
                y.put(place, as_type(as_type(x.at(place), kind) / Binary("pow", base, number(beta, kind)), y.dtype))


def _row_statistics(
    w: Stage, x: Grid, start: Expression, count: int, kind: DType, *, centered: bool
) -> tuple[Expression, Expression]:
    """The mean (0 where rows are not centered) and the mean square around it of a run of elements."""
    mean: Expression = number(0, F64)
    if centered:
        mean = w.local(F64, summed(w, F64, count, lambda at: as_type(x.at(start + at), F64)) / count)

    def square(at: Expression) -> Expression:
        one = as_type(x.at(start + at), F64) - mean
        return one * one

    return mean, w.local(F64, summed(w, F64, count, square) / count)


def layer_normalization(node: Defined) -> None:
    """Rows of all dims from the axis on by their deviation, or by their root mean square (RMSNormalization)."""
    shape, centered = node.shape(0), node.node.op_type == "LayerNormalization"
    axis = node.axis(-1, len(shape))
    rows, count, kind = prod(shape[:axis]), prod(shape[axis:]), held(node.dtype(0))
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        factors = [w.reads(node.input(at)) if node.has(at) else None for at in (1, 2)]
        results = [w.writes(node.output(at)) if node.wants(at) else None for at in (1, 2)]
        with w.shared(rows) as (row,):
            start = w.local(DType.I64, row * count)
            mean, square = _row_statistics(w, x, start, count, kind, centered=centered)
            scale = 1.0 / Unary("sqrt", square + node.number("epsilon", 1e-5))
            for one, value in zip(results, (mean, scale), strict=True):
                if one is not None:
                    one.put(row, as_type(value, one.dtype))
            middle, factor = w.local(kind, as_type(mean, kind)), w.local(kind, as_type(scale, kind))
            if all(one is None or prod(one.shape) in (1, count) for one in factors):
                with w.loop(count) as at:
                    found: Expression = (as_type(x.at(start + at), kind) - middle) * factor
                    found = _scaled(found, *[_element(one, at, kind) for one in factors])
                    y.put(start + at, as_type(found, y.dtype))
                return
            with w.loops(*shape[axis:]) as inner:
                place = start + dot(inner, dense_strides(tuple(shape[axis:])))
                outer = w.unraveled(row, shape[:axis])
                found = (as_type(x.at(place), kind) - middle) * factor
                found = _scaled(found, *[_broadcast(one, (*outer, *inner), kind) for one in factors])
                y.put(place, as_type(found, y.dtype))


def _element(one: Grid | None, at: Expression, kind: DType) -> Expression | None:
    """An element of a factor that rows share."""
    return None if one is None else as_type(one.at(integer(0) if prod(one.shape) == 1 else at), kind)


def _broadcast(one: Grid | None, at: Sequence[Expression], kind: DType) -> Expression | None:
    """The element of a factor for a place of the result."""
    if one is None:
        return None
    shown = at[len(at) - len(one.shape) :]
    return as_type(
        one[[integer(0) if size == 1 else place for size, place in zip(one.shape, shown, strict=True)]], kind
    )


def _scaled(x: Expression, factor: Expression | None, summand: Expression | None) -> Expression:
    x = x if factor is None else x * factor
    return x if summand is None else x + summand


def group_normalization(node: Defined) -> None:
    """Groups of channels by their deviation; scale and bias are of groups before opset 21, of channels since.

    InstanceNormalization is the same with one channel in each group.
    """
    batch, channels, *spatial = node.shape(0)
    inner, kind = prod(spatial), held(node.dtype(0))
    groups = node.integer("num_groups", channels)
    each = channels // groups
    per_group = node.node.op_type == "GroupNormalization" and node.shape(1) == (groups,) != (channels,)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        scale, bias = w.reads(node.input(1)), w.reads(node.input(2))
        with w.shared(batch, groups) as (n, group):
            start = w.local(DType.I64, (n * groups + group) * (each * inner))
            mean, square = _row_statistics(w, x, start, each * inner, kind, centered=True)
            middle = w.local(kind, as_type(mean, kind))
            factor = w.local(kind, as_type(1.0 / Unary("sqrt", square + node.number("epsilon", 1e-5)), kind))
            with w.loop(each) as channel:
                at = group if per_group else group * each + channel
                slope = w.local(kind, as_type(scale.at(at), kind) * factor)
                shift = w.local(kind, as_type(bias.at(at), kind))
                with w.loop(inner) as position:
                    place = start + channel * inner + position
                    y.put(place, as_type((as_type(x.at(place), kind) - middle) * slope + shift, y.dtype))


def mean_variance(node: Defined) -> None:
    """(x - mean) / (deviation + 1e-9) over the axes."""
    shape, kind = node.shape(0), held(node.dtype(0))
    rank = len(shape)
    axes = {one % rank for one in node.integers("axes", (0, 2, 3))}
    kept = [1 if at in axes else size for at, size in enumerate(shape)]
    taken, steps = [size if at in axes else 1 for at, size in enumerate(shape)], dense_strides(tuple(shape))
    count = max(prod(taken), 1)
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        with w.shared(*kept) as outer:
            start = w.local(DType.I64, dot(outer, steps))
            mean, square = (w.local(F64, number(0, F64)) for _ in range(2))
            with w.loops(*taken) as inner:
                w.set(mean, mean + as_type(x.at(start + dot(inner, steps)), F64))
            w.set(mean, mean / count)
            with w.loops(*taken) as inner:
                one = as_type(x.at(start + dot(inner, steps)), F64) - mean
                w.set(square, square + one * one)
            scale = w.local(kind, as_type(1.0 / (Unary("sqrt", square / count) + 1e-9), kind))
            middle = w.local(kind, as_type(mean, kind))
            with w.loops(*taken) as inner:
                place = start + dot(inner, steps)
                y.put(place, as_type((as_type(x.at(place), kind) - middle) * scale, y.dtype))


def batch_normalization(node: Defined) -> None:
    """By given statistics, or in training by those of the batch, which then join the running ones by momentum.

    Before opset 14 an attribute `is_test` or `spatial` said more (opsets 1 to 8); a node then trains where it has
    other outputs. The variance of a batch is the mean square (not the estimate with n - 1).
    """
    shape = node.shape(0)
    batch, channels, *spatial = shape if len(shape) > 1 else (*shape, 1)
    inner, kind, double = prod(spatial), held(node.dtype(0)), F64
    trains = bool(node.integer("training_mode", 0)) if node.opset >= 14 else any(map(node.wants, range(1, 5)))
    momentum, epsilon = node.number("momentum", 0.9), node.number("epsilon", 1e-5)
    if node.opset < 9 and not node.integer("spatial", 1):
        raise node.refuse("has statistics of every place (spatial = 0), which is not written")
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        scale, bias, mean, variance = (w.reads(node.input(at)) for at in range(1, 5))
        running = [w.writes(node.output(at)) if node.wants(at) else None for at in range(1, len(node.node.outputs))]
        count = max(batch * inner, 1)

        def over_batch(c: Expression, term: Term) -> Local:
            total = w.local(double, number(0, double))
            with w.loop(batch) as n:
                start = w.local(DType.I64, (n * channels + c) * inner)
                w.set(total, total + summed(w, double, inner, lambda at: term(as_type(x.at(start + at), double))))
            return w.local(double, total / count)

        with w.shared(channels) as (c,):
            if trains:
                middle = over_batch(c, lambda one: one)
                spread = over_batch(c, lambda one: (one - middle) * (one - middle))
            else:
                middle, spread = (w.local(double, as_type(one.at(c), double)) for one in (mean, variance))
            factor = w.local(double, as_type(scale.at(c), double) / Unary("sqrt", spread + epsilon))
            slope = w.local(kind, as_type(factor, kind))
            shift = w.local(kind, as_type(as_type(bias.at(c), double) - middle * factor, kind))
            for old, new, one in zip((mean, variance), (middle, spread), running, strict=False):
                if one is not None:
                    was = as_type(old.at(c), double)
                    one.put(c, as_type(was * momentum + new * (1 - momentum), one.dtype))
            for new, one in zip((middle, spread), running[2:], strict=False):
                if one is not None:
                    one.put(c, as_type(new, one.dtype))
            with w.loops(batch, inner) as (n, at):
                place = (n * channels + c) * inner + at
                y.put(place, as_type(as_type(x.at(place), kind) * slope + shift, y.dtype))


DEFINITIONS: dict[str, Definition] = {
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "LpNormalization": lp_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": layer_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": group_normalization,
    "MeanVarianceNormalization": mean_variance,
    "BatchNormalization": batch_normalization,
}
