"""All operators of which something is known, by domain and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from graphopt.model.nodes import int_attribute
from graphopt.model.operators import (
    contrib,
    counting,
    elementwise,
    indexing,
    learned,
    losses,
    movement,
    normalizations,
    products,
    quantized,
    recurrent,
    reductions,
    resampling,
    reshaping,
    sources,
    spectra,
    windows,
)
from graphopt.model.operators.formulas import Formula
from graphopt.model.operators.record import Operator

FAMILIES = (
    elementwise.OPERATORS, reshaping.OPERATORS, movement.OPERATORS, indexing.OPERATORS, products.OPERATORS,
    windows.OPERATORS, resampling.OPERATORS, reductions.OPERATORS, normalizations.OPERATORS, recurrent.OPERATORS,
    quantized.OPERATORS, sources.OPERATORS, contrib.OPERATORS, counting.OPERATORS, learned.OPERATORS,
    losses.OPERATORS, spectra.OPERATORS,
)  # fmt: skip
OPERATORS: Mapping[tuple[str, str], Operator] = {
    (operator.domain, operator.name): operator for family in FAMILIES for operator in family
}


def operator_of(node: ir.Node) -> Operator | None:
    """The record of a node's operator; None for one of which nothing is known."""
    return OPERATORS.get((node.domain, node.op_type))


def formula_of(node: ir.Node) -> Formula | None:
    """The formula of an elementwise node; None when the operator is none, or has numbers for blocks of elements."""
    operator = operator_of(node)
    in_blocks = operator is not None and operator.along and int_attribute(node, "block_size", 0)
    return None if operator is None or in_blocks else operator.formula


def images_of(node: ir.Node) -> tuple[int, ...]:
    """The inputs that a node takes for images [N, C, ...]; its first output is one too then."""
    operator = operator_of(node)
    return () if operator is None else operator.images


def standard_operators(holds: Callable[[Operator], object]) -> frozenset[str]:
    """The names of the operators of ONNX's own domain for which something holds."""
    return frozenset(operator.name for operator in OPERATORS.values() if not operator.domain and holds(operator))


# Operators of one tensor that treat every element alike, whatever its place.
UNARY = standard_operators(lambda operator: operator.axes == "each")
# Arithmetic of two tensors.
ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"})
BROADCASTING = {
    operator.name: operator.broadcasts for operator in OPERATORS.values() if operator.broadcasts is not None
}
MOVES = standard_operators(lambda operator: operator.moves)
# Operators whose results are views in a program: strides into an operand, or operands that lie in the result.
MOVEMENTS = standard_operators(
    lambda operator: operator.storage in ("same", "strides", "joined", "pieces") and operator.purity == "pure"
)
NOT_NEGATIVE = standard_operators(lambda operator: operator.not_negative)
COMMUTATIVE = standard_operators(lambda operator: operator.commutative)
REDUCTIONS = tuple(operator.name for operator in reductions.REDUCTIONS)
RESHAPES = tuple(operator.name for operator in reshaping.OPERATORS)
