"""Gradients of elementwise operators.

Rules read the result where that spares the operand: then the operand need not live until the gradient. At a kink the
gradient is that of PyTorch: 0 at 0 for Relu and Abs, shared by equal operands of Max and Min.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from graphopt.model.operators.gradients.backward import Backward, GradientRule, Gradients
from graphopt.model.operators.gradients.terms import FLOATS, Term

Slope = Callable[[Term], Term]


def of_operand(slope: Slope) -> GradientRule:
    """The gradient times a slope that is computed of the operand."""
    return lambda back: (back.dy * slope(back.x()),)


def of_result(slope: Slope) -> GradientRule:
    """The gradient times a slope that is computed of the result."""
    return lambda back: (back.dy * slope(back.y()),)


def nothing(back: Backward) -> Gradients:
    """No gradient flows: the result is flat wherever it is smooth."""
    return ()


def same(back: Backward) -> Gradients:
    """The gradient itself, for each operand."""
    return [back.dy] * len(back.node.inputs)


absolute = of_operand(lambda x: x.apply("Sign"))
arc_cosine = of_operand(lambda x: -(1.0 - x.squared()).apply("Sqrt").apply("Reciprocal"))
arc_cosine_hyperbolic = of_operand(lambda x: (x.squared() - 1.0).apply("Sqrt").apply("Reciprocal"))
arc_sine = of_operand(lambda x: (1.0 - x.squared()).apply("Sqrt").apply("Reciprocal"))
arc_sine_hyperbolic = of_operand(lambda x: (x.squared() + 1.0).apply("Sqrt").apply("Reciprocal"))
arc_tangent = of_operand(lambda x: (x.squared() + 1.0).apply("Reciprocal"))
arc_tangent_hyperbolic = of_operand(lambda x: (1.0 - x.squared()).apply("Reciprocal"))
cosine = of_operand(lambda x: -x.apply("Sin"))
cosine_hyperbolic = of_operand(lambda x: x.apply("Sinh"))
error_function = of_operand(lambda x: (-x.squared()).apply("Exp") * (2 / math.sqrt(math.pi)))
exponential = of_result(lambda y: y)
logarithm = of_operand(lambda x: x.apply("Reciprocal"))
reciprocal = of_result(lambda y: -y.squared())
sigmoid = of_result(lambda y: y * (1.0 - y))
sine = of_operand(lambda x: x.apply("Cos"))
sine_hyperbolic = of_operand(lambda x: x.apply("Cosh"))
softplus = of_operand(lambda x: x.apply("Sigmoid"))
softsign = of_operand(lambda x: (x.apply("Abs") + 1.0).squared().apply("Reciprocal"))
square_root = of_result(lambda y: (y * 2.0).apply("Reciprocal"))
tangent = of_result(lambda y: y.squared() + 1.0)
tangent_hyperbolic = of_result(lambda y: 1.0 - y.squared())


def negative(back: Backward) -> Gradients:
    """-x"""
    return (-back.dy,)


def relu(back: Backward) -> Gradients:
    """The gradient where the result is positive."""
    return (back.dy.where(back.y() > 0.0),)


def leaky(back: Backward) -> Gradients:
    """The gradient, times alpha where the operand is not positive; for alpha > 0 the result tells."""
    alpha = back.real("alpha", 0.01)
    source = back.y() if alpha > 0 else back.x()
    return (back.dy.where(source > 0.0, back.dy * alpha),)


def elu(back: Backward) -> Gradients:
    """alpha e^x = y + alpha below 0."""
    alpha = back.real("alpha", 1.0)
    below = (back.y() + alpha) if alpha > 0 else back.x().apply("Exp") * alpha
    positive = (back.y() if alpha > 0 else back.x()) > 0.0
    return (back.dy.where(positive, back.dy * below),)


def selu(back: Backward) -> Gradients:
    """gamma above 0, gamma alpha e^x = y + alpha gamma below."""
    alpha, gamma = back.real("alpha", 1.67326319217681884765625), back.real("gamma", 1.05070102214813232421875)
    slope = (back.x() * 0.0 + gamma).where(back.x() > 0.0, back.x().apply("Exp") * (alpha * gamma))
    return (back.dy * slope,)


def celu(back: Backward) -> Gradients:
    """e^(x / alpha) below 0."""
    x = back.x()
    return (back.dy.where(x > 0.0, back.dy * (x * (1 / back.real("alpha", 1.0))).apply("Exp")),)


def gelu(back: Backward) -> Gradients:
    """P(x) + x p(x) of the normal distribution, or the slope of its approximation by tanh."""
    x = back.x()
    if back.text("approximate", "none") == "tanh":
        scale = math.sqrt(2 / math.pi)
        inner = ((x.squared() * 0.044715 + 1.0) * x * scale).apply("Tanh")
        slope = (x.squared() * (3 * 0.044715) + 1.0) * scale
        return (back.dy * ((inner + 1.0) * 0.5 + x * 0.5 * (1.0 - inner.squared()) * slope),)
    below = ((x * math.sqrt(0.5)).apply("Erf") + 1.0) * 0.5
    return (back.dy * (below + x * (x.squared() * -0.5).apply("Exp") * (1 / math.sqrt(2 * math.pi))),)


def hard_sigmoid(back: Backward) -> Gradients:
    """alpha between the bounds."""
    y = back.y()
    inside = back.maker.op("And", y > 0.0, y < 1.0)
    return ((back.dy * back.real("alpha", 0.2)).where(inside),)


def hard_swish(back: Backward) -> Gradients:
    """0 below -3, 1 above 3, (2 x + 3) / 6 between."""
    x = back.x()
    between = (back.dy * (x * (1 / 3) + 0.5)).where(x <= 3.0, back.dy)
    return (between.where(x >= -3.0),)


def mish(back: Backward) -> Gradients:
    """t + x sigmoid(x) (1 - t^2), t = tanh(softplus(x))."""
    x = back.x()
    t = x.apply("Softplus").apply("Tanh")
    return (back.dy * (t + x * x.apply("Sigmoid") * (1.0 - t.squared())),)


def swish(back: Backward) -> Gradients:
    """s + alpha x s (1 - s), s = sigmoid(alpha x)."""
    x, alpha = back.x(), back.real("alpha", 1.0)
    s = (x if alpha == 1 else x * alpha).apply("Sigmoid")
    return (back.dy * (s + x * alpha * s * (1.0 - s)),)


def thresholded(back: Backward) -> Gradients:
    """The gradient where the operand is above alpha."""
    return (back.dy.where(back.x() > back.real("alpha", 1.0)),)


def shrink(back: Backward) -> Gradients:
    """The gradient where the operand is farther from 0 than lambd."""
    return (back.dy.where(back.x().apply("Abs") > back.real("lambd", 0.5)),)


def clip(back: Backward) -> Gradients:
    """The gradient between the bounds, which belong to it; a bound gets it where the operand is beyond."""
    x, dy = back.x(), back.dy
    found: list[Term | None] = [dy, None, None]
    for position, name in ((1, "min"), (2, "max")):
        bound = back.optional(position)
        if bound is None and name in back.node.attributes:
            bound = x.number(back.real(name, 0.0))
        if bound is None:
            continue
        beyond = x < bound if position == 1 else x > bound
        assert found[0] is not None
        found[0] = dy.zeros().where(beyond, found[0])
        if back.wants(position):
            found[position] = dy.where(beyond)
    return found


def prelu(back: Backward) -> Gradients:
    """The gradient, times the slope below 0; the slope gets it times the operand there."""
    x, slope, dy = back.x(), back.x(1), back.dy
    positive = x > 0.0
    return dy.where(positive, dy * slope), dy.zeros().where(positive, dy * x)


def add(back: Backward) -> Gradients:
    """a + b, or any number of them."""
    return same(back)


def subtract(back: Backward) -> Gradients:
    """a - b"""
    return back.dy, -back.dy if back.wants(1) else None


def multiply(back: Backward) -> Gradients:
    """a b"""
    return (
        back.dy * back.x(1) if back.wants(0) else None,
        back.dy * back.x(0) if back.wants(1) else None,
    )


def divide(back: Backward) -> Gradients:
    """a / b, whose gradient to b is -(dy / b) y."""
    share = back.dy / back.x(1)
    return share, -(share * back.y()) if back.wants(1) else None


def power(back: Backward) -> Gradients:
    """p a^(p - 1), and a^p log a, 0 where a is not positive."""
    base, exponent, dy = back.x(), back.x(1), back.dy
    number = back.facts.array(exponent.value) if back.facts.is_constant(exponent.value) else None
    if number is not None and number.size == 1 and not back.wants(1):
        return (_constant_power(back, float(number.reshape(-1)[0])),)
    exponent = exponent.cast(base.dtype)
    slope = (exponent * back.maker.op("Pow", base, exponent - 1.0)).where(
        back.maker.op("Not", exponent.equals(0.0)), 0.0
    )
    to_exponent = None
    if back.wants(1):
        positive = base > 0.0
        to_exponent = (dy * back.y() * base.where(positive, 1.0).apply("Log")).where(positive)
    return dy * slope, to_exponent


def _constant_power(back: Backward, exponent: float) -> Term | None:
    base, dy = back.x(), back.dy
    if exponent == 0:
        return None
    if exponent == 1:
        return dy
    if exponent == 2:
        return dy * base * 2.0
    if exponent == 0.5:
        return dy / (back.y() * 2.0)
    if exponent == 3:
        return dy * base.squared() * 3.0
    if exponent == -1:
        return -(dy * back.y().squared())
    return dy * back.maker.op("Pow", base, base.number(exponent - 1)) * exponent


def extreme(back: Backward) -> Gradients:
    """Max and Min: the operands that have the result share the gradient evenly."""
    if len(back.node.inputs) == 1:
        return (back.dy,)
    y, dy = back.y(), back.dy
    chosen = [back.x(at).equals(y).cast(dy.dtype) for at in range(len(back.node.inputs))]
    share = dy / reduce(lambda a, b: a + b, chosen)
    return [share * one if back.wants(at) else None for at, one in enumerate(chosen)]


def mean(back: Backward) -> Gradients:
    """The gradient by the number of operands."""
    count = len(back.node.inputs)
    return [back.dy * (1 / count)] * count


def modulo(back: Backward) -> Gradients:
    """a - n b, n the whole part of a / b."""
    if not back.wants(1):
        return (back.dy,)
    quotient = back.x() / back.x(1)
    whole = quotient.apply("Abs").apply("Floor") * quotient.apply("Sign") if back.integer("fmod", 0) else None
    return back.dy, -(back.dy * (quotient.apply("Floor") if whole is None else whole))


def where(back: Backward) -> Gradients:
    """Each choice gets the gradient where it was chosen."""
    condition, dy = back.x(), back.dy
    return None, dy.where(condition), dy.zeros().where(condition, dy) if back.wants(2) else None


def cast(back: Backward) -> Gradients:
    """The gradient in the operand's type; none of a number that is no float."""
    kind = back.x().dtype
    return (back.dy.cast(kind),) if kind in FLOATS else ()


def dropout(back: Backward) -> Gradients:
    """The gradient where the mask kept an element, by the share that is kept; itself where nothing is dropped."""
    if not _trains(back):
        return (back.dy,)
    ratio, flag = back.optional(1), back.optional(2)
    number = 0.5 if ratio is None else _number(back, ratio)
    kept = back.dy.number(1 / (1 - number)) if number is not None else None
    if kept is None and ratio is not None:
        kept = (1.0 - ratio.cast(back.dy.dtype)).apply("Reciprocal")
    assert kept is not None
    if flag is not None and not back.facts.is_constant(flag.value):
        kept = kept.where(flag, 1.0)
    return ((back.dy * kept).where(back.y(1)),)


def _number(back: Backward, term: Term) -> float | None:
    """A constant of one element; None where the term is none."""
    array = back.facts.array(term.value) if back.facts.is_constant(term.value) else None
    return None if array is None else float(array.reshape(-1)[0])


def _trains(back: Backward) -> bool:
    """Whether a Dropout drops anything; a flag that only a run knows counts as yes, as its mask tells then."""
    flag = back.optional(2)
    if back.maker.opset < 12 or flag is None:
        return False
    number = _number(back, flag)
    return number is None or bool(number)
