"""Activations that are spelled out become the operator: Gelu, HardSwish, Swish."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.fusion.polynomial import Powers, agrees, expand, ingredients
from graphopt.passes.fusion.private import require_private
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

# How far a written constant may be off: exporters round sqrt(2) to four digits or more, float16 keeps three.
TOLERANCE = {ir.DataType.FLOAT: 1e-4, ir.DataType.FLOAT16: 1e-3}
HALVES: Mapping[Powers, float] = {(1, 0): 0.5, (1, 1): 0.5}  # 0.5 x + 0.5 x e
ROOT_2_PI = math.sqrt(2 / math.pi)


@any_node("Mul", "Div", level=2)
def gelu(match: Match) -> Replacement:
    """0.5 * x * (1 + Erf(x / sqrt 2))  -->  Gelu(x)      (opset 20 on; in every order and association)

    0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))  -->  Gelu(x, approximate="tanh")

    Leaves doubles alone, for which runtimes have no Gelu, and constants that are off by more than 1e-4.
    """
    match.require(match.opset >= 20, "Gelu came with opset 20")
    x, approximate = spelled_gelu(match)
    return match.op("Gelu", x, attributes={"approximate": "tanh" if approximate else None})


def spelled_gelu(match: Match) -> tuple[ir.Value, bool]:
    """The x of a Gelu that is spelled out, and whether it is the one of Tanh; refuses another formula."""
    inner = _function(match, "Erf", "Tanh")
    argument = nodes.given_input(inner)
    if inner.op_type == "Erf":
        return _atom(match, inner, argument, {(1,): math.sqrt(0.5)}, HALVES), False
    return _atom(match, inner, argument, {(1,): ROOT_2_PI, (3,): 0.044715 * ROOT_2_PI}, HALVES), True


@any_node("Mul", "Div", level=2)
def hard_swish(match: Match) -> Replacement:
    """x * HardSigmoid(x, 1/6, 0.5),  x * Clip(x + 3, 0, 6) / 6  -->  HardSwish(x)      (opset 14 on)"""
    match.require(match.opset >= 14, "HardSwish came with opset 14")
    inner = _function(match, "HardSigmoid", "Clip")
    argument = nodes.given_input(inner)
    tolerance = TOLERANCE.get(match.dtype(argument), 0.0)
    if inner.op_type == "HardSigmoid":
        alpha, beta = nodes.float_attribute(inner, "alpha", 0.2), nodes.float_attribute(inner, "beta", 0.5)
        match.require(abs(alpha * 6 - 1) <= tolerance and abs(beta * 2 - 1) <= tolerance, "alpha or beta is another")
        return match.op("HardSwish", _atom(match, inner, argument, {(1,): 1.0}, {(1, 1): 1.0}))
    lower, upper = (match.facts.scalar(nodes.input_at(inner, index)) for index in (1, 2))
    match.require(lower == 0 and upper == 6, "it does not clip to 0 and 6")
    return match.op("HardSwish", _atom(match, inner, argument, {(0,): 3.0, (1,): 1.0}, {(1, 1): 1 / 6}))


@any_node("Mul", level=2)
def swish(match: Match) -> Replacement:
    """x * Sigmoid(x)  -->  Swish(x);   x * Sigmoid(a * x)  -->  Swish(x, alpha=a)      (opset 24 on)"""
    match.require(match.opset >= 24, "Swish came with opset 24")
    x, alpha = spelled_swish(match)
    return match.op("Swish", x, attributes={"alpha": None if alpha == 1.0 else alpha})


def spelled_swish(match: Match) -> tuple[ir.Value, float]:
    """The x and the a of x * Sigmoid(a * x); refuses another formula."""
    inner = _function(match, "Sigmoid")
    argument = nodes.given_input(inner)
    for x in ingredients(argument):
        found = expand(match.facts, argument, (x,), {})
        if found is None or set(found) != {(1,)} or not any(user is not inner for user in x.consumers()):
            continue
        if _fits(match, inner, argument, x, {(1,): found[(1,)]}, {(1, 1): 1.0}):
            return x, found[(1,)]
    match.refuse("the factor beside the Sigmoid is not its argument")


def _function(match: Match, *kinds: str) -> ir.Node:
    """The function that a product contains."""
    for value in ingredients(match.output):
        producer = value.producer()
        if producer is not None and producer.op_type in kinds and nodes.is_standard(producer):
            return producer
    match.refuse(f"there is no {' or '.join(kinds)} in the product")


def _atom(
    match: Match,
    inner: ir.Node,
    argument: ir.Value,
    wanted: Mapping[Powers, float],
    outer: Mapping[Powers, float],
) -> ir.Value:
    """The x for which the function's argument is `wanted` and the whole is `outer` in x and the function."""
    for x in ingredients(argument):
        if _fits(match, inner, argument, x, wanted, outer):
            return x
    match.refuse("the formula is another one, or a constant in it is off")


def _fits(
    match: Match,
    inner: ir.Node,
    argument: ir.Value,
    x: ir.Value,
    wanted: Mapping[Powers, float],
    outer: Mapping[Powers, float],
) -> bool:
    tolerance = TOLERANCE.get(match.dtype(x))
    match.require(tolerance is not None, "only float and float16 have the operator in runtimes")
    assert tolerance is not None, "as required"
    group: dict[ir.Node, None] = {inner: None}
    if not agrees(expand(match.facts, argument, (x,), group), wanted, tolerance):
        return False
    if not agrees(expand(match.facts, match.output, (x, inner.outputs[0]), group), outer, tolerance):
        return False
    match.require(match.shape(x) == match.shape(match.output), "a constant may widen the tensor")
    require_private(match, group)
    return True


RULES: tuple[Rule, ...] = (gelu, hard_swish, swish)
