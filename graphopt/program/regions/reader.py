"""Values as expressions: what one element of a value is worth, in terms of the buffers that a kernel will read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from graphopt.model.nodes import int_attribute
from graphopt.model.operators.formulas import Operands, dtype_of, number_of
from graphopt.model.operators.table import formula_of, operator_of
from graphopt.program.regions.buffer import Buffer, Place
from graphopt.program.regions.fusion import Tree
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.tensor.expression import Expression, Index, Load

Reshape = Callable[[View], View]


class Reader:
    """Writes the expressions of one region, and remembers where each operand of its kernel begins."""

    def __init__(self, scope: Scope, tree: Tree | None = None, arrange: Reshape = lambda view: view) -> None:
        self._scope, self._arrange = scope, arrange
        self._nodes = frozenset[ir.Node]() if tree is None else tree.nodes
        self.accumulated: dict[ir.Value, Expression] = {}  # what the anchor's result is worth
        self._known: dict[tuple[ir.Value, tuple[Index, ...]], Expression] = {}
        self.buffers: dict[str, Buffer | Place] = {}  # by the operand's name
        self._operands: dict[View, tuple[str, View]] = {}

    def value(self, value: ir.Value, at: tuple[Index, ...]) -> Expression:
        """One element; dims are matched from the last one on, and those of one element are broadcast."""
        key = (value, at)
        if key not in self._known:
            self._known[key] = self._value(value, at)
        return self._known[key]

    def _value(self, value: ir.Value, at: tuple[Index, ...]) -> Expression:
        if value in self.accumulated:
            return self.accumulated[value]
        array = self._scope.constant(value)
        if array is not None and array.size == 1:
            number = number_of(array, dtype_of(ir.DataType.from_numpy(array.dtype)))
            if number is not None:
                return number
        producer = value.producer()
        if producer is not None and producer in self._nodes:
            return self.node(producer, at)
        return self.outside(value, at)

    def outside(self, value: ir.Value, at: tuple[Index, ...]) -> Expression:
        """One element of a value that other regions compute."""
        return self.load(self._scope.place(value), at)

    def node(self, node: ir.Node, at: tuple[Index, ...]) -> Expression:
        """One element of an elementwise node's result."""
        formula = formula_of(node)
        assert formula is not None, "trees hold elementwise nodes"
        operator = operator_of(node)
        if operator is not None and operator.along:
            operands = tuple(None if one is None else self._aligned(node, one, at) for one in node.inputs)
        else:
            operands = tuple(None if one is None else self.value(one, at) for one in node.inputs)
        return formula(Operands(node, operands))

    def _aligned(self, node: ir.Node, value: ir.Value, at: tuple[Index, ...]) -> Expression:
        """An operand that has a number for each place of the node's axis, or one for all, or an element for each."""
        array = self._scope.constant(value)
        shape = self._scope.place(value).shape if array is None and value is not node.inputs[0] else None
        shape = array.shape if array is not None else shape
        if value is node.inputs[0] or shape is None or len(shape) != 1 or shape[0] == 1:
            return self.value(value, at)
        return self.along(value, int_attribute(node, "axis", 1) % len(at), at)

    def along(self, value: ir.Value, axis: int, at: tuple[Index, ...]) -> Expression:
        """One of the numbers that a value has for each place of an axis."""
        view = self._scope.place(value)
        behind = len(at) - axis - 1
        return self.load(replace(view, shape=view.shape + (1,) * behind, strides=view.strides + (0,) * behind), at)

    def load(self, view: View, at: Sequence[Index]) -> Expression:
        """An element of a view."""
        view = self._arrange(view)
        shown = at[len(at) - len(view.shape) :]
        indices = tuple(Index(()) if size == 1 else one for one, size in zip(shown, view.shape, strict=True))
        return self.element(view, indices)

    def element(self, view: View, indices: tuple[Index, ...]) -> Load:
        """An element of a view as it lies, at one index per dim."""
        if view not in self._operands:
            name = f"x{len(self._operands)}"
            begun, self.buffers[name] = self._scope.begun(view)
            self._operands[view] = name, begun
        name, begun = self._operands[view]
        return begun.operand(name)[indices]
