"""Why passes that are functions leave nodes alone, on every graph of near misses: `why.txt` has a line for each answer.

`pytest tests/passes/near/test_why.py --update-golden` writes it anew, for words or conditions that change on purpose.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from graphopt.model import nodes
from graphopt.passes import pipeline
from graphopt.rewrite.editor import Editor
from tests.passes.near.test_taken_back import NAMES, graph_of

FILE = Path(__file__).parent / "why.txt"
STEPS = {step.name: step for step in pipeline.every_pass() if step.why is not None}
# They say something of every node, and are asked about the graphs of their own.
TALKATIVE = ("fold-constants", "merge-common-subexpressions", "remove-dead-nodes")


def answers(name: str) -> list[str]:
    """What each such pass says of the graph as it is, those that come close marked; asking changes nothing."""
    model = ir.from_proto(graph_of(name))
    editor = Editor(model, stop_after=0)
    listed = [node for graph in editor.graphs() for node in graph]
    found = [
        f"{name}: {step.name}: {nodes.describe(node)}: {left.reason}{' (near)' if left.near else ''}"
        for step in STEPS.values()
        if step.why is not None and (step.name not in TALKATIVE or name.startswith(step.name))
        for node, left in step.why(editor, listed).items()
    ]
    assert not editor.log and [node for graph in editor.graphs() for node in graph] == listed
    return found


def test_why_nodes_are_left_alone(request: pytest.FixtureRequest) -> None:
    told = [line for name in NAMES for line in answers(name)]
    if request.config.getoption("--update-golden"):
        FILE.write_text("\n".join([*told, ""]))
    assert told == FILE.read_text().splitlines()
