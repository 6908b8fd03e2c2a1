"""Small hands for tests: models from text, one rule set over a model, and equality in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper

from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import Rewrite
from graphopt.rewrite.rule import Rule

ORT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


def model(text: str, opset: int = 17, ir_version: int = 8, **initializers: np.ndarray) -> onnx.ModelProto:
    """A model from the body of ONNX text; `initializers` are added as given (weights are awkward to write in text)."""
    proto = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n{text}')
    for name, array in initializers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def apply_rules(proto: onnx.ModelProto, rules: Sequence[Rule]) -> tuple[onnx.ModelProto, list[Rewrite]]:
    """The model after the rules have run to their fixed point, and what they did."""
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    editor = Editor(copy)
    run_passes(editor, [Pass("test", 1, tuple(rules))])
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    return result, editor.log


def op_types(proto: onnx.ModelProto) -> list[str]:
    """The operators of the main graph, in order."""
    return [node.op_type for node in proto.graph.node]


def session(proto: onnx.ModelProto, *, optimized: bool = False) -> ort.InferenceSession:
    """ONNX Runtime on one thread, without optimizations where none are asked for.

    Its other threads spin while they wait: of a small model's session they took five sixths of the CPU time.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def feeds(proto: onnx.ModelProto, dims: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs; symbolic dims take their value from `dims`."""
    generator = np.random.default_rng(seed)
    result = {}
    given = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name in given:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value or dims.get(dim.dim_param, 3) for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype == np.bool_:
            result[value.name] = generator.integers(0, 2, shape).astype(bool)
        elif np.issubdtype(dtype, np.integer):
            result[value.name] = generator.integers(0, 5, shape).astype(dtype)
        else:
            result[value.name] = generator.standard_normal(shape).astype(dtype)
    return result


def assert_equal(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **dims: int,
) -> None:
    """Both models give the same outputs, for two draws of inputs.

    The default tolerance is a few roundings of float32; rewrites that only move data or regroup integers pass 0.
    """
    first, second = session(before), session(after)
    for seed in range(2):
        given = feeds(before, dims, seed)
        for expected, found in zip(first.run(None, given), second.run(None, given), strict=True):
            assert expected.dtype == found.dtype
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
