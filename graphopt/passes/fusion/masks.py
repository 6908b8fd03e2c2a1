"""What is added to the scores of attention: which of its numbers shut a key out, and whether a row may lose them all.

Softmax of a row that is -inf throughout is not a number; many exporters put 0 there (the *guard*). The operator
Attention gives 0 as well. A row of one finite number throughout gives the mean of the values instead, but ONNX Runtime
takes the lowest number of the type for -inf, so that number is raised a little where a row may consist of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.table import MOVES
from graphopt.passes.fusion.causal import levels
from graphopt.passes.fusion.private import made_by
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

WHOLE_NUMBERS = frozenset(
    {ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16}
)
LARGEST = 1 << 24  # elements of a constant that are looked at
RAISED = -3.3e38  # any score of less than 1e31 that is added to it is lost in rounding, as it is in the lowest number
DEEPEST = 24  # operators that are followed upwards


@dataclass(frozen=True, slots=True)
class Held:
    """What a mask may hold: -inf, the lowest number of its type, and whether a row may have nothing else."""

    infinite: bool = False
    lowest: bool = False
    may_be_shut: bool = False

    def __or__(self, other: Held) -> Held:
        return Held(
            self.infinite or other.infinite,
            self.lowest or other.lowest,
            self.may_be_shut or other.may_be_shut,
        )


NOTHING = Held()


def held(facts: Facts, value: ir.Value, depth: int = 0) -> Held | None:
    """What the mask may hold, None where that is not known (or where it may hold a NaN)."""
    if facts.is_constant(value):
        return _of_constant(facts, value)
    producer = value.producer()
    if producer is None or not nodes.is_standard(producer) or depth > DEEPEST:
        return None
    kind = producer.op_type
    given = [operand for operand in producer.inputs if operand is not None]
    if kind in MOVES:
        moved = held(facts, given[0], depth + 1)
        return None if moved is None else _unsettled(moved)
    if kind == "Cast":
        return NOTHING if facts.dtype(given[0]) in WHOLE_NUMBERS else None
    if kind == "Concat":
        return _all(facts, given, depth)
    if kind == "Where":
        return _all(facts, given[1:], depth)
    if kind == "Add":
        both = _all(facts, given, depth)
        if both is None or (both.infinite and both.lowest):
            return None
        # Two of the lowest numbers make -inf; one of them and a bias of this size may not.
        doubled = all((part := held(facts, operand, depth + 1)) is None or part.lowest for operand in given)
        return None if doubled and both.lowest else both
    if kind == "Mul":
        return _of_product(facts, given)
    return None


def _all(facts: Facts, values: list[ir.Value], depth: int) -> Held | None:
    found = NOTHING
    for value in values:
        part = held(facts, value, depth + 1)
        if part is None:
            return None
        found |= _unsettled(part)
    return found


def _unsettled(part: Held) -> Held:
    """What was true of whole rows is not any more when elements are chosen."""
    return Held(part.infinite, part.lowest, part.infinite or part.lowest)


def _of_constant(facts: Facts, value: ir.Value) -> Held | None:
    tensor = facts.tensor(value)
    if tensor is not None and tensor.size > LARGEST:
        return None
    array = facts.array(value)
    if array is None or array.size == 0 or array.dtype.kind not in "fV":
        return None
    numbers = (array[(0,) * array.ndim].reshape(1) if constants.is_splat(array) else array).astype(np.float64)
    if np.isnan(numbers).any() or (numbers == np.inf).any():
        return None
    bottom = _lowest(facts, value)
    shut = numbers <= bottom
    rows = shut.all(axis=-1) if numbers.ndim else shut
    return Held(bool((numbers == -np.inf).any()), bool((numbers == bottom).any()), bool(rows.any()))


def _lowest(facts: Facts, value: ir.Value) -> float:
    kind = facts.dtype(value)
    return -65504.0 if kind == ir.DataType.FLOAT16 else float(np.finfo(np.float32).min)


def _of_product(facts: Facts, given: list[ir.Value]) -> Held | None:
    """(1 - mask) * number, of a mask of whole numbers: 0 and the number."""
    for value, other in (given, given[::-1]):
        number = facts.scalar(other)
        if number is None or not np.isfinite(number):
            continue
        source = _below_moves(value, "Sub", "Cast")
        if source is not None and source.op_type == "Sub" and facts.scalar(source.inputs[0]) == 1:
            source = _below_moves(source.inputs[1], "Cast")
        if source is None or source.op_type != "Cast" or source.inputs[0] is None:
            continue
        if facts.dtype(source.inputs[0]) in WHOLE_NUMBERS:
            low = number <= _lowest(facts, other)
            return Held(False, low, low)
    return None


def _below_moves(value: ir.Value | None, *kinds: str) -> ir.Node | None:
    """The operator of one of the kinds that makes the elements of the value, which are then only moved."""
    for _ in range(DEEPEST):
        node = made_by(value, *kinds, *MOVES)
        if node is None or node.op_type in kinds:
            return node
        value = node.inputs[0]
    return None


def raised(match: Match, mask: ir.Value) -> ir.Value:
    """The mask with a number in place of the lowest one that shuts out as well and that is not taken for -inf."""
    producer = made_by(mask, "Where")
    number = None if producer is None else [match.facts.scalar(value) for value in producer.inputs[1:3]]
    limit = match.constant(np.array(RAISED, np.float32), ir.DataType.FLOAT)
    if producer is not None and number is not None:
        bottom = _lowest(match.facts, mask)
        low = [value is not None and value <= bottom for value in number]
        rest = [held(match.facts, v) for v, is_low in zip(producer.inputs[1:3], low, strict=True) if v and not is_low]
        if any(low) and all(part is not None and not part.lowest for part in rest):
            chosen = [limit if is_low else v for v, is_low in zip(producer.inputs[1:3], low, strict=True)]
            return match.op("Where", producer.inputs[0], *chosen)
    return match.op("Max", mask, limit)


@any_node("Where", level=2)
def guard_of_softmax(match: Match) -> Replacement:
    """Where(IsNaN(p), 0, p), p = Softmax(s + mask)  -->  p      where no row of the mask can be -inf throughout

    Takes the scores without the mask to be numbers. Leaves alone a mask of which nothing is known, one of -inf that
    may shut out a whole row, and two masks that may do so together.
    """
    p = guarded(match, match.root)
    match.require(p is not None, "it does not put 0 where something is not a number")
    assert p is not None, "required just now"
    softmax = made_by(p, "Softmax")
    match.require(softmax is not None, "what may not be a number is no Softmax")
    assert softmax is not None, "required just now"
    axis = nodes.int_attribute(softmax, "axis", -1)  # before opset 13 a row is everything from there on, and holds rows
    over_last = match.opset < 13 or axis == -1 or axis == match.rank(p) - 1
    match.require(over_last, "the Softmax is not over the last axis")
    total = nodes.given_input(softmax)
    added = [operand for operand in addends(total) if not is_score(match.facts, operand)]
    match.require(len(added) < len(addends(total)), "no product stands under the Softmax")
    shutting = 0
    for mask in added:
        triangle = levels(match.facts, mask)
        if triangle is not None and triangle[0] > -np.inf:  # each query sees itself
            shutting += triangle[1] <= _lowest(match.facts, mask)
            continue
        found = held(match.facts, mask)
        if found is None:
            match.refuse(f"it is not known what '{mask.name}' holds")
        match.require(not (found.infinite and found.may_be_shut), "a row may be -inf throughout")
        shutting += found.infinite or found.lowest
    match.require(shutting < 2, "two masks together may shut out a row")
    return p


def guarded(match: Match, node: ir.Node) -> ir.Value | None:
    """p of Where(IsNaN(p), 0, p)."""
    question = made_by(node.inputs[0], "IsNaN") if node.op_type == "Where" else None
    if question is None or match.facts.scalar(node.inputs[1]) != 0 or question.inputs[0] is not node.inputs[2]:
        return None
    return node.inputs[2]


def addends(value: ir.Value) -> list[ir.Value]:
    """The operands of a sum, of any association."""
    node = made_by(value, "Add")
    if node is None:
        return [value]
    return [part for operand in node.inputs if operand is not None for part in addends(operand)]


def is_score(facts: Facts, value: ir.Value) -> bool:
    """Whether the value is a product of matrices, perhaps scaled: queries with keys."""
    for _ in range(DEEPEST):
        node = made_by(value, "MatMul", "Mul", "Div")
        if node is None:
            return False
        if node.op_type == "MatMul":
            return True
        operands = [operand for operand in node.inputs if operand is not None and facts.scalar(operand) is None]
        if len(operands) != 1:
            return False
        value = operands[0]
    return False


RULES: tuple[Rule, ...] = (guard_of_softmax,)
