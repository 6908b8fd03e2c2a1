"""Nodes of a gradient: made where a rule says so, joined to the graph at the end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.model import constants, dims, nodes
from graphopt.model.facts import Facts
from graphopt.model.going import fixed_trips
from graphopt.model.known import Known
from graphopt.model.operators.gradients.terms import Attributes, Maker, NoGradient, Step, Term
from graphopt.rewrite.rule import Making

PREFIX = "gradient"
# Constants of at most so many bytes are written once and read by all that need their data.
SHARED_BYTES = 256


@cache
def _missing_until(op_type: str, opset: int) -> int | None:
    """The first opset that has an operator, where this one has not yet."""
    if onnx.defs.has(op_type) and not _has(op_type, opset):
        return next(one for one in range(opset + 1, onnx.defs.onnx_opset_version() + 1) if _has(op_type, one))
    return None


def _has(op_type: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return True


class GradientMaker(Maker):
    """Makes nodes behind those of a model's main graph, and in graphs that these hold.

    Each is named after the node whose gradient it serves.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.facts: Facts = Facts(model)
        self.opset = model.graph.opset_imports.get("", 1)
        self._shared: dict[Hashable, ir.Value] = {}
        self._counted: dict[ir.Node, dims.Dim] = {}
        self._names = {name for graph in nodes.graphs_of(model) for name in _names_of(graph)}
        self._serves = PREFIX
        self._making: Making | None = None

    def serve(self, node: ir.Node) -> None:
        """Name what is made from now on after this node, and read it under its imports."""
        self._serves = f"{PREFIX}/{node.name or node.outputs[0].name}"
        self._making = Making(node, self.facts)

    def node(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Attributes, outputs: int
    ) -> Sequence[ir.Value]:
        """The results of a new node, which joins the graph at once; raises NoGradient where the opset lacks it."""
        assert self._making is not None, "a node is served"
        if (since := _missing_until(op_type, self.opset)) is not None:
            raise NoGradient(
                f"its rule takes {op_type}, which is there from opset {since} on; lift the model with 'graphopt "
                f"optimize --opset {since}'"
            )
        return self._join(self._making.node_of(op_type, *inputs, attributes=dict(attributes), outputs=outputs))

    def _join(self, made: ir.Node) -> Sequence[ir.Value]:
        self._take_constants()
        made.name = self.unique(f"{self._serves}/{made.op_type}")
        for output in made.outputs:
            output.name = self.unique(f"{made.name}_output")
        self.graph.append(made)
        return made.outputs

    def scan(
        self, states: Sequence[Term], rows: Sequence[Term], step: Step, *, backwards: bool = False
    ) -> tuple[Sequence[Term], Sequence[Term]]:
        """The last states, and what each step keeps, of steps over the first axis of `rows`."""
        given = [
            *(self._port(term, term.shape, "state") for term in states),
            *(self._port(term, term.shape[1:], "row") for term in rows),
        ]
        after: Sequence[Term] = ()
        kept: Sequence[Term] = ()

        def stepped() -> Sequence[Term]:
            nonlocal after, kept
            terms = [self.term(value) for value in given]
            after, kept = step(terms[: len(states)], terms[len(states) :])
            return [*after, *kept]

        body = self._body(given, stepped)
        attributes: dict[str, ir.Attr] = {
            "body": ir.AttrGraph("body", body), "num_scan_inputs": ir.AttrInt64("num_scan_inputs", len(rows)),
        }  # fmt: skip
        if backwards:
            for name, count in (("scan_input_directions", len(rows)), ("scan_output_directions", len(kept))):
                attributes[name] = ir.AttrInt64s(name, [1] * count)
        operands = [term.value for term in (*states, *rows)]
        shapes = [term.shape for term in states] + [(rows[0].shape[0], *term.shape) for term in kept]
        found = self._holding("Scan", operands, attributes, [*states, *kept], shapes)
        return found[: len(states)], found[len(states) :]

    def choose(
        self, condition: Term, then: Callable[[], Sequence[Term]], otherwise: Callable[[], Sequence[Term]],
        likes: Sequence[Term],
    ) -> Sequence[Term]:  # fmt: skip
        """What one of two graphs gives, by a condition; results have the types and dims of `likes`."""
        attributes = {
            name: ir.AttrGraph(name, self._body([], branch))
            for name, branch in (("then_branch", then), ("else_branch", otherwise))
        }
        return self._holding("If", [condition.value], attributes, likes, [term.shape for term in likes])

    def _body(self, given: Sequence[ir.Value], write: Callable[[], Sequence[Term]]) -> ir.Graph:
        """A graph with these inputs, whose outputs are what `write` makes in it."""
        outer, serving = self.graph, (self._serves, self._making)
        body = ir.Graph(given, [], nodes=[], name=self.unique(f"{self._serves}/body"))
        self.facts.register(body, outer)
        self.graph = body
        for term in write():
            seen = term.value.producer() is None or term.value.graph is not body or term.value in body.outputs
            end = term.apply("Identity").value if seen else term.value
            self.declare(end, term.shape)
            body.outputs.append(end)
        _remove_dead(body)
        self.graph, (self._serves, self._making) = outer, serving
        return body

    def _holding(
        self, op_type: str, operands: Sequence[ir.Value], attributes: Mapping[str, ir.Attr], likes: Sequence[Term],
        shapes: Sequence[dims.Dims],
    ) -> list[Term]:  # fmt: skip
        """The results of a node that holds graphs, of types of `likes`, whose dims only the maker can tell."""
        assert self._making is not None, "a node is served"
        made = self._making.node_of(op_type, *operands, attributes=attributes, outputs=len(likes))
        results = self._join(made)
        for value, term, shape in zip(results, likes, shapes, strict=True):
            value.type = ir.TensorType(term.dtype)
            self.declare(value, shape)
        return [self.term(value) for value in results]

    def copied(self, body: ir.Graph, given: Sequence[Term]) -> tuple[list[ir.Node], dict[ir.Value, ir.Value]]:
        """The nodes of a body once more, behind the last node, and its values by those of the body."""
        places = dict(zip(body.inputs, (term.value for term in given), strict=True))
        order = self._copies(body, places)
        for node in order:
            self.graph.append(node)
            for inner in nodes.subgraphs(node):
                self.facts.register(inner, self.graph)
        return order, places

    def _copies(self, body: ir.Graph, places: dict[ir.Value, ir.Value]) -> list[ir.Node]:
        """The nodes of a graph once more, in no graph yet; `places` gets its values. Constants go to the main graph."""
        for value in body.initializers.values():
            tensor = constants.of_initializer(value)
            assert tensor is not None, "an initializer has data"
            places[value] = self.constant(tensor.numpy(), tensor.dtype)
        order = []
        for node in body:
            operands = [None if value is None else places.get(value, value) for value in node.inputs]
            held = {
                name: ir.AttrGraph(name, self._copied_graph(one.as_graph(), places))
                for name, one in node.attributes.items()
                if one.type == ir.AttributeType.GRAPH
            }
            made = ir.Node(
                node.domain, node.op_type, operands, {**node.attributes, **held}, num_outputs=len(node.outputs),
                name=self.unique(f"{self._serves}/{node.name or node.op_type}"),
            )  # fmt: skip
            for old, new in zip(node.outputs, made.outputs, strict=True):
                new.name = self.unique(f"{made.name}_output") if old.name else ""
                new.type, new.shape = old.type, old.shape
                places[old] = new
            order.append(made)
        return order

    def _copied_graph(self, graph: ir.Graph, around: dict[ir.Value, ir.Value]) -> ir.Graph:
        """A graph that a node holds, once more, reading the copies of what it reads from around."""
        places = dict(around)
        inputs = []
        for value in graph.inputs:
            name = self.unique(f"{self._serves}/{value.name}")
            inputs.append(ir.Value(name=name, type=value.type, shape=value.shape))
            places[value] = inputs[-1]
        order = self._copies(graph, places)
        outputs = []
        for value in graph.outputs:
            end = places.get(value, value)
            if end.producer() not in order:  # a constant of the graph, which is the main one's now
                keep = ir.Node("", "Identity", [end], num_outputs=1, name=self.unique(f"{self._serves}/Identity"))
                order.append(keep)
                (end,) = keep.outputs
                end.name = self.unique(f"{keep.name}_output")
                end.type, end.shape = value.type, value.shape
            outputs.append(end)
        return ir.Graph(inputs, outputs, nodes=order, name=self.unique(f"{self._serves}/body"))

    def before(self, node: ir.Node, position: int) -> ir.Value:
        """The states that the steps of a Scan or Loop of the model start from."""
        (body,) = nodes.subgraphs(node)
        offset = 2 if node.op_type == "Loop" else 0  # the number of the step and the condition
        state, start = body.inputs[offset + position], nodes.given_input(node, offset + position)
        keep = ir.Node("", "Identity", [state], num_outputs=1, name=self.unique(f"{state.name}/before"))
        body.append(keep)
        (kept,) = keep.outputs
        known = self.facts.known(start)
        kept.name, kept.type = self.unique(f"{state.name}/before_output"), known.type
        shape = self.term(start).shape
        self.declare(kept, shape)
        body.outputs.append(kept)
        directions = nodes.ints_attribute(node, "scan_output_directions")
        if directions is not None:
            listed = [*directions, directions[0] if directions else 0]
            node.attributes["scan_output_directions"] = ir.AttrInt64s("scan_output_directions", listed)
        node.resize_outputs(len(node.outputs) + 1)
        result = node.outputs[-1]
        result.name, result.type = self.unique(f"{node.outputs[0].name}/before"), known.type
        self.declare(result, (self._steps(node), *shape))
        return result

    def _steps(self, node: ir.Node) -> dims.Dim:
        """How many steps a Scan or Loop of the model takes."""
        if node not in self._counted:
            if node.op_type == "Scan":
                self._counted[node] = self.term(nodes.given_input(node, len(node.inputs) - 1)).shape[0]
            else:
                count = fixed_trips(node, self.facts)
                self._counted[node] = self.facts.fresh() if count is None else count
        return self._counted[node]

    def _port(self, term: Term, shape: dims.Dims, kind: str) -> ir.Value:
        """An input of a body."""
        value = ir.Value(name=self.unique(f"{self._serves}/{kind}"), type=ir.TensorType(term.dtype))
        self.declare(value, shape)
        return value

    def declare(self, value: ir.Value, shape: dims.Dims) -> None:
        """Write down dims that only the maker can tell."""
        if value.type is None:
            value.type = self.facts.known(value).type
        value.shape = ir.Shape([dims.to_ir(dim) for dim in shape])
        self.facts.set_known(value, Known(value.type, shape, None))

    def _take_constants(self) -> None:
        """Give the graph the constants that a node of `Making` came with."""
        assert self._making is not None, "a node is served"
        for value in self._making.new_constants:
            assert value.const_value is not None, "a new constant has data"
            shared = self._register(value, value.const_value)
            if shared is not value:
                for user, index in list(value.uses()):
                    user.replace_input_with(index, shared)
        self._making.new_constants.clear()

    def constant(self, array: np.ndarray, dtype: ir.DataType) -> ir.Value:
        """A new initializer, or an earlier one with equal data."""
        assert self._making is not None, "a node is served"
        value = self._making.constant(array, dtype)
        if value.const_value is None:  # many equal numbers, as a node that writes them
            producer = value.producer()
            assert producer is not None, "a splat is a ConstantOfShape"
            self._take_constants()
            producer.name = self.unique(f"{self._serves}/{producer.op_type}")
            value.name = self.unique(f"{producer.name}_output")
            self.graph.append(producer)
            return value
        self._making.new_constants.remove(value)
        return self._register(value, value.const_value)

    def _register(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        key = None
        if tensor.nbytes <= SHARED_BYTES:
            key = (tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())
            if key in self._shared:
                return self._shared[key]
        constants.rename(value, self.unique(f"{PREFIX}/constant"))
        self.model.graph.register_initializer(value)
        if key is not None:
            self._shared[key] = value
        return value

    def result(self, node: ir.Node, position: int) -> ir.Value:
        """A result of a node of the model; one that was left out gets a place and a name."""
        if position >= len(node.outputs):
            node.resize_outputs(position + 1)
        for number, output in enumerate(node.outputs):
            if number == position and not output.name:
                output.name = self.unique(f"{node.outputs[0].name}/{number}")
        return node.outputs[position]

    def replace(self, old: ir.Value, new: Term) -> None:
        """Put a new term in the place of a node's result; an output of the model keeps its name."""
        if old.is_graph_output():
            new.value.name, old.name = old.name, self.unique(old.name or "")
        old.replace_all_uses_with(new.value, replace_graph_outputs=True)

    def give(self, value: ir.Value, name: str) -> ir.Value:
        """Make a value an output of the model under a name, with its type and dims."""
        if value.is_graph_output() or value.producer() is None:
            value = self.term(value).apply("Identity").value
        known = self.facts.known(value)
        value.name, value.type = self.unique(name), known.type
        value.shape = None if known.shape is None else ir.Shape([dims.to_ir(dim) for dim in known.shape])
        self.graph.outputs.append(value)
        return value

    def has(self, name: str) -> bool:
        """Whether something in the model has this name."""
        return name in self._names

    def unique(self, base: str) -> str:
        """A name that nothing in the model has."""
        name, number = base, 0
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name


def _remove_dead(body: ir.Graph) -> None:
    for node in reversed(list(body)):
        if not any(nodes.is_used(output) for output in node.outputs):
            body.remove(node, safe=True)


def _names_of(graph: ir.Graph) -> set[str]:
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    return {*(value.name or "" for value in values), *graph.initializers, *(node.name or "" for node in graph)}
