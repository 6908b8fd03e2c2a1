"""Model-local functions are put in place of their calls, when the caller asks for it (`--inline`)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.model.functions import inline, means_the_same
from graphopt.rewrite.editor import Editor

RULE = "inline-functions"


def inline_functions(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """f(x), with f(a) = Relu(Neg(a))  -->  Relu(Neg(x))

    for every call, functions within functions included. Leaves alone a function that imports another version of a
    domain than the model does: its operators would mean something else in the model's graph.
    """
    model = editor.model
    fitting = {identifier for identifier, function in model.functions.items() if means_the_same(function, model)}
    # A function that calls one which must stay can be inlined; one that is called only from there needs no call either.
    called = [node for node in worklist if node.op_identifier() in fitting]
    if not called or not editor.accept(RULE, called[0].outputs[0], called):
        return
    inline(model, lambda function: function.identifier() in fitting)
    editor.read_again()
    editor.touched.extend(node for graph in editor.graphs() for node in graph)
