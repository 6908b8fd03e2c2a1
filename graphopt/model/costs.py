"""What a node costs when dims are known: floating-point operations and bytes read and written.

How an operator counts stands in its record (model/operators): a multiplication with an addition as two operations,
elementwise operators one per output element, reductions one per input element, normalisations and softmax a handful;
operators that only move data count none. Bytes are those of all inputs and outputs, each read or written once: what a
run without fusion or caches moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.parts import Shape
from graphopt.model.operators.record import Operator, one_per_element
from graphopt.model.operators.table import operator_of


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations and bytes of one node."""

    flops: int
    bytes: int


class Sizes:
    """Dims as numbers: each dynamic dim takes its given size, or the default, and is remembered as assumed."""

    def __init__(self, facts: Facts, given: Mapping[str, int], default: int = 1) -> None:
        self._facts = facts
        self._given = given
        self._default = default
        self._numbers: dict[dims.Dim, int] = {}
        self.assumed: dict[str, int] = {}
        self.unnamed = False  # whether a dim that only a run can tell was assumed too

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The dims as numbers, None when even the rank is unknown; () for an absent input."""
        if value is None:
            return ()
        known = self._facts.shape(value)
        return None if known is None else tuple(self._number(dim) for dim in known)

    def _number(self, dim: dims.Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self._numbers:
            self._numbers[dim] = self._evaluate(dim)
        return self._numbers[dim]

    def _evaluate(self, dim: sympy.Expr) -> int:
        sizes: dict[sympy.Basic, int] = {}
        for symbol in sorted(dim.free_symbols, key=str):
            name = str(symbol)
            sizes[symbol] = self._given.get(name, self._default)
            if name.startswith("?"):
                self.unnamed = True
            else:
                self.assumed[name] = sizes[symbol]
        number = sympy.floor(dim.subs(sizes))
        return max(int(number), 0) if number.is_Integer else self._default

    def bytes(self, value: ir.Value | None) -> int | None:
        """The bytes of a tensor, None when type or dims are unknown."""
        if value is None:
            return 0
        shape, dtype = self.shape(value), self._facts.dtype(value)
        if shape is None or dtype is None:
            return None
        if dtype == ir.DataType.STRING:
            return 0
        return (prod(shape) * int(dtype.bitwidth) + 7) // 8


def cost_of(node: ir.Node, sizes: Sizes) -> Cost | None:
    """What one run of the node costs, without what its subgraphs do; None when a rank or type is not known."""
    operator = operator_of(node) or Operator(name=node.op_type)
    if not nodes.is_standard(node) and operator.flops is one_per_element:  # how it counts is not told
        return None
    selects = operator.reads == "selected"
    read = node.inputs[1:] if selects else node.inputs
    values = [*dict.fromkeys(read), *(output for output in node.outputs if nodes.is_used(output))]
    moved = [sizes.bytes(value) for value in values]
    inputs = _known(sizes.shape(value) for value in node.inputs)
    outputs = _known(sizes.shape(value) for value in node.outputs[:1])
    if inputs is None or outputs is None:
        return None
    if operator.storage in ("same", "dims") or node.op_type == "Constant":
        return Cost(0, 0)
    if selects:
        moved.append(sizes.bytes(node.outputs[0]))
    total = _sum(moved)
    return None if total is None else Cost(operator.flops(node, inputs, outputs), total)


def _known(shapes: Iterable[Shape | None]) -> list[Shape] | None:
    found = []
    for shape in shapes:
        if shape is None:
            return None
        found.append(shape)
    return found


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
