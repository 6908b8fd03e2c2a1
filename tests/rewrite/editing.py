"""Small hands for tests of the editor: a model that is edited, a match in it, and its nodes as text."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.rewrite.editor import Editor
from graphopt.rewrite.pattern import Binding
from graphopt.rewrite.rule import Match, bind
from tests import support

CHAIN = "g (float[4] x) => (float[4] y) { a = Neg(x) b = Exp(a) y = Abs(b) }"


def edited(text: str = CHAIN, *, ir_version: int = 8, budget: int | None = None, **weights: np.ndarray) -> Editor:
    return Editor(ir.from_proto(support.model(text, 17, ir_version, **weights)), budget=budget)


def at(editor: Editor, name: str, *inner: str) -> Match:
    """A match at the node that computes the value of this name, with those of the others inside."""
    found = {str(output.name): node for node in editor.model.graph for output in node.outputs}
    binding = Binding({}, {}, [found[each] for each in (name, *inner)])
    return Match(found[name], binding if inner else bind(found[name]), editor.facts)


def written(editor: Editor) -> list[str]:
    """A line for each node: what it reads and makes."""
    return [
        f"{' '.join(str(value.name) for value in node.outputs)} = "
        f"{node.op_type}({', '.join('' if value is None else str(value.name) for value in node.inputs)})"
        for node in editor.model.graph
    ]
