"""Nodes taken out of their graphs."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from graphopt.model import nodes

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[2] x) => (float[2] y, float[2] z) {
  a = Relu (x)
  y = Neg (x)
  z = Abs (y)
}
"""


def test_a_node_that_nothing_reads_leaves_its_graph_and_its_operands() -> None:
    graph = ir.from_onnx_text(TEXT).graph
    relu = graph[0]
    nodes.take_out(relu)
    assert relu.graph is None and [node.op_type for node in graph] == ["Neg", "Abs"]
    assert [node.op_type for node in graph.inputs[0].consumers()] == ["Neg"]


@pytest.mark.parametrize("position", (1, 2), ids=("read", "returned"))
def test_a_node_that_something_reads_stays(position: int) -> None:
    graph = ir.from_onnx_text(TEXT).graph
    with pytest.raises(AssertionError, match="nothing reads"):
        nodes.take_out(graph[position])
    assert len(graph) == 3


def test_taking_a_node_out_does_not_look_through_the_outputs_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ir.from_onnx_text(TEXT).graph
    monkeypatch.setattr(type(graph.outputs), "__getitem__", None)  # a training step has thousands
    nodes.take_out(graph[0])
    assert len(graph) == 2
