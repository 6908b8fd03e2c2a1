"""Model-local functions are put in place of their calls, when the caller asks for it (`--inline`)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from graphopt.model import nodes
from graphopt.rewrite.editor import Editor

RULE = "inline-functions"


def inline_functions(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """f(x), with f(a) = Relu(Neg(a))  -->  Relu(Neg(x))

    for every call, functions within functions included. Leaves alone a function that imports another version of a
    domain than the model does: its operators would mean something else in the model's graph.
    """
    model = editor.model
    fitting = {identifier for identifier, function in model.functions.items() if _fits(function, model)}
    # A function that calls one which must stay can be inlined; one that is called only from there needs no call either.
    called = [node for node in worklist if node.op_identifier() in fitting]
    if not called or not editor.accept(RULE, called[0].outputs[0], called):
        return
    InlinePass(lambda function: function.identifier() in fitting)(model)
    editor.read_again()
    editor.touched.extend(node for graph in editor.graphs() for node in graph)


def _fits(function: ir.Function, model: ir.Model) -> bool:
    """Whether every domain that the function's operators are of has one version in function and model."""
    domains = {node.domain for node in nodes.nodes_of(function)}
    own, outer = function.opset_imports, model.opset_imports
    return all(own.get(domain, 1) == outer.get(domain, own.get(domain, 1)) for domain in domains)
