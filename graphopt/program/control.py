"""Control flow as plain nodes, where a region of its own would not do, or do worse.

    If(c) { a } else { b }      -->  Where(c, a, b) for a few nodes, or one of the two where c is known
    If(c) { [n] } else { [m] }  -->  the first n of Concat(a, b), or what follows: data decides how many there are
    Scan(state, rows) { body }  -->  one copy of the body for each row
    Loop(3, c, state) { body }  -->  three copies; a state stays as it was from where c is false

What has the same dims in every iteration, or in both branches, becomes a region (regions/control.py), and declares its
dims here. The others are written out. A Loop whose count only a run tells has as many iterations as the declared dims
of its scan outputs say. Left alone is what has too many copies, or carries sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model import nodes
from graphopt.model.dims import Dims, declared
from graphopt.model.facts import Facts
from graphopt.model.going import count_of, keeps_going
from graphopt.model.trips import ended
from graphopt.program.fixed_states import without_fixed_states
from graphopt.program.subprograms import declare_results, has_control_flow, require_kept_dims

MOST_TRIPS = 64
MOST_FOLLOWED = 4096  # iterations whose condition is computed from constants
MOST_NODES = 4096  # of all copies together
FEW_NODES = 8  # of both branches of an If: as Where they become part of the kernels around
MOST_BRANCHED = 256  # nodes of both branches of an If

_SAME_DIMS = ("Identity", "Cast", "CastLike")


class _Stays(Exception):
    """The node stays; the text says why."""


def without_control_flow(model: ir.Model) -> ir.Model:
    """A model without such nodes, the same one where there are none."""
    if not any(map(has_control_flow, model.graph)):
        return model
    work = model.clone()
    kept: set[ir.Node] = set()
    facts, names = Facts(work), _names(work.graph)
    while (node := next((one for one in work.graph if has_control_flow(one) and one not in kept), None)) is not None:
        if node.op_type != "If":
            node = without_fixed_states(node)
            facts, names = Facts(work), _names(work.graph)
        one = _Inlining(work, facts, node, names)
        try:
            if not one.becomes_region():
                one.write()
                if node.op_type == "If" and not work.functions:
                    continue  # what is known of values before it stays true, and of those behind nothing was asked
                facts, names = Facts(work), _names(work.graph)
                continue
        except _Stays:
            pass
        kept.add(node)
        facts, names = Facts(work), _names(work.graph)
    return work


class _Inlining:
    """One node on its way to plain ones."""

    def __init__(self, model: ir.Model, facts: Facts, node: ir.Node, names: set[str | None]) -> None:
        """`names` are those of all values; new ones are added."""
        self._facts, self._node = facts, node
        self._model, self._graph, self._opset = model, model.graph, facts.opset(node)
        self._names = names
        self._made: list[ir.Node] = []

    def becomes_region(self) -> bool:
        """Whether it has the same dims whatever it does; they are then declared."""
        node, rows, fewer = self._node, None, False
        if node.op_type == "If":
            inside = [one for name in ("then_branch", "else_branch") for one in node.attributes[name].as_graph()]
            few = len(inside) <= FEW_NODES and all(map(self._facts.is_pure, inside))
            if self._known() is not None or few:
                return False
        elif node.op_type == "Loop":
            rows, said, always = self._trips()
            fewer = said is None and not always
        elif self._opset < 9:
            return False
        try:
            declare_results(self._model, self._facts, node, rows, fewer=fewer)
        except NotLowered:
            return False
        if fewer and rows not in (None, count_of(self._facts, node.inputs[0])) and self._counts():
            node.replace_input_with(0, self._constant(np.array(rows, np.int64)))  # the most rows that it collects
        return True

    def write(self) -> None:
        """Put the nodes in the place of this one; raises _Stays, before anything is changed, where it stays."""
        if any(value.type is not None and not isinstance(value.type, ir.TensorType) for value in self._node.outputs):
            raise _Stays("it gives sequences")
        write = {"If": self._branches, "Scan": self._scan, "Loop": self._loop}[self._node.op_type]
        results = write()
        for output, result in zip(self._node.outputs, results, strict=False):
            result = self._add("Identity", [result])
            result.type, result.shape = output.type, output.shape
            name, output.name = output.name, None
            output.replace_all_uses_with(result, replace_graph_outputs=True)
            result.name = name
        self._graph.insert_before(self._node, self._made)
        self._graph.remove(self._node, safe=True)

    # -- the three --------------------------------------------------------------------------------------------------

    def _branches(self) -> list[ir.Value]:
        node, condition = self._node, nodes.required_input(self._node, 0)
        graphs = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        known = self._known()
        if known is not None:
            return self._copy(graphs[0 if known else 1], [])
        self._require(graphs, 1, MOST_BRANCHED)
        sides = zip(*([self._facts.shape(value) for value in graph.outputs] for graph in graphs), strict=True)
        axes = [self._differing_axis(a, b) for a, b in sides]
        yes, no = (self._copy(graph, []) for graph in graphs)
        flag = self._flat(condition)
        return [
            self._add("Where", [flag, a, b]) if axis is None else self._part(flag, a, b, axis)
            for a, b, axis in zip(yes, no, axes, strict=True)
        ]

    def _differing_axis(self, yes: Dims | None, no: Dims | None) -> int | None:
        """The one axis along which the results of two branches may have other dims, None where they have the same."""
        if yes is None or no is None or len(yes) != len(no):
            raise _Stays("its branches give other numbers of dims, or such as are not known")
        axes = [axis for axis, (a, b) in enumerate(zip(yes, no, strict=True)) if a != b]
        if len(axes) > 1:
            raise _Stays("its branches give other dims along several axes")
        if axes and self._opset < 10:
            raise _Stays("a Slice of its opset has constant bounds")
        return axes[0] if axes else None

    def _part(self, flag: ir.Value, yes: ir.Value, no: ir.Value, axis: int) -> ir.Value:
        """One of two values that differ in one dim: the first or the last elements of both, one after the other."""
        place = self._constant(np.array([axis], np.int64))
        count = self._add("Gather", [self._add("Shape", [yes]), place])
        bounds = [self._constant(np.array([bound], np.int64)) for bound in (0, np.iinfo(np.int64).max)]
        start, end = self._add("Where", [flag, bounds[0], count]), self._add("Where", [flag, count, bounds[1]])
        return self._add("Slice", [self._add("Concat", [yes, no], {"axis": axis}), start, end, place])

    def _known(self) -> bool | None:
        """The condition of an If, where it is known."""
        known = self._facts.scalar(nodes.required_input(self._node, 0))
        return None if known is None else bool(known)

    def _scan(self) -> list[ir.Value]:
        node, body = self._node, self._node.attributes["body"].as_graph()
        is_old = self._opset < 9  # with a dim of batches in front, and their lengths
        if is_old and nodes.input_at(node, 0) is not None:
            raise _Stays("its batches have lengths of their own")
        given = [value for value in node.inputs if value is not None]
        rows = nodes.int_attribute(node, "num_scan_inputs", 0)
        states = len(given) - rows
        sources = given[states:]
        axes = nodes.ints_attribute(node, "scan_input_axes", (0,) * rows)
        turned = nodes.ints_attribute(node, "directions" if is_old else "scan_input_directions", (0,) * rows)
        shapes = [self._facts.static_shape(value) for value in sources]
        if not shapes or any(shape is None for shape in shapes):
            raise _Stays("the number of its rows is not known")
        places = [axis % len(shape or ()) for axis, shape in zip(axes, shapes, strict=True)]
        first = shapes[0] or ()
        count = first[1] if is_old else first[places[0]]
        if not is_old:
            self._require([body], count, MOST_NODES)
            carried, collected = self._rows(body, given[:states], sources, count, places, turned)
            placed = nodes.ints_attribute(node, "scan_output_axes", (0,) * len(collected))
            reverse = nodes.ints_attribute(node, "scan_output_directions", (0,) * len(collected))
            return [*carried, *(
                self._stack(held[::-1] if back else held, axis)
                for held, axis, back in zip(collected, placed, reverse, strict=True)
            )]  # fmt: skip
        self._require([body] * first[0], count, MOST_NODES)
        batches = []
        for item in range(first[0]):
            parts = [self._row(value, 0, item) for value in given]
            carried, collected = self._rows(body, parts[:states], parts[states:], count, [0] * rows, turned)
            batches.append([*carried, *(self._stack(held, 0) for held in collected)])
        return [self._stack(list(held), 0) for held in zip(*batches, strict=True)]

    def _rows(
        self, body: ir.Graph, carried: Sequence[ir.Value], sources: Sequence[ir.Value], count: int,
        axes: Sequence[int], turned: Sequence[int],
    ) -> tuple[list[ir.Value], list[list[ir.Value]]]:  # fmt: skip
        """Copies of a Scan's body, one for each row; what is carried at the end, and what each collected."""
        states = len(carried)
        collected: list[list[ir.Value]] = [[] for _ in body.outputs[states:]]
        for turn in range(count):
            taken = [
                self._row(source, axis, count - 1 - turn if back else turn)
                for source, axis, back in zip(sources, axes, turned, strict=True)
            ]
            results = self._copy(body, [*carried, *taken])
            carried = results[:states]
            for held, value in zip(collected, results[states:], strict=True):
                held.append(value)
        return list(carried), collected

    def _loop(self) -> list[ir.Value]:
        node, body = self._node, self._node.attributes["body"].as_graph()
        states, going = len(body.inputs) - 2, nodes.input_at(node, 1)
        count, rows, always = self._trips()
        if count is None or None in node.inputs[2:] or (rows is None and not self._counts()):
            raise _Stays("the number of its iterations is not known")
        self._require([body], count, MOST_NODES)
        is_open = rows is not None or always
        carried = [value for value in node.inputs[2:] if value is not None]
        if not is_open:
            self._require_kept_dims()
        true = self._constant(np.array(True))
        alive = true if is_open or going is None else self._flat(going)
        collected: list[list[ir.Value]] = [[] for _ in body.outputs[1 + states :]]
        if collected and rows is None and not is_open:
            raise _Stays("how much it collects depends on a condition")
        for turn in range(count):
            results = self._copy(body, [self._constant(np.array(turn, np.int64)), true, *carried])
            new = results[1 : 1 + states]
            if not is_open:
                new = [self._add("Where", [alive, a, b]) for a, b in zip(new, carried, strict=True)]
                alive = self._add("And", [alive, self._flat(results[0])])
            carried = new
            for held, value in zip(collected, results[1 + states :], strict=True):
                held.append(value)
        return [*carried, *(self._stack(held, 0) for held in collected)]

    def _trips(self) -> tuple[int | None, int | None, bool]:
        """How often a Loop runs at most, or how much it collects where the model says it; whether it runs as often."""
        node, body, facts = self._node, self._node.attributes["body"].as_graph(), self._facts
        count, counts = count_of(facts, nodes.input_at(node, 0)), self._counts()
        always = counts and self._is_true(nodes.input_at(node, 1))
        if not keeps_going(facts, body):
            found = ended(facts, node, body, MOST_FOLLOWED)
            always = always and found is not None and found.is_exact
            if found is not None:
                count = found.trips if count is None else min(found.trips, count)
        rows = self._declared_trips(len(body.inputs) - 2) if count is None or not always else None
        return count if rows is None else rows, rows, always

    def _counts(self) -> bool:
        """Whether no operand says how often a Loop runs, or one that is a number."""
        limit = nodes.input_at(self._node, 0)
        return limit is None or count_of(self._facts, limit) is not None

    # -- conditions -------------------------------------------------------------------------------------------------

    def _require(self, bodies: Sequence[ir.Graph], count: int, most: int) -> None:
        inside = [node for body in bodies for node in nodes.nodes_of(body)]
        if count > MOST_TRIPS or len(inside) * count > most or not count:
            raise _Stays(f"{count} times {len(inside)} nodes are too many, or none")
        if not all(self._facts.is_pure(node) for node in inside):
            raise _Stays("two runs of a node in it may give different results")

    def _require_kept_dims(self) -> None:
        """What is carried keeps its dims: else a state that stays has others than a new one."""
        try:
            require_kept_dims(self._model, self._facts, self._node)
        except NotLowered as error:
            raise _Stays(str(error)) from error

    def _declared_trips(self, states: int) -> int | None:
        """How many rows the model declares of what the loop collects."""
        for output in self._node.outputs[states:]:
            value = output
            readers = [use.node for use in value.uses()]
            while declared(value) is None and len(readers) == 1 and readers[0].op_type in _SAME_DIMS:
                value = readers[0].outputs[0]
                readers = [use.node for use in value.uses()]
            dims = declared(value)
            if dims:
                return dims[0]
        return None

    def _is_true(self, value: ir.Value | None) -> bool:
        return value is None or self._facts.scalar(value) is True

    # -- building ---------------------------------------------------------------------------------------------------

    def _copy(self, body: ir.Graph, given: Sequence[ir.Value]) -> list[ir.Value]:
        """The body once more with these inputs; what it gives."""
        copy = body.clone(allow_outer_scope_values=True)
        results = list(copy.outputs)
        copy.outputs.clear()
        stands_for = dict(zip(copy.inputs, given, strict=True))
        for old, new in stands_for.items():
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        for value in list(copy.initializers.values()):
            copy.initializers.pop(value.name or "")
            value.name = self._unique(value.name)
            self._graph.register_initializer(value)
        moved = list(copy)
        copy.remove(moved)
        for node in moved:
            node.name = self._unique(node.name) if node.name else None
            for output in node.outputs:
                output.name = self._unique(output.name) if output.name else output.name
                output.shape = None  # it may be another in every iteration, and is known anyway
        self._made += moved
        return [stands_for.get(value, value) for value in results]

    def _row(self, source: ir.Value, axis: int, number: int) -> ir.Value:
        """One row of an operand along an axis, without that axis."""
        if self._opset >= 10:
            ends = [self._constant(np.array([one], np.int64)) for one in (number, number + 1, axis)]
            part = self._add("Slice", [source, *ends])
        else:
            part = self._add("Slice", [source], {"starts": [number], "ends": [number + 1], "axes": [axis]})
        return self._moved("Squeeze", part, axis)

    def _stack(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        rank = None if values[0].shape is None else len(values[0].shape) + 1
        if axis < 0 and rank is None:
            inner = self._node.attributes["body"].as_graph().outputs[-1].shape
            rank = None if inner is None else len(inner) + 1
        if axis < 0 and rank is None:
            raise _Stays("where its rows go is not known")
        place = axis if axis >= 0 else axis + (rank or 0)
        return self._add("Concat", [self._moved("Unsqueeze", one, place) for one in values], {"axis": place})

    def _moved(self, operator: str, value: ir.Value, axis: int) -> ir.Value:
        if self._opset < 13:
            return self._add(operator, [value], {"axes": [axis]})
        return self._add(operator, [value, self._constant(np.array([axis], np.int64))])

    def _flat(self, condition: ir.Value) -> ir.Value:
        """A condition as a scalar: it may be a vector of one element."""
        shape = self._constant(np.array([], np.int64))
        return self._add("Reshape", [condition, shape])

    def _constant(self, array: np.ndarray) -> ir.Value:
        name = self._unique("constant")
        value = ir.Value(
            name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name),
        )  # fmt: skip
        self._graph.register_initializer(value)
        return value

    def _add(
        self, operator: str, inputs: Sequence[ir.Value], attributes: Mapping[str, int | list[int]] | None = None
    ) -> ir.Value:
        node = ir.node(operator, list(inputs), attributes=attributes or {})
        node.outputs[0].name = self._unique(f"{self._node.outputs[0].name}/{operator}")
        self._made.append(node)
        return node.outputs[0]

    def _unique(self, name: str | None) -> str:
        found, number = name or "value", 0
        while found in self._names:
            number += 1
            found = f"{name}.{number}"
        self._names.add(found)
        return found


def _names(graph: ir.Graph) -> set[str | None]:
    """The names of all values of a graph and of those inside its nodes."""
    return {value.name for value in _values(graph)}


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """All values of a graph and of those inside its nodes."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in nodes.nodes_of(graph):
        yield from node.outputs
        for inner in nodes.subgraphs(node):
            yield from inner.inputs
            yield from inner.initializers.values()
