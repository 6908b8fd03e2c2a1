"""What holds in every test of passes: `@pytest.mark.fires("rule")` is kept, and nothing half-built reads a model.

A test marked so fails unless the rule or pass of that name changes a graph in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import pytest

from graphopt.model import nodes
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.journal import Journal


@pytest.fixture(autouse=True)
def fired(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of the rules and passes that have changed a graph so far."""
    names: set[str] = set()
    write = Journal.write

    def noting(journal: Journal, pass_name: str, rule: str, *rest: object) -> None:
        names.update((pass_name, rule))
        write(journal, pass_name, rule, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "write", noting)
    yield names
    wanted = {name for mark in request.node.iter_markers("fires") for name in mark.args}
    assert wanted <= names, f"{sorted(wanted - names)} did not fire"


@pytest.fixture(autouse=True)
def edited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ir.Model]]:
    """The models that editors have worked on; at the end no value in them is read by a node that was never put in."""
    models: list[ir.Model] = []
    begin = Editor.__init__

    def noting(editor: Editor, model: ir.Model, **rest: object) -> None:
        models.append(model)
        begin(editor, model, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Editor, "__init__", noting)
    yield models
    assert [readers for model in models if (readers := loose_readers(model))] == []


def loose_readers(model: ir.Model) -> list[str]:
    """Values that are read by nodes that are in no graph."""
    left = []
    for graph in nodes.graphs_of(model):
        values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
        left += [str(value.name) for value in values if any(user.graph is None for user, _ in value.uses())]
    return left
