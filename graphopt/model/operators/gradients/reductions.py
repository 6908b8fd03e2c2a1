"""Gradients of reductions, running sums and products, and TopK."""

from __future__ import annotations

from collections.abc import Callable

from graphopt.model.operators.gradients.backward import Backward, GradientRule, Gradients
from graphopt.model.operators.gradients.terms import Term
from graphopt.model.operators.parameters import AXES, REDUCED


def reduction(rule: Callable[[Term, Term, Callable[[], Term], tuple[int, ...]], Term]) -> GradientRule:
    """The rule of a reduction, from one of the operand, the gradient, the result and the axes.

    Gradient and result have the operand's rank; the result is a call, so that it is there only where it is read.
    """

    def gradient(back: Backward) -> Gradients:
        x, axes = back.x(), _axes(back)
        gone = () if back.integer("keepdims", 1) else axes
        return (rule(x, back.dy.unsqueeze(*gone), lambda: back.y().unsqueeze(*gone), axes),)

    return gradient


def _axes(back: Backward) -> tuple[int, ...]:
    """The reduced axes, counted from 0."""
    rank = back.x().rank
    place = AXES if back.node.op_type == "ReduceSum" else REDUCED
    listed = back.parameter("axes", place, "the list of axes")
    if not listed and place.is_input(back.maker.opset) and back.integer("noop_with_empty_axes", 0):
        return ()
    return tuple(sorted({axis % rank for axis in listed})) if listed else tuple(range(rank))


def _shared(x: Term, dy: Term, y: Callable[[], Term], axes: tuple[int, ...]) -> Term:
    chosen = x.equals(y()).cast(x.dtype)
    return chosen * (dy / chosen.sum(*axes))


def _product(x: Term, dy: Term, y: Callable[[], Term], axes: tuple[int, ...]) -> Term:
    """The product of the others: y / x; where one element is 0, that one's alone is not 0."""
    zero = x.equals(0.0)
    others = x.number(1.0).where(zero, x)
    zeros = zero.cast(x.dtype).sum(*axes)
    product = x.maker.op("ReduceProd", others, attributes={"axes": axes, "keepdims": 1}) if axes else others
    none = (product / others).where(zeros.equals(0.0))
    return dy * (product.where(zeros.equals(1.0))).where(zero, none)


def _length(x: Term, dy: Term, y: Callable[[], Term], axes: tuple[int, ...]) -> Term:
    """x / |x|, 0 at the origin."""
    length = y()
    zero = length.equals(0.0)
    return x * (dy.zeros().where(zero, dy / length.number(1.0).where(zero, length)))


total = reduction(lambda x, dy, y, axes: dy.expand(x))
average = reduction(lambda x, dy, y, axes: (dy / x.count(*axes)).expand(x) if axes else dy)
extreme = reduction(_shared)
product = reduction(_product)
absolute = reduction(lambda x, dy, y, axes: dy * x.apply("Sign"))
length = reduction(_length)
log_sum = reduction(lambda x, dy, y, axes: (dy / y().apply("Exp")).expand(x))
log_sum_exp = reduction(lambda x, dy, y, axes: dy * (x - y()).apply("Exp"))
sum_of_squares = reduction(lambda x, dy, y, axes: dy * x * 2.0)


def running_sum(back: Backward) -> Gradients:
    """The running sum from the other end."""
    attributes = {"exclusive": back.integer("exclusive", 0), "reverse": 1 - back.integer("reverse", 0)}
    return (back.maker.op("CumSum", back.dy, back.x(1), attributes=attributes),)


def running_product(back: Backward) -> Gradients:
    """dy y summed from the other end, over x. The first 0 of a row gets what the row would give with a 1 in its place;
    behind it everything stays 0, and no element has a gradient.
    """
    x, axis, maker = back.x(), back.x(1), back.maker
    exclusive, reverse = back.integer("exclusive", 0), back.integer("reverse", 0)

    def behind(term: Term) -> Term:
        return maker.op("CumSum", term, axis, attributes={"exclusive": exclusive, "reverse": 1 - reverse})

    zero = x.equals(0.0)
    count = maker.op("CumSum", zero.cast(x.dtype), axis, attributes={"reverse": reverse})
    first = maker.op("And", zero, count.equals(1.0))
    one = x.number(1.0)
    attributes = {"exclusive": exclusive, "reverse": reverse}
    without = maker.op("CumProd", one.where(first, x), axis, attributes=attributes)
    before = (behind(back.dy * back.y()) / one.where(zero, x)).where(count.equals(0.0))
    return (behind(back.dy * without).where(first, before),)


def largest(back: Backward) -> Gradients:
    """TopK: each element goes back to where it was."""
    return (back.x().zeros().scatter(back.y(1), back.dy, back.integer("axis", -1)),)
