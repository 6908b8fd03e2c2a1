"""What a rewrite tells of itself, on every graph of near misses: in the report, and on the nodes that it leaves.

`told.txt` has a line for each rewrite and for each node that was made or has taken over what was written on another;
`pytest tests/passes/near/test_told.py --update-golden` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from tests.passes.near.test_taken_back import NAMES, changed, graph_of

FILE = Path(__file__).parent / "told.txt"


def noted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a name, a doc string and metadata on every node of its main graph."""
    for node in model.graph.node:
        own = node.output[0]
        node.name, node.doc_string = f"n_{own}", f"the doc of {own}"
        entry = node.metadata_props.add()
        entry.key, entry.value = f"of {own}", own
    return model


def told(name: str) -> list[str]:
    """The rewrites of the graph, and the nodes that read something else afterwards, or on which that is written."""
    model = noted(graph_of(name))
    before = {node.name: _written(node) for node in model.graph.node}
    editor = changed(name, model, frozenset())
    lines = [
        f"{name}: {rewrite.rule} at {rewrite.site}: {', '.join(rewrite.before)} --> {', '.join(rewrite.after)}"
        f"{'' if rewrite.reason is None else f' ({rewrite.reason})'}"
        for rewrite in editor.log
    ]
    after = ir.to_proto(editor.model).graph.node
    return lines + [f"{name}: {line}" for node in after if (line := _written(node)) != before.get(node.name)]


def _written(node: onnx.NodeProto) -> str:
    metadata = ", ".join(f"{entry.key} = {entry.value}" for entry in sorted(node.metadata_props, key=lambda e: e.key))
    operands = ", ".join(node.input)
    return f"{node.op_type}({operands}) '{node.name}', {node.doc_string or 'no doc'}, {metadata or 'no metadata'}"


def test_what_rewrites_tell(request: pytest.FixtureRequest) -> None:
    lines = [line for name in NAMES for line in told(name)]
    if request.config.getoption("--update-golden"):
        FILE.write_text("\n".join([*lines, ""]))
    assert lines == FILE.read_text().splitlines()
