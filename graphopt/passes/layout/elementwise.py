"""Operators that treat every element alike: of one tensor, and of several that broadcast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, dims, nodes
from graphopt.model.operators.table import operator_of
from graphopt.passes.layout.flip import Flat, Flip, Question, copied, labelled
from graphopt.passes.layout.permute import Perm, inverse
from graphopt.passes.operands import GROWTH
from graphopt.rewrite.rule import READ_LIMIT, Match


def unary(question: Question) -> Flip:
    """Relu(x): the first operand in either form; the others are numbers."""
    node = question.node
    question.require(question.facts.is_pure(node), "it is random")
    value = question.operand()
    if isinstance(question.label, Flat):
        return Flip({0: question.label}, {0: question.label}, copied(question))
    perm = question.full(value)
    results = 1 if node.op_type == "DynamicQuantizeLinear" else len(node.outputs)  # the others are numbers
    return Flip({0: perm}, dict.fromkeys(range(results), perm), copied(question))


def quantized(question: Question) -> Flip:
    """QuantizeLinear(x, scale, zero): with one scale for each channel, the axis moves."""
    node = question.node
    scale = question.operand(1)
    shape = question.facts.shape(scale)
    if shape is None:
        question.refuse("the rank of the scale is not known")
    if dims.product(shape) == 1 or not shape:
        flip = unary(question)
        if len(shape) < 2:
            return flip
    question.require(len(shape) == 1 and question.opset >= 13, "it has scales for blocks of elements")
    perm = question.full(question.operand())
    axis = nodes.int_attribute(node, "axis", 1)
    return Flip({0: perm}, {0: perm}, copied(question, {"axis": perm.index(axis % len(perm))}))


def broadcast(question: Question) -> Flip:
    """Add(x, y, ...): operands of full rank in the other form; smaller constants are permuted, vectors unsqueezed."""
    node, facts = question.node, question.facts
    operator = operator_of(node)
    since = None if operator is None else operator.broadcasts
    question.require(question.opset >= (since or 7), "its operands broadcast by attributes")
    operands = [value for value in node.inputs if value is not None]
    question.require(len(operands) == len(node.inputs), "an operand is absent")
    ranks = [question.rank(value) for value in operands]
    rank = max(ranks)
    perm = question.perm
    question.require(len(perm) == rank, "its operands are of different rank")
    full: dict[int, Perm] = {}
    small: dict[int, Smaller] = {}
    for index, value in enumerate(operands):
        if ranks[index] == rank:
            full[index] = perm
        elif ranks[index] and dims.product(facts.shape(value) or ()) != 1:
            small[index] = _smaller(question, value, perm)

    def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
        changed = list(inputs)
        for index, how in small.items():
            changed[index] = _fitted(match, operands[index], perm, how)
        return match.node_of(node.op_type, *changed, like=node)

    added = sum(how is not None for how in small.values())
    return Flip(labelled(full), {0: perm}, build, added)


Smaller = tuple[int, ...] | None  # where an Unsqueeze puts dims of 1; None: a constant, permuted here


def _smaller(question: Question, value: ir.Value, perm: Perm) -> Smaller:
    rank, low = len(perm), question.rank(value)
    facts = question.facts
    if facts.is_constant(value):
        tensor = facts.tensor(value)
        size = 0 if tensor is None else tensor.nbytes
        question.require(
            size <= (GROWTH if len(value.uses()) > 1 else READ_LIMIT), "a constant is too large to permute"
        )
        return None
    back = inverse(perm)
    places = [back[axis] for axis in range(rank - low, rank)]
    question.require(places == sorted(places), f"'{value.name}' is of smaller rank and would have to be transposed")
    return tuple(axis - places[0] for axis in range(places[0], rank) if axis not in places)


def _fitted(match: Match, value: ir.Value, perm: Perm, how: Smaller) -> ir.Value:
    if how is None:
        array = match.array(value)
        wide = constants.reshape(array, (1,) * (len(perm) - array.ndim) + array.shape)
        return match.constant(trimmed(np.transpose(wide, perm)), match.dtype(value))
    return match.op("Unsqueeze", value, attributes={"axes": how}) if how else value


def trimmed(array: np.ndarray) -> np.ndarray:
    """Without leading dims of 1, which broadcasting adds."""
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return array
