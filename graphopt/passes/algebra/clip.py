"""Clamps: Relu, Clip, Max and Min with one number, merged into one another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.operands import inner_node, require_not_widened, require_uniform, uniform
from graphopt.rewrite.pattern import const, op, var
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node, rule

CLAMPS = ("Relu", "Clip", "Max", "Min")
CLIP_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})
CLIP_INTEGERS = frozenset(
    {ir.DataType.INT8, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8, ir.DataType.UINT32, ir.DataType.UINT64}
)
LOWEST = float(np.finfo(np.float32).min)  # what Clip has for an absent bound before opset 11


@dataclass(frozen=True, slots=True)
class Interval:
    """x becomes min(max(x, low), high); None where there is no bound."""

    low: float | int | None
    high: float | int | None

    def then(self, other: Interval) -> Interval:
        """This clamp and then the other; right when both have low <= high."""
        return Interval(
            _clamp(self.low, other) if self.low is not None else other.low,
            _clamp(self.high, other) if self.high is not None else other.high,
        )

    @property
    def ordered(self) -> bool:
        """Whether the bounds are in order."""
        return self.low is None or self.high is None or self.low <= self.high


def _clamp(number: float | int, interval: Interval) -> float | int:
    if interval.low is not None and number < interval.low:
        return interval.low
    if interval.high is not None and number > interval.high:
        return interval.high
    return number


def _number(match: Match, value: ir.Value) -> float | int:
    array = uniform(match, value)
    number: float | int = int(array) if array.dtype.kind in "iub" else float(array)
    match.require(not (isinstance(number, float) and math.isnan(number)), "a bound is NaN")
    return number


def _read(match: Match, node: ir.Node) -> tuple[ir.Value, Interval]:
    """What the node clamps and to which interval; refuses when a bound is not one known number."""
    first = nodes.given_input(node)
    if node.op_type == "Relu":
        return first, Interval(0, None)
    if node.op_type == "Clip":
        if match.opset < 11:
            low = nodes.float_attribute(node, "min", LOWEST)
            high = nodes.float_attribute(node, "max", -LOWEST)
            return first, Interval(low, high)
        bounds = [nodes.input_at(node, place) for place in (1, 2)]
        numbers = [None if bound is None else _number(match, bound) for bound in bounds]
        return first, Interval(*numbers)
    match.require(len(node.inputs) == 2, f"{nodes.describe(node)} has not two operands")
    for value, bound in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        if value is None or bound is None or not match.facts.is_constant(bound):
            continue
        match.require(not match.facts.is_constant(value), "all operands are constant")
        number = _number(match, bound)
        if match.array(bound).ndim:
            shape = match.facts.shape(value)
            match.require(
                shape is not None and shape == match.facts.shape(node.outputs[0]), "the bound may widen the value"
            )
        return value, Interval(number, None) if node.op_type == "Max" else Interval(None, number)
    match.refuse(f"no operand of {nodes.describe(node)} is constant")


@any_node(*CLAMPS, level=1)
def merge_clamps(match: Match) -> Replacement:
    """min(max(x, a), b)  -->  Clip(x, a, b),  Clip(Relu(x), a, b)  -->  Clip(x, max(a, 0), b), ...

    for Relu, Clip, and Max and Min with one number, any two of them; NaN passes through all of them. Leaves alone
    bounds that cross (min(max(x, 6), 0) is 0), bounds per channel, and the element types that Clip does not take.
    """
    root = match.root
    value, outer = _read(match, root)
    node = inner_node(match, value, *CLAMPS)
    if node is None:
        match.refuse(f"'{value.name}' is not clamped, or is read elsewhere too")
    source, inner = _read(match, node)
    match.binding.inner.append(node)
    match.require(inner.ordered and outer.ordered, "the bounds of a Clip cross")
    if inner.low is not None and outer.high is not None:
        match.require(inner.low <= outer.high, "the bounds cross, the result is constant")
    if inner.high is not None and outer.low is not None:
        match.require(outer.low <= inner.high, "the bounds cross, the result is constant")
    merged = inner.then(outer)
    kind = match.dtype(source)
    kinds = {root.op_type, node.op_type}
    if "Clip" not in kinds and (merged.low is None or merged.high is None):
        # Not a Clip with an absent bound: runtimes let that one cut infinity to the largest finite number.
        if merged.low == 0 and "Relu" in kinds:
            return match.op("Relu", source)
        match.require(match.opset >= 8, "before opset 8 Max and Min do not broadcast")
        bound = merged.low if merged.low is not None else merged.high
        replacement = "Max" if merged.low is not None else "Min"
        return match.op(replacement, source, match.constant(np.array(bound, dtype=kind.numpy()), kind))
    return _clip(match, source, merged, kind)


def _clip(match: Match, source: ir.Value, interval: Interval, kind: ir.DataType) -> ir.Value:
    match.require(match.opset >= 6, "before opset 6 Clip is another operator")
    allowed = CLIP_FLOATS | CLIP_INTEGERS if match.opset >= 12 else CLIP_FLOATS - {ir.DataType.DOUBLE}
    match.require(kind in allowed, f"Clip does not take elements of type {kind.name.lower()} everywhere")
    if match.opset < 11:
        bounds = {"min": interval.low, "max": interval.high}
        return match.op(
            "Clip", source, attributes={name: float(bound) for name, bound in bounds.items() if bound is not None}
        )
    low, high = (
        None if bound is None else match.constant(np.array(bound, dtype=kind.numpy()), kind)
        for bound in (interval.low, interval.high)
    )
    return match.op("Clip", source, low, high)


@rule(op("Max", var("x"), const("c"), exact=True), level=1)
def max_with_zero(match: Match) -> Replacement:
    """max(x, 0)  -->  Relu(x)    (floats)"""
    match.require(match.opset >= 8, "before opset 8 Max does not broadcast")
    match.require(match.dtype("x") in CLIP_FLOATS, "the elements are not floats")
    require_uniform(match, "c", 0)
    require_not_widened(match, "x", "c")
    return match.op("Relu", match["x"])


RULES: tuple[Rule, ...] = (merge_clamps, max_with_zero)
