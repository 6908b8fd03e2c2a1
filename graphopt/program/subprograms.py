"""Bodies of If, Loop and Scan as models of their own: parts of a program that run again, or not at all.

A body reads values of the graph around it; they become inputs of its model behind its own, and constants become
initializers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.errors import GraphoptError, NotLowered
from graphopt.model import nodes
from graphopt.model.dims import declared
from graphopt.model.facts import Facts
from graphopt.model.short import WidenedTensor

CONTROL = ("If", "Loop", "Scan")
Kind = tuple[ir.DataType, tuple[int, ...]]  # element type and dims


@dataclass(frozen=True, slots=True)
class Body:
    """A body as a model."""

    model: ir.Model
    outside: tuple[ir.Value, ...]  # values of the graph around, in the order of the last inputs


@dataclass(frozen=True, slots=True)
class Repeated:
    """A Loop or Scan whose iterations all have the same dims.

    `states` are carried; `sources` are the operands of a Scan that it reads row by row, `rows` how many rows there are.
    `kinds` are those of the body's inputs, `results` those of its outputs, without a Loop's condition.
    """

    graph: ir.Graph
    states: tuple[ir.Value, ...]
    sources: tuple[ir.Value, ...]
    rows: int  # of what is collected: of a Loop at most
    kinds: tuple[Kind, ...]
    results: tuple[Kind, ...]


def has_control_flow(node: ir.Node) -> bool:
    """Whether the node is one of the three."""
    return node.op_type in CONTROL and nodes.is_standard(node)


def is_nested(model: ir.Model) -> bool:
    """Whether there is control flow inside of control flow."""
    return any(
        has_control_flow(inner)
        for node in model.graph if has_control_flow(node)
        for graph in nodes.subgraphs(node) for inner in nodes.nodes_of(graph)
    )  # fmt: skip


def undeclared(model: ir.Model) -> int:
    """How many nodes of control flow have results of unknown dims."""
    return sum(1 for node in model.graph if has_control_flow(node) and None in map(declared, nodes.used_outputs(node)))


def body_of(model: ir.Model, facts: Facts, graph: ir.Graph, kinds: Sequence[Kind]) -> Body:
    """A body whose own inputs are of these kinds. Raises NotLowered where what it reads outside is not known."""
    copy = graph.clone(allow_outer_scope_values=True)
    for value, (dtype, dims) in zip(copy.inputs, kinds, strict=True):
        value.type, value.shape = ir.TensorType(dtype), ir.Shape(dims)
    copy.opset_imports.clear()
    copy.opset_imports.update(model.graph.opset_imports)
    stands_for: dict[ir.Value, ir.Value] = {}
    outside = []
    for value in _read_outside(copy):
        new = stands_for[value] = ir.Value(name=f"{value.name}:outside", type=value.type)
        dtype, shape = _kind(facts, value)
        array, tensor = facts.array(value), facts.tensor(value)
        if array is not None:
            new.const_value = ir.Tensor(array, dtype=dtype) if tensor is None else _named_apart(tensor)
            new.type, new.shape = ir.TensorType(dtype), ir.Shape(array.shape)
            copy.register_initializer(new)
            continue
        new.type, new.shape = ir.TensorType(dtype), ir.Shape(shape)
        copy.inputs.append(new)
        outside.append(value)
    for node in nodes.nodes_of(copy):
        for position, given in enumerate(node.inputs):
            if given is not None and given in stands_for:
                node.replace_input_with(position, stands_for[given])
        for inner in nodes.subgraphs(node):
            _replace_outputs(inner, stands_for)
    _replace_outputs(copy, stands_for)
    _give_each_output_a_node(copy)
    return Body(ir.Model(copy, ir_version=model.ir_version, functions=tuple(model.functions.values())), tuple(outside))


def _named_apart(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same numbers with a name of their own: that of a tensor in a caller's model stays what it is."""
    if isinstance(tensor, WidenedTensor):
        return tensor
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)


def kinds_of(body: Body) -> tuple[Kind, ...]:
    """Of a body's results; raises NotLowered where they are not known."""
    facts = Facts(body.model)
    return tuple(_kind(facts, value) for value in body.model.graph.outputs)


def repeated(model: ir.Model, facts: Facts, node: ir.Node, rows: int | None) -> Repeated:
    """A Loop or a Scan of ONNX 9 or later; raises NotLowered where dims change from one iteration to the next one.

    `rows`: how often a Loop runs at most, None where nothing tells.
    """
    graph = node.attributes["body"].as_graph()
    is_loop = node.op_type == "Loop"
    states, sources, kinds, found = _given(facts, node)
    rows, count = rows if found is None else found, len(states)
    body = body_of(model, facts, graph, kinds)
    _require_kept(node, kinds, body)
    results = kinds_of(body)[1 if is_loop else 0 :]
    if rows is None and len(results) > count:
        raise NotLowered(f"nothing tells how much {nodes.describe(node)} collects.")
    return Repeated(graph, states, sources, (1 << 62) if rows is None else rows, tuple(kinds), results)


def require_kept_dims(model: ir.Model, facts: Facts, node: ir.Node) -> None:
    """Raises NotLowered where a state of a Loop or Scan has other dims behind an iteration, or they are not known."""
    kinds = _given(facts, node)[2]
    _require_kept(node, kinds, body_of(model, facts, node.attributes["body"].as_graph(), kinds))


def _require_kept(node: ir.Node, kinds: Sequence[Kind], body: Body) -> None:
    """Raises NotLowered where a state has other dims behind an iteration than before it, or they are not known.

    The body is made for the dims that states start with, and the next iteration is given those that it ends with.
    """
    if node.op_type == "If":
        return
    first, count = (2, len(kinds) - 2) if node.op_type == "Loop" else (0, _state_count(node))
    facts, results = Facts(body.model), body.model.graph.outputs[first // 2 :][:count]
    if [_kind(facts, value) for value in results] != list(kinds[first : first + count]):
        raise NotLowered(f"{nodes.describe(node)} carries values of other dims from one iteration to the next one.")


def _state_count(scan: ir.Node) -> int:
    return len(scan.inputs) - nodes.int_attribute(scan, "num_scan_inputs", 0)


def _given(facts: Facts, node: ir.Node) -> tuple[tuple[ir.Value, ...], tuple[ir.Value, ...], list[Kind], int | None]:
    """The states of a Loop or Scan, what it reads row by row, the kinds of its body's inputs, and how many rows.

    Raises NotLowered where these kinds are not known.
    """
    graph = node.attributes["body"].as_graph()
    is_loop = node.op_type == "Loop"
    given = list(node.inputs[2:] if is_loop else node.inputs)
    if None in given:
        raise NotLowered(f"{nodes.describe(node)} leaves out a state.")
    values = tuple(value for value in given if value is not None)
    count = len(values) if is_loop else _state_count(node)
    states, sources = values[:count], values[count:]
    kinds = [_kind(facts, value) for value in states]
    if is_loop:
        on = declared(graph.inputs[1]) or ()
        kinds = [(ir.DataType.INT64, declared(graph.inputs[0]) or ()), (ir.DataType.BOOL, on), *kinds]
    axes = nodes.ints_attribute(node, "scan_input_axes", (0,) * len(sources))
    rows = None
    for value, axis in zip(sources, axes, strict=True):
        dtype, shape = _kind(facts, value)
        place = axis % len(shape)
        rows = shape[place]
        kinds.append((dtype, (*shape[:place], *shape[place + 1 :])))
    return states, sources, kinds, rows


def declare_results(model: ir.Model, facts: Facts, node: ir.Node, rows: int | None, *, fewer: bool = False) -> None:
    """Let a node declare the dims of its results, `rows` as for `repeated`; raises NotLowered where none are known.

    `fewer`: a Loop may end before, and the rows of what it collects are a dim that data decides.
    """
    if node.op_type == "If":
        graphs = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        found, other = (kinds_of(body_of(model, facts, graph, ())) for graph in graphs)
        if found != other:
            raise NotLowered(f"the branches of {nodes.describe(node)} give other types or dims.")
        kinds: list[tuple[ir.DataType, tuple[int | ir.SymbolicDim, ...]]] = list(found)
    else:
        loop = repeated(model, facts, node, rows)
        states = len(loop.states)
        axes = nodes.ints_attribute(node, "scan_output_axes", (0,) * (len(loop.results) - states))
        kinds = list(loop.results[:states])
        name = node.outputs[0].name if node.outputs else ""  # of an inner loop nobody may read anything
        count = ir.SymbolicDim(f"?{name}") if fewer else loop.rows
        for (dtype, row), axis in zip(loop.results[states:], axes, strict=True):
            place = axis % (len(row) + 1)
            kinds.append((dtype, (*row[:place], count, *row[place:])))
    for output, (dtype, dims) in zip(node.outputs, kinds, strict=False):
        output.type, output.shape = ir.TensorType(dtype), ir.Shape(dims)


def with_bodies(model: ir.Model, better: Callable[[ir.Model], ir.Model]) -> ir.Model:
    """The model with `better` bodies of its control flow, each made better as a model of its own."""
    found = [node for node in model.graph if has_control_flow(node)]
    if not found:
        return model
    work = model.clone()
    facts = Facts(work)
    for number, node in enumerate([one for one in work.graph if has_control_flow(one)]):
        for name, graph, kinds in _graphs(work, facts, node):
            try:
                body = body_of(work, facts, graph, kinds)
                made = Body(better(body.model), body.outside)
                _require_kept(node, kinds, made)
            except GraphoptError:
                continue  # it stays as it is, and lowering says why it cannot be lowered
            if made.model.graph.opset_imports.get("") == work.graph.opset_imports.get(""):
                _put_back(work, node, name, made, len(kinds), f"{name}{number}")
    return work


def _graphs(model: ir.Model, facts: Facts, node: ir.Node) -> Iterator[tuple[str, ir.Graph, Sequence[Kind]]]:
    """The bodies of a node by the names of their attributes, and the kinds of their inputs."""
    if node.op_type == "If":
        for name in ("then_branch", "else_branch"):
            yield name, node.attributes[name].as_graph(), ()
        return
    try:
        kinds = _given(facts, node)[2]
    except NotLowered:
        return
    yield "body", node.attributes["body"].as_graph(), kinds


def _put_back(model: ir.Model, node: ir.Node, name: str, body: Body, own: int, prefix: str) -> None:
    """Let a model be the body of a node: what it reads outside is read there again."""
    graph = body.model.graph.clone()
    held = list(graph.inputs)
    _give_each_output_a_node(graph)
    for value, outside in zip(held[own:], body.outside, strict=True):
        value.replace_all_uses_with(outside)
    while len(graph.inputs) > own:
        graph.inputs.pop()
    for one in nodes.nodes_of(graph):
        for output in one.outputs:
            output.name = f"{prefix}/{output.name}" if output.name else output.name
    for value in graph.inputs:
        value.name = f"{prefix}/{value.name}"
    for value in list(graph.initializers.values()):
        graph.initializers.pop(value.name or "")
        value.name = f"{prefix}/{value.name}"
        graph.register_initializer(value)
    graph.opset_imports.clear()
    node.attributes[name] = ir.AttrGraph(name, graph)
    for domain, version in body.model.graph.opset_imports.items():
        model.graph.opset_imports.setdefault(domain, version)


def _kind(facts: Facts, value: ir.Value) -> Kind:
    dtype, shape = facts.dtype(value), facts.static_shape(value)
    shape = declared(value) if shape is None else shape
    if dtype is None or shape is None:
        raise NotLowered(f"the dims of '{value.name}' are not all numbers.")
    return dtype, shape


def _read_outside(graph: ir.Graph) -> list[ir.Value]:
    """What a graph reads and does not hold, in the order of first use."""
    own: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
    read: dict[ir.Value, None] = {}
    for node in nodes.nodes_of(graph):
        own.update(node.outputs)
        read.update(dict.fromkeys(value for value in node.inputs if value is not None))
        for inner in nodes.subgraphs(node):
            own.update(inner.inputs)
            own.update(inner.initializers.values())
            read.update(dict.fromkeys(inner.outputs))
    read.update(dict.fromkeys(graph.outputs))
    return [value for value in read if value not in own]


def _replace_outputs(graph: ir.Graph, stands_for: dict[ir.Value, ir.Value]) -> None:
    for position, value in enumerate(graph.outputs):
        if value in stands_for:
            graph.outputs[position] = stands_for[value]


def _give_each_output_a_node(graph: ir.Graph) -> None:
    """Let no two results be one value, and none an input or a constant: each is written where it is wanted."""
    made = {output for node in graph for output in node.outputs}
    for position, value in enumerate(graph.outputs):
        if value in made:
            made.discard(value)
            continue
        node = ir.node("Identity", [value])
        node.outputs[0].name = f"{value.name}:{position}"
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        graph.append(node)
        graph.outputs[position] = node.outputs[0]
