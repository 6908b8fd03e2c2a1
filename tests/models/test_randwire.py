"""The randomly wired network: a valid model, the same every time, whose wiring is that of the task graph."""

from __future__ import annotations

import onnx

from models import randwire
from models.taskgraphs import randwire as graph_of
from scheduler.device import cpu


def test_the_model_has_the_nodes_of_the_task_graph() -> None:
    model, again = randwire.build(channels=6, rows=64), randwire.build(channels=6, rows=64)
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    depthwise = sum(
        one.op_type == "Conv" and any(a.name == "group" and a.i > 1 for a in one.attribute) for one in model.graph.node
    )
    regions = {one.name for one in graph_of(cpu(4)).regions}
    assert depthwise == sum(name.endswith(".depth") for name in regions) == 96
