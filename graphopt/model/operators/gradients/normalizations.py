"""Gradients of Softmax and of normalizations."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import AttributeValue, NoGradient, Term

FLATTENS_BEFORE = 13  # opset: Softmax takes all axes from its own on as one


def _soft_axes(back: Backward) -> tuple[int, ...]:
    rank = back.x().rank
    if back.maker.opset >= FLATTENS_BEFORE:
        return (back.integer("axis", -1) % rank,)
    return tuple(range(back.integer("axis", 1) % rank, rank))


def softmax(back: Backward) -> Gradients:
    """y (dy - sum(y dy))"""
    y = back.y()
    weighted = back.dy * y
    return (weighted - y * weighted.sum(*_soft_axes(back)),)


def log_softmax(back: Backward) -> Gradients:
    """dy - e^y sum(dy)"""
    return (back.dy - back.y().apply("Exp") * back.dy.sum(*_soft_axes(back)),)


def _centred(dy: Term, normal: Term, inverse: Term, axes: tuple[int, ...]) -> Term:
    """The gradient of (x - mean) / deviation: inverse (dy - mean(dy) - normal mean(dy normal))."""
    return (dy - dy.mean(*axes) - normal * (dy * normal).mean(*axes)) * inverse


def _moments(x: Term, axes: tuple[int, ...], epsilon: float) -> tuple[Term, Term]:
    """The operand without its mean, and one by its deviation."""
    centred = x - x.mean(*axes)
    return centred, (centred.squared().mean(*axes) + epsilon).apply("Sqrt").apply("Reciprocal")


def layer(back: Backward) -> Gradients:
    """LayerNormalization over the last axes; its own mean and deviation are read where they have the operand's type."""
    x, dy = back.x(), back.dy
    axes = tuple(range(x.axis(back.integer("axis", -1)), x.rank))
    if x.dtype is ir.DataType.FLOAT:
        inverse = back.y(2)
        normal = (x - back.y(1)) * inverse
    else:
        centred, inverse = _moments(x, axes, back.real("epsilon", 1e-5))
        normal = centred * inverse
    to_x = _centred(dy * back.x(1), normal, inverse, axes) if back.wants(0) else None
    return to_x, dy * normal if back.wants(1) else None, dy


def root_mean_square(back: Backward) -> Gradients:
    """RMSNormalization: x by the root of its mean square over the last axes."""
    x, dy = back.x(), back.dy
    axes = tuple(range(x.axis(back.integer("axis", -1)), x.rank))
    inverse = (x.squared().mean(*axes) + back.real("epsilon", 1e-5)).apply("Sqrt").apply("Reciprocal")
    normal, scaled = x * inverse, dy * back.x(1)
    to_x = (scaled - normal * (scaled * normal).mean(*axes)) * inverse
    return to_x, dy * normal if back.wants(1) else None


def instance(back: Backward) -> Gradients:
    """InstanceNormalization: by image and channel."""
    x, dy = back.x(), back.dy
    axes = tuple(range(2, x.rank))
    centred, inverse = _moments(x, axes, back.real("epsilon", 1e-5))
    normal, rest = centred * inverse, (0, *axes)
    scale = back.x(1).unsqueeze(*(axis - 1 for axis in axes))
    to_x = _centred(dy * scale, normal, inverse, axes) if back.wants(0) else None
    to_scale = (dy * normal).sum(*rest, keep=False) if back.wants(1) else None
    return to_x, to_scale, dy.sum(*rest, keep=False) if back.wants(2) else None


def group(back: Backward) -> Gradients:
    """GroupNormalization, by image and group of channels; scale and bias have a number for each channel."""
    if back.maker.opset < 21:
        raise NoGradient("opset 21 says it anew; lift the model with 'graphopt optimize --opset 21'")
    x, dy, groups = back.x(), back.dy, back.integer("num_groups", 1)
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise NoGradient(f"the channels of '{x.value.name}' are not known; fix them with --dim")
    wide = [x.dim(0), back.maker.ints(groups), back.maker.ints(channels // groups)]
    rest = [x.dim(axis) for axis in range(2, x.rank)]
    x5, dy5 = x.reshape(*wide, *rest), dy.reshape(*wide, *rest)  # [N, groups, C / groups, ...]
    axes = tuple(range(2, x5.rank))
    centred, inverse = _moments(x5, axes, back.real("epsilon", 1e-5))
    normal = centred * inverse
    shape = (groups, channels // groups, *(1,) * len(rest))
    scale = back.x(1).reshape(*shape)
    to_x = _centred(dy5 * scale, normal, inverse, axes).reshape_like(x) if back.wants(0) else None
    summed = (0, *axes[1:])
    to_scale = (dy5 * normal).sum(*summed, keep=False).reshape(-1) if back.wants(1) else None
    return to_x, to_scale, dy5.sum(*summed, keep=False).reshape(-1) if back.wants(2) else None


def batch(back: Backward) -> Gradients:
    """BatchNormalization, with the statistics that it is given or, in training, with those of the batch."""
    x, dy, epsilon = back.x(), back.dy, back.real("epsilon", 1e-5)
    axes = (0, *range(2, x.rank))
    wide = tuple(range(1, x.rank - 1))  # where dims of 1 make [C] broadcast along axis 1
    scale = back.x(1).unsqueeze(*wide)
    if back.integer("training_mode", 0):
        back.only(0, 1, 2)
        centred, inverse = _moments(x, axes, epsilon)
        normal = centred * inverse
        to_x = _centred(dy * scale, normal, inverse, axes) if back.wants(0) else None
        return to_x, (dy * normal).sum(*axes, keep=False), dy.sum(*axes, keep=False)
    inverse = (back.x(4) + epsilon).apply("Sqrt").apply("Reciprocal")
    found: list[Term | None] = [dy * (back.x(1) * inverse).unsqueeze(*wide), None, None, None, None]
    total = dy.sum(*axes, keep=False) if any(back.wants(at) for at in (2, 3)) else None
    centred = x - back.x(3).unsqueeze(*wide)
    product = (dy * centred).sum(*axes, keep=False) if any(back.wants(at) for at in (1, 4)) else None
    found[1] = product * inverse if product is not None else None
    found[2] = total
    found[3] = -(total * back.x(1) * inverse) if total is not None and back.wants(3) else None
    if product is not None and back.wants(4):
        found[4] = product * back.x(1) * (inverse.squared() * inverse) * -0.5
    return found


def length(back: Backward) -> Gradients:
    """LpNormalization: x by the sum of its absolute values (p = 1) or the root of its squares (p = 2)."""
    x, dy, axis = back.x(), back.dy, back.integer("axis", -1)
    p = back.integer("p", 2)
    size = back.maker.op("ReduceL1" if p == 1 else "ReduceL2", x, attributes={"axes": [x.axis(axis)], "keepdims": 1})
    y = back.y()
    slope = x.apply("Sign") if p == 1 else y
    return ((dy - slope * (dy * y).sum(x.axis(axis))) / size,)


def local_response(back: Backward) -> Gradients:
    """LRN: dy s^-b - (2 a b / n) x window(dy y / s), s = bias + (a / n) window(x^2)."""
    x, dy, y, size = back.x(), back.dy, back.y(), back.integer("size", 1)
    alpha, beta, bias = back.real("alpha", 1e-4), back.real("beta", 0.75), back.real("bias", 1.0)
    low, high = (size - 1) // 2, size // 2
    squares = _channel_means(x.squared(), low, high) * alpha + bias
    scaled = dy * back.maker.op("Pow", squares, squares.number(-beta))
    return (scaled - x * _channel_means(dy * y / squares, high, low) * (2 * alpha * beta),)


def _channel_means(term: Term, before: int, after: int) -> Term:
    """The sum over a window of channels by its size, beyond the channels zeros: [N, C, ...] as [N, 1, C, rest]."""
    flat = term.reshape(term.dim(0), term.maker.ints(1), term.dim(1), term.maker.ints(-1))
    window: dict[str, AttributeValue] = {
        "kernel_shape": [before + after + 1, 1], "pads": [before, 0, after, 0], "strides": [1, 1],
        "count_include_pad": 1,
    }  # fmt: skip
    return term.maker.op("AveragePool", flat, attributes=window).reshape_like(term)
