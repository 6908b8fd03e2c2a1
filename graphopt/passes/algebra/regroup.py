"""Two constants of one kind of operation become one: (x + a) + b, (x * a) / b, b - (a - x), max(max(x, a), b).

Integers wrap around, so sums and products regroup exactly (quotients do not, and stay). Floats round once instead of
twice; where the constants would cancel, as in (x + 12582912) - 12582912, the first rounding was meant, and they stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphopt.model import constants
from graphopt.passes.operands import FLOATS, INTEGERS, combine, inner_node, require_type
from graphopt.rewrite.pattern import const, op, var
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node, rule

Function = Callable[..., np.ndarray]


@dataclass(frozen=True, slots=True)
class Chain:
    """What x becomes: `op`(x, constant), or `op`(constant, x) when the constant stands first."""

    op: str
    constant: Function  # of the inner constant a and the outer constant b
    constant_first: bool = False


def _rsub(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(b - a)


def _rdiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(b / a)


ORDERED = ("Sub", "Div")  # operators whose operands do not commute

# (inner operator, its constant stands first, outer operator, its constant stands first)  -->  one operator.
Place = tuple[str, bool, str, bool]
SUMS: dict[Place, Chain] = {
    ("Add", False, "Add", False): Chain("Add", np.add),  # (x + a) + b  =  x + (a + b)
    ("Sub", False, "Add", False): Chain("Add", _rsub),  # (x - a) + b  =  x + (b - a)
    ("Sub", True, "Add", False): Chain("Sub", np.add, True),  # (a - x) + b  =  (a + b) - x
    ("Add", False, "Sub", False): Chain("Add", np.subtract),  # (x + a) - b  =  x + (a - b)
    ("Sub", False, "Sub", False): Chain("Sub", np.add),  # (x - a) - b  =  x - (a + b)
    ("Sub", True, "Sub", False): Chain("Sub", np.subtract, True),  # (a - x) - b  =  (a - b) - x
    ("Add", False, "Sub", True): Chain("Sub", _rsub, True),  # b - (x + a)  =  (b - a) - x
    ("Sub", False, "Sub", True): Chain("Sub", np.add, True),  # b - (x - a)  =  (a + b) - x
    ("Sub", True, "Sub", True): Chain("Add", _rsub),  # b - (a - x)  =  x + (b - a)
}
PRODUCTS: dict[Place, Chain] = {
    ("Mul", False, "Mul", False): Chain("Mul", np.multiply),  # (x * a) * b  =  x * (a * b)
    ("Div", False, "Mul", False): Chain("Mul", _rdiv),  # (x / a) * b  =  x * (b / a)
    ("Div", True, "Mul", False): Chain("Div", np.multiply, True),  # (a / x) * b  =  (a * b) / x
    ("Mul", False, "Div", False): Chain("Mul", np.divide),  # (x * a) / b  =  x * (a / b)
    ("Div", False, "Div", False): Chain("Div", np.multiply),  # (x / a) / b  =  x / (a * b)
    ("Div", True, "Div", False): Chain("Div", np.divide, True),  # (a / x) / b  =  (a / b) / x
    ("Mul", False, "Div", True): Chain("Div", _rdiv, True),  # b / (x * a)  =  (b / a) / x
    ("Div", False, "Div", True): Chain("Div", np.multiply, True),  # b / (x / a)  =  (a * b) / x
    ("Div", True, "Div", True): Chain("Mul", _rdiv),  # b / (a / x)  =  x * (b / a)
}


def _find(match: Match, table: dict[Place, Chain]) -> Chain:
    """Bind x, a and b around the match's node and say what the two operations come to."""
    match.require(match.opset >= 7, "before opset 7 the operands broadcast by attributes")
    root = match.root
    family = tuple({place[0]: None for place in table})
    for position in (1, 0):
        inner = inner_node(match, root.inputs[1 - position], *family)
        outer_constant = root.inputs[position]
        if inner is None or outer_constant is None or not match.facts.is_constant(outer_constant):
            continue
        for place in (1, 0):
            inner_constant, rest = inner.inputs[place], inner.inputs[1 - place]
            if inner_constant is None or rest is None or not match.facts.is_constant(inner_constant):
                continue
            # With two constants below, folding is the better rewrite and leaves nothing to regroup.
            match.require(not match.facts.is_constant(rest), "all operands are constant")
            match.binding.values.update(x=rest, a=inner_constant, b=outer_constant)
            match.binding.inner.append(inner)
            first = (place == 0 and inner.op_type in ORDERED, position == 0 and root.op_type in ORDERED)
            return table[inner.op_type, first[0], root.op_type, first[1]]
    match.refuse("there are no two constants one after the other, or the value between them is read elsewhere too")


def _build(match: Match, chain: Chain) -> Replacement:
    merged = match.constant(combine(match, chain.constant, "a", "b"), match.dtype("a"))
    operands = (merged, match["x"]) if chain.constant_first else (match["x"], merged)
    return match.op(chain.op, *operands)


@any_node("Add", "Sub", level=1)
def regroup_sum(match: Match) -> Replacement:
    """(x + a) + b  -->  x + (a + b),  b - (a - x)  -->  x + (b - a), and the other ways of writing it

    Leaves alone floats whose constants cancel: the first of them was there to round.
    """
    chain = _find(match, SUMS)
    kind = require_type(match, "a", FLOATS | INTEGERS, "numbers")
    if kind in FLOATS:
        match.require(not _cancels(match, chain.constant), "the constants nearly cancel: the first was there to round")
    return _build(match, chain)


def _cancels(match: Match, function: Function) -> bool:
    def lost(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        first, second = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(function(first, second)) * 4 < np.maximum(np.abs(first), np.abs(second)))

    return bool(constants.elementwise(lost, match.array("a"), match.array("b")).any())


@any_node("Mul", "Div", level=1)
def regroup_product(match: Match) -> Replacement:
    """(x * a) * b  -->  x * (a * b),  b / (x / a)  -->  (a * b) / x, and the other ways of writing it

    Leaves alone integer divisions, which drop a remainder, and factors of 0.
    """
    chain = _find(match, PRODUCTS)
    kind = require_type(match, "a", FLOATS | INTEGERS, "numbers")
    only_products = match.root.op_type == "Mul" and match.binding.inner[-1].op_type == "Mul"
    match.require(kind in FLOATS or only_products, "an integer division drops the remainder")
    match.require(not _has_zero(match, "a") and not _has_zero(match, "b"), "a factor is 0")
    return _build(match, chain)


def _has_zero(match: Match, name: str) -> bool:
    array = match.array(name)
    if constants.is_splat(array):
        array = np.asarray(array[(0,) * array.ndim])
    return bool((array == 0).any())


@rule(op("Max", op("Max", var("x"), const("a"), exact=True), const("b"), exact=True), level=1)
def max_of_max(match: Match) -> Replacement:
    """max(max(x, a), b)  -->  max(x, max(a, b))"""
    return _extreme(match, np.maximum)


@rule(op("Min", op("Min", var("x"), const("a"), exact=True), const("b"), exact=True), level=1)
def min_of_min(match: Match) -> Replacement:
    """min(min(x, a), b)  -->  min(x, min(a, b))"""
    return _extreme(match, np.minimum)


def _extreme(match: Match, function: Function) -> Replacement:
    match.require(match.opset >= 8, "before opset 8 Max and Min do not broadcast")
    match.require(not match.facts.is_constant(match["x"]), "all operands are constant")
    result = constants.elementwise(function, match.array("a"), match.array("b"))
    larger = max(match.array("a").nbytes, match.array("b").nbytes)
    match.require(constants.is_splat(result) or result.nbytes <= larger, "the merged constant would be larger")
    return match.op(match.root.op_type, match["x"], match.constant(result, match.dtype("a")))


RULES: tuple[Rule, ...] = (regroup_sum, regroup_product, max_of_max, min_of_min)
