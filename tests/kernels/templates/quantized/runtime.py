"""One node in ONNX Runtime without optimizations, as an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnxruntime as ort
from onnx import NodeProto, helper

from kernels.run import Array


def outputs(nodes: Sequence[NodeProto], feeds: Mapping[str, Array], result: int, opset: int = 21) -> Array:
    """The output "y", of the given ONNX type; all inputs are fed, in the order of `feeds`."""
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in feeds.items()
    ]
    graph = helper.make_graph(list(nodes), "g", given, [helper.make_tensor_value_info("y", result, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: Array = session.run(None, dict(feeds))[0]
    return found
