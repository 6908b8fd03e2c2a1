"""A pass that is told that nothing has changed changes nothing, in the graph in which it would fire."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from graphopt.passes import pipeline
from graphopt.rewrite.editor import Editor
from tests.passes.near.test_taken_back import NAMES, graph_of

STEPS = {step.name: step.run for step in pipeline.every_pass()}
# They look at the whole model each time: what they compare or count has no node.
OF_THE_MODEL = ("share-equal-initializers", "remove-unused-definitions", "bind-attributes")
OWN = [name for name in NAMES if STEPS.get(name.partition(".")[0]) and not name.startswith(OF_THE_MODEL)]


@pytest.mark.parametrize("name", OWN)
def test_a_pass_without_news_does_nothing(name: str) -> None:
    run = STEPS[name.partition(".")[0]]
    assert run is not None
    model = ir.from_proto(graph_of(name))
    editor = Editor(model)
    before = [node for graph in editor.graphs() for node in graph]
    run(editor, [])
    assert editor.log == [] and editor.touched == []
    assert [node for graph in editor.graphs() for node in graph] == before
