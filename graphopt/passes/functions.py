"""Model-local functions that are called once: their bodies may rely on what that one call says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone


def bind_attributes(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Softmax<axis = @dim> in a function called once, with dim = 1  -->  Softmax<axis = 1>

    The call keeps its attributes and the function declares them still, so that whoever recognises the call by them
    goes on doing so. Functions called from several places are left alone; inlining is not this pass's work.
    """
    for identifier, places in _calls(editor).items():
        if len(places) == 1:
            _bind(editor, editor.model.functions[identifier], places[0])


def why_not_bound(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each node of a function with an open attribute: how often the function is called."""
    wanted = {node for node in listed if nodes.has_reference_attributes(node)}
    found: dict[ir.Node, LeftAlone] = {}
    for identifier, places in _calls(editor).items() if wanted else ():
        for node in nodes.nodes_of(editor.model.functions[identifier]):
            if node in wanted:
                found[node] = LeftAlone(f"the function is called in {len(places)} places", len(places) > 1)
    return found


def _calls(editor: Editor) -> dict[ir.OperatorIdentifier, list[ir.Node]]:
    """Where each function is called."""
    functions = editor.model.functions
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {identifier: [] for identifier in functions}
    for graph in editor.graphs() if functions else ():
        for node in graph:
            if node.op_identifier() in functions:
                calls[node.op_identifier()].append(node)
    return calls


def _bind(editor: Editor, function: ir.Function, call: ir.Node) -> None:
    if nodes.has_reference_attributes(call):
        return  # the call stands in a function itself, and is bound when that one is
    for node in nodes.nodes_of(function):
        for name, attribute in list(node.attributes.items()):
            if not attribute.is_ref():
                continue
            site = node.outputs[0] if node.outputs else node.name or ""
            if not editor.accept(
                "bind-attributes", site, [node], [node], reason=f"{name} as in {nodes.describe(call)}"
            ):
                continue
            wanted = attribute.ref_attr_name or ""
            given = call.attributes.get(wanted) or function.attributes.get(wanted)
            del node.attributes[name]
            if given is not None and given.type != ir.AttributeType.UNDEFINED and given.value is not None:
                node.attributes[name] = ir.Attr(name, given.type, given.value)
            for output in node.outputs:
                editor.facts.forget(output)
            editor.touched.append(node)
