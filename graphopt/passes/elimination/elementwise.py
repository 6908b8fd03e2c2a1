"""Elementwise nodes that give back their input: Identity, Cast to the same type, Dropout, Relu of Relu."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.table import NOT_NEGATIVE
from graphopt.passes.operands import operand
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

# outer(inner(x)) is inner(x), for every x including NaN, infinities and -0.0. Not here: Abs of Relu and of Sqrt,
# which may both give -0.0.
ABSORBED: dict[str, frozenset[str]] = {
    "Relu": NOT_NEGATIVE,
    "Abs": NOT_NEGATIVE - {"Relu", "Sqrt"},
    "Ceil": frozenset({"Ceil", "Floor", "Round", "Sign"}),
    "Floor": frozenset({"Ceil", "Floor", "Round", "Sign"}),
    "Round": frozenset({"Ceil", "Floor", "Round", "Sign"}),
    "Sign": frozenset({"Sign"}),
}  # fmt: skip


@any_node("Identity", level=0)
def identity(match: Match) -> Replacement:
    """Identity(x)  -->  x

    Leaves alone an Identity between an input (or an initializer) and an output of the graph: both names must stay.
    """
    return operand(match)


@any_node("Cast", "CastLike", level=0)
def cast_to_own_type(match: Match) -> Replacement:
    """Cast(x, to=type of x)  -->  x,  CastLike(x, y of the same type)  -->  x

    Leaves alone every Cast whose input type is not known.
    """
    value = operand(match)
    if match.root.op_type == "Cast":
        target = ir.DataType(nodes.int_attribute(match.root, "to", 0))
    else:
        target = match.dtype(operand(match, 1))
    match.require(match.dtype(value) == target, "the cast changes the type")
    return value


@any_node("Dropout", level=0)
def dropout_at_inference(match: Match) -> Replacement:
    """Dropout(x)  -->  x

    Leaves alone a Dropout that may be training (a training_mode that is not constantly false; before opset 7 an
    is_test that is not set) and one whose mask is read.
    """
    value = operand(match)
    if match.opset < 7:
        match.require(nodes.int_attribute(match.root, "is_test", 0), "Dropout trains unless is_test is set")
    flag = nodes.input_at(match.root, 2)
    match.require(flag is None or match.facts.scalar(flag) in (0, False), "training_mode is not constantly false")
    match.require(not any(nodes.is_used(mask) for mask in match.root.outputs[1:]), "the mask is read")
    return value


@any_node("Sum", "Max", "Min", "Mean", level=0)
def single_operand(match: Match) -> Replacement:
    """Sum(x), Max(x), Min(x), Mean(x)  -->  x"""
    match.require(len(match.root.inputs) == 1, "there is more than one operand")
    return operand(match)


@any_node(*ABSORBED, level=0)
def absorbed(match: Match) -> Replacement:
    """Relu(Relu(x))  -->  Relu(x),  Abs(Exp(x))  -->  Exp(x),  Floor(Round(x))  -->  Round(x), ...

    The inner node may have other readers. Leaves alone pairs in which the outer node could still change a -0.0.
    """
    value = operand(match)
    inner = value.producer()
    if inner is None or not nodes.is_standard(inner):
        match.refuse(f"the operand of {match.root.op_type} is not computed by an operator of the standard")
    inside = ABSORBED[match.root.op_type]
    match.require(inner.op_type in inside, f"{match.root.op_type} of {inner.op_type} is not always {inner.op_type}")
    return value


RULES: tuple[Rule, ...] = (identity, cast_to_own_type, dropout_at_inference, single_operand, absorbed)
