"""An order of nodes made binding for runtimes that choose their own: a node that waits says so by what it reads.

ONNX Runtime does not run nodes in file order: it goes back from the outputs, and which operand of a node comes first
depends on where its own optimizations put new nodes. It also makes one Split of Slices at constant places that cover a
value, whose results are all there at once, and one node of two that compute the same. Slices of tiles, nodes that
compute a value again, and a branch that begins behind joined tiles are therefore tied to the node before them: they
read a number or a shape that is computed from the size of its result. No runtime knows it sooner, and ONNX Runtime does
not fold Size.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.facts import Facts

LEAST_OPSET = 10  # Slice with its places as operands


def tie(model: ir.Model) -> int:
    """Tie tiles, nodes that compute again, and branches behind tiles to what stands before them, in place.

    Returns how many nodes were added.

    Outputs keep their bits: a tied node reads the same numbers. A value whose dims are not all known ties nothing.
    """
    if model.graph.opset_imports.get("", 1) < LEAST_OPSET:
        return 0
    return _Ties(model).write()


class _Ties:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._facts = Facts(model)
        self._names = {value.name for node in model.graph for value in node.outputs} | set(model.graph.initializers)
        self._names.update(value.name for value in model.graph.inputs)
        self._names.update(node.name for node in model.graph)
        self._constants: dict[tuple[int, ...], ir.Value] = {}
        self._sizes: dict[ir.Value, ir.Value] = {}
        self._numbers: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
        self._sequence: list[ir.Node] = []

    def write(self) -> int:
        before = len(self._graph)
        latest: ir.Value | None = None  # a result of the last node that is no Slice
        joined: ir.Value | None = None  # of tiles, until something reads it
        since: set[ir.Value | None] = set()  # what is made after it
        for node in tuple(self._graph):
            is_cut = node.op_type == "Slice" and nodes.TILED in node.metadata_props
            joined = None if joined in node.inputs else joined
            if latest is not None and is_cut:
                self._tie_slice(node, latest)
            elif latest is not None and nodes.RECOMPUTED in node.metadata_props:
                self._tie_operand(node, latest)
            elif joined is not None and since.isdisjoint(node.inputs):
                self._tie_operand(node, joined)
            if node.op_type == "Concat" and nodes.TILED in node.metadata_props:
                joined, since = node.outputs[0], set()
            since.update(node.outputs)
            self._sequence.append(node)
            made = nodes.used_outputs(node)
            if made and not is_cut and self._elements(made[0]):
                latest = made[0]
        self._graph.extend(self._sequence)
        return len(self._graph) - before

    def _tie_slice(self, node: ir.Node, latest: ir.Value) -> None:
        begin = node.inputs[1]
        tensor = None if begin is None else constants.of_initializer(begin)
        if tensor is None or node.inputs[0] is latest:
            return
        node.replace_input_with(1, self._number(latest, tuple(tensor.numpy().tolist()), node))

    def _tie_operand(self, node: ir.Node, latest: ir.Value) -> None:
        """By the shape of its first operand, unless that has been computed again itself."""
        for position, value in enumerate(node.inputs):
            if value is None or constants.of_initializer(value) is not None:
                continue
            producer, shape = value.producer(), self._facts.static_shape(value)
            if producer is not None and nodes.RECOMPUTED in producer.metadata_props:
                return
            if not shape or 0 in shape or value.const_value is not None:
                continue
            same = self._add("Reshape", [value, self._number(latest, shape, node)], node, value.type, ir.Shape(shape))
            node.replace_input_with(position, same)
            return

    def _number(self, latest: ir.Value, numbers: tuple[int, ...], node: ir.Node) -> ir.Value:
        """The numbers, from the size of a value."""
        integers = ir.TensorType(ir.DataType.INT64)
        if latest not in self._sizes:
            self._sizes[latest] = self._add("Size", [latest], node, integers, ir.Shape([]))
        if (latest, numbers) not in self._numbers:
            size = self._elements(latest)
            less = self._constant(tuple(size - number for number in numbers))
            shape = ir.Shape([len(numbers)])
            self._numbers[latest, numbers] = self._add("Sub", [self._sizes[latest], less], node, integers, shape)
        return self._numbers[latest, numbers]

    def _elements(self, value: ir.Value) -> int:
        """How many; 0 where that is not known."""
        shape = self._facts.static_shape(value)
        return 0 if shape is None or value.const_value is not None else prod(shape)

    def _add(
        self, operator: str, inputs: list[ir.Value], tied: ir.Node, type: ir.TypeProtocol | None, shape: ir.Shape
    ) -> ir.Value:
        of = tied.name or tied.op_type
        name = self._new(f"{of}_waits_{operator.lower()}")
        node = ir.Node("", operator, inputs, name=name, metadata_props={nodes.TIED: of})
        value = node.outputs[0]
        value.name, value.type, value.shape = self._new(f"{name}_result"), type, shape
        self._sequence.append(node)
        return value

    def _constant(self, numbers: tuple[int, ...]) -> ir.Value:
        if numbers not in self._constants:
            name = self._new("waits_" + "_".join(map(str, numbers)))
            value = ir.Value(name=name, const_value=ir.Tensor(np.array(numbers, np.int64), name=name))
            self._graph.register_initializer(value)
            self._constants[numbers] = value
        return self._constants[numbers]

    def _new(self, name: str) -> str:
        new, number = name, 1
        while new in self._names:
            number += 1
            new = f"{name}_{number}"
        self._names.add(new)
        return new
