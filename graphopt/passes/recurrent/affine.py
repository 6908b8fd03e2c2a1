"""A value read as a sum of products with constant matrices, of constants, and of what is neither.

The gates of a recurrent cell are such sums. Exporters write them as MatMul and Add or as Gemm, gate by gate or for all
gates at once with a Split behind, from input and state apart or from their Concat; read as sums they are all alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.constants import Array
from graphopt.model.facts import Facts
from graphopt.model.operators.movement import slice_bounds
from graphopt.model.operators.parameters import Unclear

DEEPEST = 12
LARGEST_OFFSET = 1 << 16  # elements
Range = tuple[int, int]  # half-open


@dataclass(frozen=True, slots=True)
class Matrix:
    """A block of a constant matrix: `rows` of the factor's length, `columns` of the result's."""

    value: ir.Value
    transposed: bool
    rows: Range
    columns: Range

    def read(self, facts: Facts) -> Array:
        """The block as [rows, columns]; the constant must be readable."""
        array = facts.array(self.value)
        assert array is not None, "the matrix was found constant"
        whole = array.T if self.transposed else array
        return whole[self.rows[0] : self.rows[1], self.columns[0] : self.columns[1]]


@dataclass(frozen=True, slots=True)
class Term:
    """The product of a [batch, n] value and a [n, m] matrix."""

    source: ir.Value
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class Offset:
    """A constant that is the same for the whole batch: one number, or columns of a vector."""

    value: ir.Value
    columns: Range | None

    def read(self, facts: Facts, size: int) -> Array:
        """The constant as a vector of `size` elements."""
        array = facts.array(self.value)
        assert array is not None, "the offset was found constant"
        flat = array.reshape(-1, array.shape[-1])[0] if array.ndim else array.reshape(1)
        if self.columns is None or flat.size == 1:
            return np.broadcast_to(flat, (size,))
        return flat[self.columns[0] : self.columns[1]]


@dataclass(slots=True)
class Affine:
    """The sum: its terms, its constants, values that are no such thing, and the nodes that compute it."""

    terms: list[Term] = field(default_factory=list)
    offsets: list[Offset] = field(default_factory=list)
    rest: list[ir.Value] = field(default_factory=list)
    nodes: dict[ir.Node, None] = field(default_factory=dict)


def read(facts: Facts, value: ir.Value) -> Affine | None:
    """The value, of rank 2 with a known number of columns, as a sum; None when its columns are not known."""
    shape = facts.shape(value)
    if shape is None or len(shape) != 2 or not isinstance(shape[1], int):
        return None
    found = Affine()
    _add(facts, value, (0, shape[1]), found, DEEPEST)
    return found


def _add(facts: Facts, value: ir.Value, columns: Range, found: Affine, depth: int) -> None:
    """Add `columns` of the value to the sum."""
    if _is_offset(facts, value, columns, found):
        return
    node = value.producer()
    whole = _columns_of(facts, value) == columns
    if node is not None and depth > 0 and nodes.is_standard(node) and not nodes.has_reference_attributes(node):
        if node.op_type == "Add" and _same_columns(facts, node, value):
            found.nodes[node] = None
            for operand in node.inputs:
                assert operand is not None, "both operands are given"
                _add(facts, operand, columns, found, depth - 1)
            return
        if node.op_type == "Identity" and node.inputs[0] is not None:
            found.nodes[node] = None
            _add(facts, node.inputs[0], columns, found, depth - 1)
            return
        if node.op_type in ("MatMul", "Gemm") and _product(facts, node, columns, found, depth):
            return
        if node.op_type in ("Split", "Slice"):
            start = _start_of_part(facts, node, value)
            source = node.inputs[0]
            if start is not None and source is not None:
                found.nodes[node] = None
                _add(facts, source, (start + columns[0], start + columns[1]), found, depth - 1)
                return
    if not whole:
        found.rest.append(value)  # a part of something unknown: whoever asks sees that it is no whole value
        found.rest.append(value)
        return
    found.rest.append(value)


def _columns_of(facts: Facts, value: ir.Value) -> Range | None:
    shape = facts.shape(value)
    return (0, shape[-1]) if shape and isinstance(shape[-1], int) else None


def _is_offset(facts: Facts, value: ir.Value, columns: Range, found: Affine) -> bool:
    """Take the value as an offset when it is constant and the same for the whole batch."""
    if not facts.is_constant(value):
        return False
    shape = facts.static_shape(value)
    if shape is None or len(shape) > 2 or 0 in shape or (len(shape) == 2 and not _equal_rows(facts, value, shape[0])):
        return False
    wide = bool(shape) and shape[-1] != 1
    if wide and columns[1] > shape[-1]:
        return False
    found.offsets.append(Offset(value, columns if wide else None))
    return True


def _equal_rows(facts: Facts, value: ir.Value, rows: int) -> bool:
    """Whether a constant matrix gives every sample the same: what folding makes of a bias and a state of zeros."""
    if rows == 1:
        return True
    tensor = facts.tensor(value)
    array = facts.array(value) if tensor is None or tensor.size <= LARGEST_OFFSET else None
    return array is not None and bool((array == array[:1]).all())


def _same_columns(facts: Facts, node: ir.Node, value: ir.Value) -> bool:
    """Whether columns of the sum are columns of the operands: each has as many, or is a constant."""
    wanted = _columns_of(facts, value)
    for operand in node.inputs:
        shape = None if operand is None else facts.shape(operand)
        if operand is None or shape is None:
            return False
        if not facts.is_constant(operand) and (len(shape) != 2 or _columns_of(facts, operand) != wanted):
            return False
    return wanted is not None and facts.opset(node) >= 7


def _product(facts: Facts, node: ir.Node, columns: Range, found: Affine, depth: int) -> bool:
    """Take a product with a constant matrix, and what a Gemm adds to it."""
    source, weight = node.inputs[0], node.inputs[1]
    if source is None or weight is None or facts.tensor(weight) is None or weight.is_graph_input():
        return False
    shape, rank = facts.static_shape(weight), facts.rank(source)
    if shape is None or len(shape) != 2 or rank != 2:
        return False
    transposed = False
    added: ir.Value | None = None
    if node.op_type == "Gemm":
        added = nodes.input_at(node, 2)
        scales = (nodes.float_attribute(node, "alpha", 1.0), 1.0 if added is None else _beta(node))
        if nodes.int_attribute(node, "transA", 0) or scales != (1.0, 1.0):
            return False
        transposed = bool(nodes.int_attribute(node, "transB", 0))
        if (
            added is not None
            and not facts.is_constant(added)
            and _columns_of(facts, added)
            != (
                0,
                shape[0] if transposed else shape[1],
            )
        ):
            return False
    found.nodes[node] = None
    rows = shape[1] if transposed else shape[0]
    for part, start, stop, joint in _parts(facts, source, rows):
        if joint is not None:
            found.nodes[joint] = None
        found.terms.append(Term(part, Matrix(weight, transposed, (start, stop), columns)))
    if added is not None:
        _add(facts, added, columns, found, depth - 1)
    return True


def _beta(node: ir.Node) -> float:
    return nodes.float_attribute(node, "beta", 1.0)


def _parts(facts: Facts, source: ir.Value, rows: int) -> list[tuple[ir.Value, int, int, ir.Node | None]]:
    """The factor of a product, or the pieces that a Concat joins to it, each with its place among the matrix's rows."""
    node = source.producer()
    if node is None or node.op_type != "Concat" or not nodes.is_standard(node):
        return [(source, 0, rows, None)]
    if nodes.int_attribute(node, "axis", 1) not in (1, -1):
        return [(source, 0, rows, None)]
    pieces: list[tuple[ir.Value, int, int, ir.Node | None]] = []
    start = 0
    for value in node.inputs:
        columns = None if value is None else _columns_of(facts, value)
        if value is None or columns is None:
            return [(source, 0, rows, None)]
        pieces.append((value, start, start + columns[1], node))
        start += columns[1]
    return pieces


def _start_of_part(facts: Facts, node: ir.Node, value: ir.Value) -> int | None:
    """Where along the last axis of its input the output of a Split or Slice begins; None along other axes."""
    source = node.inputs[0]
    if source is None or facts.rank(source) != 2:
        return None
    if node.op_type == "Split":
        if nodes.int_attribute(node, "axis", 0) not in (1, -1):
            return None
        start = 0
        for output in node.outputs:
            if output is value:
                return start
            columns = _columns_of(facts, output)
            if columns is None:
                return None
            start += columns[1]
        return None
    return _start_of_slice(facts, node, source)


def _start_of_slice(facts: Facts, node: ir.Node, source: ir.Value) -> int | None:
    columns = _columns_of(facts, source)
    try:
        starts, _, axes, steps = slice_bounds(facts, node)
    except Unclear:
        return None
    if columns is None or axes not in ((1,), (-1,)) or steps != (1,):
        return None
    return min(starts[0] if starts[0] >= 0 else max(starts[0] + columns[1], 0), columns[1])
