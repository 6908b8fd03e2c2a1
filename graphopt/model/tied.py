"""Free dims that are known from others: a model runs only where dims that meet in an operator are equal.

MatMul(scores[1, 12, 1, a + 1], values[1, 12, b + 1, 64])   -->   b = a
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir
import sympy

from graphopt.model import dims
from graphopt.model.facts import Facts
from graphopt.model.nodes import int_attribute
from graphopt.model.operators.table import BROADCASTING

Pair = tuple[dims.Dim, dims.Dim]


def equal_dims(model: ir.Model, known: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Names of dims as another dim, which is one of those `known`, and what is added to it."""
    facts, found = Facts(model), dict[str, tuple[str, int]]()
    pairs = {sympy.sympify(one - other) for node in model.graph for one, other in _meeting(facts, node) if one != other}
    names, grows = set(known), True
    while grows:
        grows = False
        for difference in sorted(pairs, key=str):
            solved = _solved(difference, names)
            if solved is not None:
                name, other, step = solved
                found[name] = (other, step)
                names.add(name)
                grows = True
    return found


def _meeting(facts: Facts, node: ir.Node) -> Iterator[Pair]:
    """Dims of operands of a node that have to be equal."""
    shapes = [None if value is None else facts.shape(value) for value in node.inputs]
    if node.op_type in BROADCASTING:
        yield from _broadcast([one for one in shapes if one is not None])
    elif node.op_type == "MatMul" and all(shapes):
        left, right = shapes[0] or (), shapes[1] or ()
        yield left[-1], right[-2 if len(right) > 1 else -1]
        yield from _broadcast([left[:-2], right[:-2]])
    elif node.op_type == "Concat" and all(shapes):
        first, *others = [one for one in shapes if one]
        axis = int_attribute(node, "axis", 0) % len(first)
        for other in others:
            yield from (pair for at, pair in enumerate(zip(first, other, strict=False)) if at != axis)
    elif node.op_type == "Attention" and len(shapes) > 5 and (keys := shapes[4]) and (values := shapes[5]):
        yield keys[-2], values[-2]


def _broadcast(shapes: Sequence[Sequence[dims.Dim]]) -> Iterator[Pair]:
    for number, one in enumerate(shapes):
        for other in shapes[number + 1 :]:
            pairs = zip(reversed(one), reversed(other), strict=False)
            yield from ((a, b) for a, b in pairs if a != 1 and b != 1)


def _solved(difference: sympy.Expr, known: set[str]) -> tuple[str, str, int] | None:
    """Of a + c - b = 0: the unknown one of a and b, the known one, and what is added; None for any other form."""
    terms = difference.as_coefficients_dict()
    symbols = [one for one in terms if one != 1]
    if len(symbols) != 2 or sorted(terms[one] for one in symbols) != [-1, 1] or not all(s.is_Symbol for s in symbols):
        return None
    unknown = [one for one in symbols if one.name not in known]
    if len(unknown) != 1:
        return None
    (other,) = (one for one in symbols if one is not unknown[0])
    return unknown[0].name, other.name, int(-terms.get(sympy.Integer(1), 0) / terms[unknown[0]])
