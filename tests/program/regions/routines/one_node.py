"""One node as loops, beside ONNX Runtime without optimizations or onnx's ReferenceEvaluator."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper
from onnx.reference import ReferenceEvaluator

from graphopt.program.regions.lower import lower
from kernels.target import host
from tests.program.regions.running import run_lowered

Array = np.ndarray
Engine = Literal["ort", "reference"]


def model(
    op: str, inputs: Sequence[Array | None], results: Sequence[Array] | int, known: Collection[int], opset: int,
    attributes: dict[str, Any],
) -> onnx.ModelProto:  # fmt: skip
    """A model of one node: inputs at the places of `known` are constants; results declared by arrays, or only named."""
    names = ["" if one is None else f"x{at}" for at, one in enumerate(inputs)]
    count = results if isinstance(results, int) else len(results)
    outputs = [f"y{at}" for at in range(count)]
    given, kept = [], []
    for at, (name, array) in enumerate(zip(names, inputs, strict=True)):
        if array is not None and at in known:
            kept.append(onnx.numpy_helper.from_array(array, name))
        elif array is not None:
            given.append(_described(name, array))
    if isinstance(results, int):
        declared = [onnx.ValueInfoProto(name=name) for name in outputs]
    else:
        declared = [_described(name, one) for name, one in zip(outputs, results, strict=True)]
    graph = helper.make_graph([helper.make_node(op, names, outputs, **attributes)], "g", given, declared, kept)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, ir_version=10, opset_imports=imports)


def _described(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def expected(proto: onnx.ModelProto, feeds: dict[str, Array], engine: Engine) -> list[Array]:
    """What another engine gives."""
    if engine == "reference":
        return [np.asarray(one) for one in ReferenceEvaluator(proto).run(None, feeds)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(one) for one in session.run(None, feeds)]


def same(
    op: str, inputs: Sequence[Array | None], *, engine: Engine = "ort", outputs: int = 1, opset: int = 20,
    known: Collection[int] = (), tolerance: float = 0.0, **attributes: Any,
) -> list[Array]:  # fmt: skip
    """Hold a node to what the engine gives for it, with inputs that only a run knows; its results."""
    feeds = {f"x{at}": one for at, one in enumerate(inputs) if one is not None and at not in known}
    wanted = expected(model(op, inputs, outputs, known, opset, attributes), feeds, engine)
    held(op, inputs, wanted, opset=opset, known=known, tolerance=tolerance, **attributes)
    return wanted


def held(
    op: str, inputs: Sequence[Array | None], wanted: Sequence[Array], *, opset: int = 20, known: Collection[int] = (),
    tolerance: float = 0.0, **attributes: Any,
) -> None:  # fmt: skip
    """Hold a node to results that are given."""
    feeds = {f"x{at}": one for at, one in enumerate(inputs) if one is not None and at not in known}
    lowered = lower(ir.from_proto(model(op, inputs, wanted, known, opset, attributes)), host())
    for got, want in zip(run_lowered(lowered, feeds), wanted, strict=True):
        if tolerance:
            one = got.view(want.dtype)  # bfloat16 is held as its bits
            np.testing.assert_allclose(one.astype("f8"), want.astype("f8"), rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, want.view(got.dtype))
