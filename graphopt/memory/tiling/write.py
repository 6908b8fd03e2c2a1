"""Tiles written into a model: copies of a region's nodes with their ranges, Slice before them and Concat behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.memory.tiling.region import Cut, Join, Piece, Region, Run, Step
from graphopt.model import constants, nodes
from graphopt.model.operators.parts import Range


def write_tiles(model: ir.Model, tilings: Iterable[tuple[Region, Iterable[Step]]]) -> int:
    """Replace the nodes of each region by its steps, in place; returns how many nodes were added.

    No region has a node of another. The tiles stand where the last node of the region stood; what read the region
    between its nodes comes after them. Values that are needed outside keep their names.
    """
    graph = model.graph
    before = len(graph)
    writer, order = _Writer(graph), list(graph)
    gone: list[ir.Node] = []
    for region, steps in tilings:
        head, behind, tail = split_around(order, set(region.members))
        made, joined = writer.write(steps)
        for value, whole in joined.items():
            _hand_over(graph, value, whole)
        order = [*head, *made, *behind, *tail]
        gone += region.members
    graph.remove(tuple(graph))
    for node in gone:
        for position in range(len(node.inputs)):
            node.replace_input_with(position, None)
    for value in writer.cut:
        if not nodes.is_used(value) and not value.is_graph_input():
            del graph.initializers[value.name or ""]
    graph.extend(order)
    return len(graph) - before


def split_around(order: Sequence[ir.Node], members: set[ir.Node]) -> tuple[list[ir.Node], list[ir.Node], list[ir.Node]]:
    """The nodes before a region's tiles, those between its members that depend on them, and what follows anyway."""
    places = [place for place, node in enumerate(order) if node in members]
    head, behind = list(order[: places[0]]), []
    reached = set(members)
    for node in order[places[0] : places[-1]]:
        if node in members:
            continue
        read = (*node.inputs, *nodes.implicit_inputs(node))
        if any(value is not None and value.producer() in reached for value in read):
            reached.add(node)
            behind.append(node)
        else:
            head.append(node)
    return head, behind, list(order[places[-1] + 1 :])


def _hand_over(graph: ir.Graph, value: ir.Value, whole: ir.Value) -> None:
    for user, position in tuple(value.uses()):
        user.replace_input_with(position, whole)
    for place, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[place] = whole
    value.name, whole.name = None, value.name


class _Writer:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._names = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
        self._names.update(value.name for value in graph.inputs)
        self._names.update(node.name for node in graph)
        self._constants: dict[tuple[int, ...], ir.Value] = {}
        self._weights: dict[tuple[ir.Value, Range], ir.Value] = {}
        self._held: dict[Piece, ir.Value] = {}
        self._joined: dict[ir.Value, ir.Value] = {}  # what stands for a value that was made in tiles
        self._nodes: list[ir.Node] = []
        self._numbers: dict[str, int] = {}

    @property
    def cut(self) -> list[ir.Value]:
        """The constants of which tiles have ranges."""
        return list(dict.fromkeys(whole for whole, _ in self._weights))

    def write(self, steps: Iterable[Step]) -> tuple[list[ir.Node], dict[ir.Value, ir.Value]]:
        """The nodes of one region's steps, and what stands for the values that they join."""
        self._nodes, self._held, before = [], {}, set(self._joined)
        for step in steps:
            if isinstance(step, Run):
                self._run(step)
            elif isinstance(step, Cut):
                self._cut(step)
            else:
                self._join(step)
        return self._nodes, {value: whole for value, whole in self._joined.items() if value not in before}

    def _run(self, step: Run) -> None:
        node, how = step.node, step.how
        inputs = [None if piece is None else self._value(piece) for piece in step.inputs]
        for position, array in how.constants.items():
            inputs[position] = self._constant(array)
        changed = [ir.convenience.convert_attribute(name, value) for name, value in how.attributes.items()]
        kept = [one for one in node.attributes.values() if one.name not in how.attributes]
        copy = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            [*kept, *changed],
            overload=node.overload,
            num_outputs=len(node.outputs),
            name=self._new(node.name or node.op_type),
            doc_string=node.doc_string,
            metadata_props={**node.metadata_props, nodes.TILED: node.name or node.outputs[0].name or node.op_type},
        )
        used = nodes.used_outputs(node)
        by_output = dict(zip(used, step.outputs, strict=True))
        for mine, theirs in zip(copy.outputs, node.outputs, strict=True):
            mine.name = ""
            if theirs in by_output:
                self._declare(mine, by_output[theirs])
        self._nodes.append(copy)

    def _cut(self, step: Cut) -> None:
        axis = step.made.axis
        assert axis is not None, "a cut makes a piece"
        weights = constants.of_initializer(step.source.value)
        if weights is not None:
            reach = Range(axis, step.made.low, step.made.high)
            self._held[step.made] = self._cut_weights(step.source.value, weights, reach)
            return
        moved = 0 if step.source.axis is None else step.source.low
        bounds = (step.made.low - moved, step.made.high - moved, axis)
        inputs = [self._value(step.source), *(self._constant(np.array([one], np.int64)) for one in bounds)]
        node = self._add("Slice", inputs, [], step.made)
        if step.copied is not None:
            node.metadata_props[nodes.COPIED] = step.copied

    def _cut_weights(self, whole: ir.Value, tensor: ir.TensorProtocol, of: Range) -> ir.Value:
        """A range of a constant, as a constant of its own."""
        key = (whole, of)
        if key not in self._weights:
            places = (slice(None),) * of.axis + (slice(of.low, of.high),)
            name = self._new(f"{whole.name}_{of.low}_{of.high}")
            array = np.ascontiguousarray(tensor.numpy()[places])
            value = ir.Value(
                name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype),
                const_value=ir.Tensor(array, dtype=tensor.dtype, name=name),
            )  # fmt: skip
            self._graph.register_initializer(value)
            self._weights[key] = value
        return self._weights[key]

    def _join(self, step: Join) -> None:
        axis = step.pieces[0].axis
        assert axis is not None, "what is joined are pieces"
        inputs = [self._value(piece) for piece in step.pieces]
        node = self._add("Concat", inputs, [ir.AttrInt64("axis", axis)], step.whole)
        if step.whole.axis is None:
            self._joined[step.whole.value] = node.outputs[0]

    def _add(self, operator: str, inputs: Sequence[ir.Value], attributes: Sequence[ir.Attr], made: Piece) -> ir.Node:
        origin = made.value.producer()
        of = made.value.name if origin is None else origin.name or origin.op_type
        node = ir.Node("", operator, inputs, attributes, name=self._new(f"{of}_{operator.lower()}"),
                       metadata_props={nodes.TILED: of or operator})  # fmt: skip
        self._declare(node.outputs[0], made)
        self._nodes.append(node)
        return node

    def _declare(self, value: ir.Value, piece: Piece) -> None:
        value.name = self._new(f"{piece.value.name}_tile")
        value.type = piece.value.type
        if piece.value.shape is not None:
            shape = list(piece.value.shape)
            if piece.axis is not None:
                shape[piece.axis] = piece.high - piece.low
            value.shape = ir.Shape(shape)
        self._held[piece] = value

    def _value(self, piece: Piece) -> ir.Value:
        return self._joined.get(piece.value, piece.value) if piece.axis is None else self._held[piece]

    def _constant(self, array: np.ndarray) -> ir.Value:
        key = tuple(array.tolist())
        if key not in self._constants:
            name = self._new("tile_" + "_".join(str(one) for one in key))
            value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
            self._graph.register_initializer(value)
            self._constants[key] = value
        return self._constants[key]

    def _new(self, name: str) -> str:
        new, number = name, self._numbers.get(name, 1)
        while new in self._names:
            number += 1
            new = f"{name}_{number}"
        self._names.add(new)
        self._numbers[name] = number
        return new
