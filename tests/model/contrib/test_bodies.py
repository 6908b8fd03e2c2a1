"""Bodies of com.microsoft's operators against ONNX Runtime's own kernels for them, and programs made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import graphopt
from graphopt.model.bodies import put_bodies
from graphopt.model.contrib.bodies import DOMAIN, OPSET, has_body
from tests import support

Arrays = Sequence[np.ndarray | None]
GENERATOR = np.random.default_rng(5)


def _f(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def _q(*shape: int, kind: type = np.uint8) -> np.ndarray:
    limits = np.iinfo(kind)
    return GENERATOR.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


SCALE, ZERO = np.asarray(0.04, np.float32), np.asarray(7, np.uint8)
LAYER, CODES = np.full(1, 0.01, np.float32), np.full(1, 3, np.int8)  # scale and zero point of a layer's weights
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
IDS = np.array([[3, 1, 8], [0, 5, 2]], np.int32)
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
    "bytes side by side": ("QLinearConcat", (SCALE, ZERO, _q(4, 6), SCALE, ZERO, _q(4, 3), np.asarray(0.03, np.float32),
                                             ZERO), {"axis": 1}, 1),
    "mean of bytes": ("QLinearGlobalAveragePool", (_q(2, 4, 5, 3), SCALE, ZERO, SCALE, ZERO), {}, 1),
    "mean of bytes, channels last": ("QLinearGlobalAveragePool", (_q(2, 4, 5, 3), SCALE, ZERO, SCALE, ZERO),
                                     {"channels_last": 1}, 1),
    "pooled bytes": ("QLinearAveragePool", (_q(2, 4, 6, 6), SCALE, ZERO, SCALE, ZERO),
                     {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}, 1),
    "pooled bytes, channels last": ("QLinearAveragePool", (_q(2, 6, 6, 4), SCALE, ZERO, SCALE, ZERO),
                                    {"kernel_shape": [2, 2], "channels_last": 1}, 1),
    "shares of bytes": ("QLinearSoftmax", (_q(3, 4, 5), SCALE, ZERO, np.asarray(1 / 256, np.float32), ZERO),
                        {"axis": 1, "opset": 13}, 1),
    "shares of bytes, flat": ("QLinearSoftmax", (_q(3, 4, 5), SCALE, ZERO, np.asarray(1 / 256, np.float32), ZERO),
                              {"axis": 1, "opset": 12}, 1),
    "chosen bytes": ("QLinearWhere", (_q(4, 6) > 9, _q(4, 6), SCALE, ZERO, _q(6), np.asarray(0.03, np.float32), ZERO,
                                      SCALE, ZERO), {}, 1),
    "integers": ("MatMulIntegerToFloat", (_q(3, 4), _q(4, 5), SCALE, SCALE, ZERO, ZERO, _f(5)), {}, 1),
    "integers with one zero": ("MatMulIntegerToFloat", (_q(3, 4), _q(4, 5), SCALE, SCALE, None, ZERO), {}, 1),
    "codes of four bits": ("MatMulNBits", (_f(3, 40), _q(5, 3, 8), _f(15), _q(10)),
                           {"K": 40, "N": 5, "bits": 4, "block_size": 16}, 1),
    "codes of four bits around the middle": ("MatMulNBits", (_f(2, 3, 32), _q(5, 2, 8), _f(10)),
                                             {"K": 32, "N": 5, "bits": 4, "block_size": 16}, 1),
    "codes of a byte, a bias": ("MatMulNBits", (_f(3, 32), _q(5, 2, 16), _f(10), _q(10), None, _f(5)),
                                {"K": 32, "N": 5, "bits": 8, "block_size": 16}, 1),
    "codes with floats of zero": ("MatMulNBits", (_f(3, 32), _q(5, 2, 8), _f(10), _f(5, 2)),
                                  {"K": 32, "N": 5, "bits": 4, "block_size": 16}, 1),
    "layer of bytes": ("DynamicQuantizeLSTM", (
        _f(7, 1, 6), _q(1, 6, 36, kind=np.int8), _q(1, 9, 36, kind=np.int8), _f(1, 72), None, _f(1, 1, 9), _f(1, 1, 9),
        None, LAYER, CODES, LAYER, CODES), {"hidden_size": 9}, 3),
    "layer of bytes from the last step": ("DynamicQuantizeLSTM", (
        _f(7, 1, 6), _q(1, 6, 36, kind=np.int8), _q(1, 9, 36, kind=np.int8), None, None, None, None, None,
        LAYER, CODES, LAYER, CODES), {"hidden_size": 9, "direction": "reverse", "input_forget": 1}, 3),
    "layer of bytes in both directions": ("DynamicQuantizeLSTM", (
        _f(5, 1, 6), _q(2, 6, 16, kind=np.int8), _q(2, 4, 16, kind=np.int8), _f(2, 32), None, None, None, None,
        LAYER.repeat(2), CODES.repeat(2), LAYER.repeat(2), CODES.repeat(2)),
        {"hidden_size": 4, "direction": "bidirectional"}, 3),
    "dynamic product": ("DynamicQuantizeMatMul", (_f(3, 4), _q(4, 5), SCALE, ZERO, _f(5)), {}, 1),
    "quantize": ("QuantizeLinear", (_f(3, 4), SCALE, ZERO), {}, 1),
    "dequantize": ("DequantizeLinear", (_q(3, 4), SCALE, ZERO), {}, 1),
    "channels last": ("NhwcConv", (_f(1, 5, 5, 2), _f(3, 3, 3, 2), _f(3)), {"pads": [1, 1, 1, 1]}, 1),
    "attention": ("Attention", (_f(2, 5, 8), _f(8, 24), _f(24)), {"num_heads": 2}, 1),
    "attention with lengths": ("Attention", (_f(2, 5, 8), _f(8, 24), _f(24), np.array([3, 5], np.int32)),
                               {"num_heads": 2}, 1),
    "attention with rows of a mask": ("Attention", (_f(2, 5, 8), _f(8, 24), _f(24), MASK), {"num_heads": 2}, 1),
    "attention with a cache": ("Attention", (_f(2, 3, 8), _f(8, 24), _f(24), None, _f(2, 2, 2, 4, 4)),
                               {"num_heads": 2, "unidirectional": 1}, 2),
    "attention of other widths": ("Attention", (_f(2, 5, 8), _f(8, 28), _f(28), None, None, _f(2, 2, 5, 5)),
                                  {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12], "scale": 0.3}, 1),
    "heads": ("MultiHeadAttention", (_f(2, 5, 8), _f(2, 7, 8), _f(2, 7, 8)), {"num_heads": 2}, 1),
    "heads with a bias and a mask": ("MultiHeadAttention", (_f(2, 3, 8), _f(2, 5, 8), _f(2, 5, 8), _f(24), MASK),
                                     {"num_heads": 2, "mask_filter_value": -1e4}, 1),
    "heads of an encoder": ("MultiHeadAttention", (_f(2, 3, 8), _f(2, 2, 7, 4), _f(2, 2, 7, 4)), {"num_heads": 2}, 1),
    "heads with a cache": ("MultiHeadAttention", (_f(2, 3, 8), _f(2, 3, 8), _f(2, 3, 8), None, None, _f(1, 2, 3, 7),
                                                  _f(2, 2, 4, 4), _f(2, 2, 4, 4)), {"num_heads": 2}, 3),
    "heads that look back": ("MultiHeadAttention", (_f(2, 5, 8), _f(2, 5, 8), _f(2, 5, 8)),
                             {"num_heads": 2, "unidirectional": 1, "scale": 0.2}, 1),
    "turned halves": ("RotaryEmbedding", (_f(2, 3, 8), np.array([[0, 1, 2], [4, 2, 5]]), _f(6, 2), _f(6, 2)), {}, 1),
    "turned neighbours": ("RotaryEmbedding", (_f(2, 2, 3, 4), np.array([1]), _f(6, 2), _f(6, 2)),
                          {"interleaved": 1}, 1),
    "turned in part": ("RotaryEmbedding", (_f(2, 3, 16), np.array([2]), _f(6, 2), _f(6, 2)),
                       {"rotary_embedding_dim": 4, "num_heads": 2}, 1),
    "embeddings": ("EmbedLayerNormalization",
                   (IDS, IDS % 2, _f(9, 8), _f(6, 8), _f(2, 8), _f(8), _f(8), IDS % 2), {}, 2),
    "embeddings of words": ("EmbedLayerNormalization", (IDS, None, _f(9, 8), _f(6, 8), None, _f(8), _f(8)),
                            {"epsilon": 1e-5}, 2),
}  # fmt: skip
NO_PEER = {"channels last"}  # ONNX Runtime has it for other processors only


def _model(case: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    operator, given, attributes, outputs = CASES[case]
    names = ["" if one is None else f"i{at}" for at, one in enumerate(given)]
    feed = {name: one for name, one in zip(names, given, strict=True) if one is not None}
    made = [f"y{at}" for at in range(outputs)]
    kind = np.dtype(np.uint8 if operator.startswith(("QLinear", "QuantizeLinear")) else np.float32)
    node = helper.make_node(operator, names, made, domain=DOMAIN, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in feed.items()
    ]
    kinds = [kind] * outputs if operator != "EmbedLayerNormalization" else [kind, np.dtype(np.int32)]
    ends = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one), None)
        for name, one in zip(made, kinds, strict=False)
    ]
    graph = helper.make_graph([node], "case", inputs, ends)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feed


def with_body(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with bodies in the place of the operator, and of what its body is written with."""
    read = ir.from_proto(model)
    put_bodies(read, lambda _: [one for one in read.graph if has_body(one)])
    assert not any(map(has_body, read.graph))
    return ir.to_proto(read)


@pytest.mark.parametrize("case", [one for one in CASES if one not in NO_PEER])
def test_a_body_gives_what_the_operator_gives(case: str) -> None:
    """Bytes may differ by one step: ONNX Runtime rounds sums and tables of bytes in its own way."""
    model, feed = _model(case)
    wanted = support.session(model, optimized=True).run(None, feed)
    got = support.session(with_body(model), optimized=True).run(None, feed)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        if one.dtype.kind == "u":
            assert np.abs(one.astype(int) - other.astype(int)).max() <= 1
        else:
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_channels_last_are_those_of_the_standard_convolution() -> None:
    model, feed = _model("channels last")
    (got,) = support.session(with_body(model), optimized=True).run(None, feed)
    plain = helper.make_model(
        helper.make_graph(
            [helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])], "plain",
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xwb"],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        ), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10,
    )  # fmt: skip
    order = (0, 3, 1, 2)
    feeds = {"x": feed["i0"].transpose(order), "w": feed["i1"].transpose(order), "b": feed["i2"]}
    (wanted,) = support.session(plain, optimized=True).run(None, feeds)
    np.testing.assert_allclose(got, wanted.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)


OLD = (
    "bias gelu", "fast gelu", "quick gelu", "product", "skip", "simplified skip", "attention", "attention with lengths",
    "attention with a cache", "heads with a bias and a mask", "turned halves", "turned neighbours", "embeddings",
    "layer of bytes", "layer of bytes in both directions",
)  # fmt: skip


@pytest.mark.parametrize("opset", [12, 14])
@pytest.mark.parametrize("case", OLD)
def test_a_body_is_of_the_opset_of_its_model(case: str, opset: int) -> None:
    """What ONNX Runtime's optimizers write has the opset that was exported."""
    model, feed = _model(case)
    model.opset_import[0].version = opset
    wanted = support.session(model, optimized=True).run(None, feed)
    read = ir.from_proto(model)
    put_bodies(read, lambda facts: [node for node in read.graph if has_body(node)])
    got = support.session(ir.to_proto(read), optimized=True).run(None, feed)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_types_are_known_behind_an_operator_that_is_younger_than_the_opset() -> None:
    """LayerNormalization came with opset 17, and ONNX Runtime writes it into models of older ones."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s", "b"], ["n"]),
        helper.make_node("BiasGelu", ["n", "b"], ["y"], domain=DOMAIN),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 8]) for name in "xy"]
    kept = [onnx.numpy_helper.from_array(_f(8), name) for name in "sb"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], kept)
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid(DOMAIN, 1)]
    made = graphopt.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8), threads=1)
    assert made.fallback == () and made.verification.passed


def test_a_normalization_that_the_runtime_writes_into_the_domain_of_onnx() -> None:
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["y"], epsilon=1e-3)
    kind, ends = onnx.TensorProto.FLOAT, []
    for name, shape in (("x", [2, 3, 8]), ("s", [8]), ("y", [2, 3, 8])):
        ends.append(helper.make_tensor_value_info(name, kind, shape))
    graph = helper.make_graph([node], "g", ends[:2], ends[2:])
    made = graphopt.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), threads=1
    )
    assert made.fallback == () and made.verification.passed


@pytest.mark.parametrize(
    "case",
    [
        "product of transposed ones",
        "leaky gemm",
        "convolution and sum",
        "simplified skip",
        "attention with a cache",
        "heads with a cache",
        "turned in part",
        "embeddings",
    ],
)
def test_such_operators_compile_whole(case: str) -> None:
    model, feed = _model(case)
    program = graphopt.compile(model, feeds=[feed], threads=1)
    assert program.fallback == ()


def test_results_that_a_node_leaves_out_have_names_in_its_body() -> None:
    """They are those of operators that have to give them; without names the model would be none."""
    node = helper.make_node("SkipSimplifiedLayerNormalization", ["x", "s", "w"], ["y", "", "", "z"], domain=DOMAIN)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3, 8]) for name in "xsyz"]
    kept = [onnx.numpy_helper.from_array(_f(8), "w")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], "g", ends[:2], ends[2:], kept)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    read = ir.from_proto(model)
    put_bodies(read, lambda facts: [one for one in read.graph if has_body(one)])
    feed = {"x": _f(2, 3, 8), "s": _f(2, 3, 8)}
    wanted = support.session(model, optimized=True).run(None, feed)
    got = support.session(ir.to_proto(read), optimized=True).run(None, feed)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_transposed_product_has_a_body_where_the_rank_is_known() -> None:
    """Behind an operator of com.microsoft the rank is known when that one has its body."""
    text = """g (float[2,8] x, float[3,8] w) => (float[2,3] y) {
        v = com.microsoft.QuickGelu(w) y = com.microsoft.FusedMatMul<transB = 1>(x, v) }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "{DOMAIN}" : 1]> {text}')
    x, w = _f(2, 8), _f(3, 8)
    gelu = w / (1 + np.exp(-1.702 * w))
    program = graphopt.compile(model, threads=1)
    (y,) = program.run(None, {"x": x, "w": w})
    np.testing.assert_allclose(y, x @ gelu.T, rtol=1e-5, atol=1e-5)
    assert not program.fallback
