"""Bodies of com.microsoft's operators of experts, of codes and of the standard's own kinds, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphopt
from graphopt.model.contrib.bodies import BODIES, DOMAIN, IN_STANDARD
from tests import support
from tests.model.contrib.test_bodies import CASES as PLAIN
from tests.model.contrib.test_bodies import with_body

GENERATOR = np.random.default_rng(7)
FLOAT, BYTE, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8, onnx.TensorProto.INT32


@dataclass(frozen=True)
class Case:
    """Operands, those that are constants among them, attributes, and the types of the results."""

    operator: str
    operands: Sequence[np.ndarray | None]
    attributes: Mapping[str, object] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    results: Sequence[int] = (FLOAT,)


def _f(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def _q(*shape: int) -> np.ndarray:
    return GENERATOR.integers(0, 256, shape).astype(np.uint8)


def _scales(*shape: int) -> np.ndarray:
    return (GENERATOR.random(shape) * 0.02 + 0.005).astype(np.float32)


TOKENS, WIDTH, EXPERTS, HIDDEN = 5, 32, 4, 64
SCALE, ZERO = np.asarray(0.04, np.float32), np.asarray(120, np.uint8)
PLACES = np.array([[[0, 1, 2], [5, 6, 9]], [[0, 3, 4], [5, 7, 7]], [[0, 8, 2], [5, 1, 3]]])
IDS = np.array([[3, 1, 8], [0, 5, 2]], np.int32)
GATED = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0}


def _experts(factor: int, tokens: int = TOKENS, experts: int = EXPERTS) -> Sequence[np.ndarray]:
    return (_f(tokens, WIDTH), _f(tokens, experts), _f(experts, factor * HIDDEN, WIDTH), _f(experts, factor * HIDDEN),
            _f(experts, WIDTH, HIDDEN), _f(experts, WIDTH))  # fmt: skip


def _coded(factor: int, bits: int, blocks: int | None = None, *, zeros: bool = False) -> Case:
    each, rows = 8 // bits, factor * HIDDEN
    parts = [] if blocks is None else [blocks]
    more = [] if blocks is None else [2 * blocks]
    operands = [_f(TOKENS, WIDTH), _f(TOKENS, EXPERTS), _q(EXPERTS, rows, WIDTH // each),
                _scales(EXPERTS, rows, *parts), _f(EXPERTS, rows), _q(EXPERTS, WIDTH, HIDDEN // each),
                _scales(EXPERTS, WIDTH, *more), _f(EXPERTS, WIDTH)]  # fmt: skip
    attributes: dict[str, object] = {"expert_weight_bits": bits}
    if blocks is not None:
        attributes["block_size"] = WIDTH // blocks
    if zeros:
        assert blocks is not None, "codes of zero are of blocks"
        operands += [None, None, None, _q(EXPERTS, rows, blocks // each), _q(EXPERTS, WIDTH, 2 * blocks // each)]
    kind = GATED if factor == 2 else {"k": 2, "activation_type": "silu"}
    return Case("QMoE", operands, {**attributes, **kind}, frozenset({2, 3, 5, 6, 11, 12} & set(range(len(operands)))))


CASES = {
    "experts": Case("MoE", _experts(1), {"k": 2, "activation_type": "gelu", "normalize_routing_weights": 1}),
    "one expert": Case("MoE", _experts(1), {"k": 1, "activation_type": "relu"}),
    "experts of one token": Case("MoE", _experts(1, 1), {"k": 2, "activation_type": "silu"}),
    "few tokens beside the experts": Case("MoE", _experts(2, 2, 16), {**GATED, "normalize_routing_weights": 1}),
    "gated experts": Case("MoE", _experts(2), {**GATED, "swiglu_limit": 2.0, "normalize_routing_weights": 1}),
    "experts of equal routes": Case("MoE", (_f(2, WIDTH), np.zeros((2, EXPERTS), np.float32), *_experts(1)[2:]),
                                    {"k": 2, "activation_type": "identity"}),
    "experts of codes": _coded(1, 4),
    "gated experts of codes": _coded(2, 4, 2),
    "experts of codes with zeros": _coded(2, 4, 2, zeros=True),
    "experts of bytes": _coded(2, 8),
    "rows of codes": Case("GatherBlockQuantized", (_q(20, 32), np.array([[3, 1], [19, -1]]), _scales(20, 4)),
                          {"bits": 4, "block_size": 16}, frozenset({0, 2})),
    "rows of codes with zeros": Case("GatherBlockQuantized", (_q(20, 24), np.array([3, 19]), _scales(20, 3), _q(20, 2)),
                                     {"bits": 4, "block_size": 16}, frozenset({0, 2, 3})),
    "rows of bytes": Case("GatherBlockQuantized", (_q(20, 32), np.array([3, 19]), _scales(20, 2)),
                          {"bits": 8, "block_size": 16}, frozenset({0, 2})),
    "floats of four bits": Case("MatMulBnb4", (_f(3, 32), _q(24 * 16), _scales(48)),
                                {"K": 32, "N": 24, "block_size": 16, "quant_type": 0}, frozenset({1, 2})),
    "a block that is not whole": Case("MatMulBnb4", (_f(3, 12), _q(12 * 12), _scales(5)),
                                      {"K": 12, "N": 24, "block_size": 64, "quant_type": 0}),
    "an odd number of codes": Case("MatMulBnb4", (_f(3, 5), _q(38), _scales(5)),
                                   {"K": 5, "N": 15, "block_size": 16, "quant_type": 1}),
    "quantiles": Case("MatMulBnb4", (_f(3, 32), _q(24 * 16), _scales(48)),
                      {"K": 32, "N": 24, "block_size": 16, "quant_type": 1}, frozenset({1, 2})),
    "attention of bytes": Case("QAttention", (_q(2, 5, 8), _q(8, 24), _f(24), SCALE, SCALE, np.array([3, 5], np.int32),
                                              ZERO, ZERO), {"num_heads": 2}, frozenset({1})),
    "attention of bytes with a past": Case("QAttention", (_q(2, 3, 8), _q(8, 24), _f(24), SCALE, SCALE, None, ZERO,
                                                          ZERO, _f(2, 2, 2, 4, 4)),
                                           {"num_heads": 2, "unidirectional": 1}, frozenset({1}), (FLOAT, FLOAT)),
    "embeddings of bytes": Case("QEmbedLayerNormalization",
                                (IDS, IDS % 2, _q(9, 8), _q(6, 8), _q(2, 8), _q(8), _q(8), IDS % 2, *[SCALE] * 5,
                                 *[ZERO] * 5), {"epsilon": 1e-5}, frozenset(range(2, 7)), (FLOAT, INT)),
    "gates of a recurrence": Case("LinearAttentionGate", (_f(2, 3, 4), _f(4), -_f(4) ** 2, _f(2, 3, 4)),
                                  results=(FLOAT, FLOAT)),
    "scaled": Case("ScaledSiLU", (_f(3, 8),), {"alpha": 1.7}),
    "branches": Case("BranchwiseRMSNorm", (_f(2, 3, 8), _f(3, 8))),
    "flat branches": Case("BranchwiseRMSNorm", (_f(2, 24), _f(8)), {"num_branches": 3, "epsilon": 1e-3}),
    "three positions": Case(
        "MRotaryEmbedding", (_f(2, 3, 32), PLACES, _f(16, 8), _f(16, 8)), {"mrope_section": [4, 2, 2], "num_heads": 2}),
    "three positions by turns": Case(
        "MRotaryEmbedding", (_f(2, 2, 3, 16), PLACES, _f(16, 8), _f(16, 8)),
        {"mrope_section": [4, 2, 2], "mrope_layout": 1}),
    "a decoder's token": Case(
        "DecoderMaskedMultiHeadAttention",
        (*(_f(2, 1, 32) for _ in "qkv"), None, None, _f(2, 4, 9, 8), _f(2, 4, 9, 8), np.array([5], np.int32)),
        {"num_heads": 4, "past_present_share_buffer": 1}, frozenset({7}), (FLOAT, FLOAT, FLOAT)),
    "a decoder's token with a mask": Case(
        "DecoderMaskedMultiHeadAttention",
        (*(_f(2, 1, 32) for _ in "qkv"), np.array([[1] * 6, [0, 0] + [1] * 4], np.int32), None,
         _f(2, 4, 9, 8), _f(2, 4, 9, 8), np.array([5], np.int32)),
        {"num_heads": 4, "past_present_share_buffer": 1, "scale": 0.3}, frozenset({7}), (FLOAT, FLOAT, FLOAT)),
    "a decoder's token and an encoder": Case(
        "DecoderMaskedMultiHeadAttention", (_f(2, 1, 32), _f(2, 4, 5, 8), _f(2, 4, 5, 8)), {"num_heads": 4}),
    "triangle": Case("Trilu", (_f(3, 4, 5), np.array(1)), {"upper": 0}, frozenset({1})),
    "pads": Case("Pad", (_f(3, 4), np.array([[0, 1, 2, 0]])), {"mode": "reflect"}, frozenset({1})),
    "pads of a number": Case("Pad", (_f(3, 4), np.array([0, 1, 2, 0]), np.array([0.5], np.float32)), {},
                             frozenset({1})),
    "places": Case("GatherND", (_f(3, 4, 5), np.array([[0, 1], [2, 3]], np.int32))),
    "grid": Case("GridSample", (_f(1, 2, 5, 5), np.clip(_f(1, 4, 4, 2), -1.2, 1.2)),
                 {"mode": "bicubic", "padding_mode": "border", "align_corners": 1}),
    "axis": Case("ExpandDims", (_f(3, 4), np.array(1, np.int32)), {}, frozenset({1})),
    "distances": Case("CDist", (_f(6, 4), _f(5, 4)), {"metric": "euclidean"}),
    "squares of distances": Case("CDist", (_f(6, 4), _f(5, 4)), {"metric": "sqeuclidean"}),
    "windows": Case("UnfoldTensor", (_f(2, 9, 3),), {"dim": 1, "size": 4, "step": 2}),
    "pooling, channels last": Case("NhwcMaxPool", (_q(1, 6, 6, 3),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
                                   results=(BYTE,)),
    "bytes convolved, channels last": Case(
        "QLinearConv", (_q(1, 6, 6, 3), SCALE, ZERO, _q(4, 3, 3, 3), SCALE, ZERO, np.asarray(2, np.float32), ZERO),
        {"channels_last": 1, "pads": [1, 1, 1, 1]}, frozenset({3}), (BYTE,)),
    "range": Case("Range", tuple(np.asarray(one, np.float32) for one in (0, 5, 0.5)), {}, frozenset({0, 1, 2})),
    "turned product": Case("TransposeMatMul", (_f(4, 3), _f(4, 5)), {"transA": 1}),
    "gated sum": Case("GatedAdd", (_f(2, 3, 8), _f(2, 3, 8), _f(2, 3, 1))),
    "gated norm": Case("GatedRMSNorm", (_f(2, 3, 16), _f(8), _f(2, 3, 16)), {"activation": "sigmoid"}),
    "causal convolution": Case("CausalConvWithState", (_f(2, 6, 7), _f(6, 1, 4), _f(6), _f(2, 6, 3)),
                               {"activation": "silu"}, results=(FLOAT, FLOAT)),
    "causal convolution from the start": Case("CausalConvWithState", (_f(2, 6, 5), _f(6, 1, 3)), {"dilation": 2},
                                              results=(FLOAT, FLOAT)),
}  # fmt: skip


def _model(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray]]:
    """The model, its inputs, and what ONNX Runtime gives; results are declared with the dims that they have."""
    names = ["" if one is None else f"i{at}" for at, one in enumerate(case.operands)]
    every = {name: one for name, one in zip(names, case.operands, strict=True) if one is not None}
    kept = [numpy_helper.from_array(every.pop(f"i{at}"), f"i{at}") for at in sorted(case.constants)]
    made = [f"y{at}" for at in range(len(case.results))]
    node = helper.make_node(case.operator, names, made, domain=DOMAIN, **case.attributes)
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
              for name, one in every.items()]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(made, case.results, strict=True)]
    graph = helper.make_graph([node], "case", inputs, ends, kept)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    wanted = support.session(model, optimized=True).run(None, every)
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(name, kind, one.shape)
                              for name, kind, one in zip(made, case.results, wanted, strict=True))  # fmt: skip
    return model, every, wanted


@pytest.mark.parametrize("name", CASES)
def test_a_body_gives_what_the_operator_gives(name: str) -> None:
    """Relative to the largest result: ONNX Runtime adds up in other orders."""
    model, feed, wanted = _model(CASES[name])
    got = support.session(with_body(model), optimized=True).run(None, feed)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * max(np.abs(other).max(), 1))


@pytest.mark.parametrize("name", [
    "experts of one token", "few tokens beside the experts",
    "gated experts", "experts of codes with zeros", "rows of codes with zeros", "quantiles",
    "attention of bytes", "embeddings of bytes", "causal convolution",
])  # fmt: skip
def test_such_operators_compile_whole(name: str) -> None:
    model, feed, _ = _model(CASES[name])
    program = graphopt.compile(model, feeds=[feed], threads=1)
    assert program.fallback == () and program.verification.passed


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [("experts", "use_sparse_mixer", 1), ("experts of codes", "quant_type", "fp8"), ("quantiles", "transB", 0)],
)
def test_a_form_without_a_body_is_named(name: str, attribute: str, value: object) -> None:
    case = CASES[name]
    model, _, _ = _model(case)
    model.graph.node[0].attribute.append(helper.make_attribute(attribute, value))
    with pytest.raises(graphopt.GraphoptError, match=case.operator):
        graphopt.compile(model, threads=1)


def test_every_body_has_a_case() -> None:
    elsewhere = IN_STANDARD | {"GroupQueryAttention"}  # test_grouped.py
    tried = {operator for operator, *_ in PLAIN.values()} | {case.operator for case in CASES.values()}
    assert tried == set(BODIES) - elsewhere
