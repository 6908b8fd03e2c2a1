"""Loops of few iterations: the body stands there as often as it would run, one copy after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.going import count_of, keeps_going
from graphopt.model.trips import ended
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone

ONCE = "loop-of-one-trip"
OFTEN = "unroll-loops"
MOST_TRIPS = 8
MOST_NODES = 64  # of all copies together


@dataclass(frozen=True, slots=True)
class Trips:
    """A Loop whose iterations are counted."""

    loop: ir.Node
    body: ir.Graph
    count: int


class _Unknown(Exception):
    """The loop stays; the text says why."""


def loop_of_one_trip(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Loop(1) { y = f(x) }  -->  y = f(x),  Loop(0)  -->  what it starts with

    Also where the body's condition ends it after one iteration, as constants tell: that of a map over one row. Leaves
    alone conditions that other values decide, random operators, and the results of iterations that never run.
    """
    _unroll(editor, worklist, ONCE, 1)


def unroll_loops(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Loop(3) { y = f(y, i)  collect z }  -->  f(f(f(x, 0), 1), 2), Concat of the three z

    for up to 8 iterations and 64 nodes, innermost first. Constants of the body are not copied. Leaves alone counts that
    are not constant, conditions that a body changes, and random operators, whose copies would draw the same numbers.
    """
    _unroll(editor, worklist, OFTEN, MOST_TRIPS)


def why_not_unrolled(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each Loop: the condition that does not hold."""
    found: dict[ir.Node, LeftAlone] = {}
    for node in listed:
        if node.op_type == "Loop" and nodes.is_standard(node):
            try:
                trips = _counted(editor, node, MOST_TRIPS)
            except _Unknown as reason:
                found[node] = LeftAlone(str(reason), True)
            else:
                if trips.count > 1:
                    found[node] = LeftAlone(f"{trips.count} iterations are unrolled at level 3 only", True)
    return found


def _unroll(editor: Editor, worklist: Sequence[ir.Node], rule: str, most: int) -> None:
    if len(editor.graphs()) == 1:
        return
    given = set(worklist)
    changed = {id(node.graph) for node in worklist}
    loops = [
        node
        for graph in editor.graphs()
        for node in graph
        if node.op_type == "Loop" and nodes.is_standard(node)
        if node in given or any(id(inner) in changed for inner in nodes.subgraphs(node))
    ]
    for loop in reversed(loops):
        if loop.graph is None:
            continue
        try:
            trips = _counted(editor, loop, most)
        except _Unknown:
            continue
        reason = f"it runs {trips.count} times" if trips.count != 1 else "it runs once"
        if editor.accept(rule, loop.outputs[0], [loop], [_words(trips)], reason=reason):
            _Copies(editor, trips).write()


# -- conditions ---------------------------------------------------------------------------------------------------


def _counted(editor: Editor, loop: ir.Node, most: int) -> Trips:
    """How often the body runs; raises with the reason when that is not known or too often."""
    facts = editor.facts
    attribute = loop.attributes.get("body")
    if attribute is None or attribute.is_ref():
        raise _Unknown("it has no body of its own")
    body = attribute.as_graph()
    if None in loop.inputs[2:] or len(body.inputs) != len(loop.inputs[2:]) + 2:
        raise _Unknown("a starting value is absent")
    going = nodes.input_at(loop, 1)
    start = None if going is None else facts.scalar(going)
    if going is not None and start is None:
        raise _Unknown(f"its condition '{going.name}' is not constant")
    limit = nodes.input_at(loop, 0)
    count = 0 if start is False else count_of(facts, limit)
    if limit is not None and count is None:
        raise _Unknown("the number of iterations is not constant")
    if count != 0 and not keeps_going(facts, body):
        last = ended(facts, loop, body, most)
        if last is None or not last.is_exact:
            raise _Unknown("the body may end the loop by its condition")
        count = last.trips if count is None else min(last.trips, count)
    if count is None:
        raise _Unknown("nothing ends it")
    if count > most:
        raise _Unknown(f"{count} iterations are more than {most}")
    if any(entry in body.outputs[1:] for entry in body.inputs[:2]):
        raise _Unknown("it collects its own count or condition, which runtimes do in different ways")
    inside = list(nodes.nodes_of(body))
    copied = [node for node in inside if node.op_type != "Constant"]
    if count > 1 and len(copied) * count > MOST_NODES:
        raise _Unknown(f"{count} times {len(copied)} nodes are more than {MOST_NODES}")
    if not all(facts.is_pure(node) for node in body):
        raise _Unknown("two runs of a node in it may give different results")
    assert loop.graph is not None, "the loop is in a graph"
    within = loop.graph if isinstance(loop.graph, ir.Graph) else loop.graph.graph
    if editor.is_in_function(within) and any(nodes.has_subgraphs(node) for node in body):
        raise _Unknown("it belongs to a function and holds graphs")
    carried = len(body.inputs) - 2
    if not count and any(nodes.is_used(output) for output in loop.outputs[carried:]):
        raise _Unknown("the results of no iteration are collected")
    return Trips(loop, body, count)


def _words(trips: Trips) -> str:
    """What comes in the loop's place, for the report."""
    return f"{trips.count} x ({', '.join(node.op_type for node in trips.body if node.op_type != 'Constant')})"


# -- building -----------------------------------------------------------------------------------------------------


class _Copies:
    """Writes the copies of one loop's body in front of it and lets its readers use what they compute."""

    def __init__(self, editor: Editor, trips: Trips) -> None:
        self.editor, self.trips = editor, trips
        graph = trips.loop.graph
        assert graph is not None, "the caller has looked"
        self.graph = graph
        self.scope = graph if isinstance(graph, ir.Graph) else graph.graph
        self.made: list[ir.Node] = []

    def write(self) -> None:
        """Replace the loop."""
        loop, editor = self.trips.loop, self.editor
        for output in loop.outputs:
            editor.facts.known(output)  # asked later, when the loop is gone
        self._forget_condition()
        self._share_constants()
        carried = [value for value in loop.inputs[2:] if value is not None]
        collected: list[list[ir.Value]] = [[] for _ in loop.outputs[len(carried) :]]
        for number in range(self.trips.count):
            results = self._copy(number, carried)
            carried, scanned = results[1 : 1 + len(carried)], results[1 + len(carried) :]
            for held, value in zip(collected, scanned, strict=False):  # a Loop may leave out its last outputs
                held.append(value)
        results = list(carried[: len(loop.outputs)])
        stacked = [
            self._stack(held) if nodes.is_used(output) else None
            for output, held in zip(loop.outputs[len(carried) :], collected, strict=True)
        ]
        taken: set[ir.Value] = set()
        for output, result in zip(loop.outputs, [*results, *stacked], strict=True):
            if result is None or not nodes.is_used(output):
                continue
            if output.is_graph_output() and (result in taken or not self._may_be_named(result)):
                result = self._node("Identity", [result])
            taken.add(result)
            editor.replace_value(output, result)
        editor.touched.extend(self.made)
        editor.sweep([loop])
        editor.sweep(self.made)
        editor.rescope([node for node in self.made if node.graph is not None], self.scope)
        editor.forget_graphs()

    def _may_be_named(self, value: ir.Value) -> bool:
        producer = value.producer()
        return producer is not None and producer.graph is self.graph and not value.is_graph_output()

    def _forget_condition(self) -> None:
        """Let the body hand on the condition it got, and not compute what only that needed."""
        body = self.trips.body
        condition = body.outputs[0]
        body.outputs[0] = body.inputs[1]
        producer = condition.producer()
        if producer is not None and producer.graph is body:
            self.editor.sweep([producer])

    def _share_constants(self) -> None:
        """Put the body's constants in front of the loop: every copy reads the same ones."""
        loop, body, editor = self.trips.loop, self.trips.body, self.editor
        for name, value in list(body.initializers.items()):
            if value.is_graph_output():
                body.outputs[:] = [self._through(body, value) if o is value else o for o in body.outputs]
            body.initializers.pop(name)
            editor.add_constant(self.scope, value, loop)
        for node in [node for node in body if node.op_type == "Constant" and nodes.is_standard(node)]:
            value = node.outputs[0]
            if value.is_graph_output():
                body.outputs[:] = [self._through(body, value) if o is value else o for o in body.outputs]
            body.remove(node)
            self._place(node)

    def _through(self, body: ir.Graph, value: ir.Value) -> ir.Value:
        """An Identity in the body, which may return only what is computed in it."""
        node = ir.Node("", "Identity", [value], num_outputs=1)
        node.outputs[0].name = self.editor.unique(f"{value.name}_out")
        body.append(node)
        return node.outputs[0]

    def _copy(self, number: int, carried: Sequence[ir.Value]) -> list[ir.Value]:
        """The body once more; returns what it gives."""
        copy = self.trips.body.clone(allow_outer_scope_values=True)
        results = list(copy.outputs)
        copy.outputs.clear()
        numbers = [
            self._constant_like(entry, value) if nodes.is_used(entry) else None
            for entry, value in zip(copy.inputs[:2], (np.int64(number), np.bool_(True)), strict=True)
        ]
        stands_for: dict[ir.Value, ir.Value | None] = dict(zip(copy.inputs, [*numbers, *carried], strict=True))
        for old, new in stands_for.items():
            if new is not None:
                old.replace_all_uses_with(new, replace_graph_outputs=True)
        moved = list(copy)
        copy.remove(moved)
        for node in moved:
            self._place(node)
        found = []
        for value in results:
            result = stands_for.get(value, value)
            found.append(value if result is None else result)
        return found

    def _constant_like(self, entry: ir.Value, number: np.generic) -> ir.Value:
        """The number as a constant, for an entry of the body; a vector where the entry is one."""
        rank = 0 if entry.shape is None else len(entry.shape)
        return self._constant(entry.name or "number", np.full((1,) * rank, number))

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.Tensor(array),
        )
        return self.editor.add_constant(self.scope, value, self.trips.loop)

    def _stack(self, values: Sequence[ir.Value]) -> ir.Value:
        """What the iterations give, one beside the other along a new first axis."""
        rows = []
        for value in values:
            if self.editor.facts.opset(self.trips.loop) < 13:
                rows.append(self._node("Unsqueeze", [value], {"axes": [0]}))
            else:
                rows.append(self._node("Unsqueeze", [value, self._constant("axes", np.array([0]))]))
        return rows[0] if len(rows) == 1 else self._node("Concat", rows, {"axis": 0})

    def _node(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, int | list[int]] | None = None
    ) -> ir.Value:
        node = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes or {}), num_outputs=1)
        node.outputs[0].name = f"{self.trips.loop.outputs[0].name}/{op_type}"
        self._place(node)
        return node.outputs[0]

    def _place(self, node: ir.Node) -> None:
        """Put a node in front of the loop, all its names made unique: sibling bodies may have used them too."""
        for inner in (node, *(deeper for held in nodes.subgraphs(node) for deeper in nodes.nodes_of(held))):
            inner.name = self.editor.unique(inner.name) if inner.name else None
            for output in inner.outputs:
                self._name(output)
            for held in nodes.subgraphs(inner):
                for at, entry in enumerate(held.inputs):
                    shape = entry.shape
                    self._name(entry)
                    if at < 2 and inner.op_type == "Loop":  # ONNX Runtime asks whether its count has an axis
                        entry.shape = shape
                for value in list(held.initializers.values()):
                    held.initializers.pop(value.name or "")
                    self._name(value)
                    held.register_initializer(value)
        self.graph.insert_before(self.trips.loop, node)
        self.made.append(node)

    def _name(self, value: ir.Value) -> None:
        """A name of its own, and no declared dims: they may be others in every iteration, and are known anyway."""
        if value.name:
            constants.rename(value, self.editor.unique(value.name))
        value.shape = None
