"""Logic: Not of Not, And with true, Where whose condition is constant, comparisons turned round."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import constants
from graphopt.passes.operands import require_not_widened, require_type, require_uniform, uniform
from graphopt.rewrite.pattern import const, op, var
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node, rule

INT32_64 = frozenset({ir.DataType.INT32, ir.DataType.INT64})
OPPOSITE = {"Less": "GreaterOrEqual", "Greater": "LessOrEqual", "LessOrEqual": "Greater", "GreaterOrEqual": "Less"}


@rule(op("Not", op("Not", var("x"), shared=True)), level=1)
def double_not(match: Match) -> Replacement:
    """not (not x)  -->  x"""
    return match["x"]


@rule(op(("And", "Or", "Xor", "Equal"), var("x"), const("c")), level=1)
def logic_with_constant(match: Match) -> Replacement:
    """x and true, x or false, x xor false, x == true  -->  x;  x xor true, x == false  -->  not x

    An x that the constant had widened is expanded, when the dims are known. Leaves alone x and false, x or true: their
    value is constant but their shape comes from x.
    """
    match.require(match.opset >= 7, "before opset 7 the operands broadcast by attributes")
    match.require(match.dtype("x") == ir.DataType.BOOL, "the operands are not booleans")
    truth = bool(uniform(match, "c"))
    kind = match.root.op_type
    if (kind, truth) in (("And", True), ("Or", False), ("Xor", False), ("Equal", True)):
        if match.array("c").ndim == 0 or match.shape("x") == match.shape(match.output):
            return match["x"]
        match.require(match.opset >= 8, "Expand came with opset 8")
        return match.op("Expand", match["x"], match.ints_constant(*match.static_shape(match.output)))
    require_not_widened(match, "x", "c")
    match.require(kind in ("Xor", "Equal"), "the constant decides the value but not the shape")
    return match.op("Not", match["x"])


@rule(op(("And", "Or"), var("x"), var("x")), level=1)
def logic_with_itself(match: Match) -> Replacement:
    """x and x, x or x  -->  x"""
    return match["x"]


@rule(op(("Max", "Min"), var("x"), var("x"), exact=True), level=1)
def extreme_of_itself(match: Match) -> Replacement:
    """max(x, x), min(x, x)  -->  x"""
    return match["x"]


@rule(op("Equal", var("x"), var("x")), level=1)
def equal_to_itself(match: Match) -> Replacement:
    """x == x  -->  true    (integers and booleans of known dims; a float NaN is not equal to itself)"""
    kind = match.dtype("x")
    match.require(kind.is_integer() or kind == ir.DataType.BOOL, "a NaN is not equal to itself")
    return match.constant(constants.splat(True, match.static_shape("x"), np.dtype(bool)))


@rule(op("Not", op(tuple(OPPOSITE), var("x"), var("y"), name="compare")), level=1)
def negated_comparison(match: Match) -> Replacement:
    """not (x < y)  -->  x >= y    (integers of 32 or 64 bits; for a float NaN both are false)"""
    require_type(match, "x", INT32_64, "integers that every runtime compares; with NaN both comparisons are false")
    opposite = OPPOSITE[match.node("compare").op_type]
    since = 12 if opposite.endswith("OrEqual") else 9
    match.require(match.opset >= since, f"{opposite} on integers exists from opset {since} on")
    return match.op(opposite, match["x"], match["y"])


@rule(op("Where", const("c"), var("x"), var("y")), level=1)
def where_constant(match: Match) -> Replacement:
    """where(true, x, y)  -->  x,  where(false, x, y)  -->  y

    A chosen operand that the other operands had widened is expanded, when the dims are known.
    """
    chosen = match["x"] if bool(uniform(match, "c")) else match["y"]
    shape = match.shape(match.output)
    if match.shape(chosen) == shape:
        return chosen
    return match.op("Expand", chosen, match.ints_constant(*match.static_shape(match.output)))


@rule(op("Where", var("c"), var("x"), var("x")), level=1)
def where_same(match: Match) -> Replacement:
    """where(c, x, x)  -->  x    (when c does not widen it)"""
    match.require(match.shape("x") == match.shape(match.output), "the condition may widen the operands")
    return match["x"]


@rule(op("Where", op("Not", var("c")), var("x"), var("y")), level=1)
def where_not(match: Match) -> Replacement:
    """where(not c, x, y)  -->  where(c, y, x)"""
    return match.op("Where", match["c"], match["y"], match["x"])


@rule(op(("BitwiseOr", "BitwiseXor"), var("x"), const("c")), level=1)
def bits_with_zero(match: Match) -> Replacement:
    """x | 0, x ^ 0  -->  x"""
    require_uniform(match, "c", 0)
    require_not_widened(match, "x", "c")
    return match["x"]


@any_node("And", "Or", level=1)
def constant_logic(match: Match) -> Replacement:
    """x and false  -->  false,  x or true  -->  true    (when the dims of the result are known)"""
    deciding = match.root.op_type == "Or"
    for value in match.root.inputs:
        if value is None or not match.facts.is_constant(value):
            continue
        if bool(uniform(match, value)) is deciding:
            shape = match.static_shape(match.output)
            return match.constant(constants.splat(deciding, shape, np.dtype(bool)))
    match.refuse("no operand decides the result")


RULES: tuple[Rule, ...] = (
    double_not,
    logic_with_constant,
    logic_with_itself,
    extreme_of_itself,
    equal_to_itself,
    negated_comparison,
    where_constant,
    where_same,
    where_not,
    bits_with_zero,
    constant_logic,
)
