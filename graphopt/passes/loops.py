"""Loops: what is the same in every iteration is computed once, in front of the loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.dims import is_static
from graphopt.model.facts import Facts
from graphopt.model.operators.table import ARITHMETIC, UNARY
from graphopt.passes.operands import FLOATS
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone

RULE = "hoist-loop-invariants"
LOOPS = ("Loop", "Scan")
# Operators that give a result for every input of the right shape: computed in front of a loop that then does not run
# they cost time but cannot fail. Those of the second group only where their shapes are all known.
TOTAL = UNARY | ARITHMETIC - {"Pow"} | {"Where", "Softmax", "LogSoftmax", "Transpose", "Shape"}
WHERE_SHAPES_FIT = frozenset({"MatMul", "Gemm", "Conv", "Concat", "Reshape", "Expand", "Unsqueeze", "Squeeze"})


def hoist_loop_invariants(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Loop { p = MatMul(X, W)  y = Add(y_in, p) }  -->  p = MatMul(X, W)  Loop { y = Add(y_in, p) }

    for X and W from outside, in Loop and Scan, innermost first. A loop that may not run at all gives up only operators
    that cannot fail. Leaves alone random operators, those with subgraphs, and what a condition inside may skip.
    """
    if len(editor.graphs()) == 1:
        return
    owners = _owners(editor)
    changed = {id(node.graph) for node in worklist}
    changed |= {id(body) for body, loop in owners.items() if loop in set(worklist)}
    for body, loop in reversed(owners.items()):
        if id(body) in changed and loop.graph is not None:
            _hoist(editor, loop, body)


def _owners(editor: Editor) -> dict[ir.Graph, ir.Node]:
    """The loop of each body, outer before inner."""
    return {
        body: node
        for graph in editor.graphs()
        for node in graph
        if node.op_type in LOOPS and nodes.is_standard(node)
        for body in nodes.subgraphs(node)
    }


def _hoist(editor: Editor, loop: ir.Node, body: ir.Graph) -> None:
    outer = loop.graph
    assert outer is not None, "the caller has looked"
    certain = _runs(editor.facts, loop)
    moved = []
    for node in list(body):
        reason = _obstacle(editor.facts, node, body, certain)
        if reason is None and editor.accept(RULE, node.outputs[0], [node], [node]):
            _move(editor, loop, body, node)
            moved.append(node)
    if moved:
        editor.rescope(moved, outer if isinstance(outer, ir.Graph) else outer.graph)
        editor.touched.extend([*moved, loop, *(user for node in moved for o in node.outputs for user in o.consumers())])


def _obstacle(facts: Facts, node: ir.Node, body: ir.Graph, certain: bool) -> str | None:
    """Why a node stays in the loop, None when it may leave."""
    if not nodes.is_standard(node) or node.op_type == "Constant" or nodes.has_subgraphs(node):
        return "only standard operators without subgraphs leave a loop, and constants need not"
    for value in node.inputs:
        if value is not None and not _from_outside(value, body):
            return f"its input '{value.name}' is another in every iteration"
    if not facts.is_pure(node):
        return "two runs of it may give different results"
    if any(output.is_graph_output() for output in node.outputs):
        return "its result is what the loop hands on"
    if certain:
        return None
    kinds = [facts.dtype(output) for output in node.outputs]
    total = node.op_type in TOTAL and (node.op_type != "Div" or kinds[0] in FLOATS)
    shapes = [facts.shape(value) for value in (*node.inputs, *node.outputs) if value is not None]
    fits = node.op_type in WHERE_SHAPES_FIT
    if node.op_type == "Reshape":  # whose result is as its target says, whether that can be or not
        fits = math.prod(shapes[0] or ()) == math.prod(shapes[-1] or ())
    if (total or fits) and all(is_static(shape) for shape in shapes):
        return None
    return "the loop may not run at all, and the operator might fail in front of it"


def _from_outside(value: ir.Value, body: ir.Graph) -> bool:
    """Whether a value is the same in every iteration: it comes from an outer graph or is the body's constant."""
    producer = value.producer()
    if producer is not None:
        return producer.graph is not body or producer.op_type == "Constant"
    return value.graph is not body or (value.is_initializer() and not value.is_graph_input())


def _runs(facts: Facts, loop: ir.Node) -> bool:
    """Whether the body is known to run at least once."""
    if loop.op_type == "Scan":
        length = _scan_length(facts, loop)
        return isinstance(length, int) and length > 0
    trips, going = nodes.input_at(loop, 0), nodes.input_at(loop, 1)
    count = facts.scalar(trips)
    return (trips is None or (count is not None and count > 0)) and (going is None or facts.scalar(going) is True)


def _scan_length(facts: Facts, loop: ir.Node) -> object:
    if nodes.has_reference_attributes(loop):
        return None
    count = nodes.int_attribute(loop, "num_scan_inputs", 0)
    source = loop.inputs[-1] if count else None
    shape = None if source is None or facts.opset(loop) < 9 else facts.shape(source)
    axes = nodes.ints_attribute(loop, "scan_input_axes")
    return shape[axes[-1] if axes else 0] if shape else None


def _move(editor: Editor, loop: ir.Node, body: ir.Graph, node: ir.Node) -> None:
    """Put the node in front of the loop, with those constants of the body that it reads."""
    outer = loop.graph
    assert outer is not None, "the caller has looked"
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        producer = value.producer()
        if value.graph is body and value.is_initializer():
            node.replace_input_with(index, _copied(editor, outer, value, loop))
        elif producer is not None and producer.graph is body:
            copy = ir.Node("", "Constant", [], dict(producer.attributes), num_outputs=1)
            copy.name = editor.unique(producer.name or "Constant")
            copy.outputs[0].name = editor.unique(value.name or "constant")
            outer.insert_before(loop, copy)
            node.replace_input_with(index, copy.outputs[0])
    body.remove(node)
    outer.insert_before(loop, node)


def _copied(editor: Editor, outer: ir.Graph | ir.Function, value: ir.Value, loop: ir.Node) -> ir.Value:
    """A constant of the body as one of the outer graph."""
    graph = outer if isinstance(outer, ir.Graph) else outer.graph
    copy = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
    return editor.add_constant(graph, copy, loop)


def why_not_hoisted(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each node of a loop's body: what keeps it there."""
    found: dict[ir.Node, LeftAlone] = {}
    owners = _owners(editor)
    for node in listed:
        body = node.graph
        loop = owners.get(body) if isinstance(body, ir.Graph) else None
        if loop is None or not isinstance(body, ir.Graph):
            continue
        reason = _obstacle(editor.facts, node, body, _runs(editor.facts, loop))
        if reason is not None:
            found[node] = LeftAlone(reason, True)
    return found
