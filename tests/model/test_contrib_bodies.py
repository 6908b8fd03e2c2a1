"""Bodies of com.microsoft's operators against ONNX Runtime's own kernels for them, and programs made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

import graphopt
from graphopt.model.bodies import body_of
from graphopt.model.contrib_bodies import BODIES, DOMAIN, OPSET
from graphopt.model.facts import Facts

Arrays = Sequence[np.ndarray | None]
GENERATOR = np.random.default_rng(5)


def _f(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def _q(*shape: int, kind: type = np.uint8) -> np.ndarray:
    limits = np.iinfo(kind)
    return GENERATOR.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


SCALE, ZERO = np.asarray(0.04, np.float32), np.asarray(7, np.uint8)
CASES: dict[str, tuple[str, Arrays, Mapping[str, object], int]] = {
    "bias gelu": ("BiasGelu", (_f(3, 8), _f(8)), {}, 1),
    "fast gelu": ("FastGelu", (_f(3, 8),), {}, 1),
    "fast gelu with a bias": ("FastGelu", (_f(3, 8), _f(8)), {}, 1),
    "gelu": ("Gelu", (_f(3, 8),), {}, 1),
    "quick gelu": ("QuickGelu", (_f(3, 8),), {"alpha": 1.5}, 1),
    "product": ("FusedMatMul", (_f(2, 3, 4), _f(2, 4, 5)), {"alpha": 0.5}, 1),
    "product of transposed ones": ("FusedMatMul", (_f(2, 4, 3), _f(2, 5, 4)), {"transA": 1, "transB": 1}, 1),
    "product of transposed batches": ("FusedMatMul", (_f(3, 2, 4), _f(2, 4, 5)), {"transBatchA": 1}, 1),
    "gemm": ("FusedGemm", (_f(3, 4), _f(5, 4), _f(5)), {"transB": 1, "alpha": 0.5, "activation": "Relu"}, 1),
    "leaky gemm": ("FusedGemm", (_f(3, 4), _f(4, 5), _f(5)),
                   {"activation": "LeakyRelu", "activation_alpha": 0.2}, 1),
    "convolution": ("FusedConv", (_f(1, 2, 5, 5), _f(3, 2, 3, 3), _f(3)),
                    {"activation": "Relu", "pads": [1, 1, 1, 1]}, 1),
    "convolution and sum": ("FusedConv", (_f(1, 2, 5, 5), _f(3, 2, 3, 3), _f(3), _f(1, 3, 3, 3)),
                            {"activation": "Clip", "activation_params": [-0.5, 0.5]}, 1),
    "skip": ("SkipLayerNormalization", (_f(2, 3, 8), _f(2, 3, 8), _f(8), _f(8), _f(8)), {"epsilon": 1e-3}, 1),
    "skip without shift": ("SkipLayerNormalization", (_f(2, 3, 8), _f(2, 3, 8), _f(8)), {}, 1),
    "simplified skip": ("SkipSimplifiedLayerNormalization", (_f(2, 3, 8), _f(2, 3, 8), _f(8)), {}, 1),
    "sum of bytes": ("QLinearAdd", (_q(4, 6), SCALE, ZERO, _q(6), SCALE, ZERO, SCALE, ZERO), {}, 1),
    "product of bytes": ("QLinearMul", (_q(4, 6), SCALE, ZERO, _q(6), SCALE, ZERO, SCALE, ZERO), {}, 1),
    "sigmoid of bytes": ("QLinearSigmoid", (_q(4, 6), SCALE, ZERO, np.asarray(0.0025, np.float32), ZERO), {}, 1),
    "leaky bytes": ("QLinearLeakyRelu", (_q(4, 6), SCALE, ZERO, SCALE, ZERO), {"alpha": 0.2}, 1),
    "integers": ("MatMulIntegerToFloat", (_q(3, 4), _q(4, 5), SCALE, SCALE, ZERO, ZERO, _f(5)), {}, 1),
    "integers with one zero": ("MatMulIntegerToFloat", (_q(3, 4), _q(4, 5), SCALE, SCALE, None, ZERO), {}, 1),
    "dynamic product": ("DynamicQuantizeMatMul", (_f(3, 4), _q(4, 5), SCALE, ZERO, _f(5)), {}, 1),
    "quantize": ("QuantizeLinear", (_f(3, 4), SCALE, ZERO), {}, 1),
    "dequantize": ("DequantizeLinear", (_q(3, 4), SCALE, ZERO), {}, 1),
    "channels last": ("NhwcConv", (_f(1, 5, 5, 2), _f(3, 3, 3, 2), _f(3)), {"pads": [1, 1, 1, 1]}, 1),
}  # fmt: skip
NO_PEER = {"channels last"}  # ONNX Runtime has it for other processors only


def _model(case: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    operator, given, attributes, outputs = CASES[case]
    names = ["" if one is None else f"i{at}" for at, one in enumerate(given)]
    feed = {name: one for name, one in zip(names, given, strict=True) if one is not None}
    made = [f"y{at}" for at in range(outputs)]
    kind = feed["i0"].dtype if operator.startswith("QLinear") else np.dtype(np.float32)
    kind = np.dtype(np.uint8) if operator == "QuantizeLinear" else kind
    node = helper.make_node(operator, names, made, domain=DOMAIN, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in feed.items()
    ]
    ends = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), None) for name in made]
    graph = helper.make_graph([node], "case", inputs, ends)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feed


def _with_body(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a function in the place of the operator."""
    read = ir.from_proto(model)
    (node,) = read.graph
    body = body_of(node, Facts(read))
    assert body is not None
    body.domain = node.domain = "bodies"
    read.functions[body.identifier()] = body
    read.graph.opset_imports["bodies"] = 1
    return ir.to_proto(read)


@pytest.mark.parametrize("case", [one for one in CASES if one not in NO_PEER])
def test_a_body_gives_what_the_operator_gives(case: str) -> None:
    """Bytes may differ by one step: ONNX Runtime rounds sums and tables of bytes in its own way."""
    model, feed = _model(case)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feed)
    got = ort.InferenceSession(_with_body(model).SerializeToString()).run(None, feed)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        if one.dtype.kind == "u":
            assert np.abs(one.astype(int) - other.astype(int)).max() <= 1
        else:
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_channels_last_are_those_of_the_standard_convolution() -> None:
    model, feed = _model("channels last")
    (got,) = ort.InferenceSession(_with_body(model).SerializeToString()).run(None, feed)
    plain = helper.make_model(
        helper.make_graph(
            [helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])], "plain",
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xwb"],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        ), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10,
    )  # fmt: skip
    order = (0, 3, 1, 2)
    feeds = {"x": feed["i0"].transpose(order), "w": feed["i1"].transpose(order), "b": feed["i2"]}
    (wanted,) = ort.InferenceSession(plain.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(got, wanted.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["product of transposed ones", "leaky gemm", "convolution and sum", "simplified skip"])
def test_such_operators_compile_whole(case: str) -> None:
    model, feed = _model(case)
    program = graphopt.compile(model, feeds=[feed], threads=1)
    assert program.fallback == ()


def test_every_body_has_a_case() -> None:
    assert {operator for operator, *_ in CASES.values()} == set(BODIES)
