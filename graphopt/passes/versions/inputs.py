"""What used to be an attribute and is an input now: axes, sizes of parts, bounds, pads, a number of results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.record import Operator
from graphopt.model.operators.table import operator_of, standard_operators
from graphopt.rewrite.rule import AttributeValue, Match, Replacement

LIMIT = float(np.finfo(np.float32).max)  # the bounds of a Clip that has none


def remade(match: Match, *inputs: ir.Value | None, **attributes: AttributeValue | None) -> Replacement:
    """The same operator with other inputs, and with attributes changed or (None) left out."""
    root = match.root
    node = match.node_of(root.op_type, *inputs, attributes=attributes, outputs=len(root.outputs), like=root)
    return tuple(node.outputs)


def source(match: Match) -> ir.Value:
    """The first input."""
    value = nodes.given_input(match.root)
    return value


def parameters(match: Match) -> Replacement | None:
    """Squeeze(x, axes=a)  -->  Squeeze(x, [a])      and all that an operator's record says becomes an input here"""
    root, operator = match.root, operator_of(match.root)
    assert operator is not None, "the table has operators with records"
    inputs, gone = list(root.inputs), dict.fromkeys(_turned(operator, match.opset + 1) & set(root.attributes))
    for name in sorted(gone):
        place = operator.parameters[name].position
        inputs += [None] * (place + 1 - len(inputs))
        numbers = nodes.ints_attribute(root, name, ())
        if numbers or not root.op_type.startswith("Reduce"):  # no axes meant every axis
            inputs[place] = match.ints_constant(*numbers)
    return remade(match, *inputs, **gone) if gone else None


def parameters_of(opset: int) -> frozenset[str]:
    """The operators with attributes that become inputs with the opset."""
    return standard_operators(lambda operator: _turned(operator, opset))


def _turned(operator: Operator, opset: int) -> set[str]:
    return {name for name, place in operator.parameters.items() if place.since == opset and not place.scalar}


def split_count(match: Match) -> Replacement | None:
    """Split(x) in equal parts  -->  Split(x, num_outputs=n)"""
    if nodes.input_at(match.root, 1) is not None:
        return None
    return remade(match, source(match), num_outputs=len(match.root.outputs))


def top_count(match: Match) -> Replacement:
    """TopK(x, k=n)  -->  TopK(x, [n])"""
    count = nodes.int_attribute(match.root, "k", 0)
    return remade(match, source(match), match.ints_constant(count), k=None)


def clip_bounds(match: Match) -> Replacement:
    """Clip(x, min=a, max=b)  -->  Clip(x, a, b)"""
    bounds: list[ir.Value | None] = []
    for name, none in (("min", -LIMIT), ("max", LIMIT)):
        number = nodes.float_attribute(match.root, name, none)
        bounds.append(None if number == none else _scalar(match, number))
    return remade(match, source(match), *bounds, min=None, max=None)


def pads(match: Match) -> Replacement:
    """Pad(x, pads=p, value=v)  -->  Pad(x, [p], v)"""
    given = nodes.ints_attribute(match.root, "pads")
    assert given is not None, "every Pad of that opset has them"
    number = nodes.float_attribute(match.root, "value", 0.0)
    filler = None if number == 0 else _scalar(match, number)
    return remade(match, source(match), match.ints_constant(*given), filler, pads=None, value=None)


def dropout_ratio(match: Match) -> Replacement:
    """Dropout(x, ratio=r)  -->  Dropout(x, r)"""
    ratio = nodes.float_attribute(match.root, "ratio", 0.5)
    given = match.constant(np.array(ratio, np.float32), ir.DataType.FLOAT)
    return remade(match, source(match), given, ratio=None)


def transform_axis(match: Match) -> Replacement:
    """DFT(x, n, axis=a)  -->  DFT(x, n, a)"""
    axis = nodes.int_attribute(match.root, "axis", 1)
    number = match.constant(np.array(axis, np.int64))
    return remade(match, source(match), nodes.input_at(match.root, 1), number, axis=None)


def _scalar(match: Match, number: float) -> ir.Value:
    kind = match.dtype(source(match))
    return match.constant(np.array(number).astype(kind.numpy()), kind)


def one_result(match: Match, reason: str) -> None:
    """Refuse where more than the first output is read."""
    others: Sequence[ir.Value] = match.root.outputs[1:]
    match.require(not any(nodes.is_used(output) for output in others), reason)
