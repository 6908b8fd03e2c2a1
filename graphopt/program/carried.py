"""Weights and state of a training step, which it changes where they lie.

    w -> MatMul ..., w - rate * gradient -> w_new        w_new lies in the memory of w

A result may take the place of the input that it follows when it is made of it element by element, and every other
reader of the input runs before: nodes are put in such an order, and the plan keeps it. A step with subgraphs stays as
it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphopt.gradient.step import step_of
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.table import operator_of
from graphopt.program.regions.fusion import trees
from graphopt.program.regions.region import NO_CACHES, Cache

Pair = tuple[ir.Value, ir.Value]  # an input, and the output that takes its place


def changed_in_place(model: ir.Model) -> tuple[ir.Model, Mapping[str, Cache]]:
    """A model whose readers of such inputs come first, and its outputs by name; the same model where it is no step."""
    step = step_of(model)
    if step is None or any(map(nodes.has_subgraphs, model.graph)):
        return model, NO_CACHES
    work = model.clone()
    facts = Facts(work)
    inputs = {value.name: value for value in work.graph.inputs if value.name not in work.graph.initializers}
    outputs = {value.name: value for value in work.graph.outputs}
    pairs = [
        (inputs[one.input], outputs[one.output])
        for one in step.carried
        if one.input in inputs and one.output in outputs
    ]
    pairs = [pair for pair in pairs if _is_elementwise_of(facts, pair)]
    while pairs:
        ordered, stuck = _readers_first(work.graph, facts, pairs)
        if not stuck:
            nodes_before = list(work.graph)
            work.graph.remove(nodes_before)
            work.graph.extend(ordered)
            return work, {
                output.name or "": Cache(value.name or "", facts.static_shape(value) or ()) for value, output in pairs
            }
        pairs = [pair for pair in pairs if stuck.isdisjoint(_path(facts, pair))]
    return model, NO_CACHES


def _readers_first(graph: ir.Graph, facts: Facts, pairs: Sequence[Pair]) -> tuple[list[ir.Node], set[ir.Node]]:
    """The nodes in an order in which other readers of an input are computed before what takes its place.

    A reader is computed where the kernel ends that it belongs to. Also gives the nodes that find no place, as a reader
    of the old value needs the new one.
    """
    root_of = {
        node: tree.root for tree in trees(graph, lambda value: facts.static_shape(value) or ())
        for node in (*tree.nodes, tree.anchor) if node is not None and tree.root is not None
    }  # fmt: skip
    inside = set(graph)
    missing: dict[ir.Node, set[ir.Node]] = {
        node: {one for value in node.inputs if value is not None and (one := value.producer()) in inside and one}
        for node in graph
    }
    for pair in pairs:
        ends = {root_of.get(reader, reader) for reader in _other_readers(facts, pair)}
        for node in _path(facts, pair):
            missing[node] |= ends
    blocked: dict[ir.Node, list[ir.Node]] = {}
    for node, before in missing.items():
        for one in before:
            blocked.setdefault(one, []).append(node)
    ordered: list[ir.Node] = []
    done: set[ir.Node] = set()
    passed: set[ir.Node] = set()
    for node in graph:
        passed.add(node)
        pending = [node]
        while pending:
            one = pending.pop()
            if missing[one] or one in done:
                continue
            ordered.append(one)
            done.add(one)
            freed = blocked.get(one, [])
            for reader in freed:
                missing[reader].discard(one)
            pending += [reader for reader in reversed(freed) if reader in passed]
    return ordered, inside - done


def _is_elementwise(node: ir.Node) -> bool:
    operator = operator_of(node)
    return (
        nodes.is_standard(node) and operator is not None and operator.axes in ("each", "broadcast")
        and not nodes.has_subgraphs(node) and len(node.outputs) == 1
    )  # fmt: skip


def _addend(node: ir.Node) -> ir.Value | None:
    """The third operand of a Gemm, which is added to the product; None for other nodes."""
    return nodes.input_at(node, 2) if node.op_type == "Gemm" and nodes.is_standard(node) else None


def _is_view(node: ir.Node) -> bool:
    operator = operator_of(node)
    return operator is not None and operator.storage in ("same", "strides", "joined", "pieces")


def _is_elementwise_of(facts: Facts, pair: Pair) -> bool:
    """Whether an output is made of an input element by element, and of nothing that reads the input otherwise."""
    value, output = pair
    shape = facts.static_shape(value)
    alike = bool(shape) and shape == facts.static_shape(output) and facts.dtype(value) == facts.dtype(output)
    if not alike or output.producer() is None or not _path(facts, pair):
        return False
    return not any(_reaches(source, value) for source in _sources(output))


def _sources(output: ir.Value) -> list[ir.Node]:
    """The nodes that are not elementwise behind which the elementwise nodes of an output begin."""
    found, seen, pending = [], set(), [output]
    while pending:
        node = pending.pop().producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        addend = _addend(node)
        if _is_elementwise(node):
            pending += _operands(node)
        else:
            found.append(node)
        if addend is not None:
            pending.append(addend)
    return found


def _reaches(node: ir.Node, value: ir.Value) -> bool:
    """Whether a kernel of this node might read the value: as its operand, or through elementwise nodes and views."""
    seen = set()
    pending = _operands(node)[: None if _addend(node) is None else 2]
    while pending:
        operand = pending.pop()
        if operand is value:
            return True
        producer = operand.producer()
        if producer is not None and producer not in seen and (_is_elementwise(producer) or _is_view(producer)):
            seen.add(producer)
            pending += _operands(producer)
    return False


def _operands(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _path(facts: Facts, pair: Pair) -> set[ir.Node]:
    """The elementwise nodes through which an input reaches its output with its own dims."""
    value, output = pair
    shape = facts.static_shape(value)
    back: set[ir.Node] = set()
    pending = [output]
    while pending:
        node = pending.pop().producer()
        if node is None or node in back or facts.static_shape(node.outputs[0]) != shape:
            continue
        addend = _addend(node)
        if _is_elementwise(node):
            back.add(node)
            pending += _operands(node)
        elif addend is not None and facts.static_shape(addend) == shape:
            back.add(node)
            pending.append(addend)
    found: set[ir.Node] = set()
    frontier = [value]
    while frontier:
        one = frontier.pop()
        for reader in one.consumers():
            if reader in back and reader not in found and _addend(reader) in (None, one):
                found.add(reader)
                frontier.append(reader.outputs[0])
    return found


def _other_readers(facts: Facts, pair: Pair) -> set[ir.Node]:
    """The nodes that read an input, or a view of it, apart from those that make its output."""
    path, found, pending = _path(facts, pair), set(), [pair[0]]
    while pending:
        for reader in pending.pop().consumers():
            if reader not in path and reader not in found:
                found.add(reader)
                if _is_view(reader):
                    pending += reader.outputs
    return found
