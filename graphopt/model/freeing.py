"""Freeing a fixed dim: operators that hard-code its size are made to follow it.

Where an operator's result must grow with the freed dim is found from positions: a dim with P elements in front of it
keeps P elements in front of it through a Reshape. That is a guess at the exporter's intention, so the caller compares
the freed model with the original, sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.errors import OptionError
from graphopt.model import constants, dims, nodes
from graphopt.model.facts import Facts

Shapes = Mapping[ir.Value, tuple[int, ...] | None]


def static_shapes(model: ir.Model) -> dict[ir.Value, tuple[int, ...] | None]:
    """The dims of every value of the main graph while all inputs are fixed; None where they are not numbers."""
    facts = Facts(model)
    return {output: facts.static_shape(output) for node in nodes.nodes_of(model.graph) for output in node.outputs}


def let_operators_follow(model: ir.Model, before: Shapes, symbols: set[str]) -> None:
    """Change Reshape targets, and expand constants that are concatenated; declare the outputs' new dims.

    Raises OptionError naming the first operator that cannot follow.
    """
    follower = _Follower(model, before, {dims.symbol(name) for name in symbols})
    for node in list(model.graph):
        follower.visit(node)
    for value in model.graph.outputs:
        shape = follower.facts.shape(value)
        if shape is not None:
            value.shape = ir.Shape([dims.to_ir(dim) for dim in shape])


class _Follower:
    """Walks the graph in order; facts about values behind the walk are already those of the freed model."""

    def __init__(self, model: ir.Model, before: Shapes, symbols: set[dims.Dim]) -> None:
        self.graph = model.graph
        self.before = before
        self.symbols = symbols
        self.facts = Facts(model)

    def visit(self, node: ir.Node) -> None:
        """Make one node follow the freed dims of its inputs, which are right by now."""
        if node.op_type == "Reshape" and nodes.is_standard(node):
            self._reshape(node)
        elif node.op_type == "Concat" and nodes.is_standard(node):
            self._concat(node)

    def _grows(self, dim: dims.Dim) -> bool:
        return not isinstance(dim, int) and bool(sympy.sympify(dim).free_symbols & self.symbols)

    def _reshape(self, node: ir.Node) -> None:
        data, target = nodes.input_at(node, 0), nodes.input_at(node, 1)
        expected = self.before.get(node.outputs[0])
        if data is None or target is None or expected is None or not self.facts.is_constant(target):
            return
        source = self.facts.shape(data)
        if source is None or not any(self._grows(dim) for dim in source):
            return
        growing = [axis for axis, dim in enumerate(source) if self._grows(dim)]
        in_front = dims.product(source[: growing[0]])
        place = next((axis for axis in range(len(expected)) if dims.product(expected[:axis]) == in_front), None)
        rest = dims.product(dim for axis, dim in enumerate(expected) if axis != place)
        if len(growing) > 1 or place is None or dims.quotient(dims.product(source), rest) is None:
            numbers = list(self.facts.ints(target) or ())
            raise OptionError(f"the dim cannot be freed: {nodes.describe(node)} has the fixed target {numbers}.")
        changed = [-1 if axis == place else dim for axis, dim in enumerate(expected)]
        node.replace_input_with(1, self._constant(f"{node.outputs[0].name}/freed", changed))
        self.facts.forget(node.outputs[0])

    def _concat(self, node: ir.Node) -> None:
        shapes = [None if value is None else self.facts.shape(value) for value in node.inputs]
        if any(shape is None for shape in shapes):
            return
        known = [shape for shape in shapes if shape is not None]
        along = nodes.int_attribute(node, "axis", 0) % max(len(known[0]), 1)
        for axis in range(len(known[0])):
            model_for = next((i for i, shape in enumerate(known) if self._grows(shape[axis])), None)
            if axis == along or model_for is None:
                continue
            for index, shape in enumerate(known):
                if isinstance(shape[axis], int):
                    self._expand(node, index, axis, node.inputs[model_for])
        self.facts.forget(node.outputs[0])

    def _expand(self, node: ir.Node, index: int, axis: int, like: ir.Value | None) -> None:
        """Repeat an operand that has one sample as often as another operand has samples."""
        value = node.inputs[index]
        assert value is not None and like is not None, "their shapes are known"
        shape = self.facts.shape(value) or ()
        if self.facts.opset(node) < 10:
            raise OptionError(f"the dim cannot be freed: {nodes.describe(node)} joins a constant, opset 10 is needed.")
        if shape[axis] != 1:
            raise OptionError(
                f"the dim cannot be freed: '{value.name}', read by {nodes.describe(node)}, is fixed at {shape[axis]}."
            )
        name = f"{value.name}/freed_{axis}"
        whole = ir.Node("", "Shape", [like], num_outputs=1)
        first, last = self._constant(f"{name}/first", [axis]), self._constant(f"{name}/last", [axis + 1])
        size = ir.Node("", "Slice", [whole.outputs[0], first, last], num_outputs=1)
        ones = [
            self._constant(f"{name}/ones{end}", [1] * count) for end, count in ((0, axis), (1, len(shape) - axis - 1))
        ]
        pieces = [
            piece
            for piece in (ones[0], size.outputs[0], ones[1])
            if piece.const_value is None or piece.const_value.size
        ]
        target = ir.Node("", "Concat", pieces, {"axis": ir.AttrInt64("axis", 0)}, num_outputs=1)
        wide = ir.Node("", "Expand", [value, target.outputs[0]], num_outputs=1)
        made = [whole, size, target, wide]
        for number, added in enumerate(made):
            added.outputs[0].name = f"{name}/{number}"
            added.name = f"{name}/{added.op_type}"
        self.graph.insert_before(node, made)
        node.replace_input_with(index, wide.outputs[0])

    def _constant(self, name: str, numbers: list[int]) -> ir.Value:
        tensor = constants.to_tensor(np.array(numbers, dtype=np.int64), ir.DataType.INT64, name)
        value = ir.Value(
            name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([len(numbers)]), const_value=tensor
        )
        if numbers:
            self.graph.register_initializer(value)
        return value
