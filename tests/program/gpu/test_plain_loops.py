"""Loops that are left to LLVM's optimizer on a CPU: for a GPU they lie in one module with everything else."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.program.gpu.running import compared

ML = "ai.onnx.ml"


def test_trees_are_equal() -> None:
    """A tree of three leaves for each of four rows."""
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=1, nodes_treeids=[0] * 5,
        nodes_nodeids=[0, 1, 2, 3, 4], nodes_featureids=[0, 1, 0, 0, 0], nodes_values=[0.5, -0.5, 0.0, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"], nodes_truenodeids=[1, 3, 0, 0, 0],
        nodes_falsenodeids=[2, 4, 0, 0, 0], target_treeids=[0] * 3, target_nodeids=[2, 3, 4], target_ids=[0] * 3,
        target_weights=[1.0, 2.0, 4.0],
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "trees", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 1])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    feeds = {"x": np.array([[0, 0], [0, -1], [1, 0], [0.5, -0.5]], np.float32)}
    compared(helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds, 0.0)
