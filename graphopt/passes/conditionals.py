"""If with a known condition becomes the branch that is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone


def resolve_constant_if(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """If(true) { then } else { otherwise }  -->  then

    Leaves alone a branch whose result is a value of the outer scope, or a constant, and that the surrounding graph
    returns: an output must be computed under its own name.
    """
    for node in worklist:
        if node.graph is None or node.op_type != "If" or not nodes.is_standard(node):
            continue
        condition = editor.facts.scalar(node.inputs[0])
        if condition is None:
            held = None if node.inputs[0] is None else editor.facts.content(node.inputs[0])
            if held is None or held.size != 1 or not isinstance(held.reshape(-1)[0], bool):
                continue
            condition = held.reshape(-1)[0]
        attribute = node.attributes.get("then_branch" if condition else "else_branch")
        if attribute is None or attribute.is_ref():
            continue
        branch = attribute.as_graph()
        if any(
            output.is_graph_output() and (new.producer() is None or new.producer().graph is not branch)  # type: ignore[union-attr]
            for output, new in zip(node.outputs, branch.outputs, strict=True)
        ):
            continue
        if len(set(branch.outputs)) < len(branch.outputs) and any(o.is_graph_output() for o in node.outputs):
            continue
        if editor.accept(
            "resolve-constant-if",
            node.outputs[0],
            [node],
            reason=f"the condition is always {'true' if condition else 'false'}",
        ):
            _inline(editor, node, branch)


def why_not_resolved(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each If: its condition is not constant, or the branch's result cannot take the output's name."""
    found: dict[ir.Node, LeftAlone] = {}
    for node in listed:
        if node.op_type == "If" and nodes.is_standard(node) and node.inputs[0] is not None:
            known = editor.facts.is_constant(node.inputs[0]) or editor.facts.content(node.inputs[0]) is not None
            reason = "the branch's result cannot take the name of the graph's output"
            found[node] = LeftAlone(reason if known else f"its condition '{node.inputs[0].name}' is not constant", True)
    return found


def _inline(editor: Editor, node: ir.Node, branch: ir.Graph) -> None:
    """Move the branch's initializers and nodes in front of the If and let its readers use the branch's results.

    Dims that the branch declares for its results go where they are wrong: exporters write those of the other branch.
    """
    graph = node.graph
    assert graph is not None, "the If is in a graph"
    results = list(branch.outputs)
    for output in node.outputs:
        editor.facts.known(output)  # asked later, when the branch has no outputs any more
    branch.outputs.clear()
    for name, value in list(branch.initializers.items()):
        branch.initializers.pop(name)
        added = editor.add_constant(graph, value, node)
        results = [added if result is value else result for result in results]
    moved = list(branch)
    _rename(editor, branch, graph)
    branch.remove(moved)
    graph.insert_before(node, moved)
    for old, new in zip(node.outputs, results, strict=True):
        editor.replace_value(old, new)
    editor.touched.extend(moved)
    editor.sweep([node])
    editor.rescope(moved, graph)
    for result in results:
        told, known = editor.facts.declared(result).shape, editor.facts.shape(result)
        if told is None or known is None or result.is_graph_output():
            continue
        if not dims.may_be_same(told, known):
            result.shape = None


def _rename(editor: Editor, branch: ir.Graph, graph: ir.Graph | ir.Function) -> None:
    """Give new names to values that are called like others: branches that exclude each other may use a name twice."""
    own = [output for node in nodes.nodes_of(branch) for output in node.outputs]
    taken = Counter(output.name for node in nodes.nodes_of(graph) for output in node.outputs)
    for value in own:
        if value.name and taken[value.name] > 1:
            taken[value.name] -= 1
            value.name = editor.unique(value.name)
