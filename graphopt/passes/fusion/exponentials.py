"""Functions of exponentials that are spelled out become the operator: Softplus, Mish, LogSoftmax, HardSigmoid."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.fusion.polynomial import expand, ingredients
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.pattern import op, scalar, var
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node, rule

TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})  # what runtimes have these operators for


@rule(op("Log", op("Add", op("Exp", var("x")), scalar("one", 1.0))), level=2)
def softplus(match: Match) -> Replacement:
    """Log(Exp(x) + 1)  -->  Softplus(x)

    which does not overflow where Exp(x) does: there the written form is infinite, and the operator gives x.
    """
    match.require(match.dtype("x") == ir.DataType.FLOAT, "only float has the operator in runtimes")
    match.require(match.shape("x") == match.shape(match.output), "a constant may widen the tensor")
    return match.op("Softplus", match["x"])


@any_node("Mul", level=2)
def mish(match: Match) -> Replacement:
    """x * Tanh(Softplus(x))  -->  Mish(x)      (opset 18 on)"""
    match.require(match.opset >= 18, "Mish came with opset 18")
    left, right = match.root.inputs[0], match.root.inputs[1]
    for x, other in ((left, right), (right, left)):
        tanh = made_by(other, "Tanh")
        inner = None if tanh is None else made_by(tanh.inputs[0], "Softplus")
        if x is None or tanh is None or inner is None or inner.inputs[0] is not x:
            continue
        match.require(match.dtype(x) == ir.DataType.FLOAT, "only float has the operator in runtimes")
        require_private(match, [tanh, inner])
        return match.op("Mish", x)
    match.refuse("it is no x times the Tanh of the Softplus of x")


@any_node("Log", level=2)
def log_softmax(match: Match) -> Replacement:
    """Log(Softmax(x, axis))  -->  LogSoftmax(x, axis)

    which stays finite where a probability is rounded to zero.
    """
    softmax = inner_node(match, operand(match), "Softmax")
    if softmax is None:
        match.refuse("it is not the logarithm of a Softmax that is read here only")
    match.require(match.dtype(match.output) in TYPES, "only float and float16 have the operator in runtimes")
    match.binding.inner.append(softmax)
    return match.op("LogSoftmax", softmax.inputs[0], like=softmax)


@any_node("Clip", "Mul", "Div", level=2)
def hard_sigmoid(match: Match) -> Replacement:
    """Clip(a x + b, 0, 1),  Clip(x + 3, 0, 6) / 6  -->  HardSigmoid(x, alpha, beta)      (from opset 11 on)

    Leaves alone a Clip of something without a factor or a sum: that is a Clip.
    """
    match.require(match.opset >= 11, "before opset 11 the limits of a Clip are attributes")
    clip, factor = _scaled_clip(match)
    argument = clip.inputs[0]
    lower, upper = (match.facts.scalar(nodes.input_at(clip, index)) for index in (1, 2))
    if argument is None or lower is None or upper is None:
        match.refuse("the limits are not known")
    match.require(lower == 0 and abs(float(upper) * factor - 1) <= 1e-6, "the limits are not 0 and 1")
    match.require(match.dtype(argument) == ir.DataType.FLOAT, "only float has the operator in runtimes")
    for x in reversed(ingredients(argument)):
        group: dict[ir.Node, None] = {}
        found = None if x is argument else expand(match.facts, argument, (x,), group)
        if found is None or not set(found) <= {(0,), (1,)} or found.get((1,), 0.0) == 0.0:
            continue
        match.require(match.shape(x) == match.shape(match.output), "a constant may widen the tensor")
        require_private(match, [*group, *([clip] if clip is not match.root else [])])
        alpha, beta = found[(1,)] * factor, found.get((0,), 0.0) * factor
        return match.op("HardSigmoid", x, attributes={"alpha": alpha, "beta": beta})
    match.refuse("what is clipped is not a x + b")


def _scaled_clip(match: Match) -> tuple[ir.Node, float]:
    """The Clip, and the number its result is multiplied by."""
    root = match.root
    if root.op_type == "Clip":
        return root, 1.0
    left, right = root.inputs[0], root.inputs[1]
    for value, number in ((left, right), (right, left)):
        clip, factor = made_by(value, "Clip"), match.facts.scalar(number)
        if clip is None or factor is None or (root.op_type == "Div" and value is not left):
            continue
        match.require(factor > 0, "the factor is not positive")
        return clip, float(factor) if root.op_type == "Mul" else 1.0 / float(factor)
    match.refuse("it does not scale a Clip")


RULES: tuple[Rule, ...] = (softplus, mish, log_softmax, hard_sigmoid)
