"""Channels last: operators for channels first become functions, and the main graph has no Transpose."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphopt
import models
from models import channels_last
from tests.passes.layout.pushing import build, transposes, weight
from tests.support import op_types

IMAGE = "g (float[N, 4, 8, 8] X) => (float[N, C, H, W] Y)"

# Operators for channels first, one model each; the function's name; the weights.
OPERATORS: dict[str, tuple[str, str, dict[str, object]]] = {
    "conv": ("Y = Conv(X, w, v)", "NhwcConv", {"w": weight(6, 4, 3, 3), "v": weight(6)}),
    "depthwise": ('Y = Conv<group = 4, auto_pad = "SAME_UPPER">(X, w)', "NhwcConv", {"w": weight(4, 1, 3, 3)}),
    "transposed": ("Y = ConvTranspose<strides = [2, 2]>(X, w)", "NhwcConvTranspose", {"w": weight(4, 6, 2, 2)}),
    "max": ("Y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(X)", "NhwcMaxPool", {}),
    "average": ("Y = AveragePool<kernel_shape = [3, 3]>(X)", "NhwcAveragePool", {}),
    "power": ("Y = LpPool<kernel_shape = [2, 2]>(X)", "NhwcLpPool", {}),
    "global": ("a = Conv(X, w) b = GlobalAveragePool(a) Y = Mul(a, b)", "NhwcGlobalAveragePool",
               {"w": weight(6, 4, 3, 3)}),
    "batch": ("a = Abs(X) Y = BatchNormalization(a, w, v, v, w)", "NhwcBatchNormalization",
              {"w": np.ones(4, np.float32), "v": weight(4)}),
    "instance": ("Y = InstanceNormalization(X, w, v)", "NhwcInstanceNormalization",
                 {"w": weight(4), "v": weight(4, seed=1)}),
    "lrn": ("Y = LRN<size = 3>(X)", "NhwcLRN", {}),
    "depth": ("Y = DepthToSpace<blocksize = 2>(X)", "NhwcDepthToSpace", {}),
    "space": ("Y = SpaceToDepth<blocksize = 2>(X)", "NhwcSpaceToDepth", {}),
    "resize": ('Y = Resize<mode = "linear">(X, , s)', "NhwcResize", {"s": np.array([1, 1, 2, 2], np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_becomes_a_function(name: str) -> None:
    body, function, weights = OPERATORS[name]
    result = graphopt.optimize(build(f"{IMAGE} {{ {body} }}", **weights), layout="nhwc", skip=["weights"])
    after = result.to_proto()
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    assert function in op_types(after) and not transposes(after)
    assert not result.kept_transposes
    assert len(result.signature_changes) == 2
    assert graphopt.optimize(after).rewrites == ()


@pytest.mark.parametrize("rank, function", [(3, "NwcConv"), (5, "NdhwcConv")])
def test_images_of_other_ranks(rank: int, function: str) -> None:
    dims, kernel = ", ".join("8" * (rank - 2)), (3,) * (rank - 2)
    text = f"g (float[N, 4, {dims}] X) => (float[N, 6] Y) {{ a = Conv(X, w) b = GlobalMaxPool(a) Y = Flatten(b) }}"
    result = graphopt.optimize(build(text, w=weight(6, 4, *kernel)), layout="nhwc")
    assert result.verification.passed and function in op_types(result.to_proto())
    assert not transposes(result.to_proto())


@pytest.mark.fires("turn-to-channels-last")
def test_convolutions_call_one_function() -> None:
    result = graphopt.optimize(models.load("squeezenet1_1"), layout="nhwc")
    assert [function.name for function in result.model.functions.values()] == [
        "NhwcConv", "NhwcMaxPool", "NhwcGlobalAveragePool"
    ]  # fmt: skip
    assert result.model.ir_version >= 8
    ort.InferenceSession(result.to_proto().SerializeToString(), providers=["CPUExecutionProvider"])


def test_the_rows_behind_a_flatten_are_permuted() -> None:
    text = f"{IMAGE.split('=>')[0]} => (float[N, 5] Y) {{ a = Conv(X, w) b = Relu(a) c = Flatten(b) Y = Gemm(c, v) }}"
    result = graphopt.optimize(build(text, w=weight(3, 4, 3, 3), v=weight(108, 5)), layout="nhwc")
    assert result.verification.passed
    assert op_types(result.to_proto()) == ["NhwcConv", "Relu", "Flatten", "Gemm"]


def test_a_flatten_that_is_returned_keeps_one_transpose_and_says_so() -> None:
    text = f"{IMAGE.split('=>')[0]} => (float[N, 108] Y) {{ a = Conv(X, w) Y = Flatten(a) }}"
    result = graphopt.optimize(build(text, w=weight(3, 4, 3, 3)), layout="nhwc")
    assert result.verification.passed
    assert transposes(result.to_proto()) == 1
    (line,) = result.kept_transposes
    assert "between NhwcConv 'a/NhwcConv' (it is a function for channels last) and output 'Y'" in line


def test_without_functions_each_transpose_has_its_reason() -> None:
    text = f"{IMAGE} {{ a = Conv(X, w) Y = Relu(a) }}"
    result = graphopt.optimize(build(text, w=weight(3, 4, 3, 3)), layout="nhwc", layout_functions=False)
    assert result.verification.passed and not result.model.functions
    first, second = result.kept_transposes
    assert "between input 'X' and Conv 'a' (it is defined for channels first)" in first
    assert "and output 'Y'" in second


def test_channels_first_of_a_channel_last_network() -> None:
    proto, _ = channels_last.variants()["segmentation_image"]
    result = graphopt.optimize(proto, layout="nchw")
    assert result.verification.passed and transposes(result.to_proto()) == 0
    assert result.signature_changes == (
        "input input: float[N, side, side, 3] -> float[N, 3, side, side]",
        "output output: float[N, side, side, 5] -> float[N, 5, side, side]",
    )


@pytest.mark.parametrize("name", ["residual", "unet_batch", "quantized"])
def test_channels_last_of_a_channel_last_network_keeps_its_signature(name: str) -> None:
    proto, _ = channels_last.variants()[name]
    result = graphopt.optimize(proto, layout="nhwc")
    assert result.verification.passed and transposes(result.to_proto()) == 0
    assert result.signature_changes == ()


def test_what_is_no_image_keeps_its_layout() -> None:
    text = (
        "g (float[N, 4, 8, 8] X, float[N, 4, 8, 8] Q, int64[N, 4, 8, 8] I, float[N, 4] V) => (float[N, 4, 8, 8] Y,"
        " float[N, 4, 8, 8] S, int64[N, 4, 8, 8] J, float[N, 4] T)"
        " { Y = Conv(X, w) S = MatMul(Q, Q) J = Neg(I) T = Neg(V) }"
    )
    result = graphopt.optimize(build(text, w=weight(4, 4, 1, 1)), layout="nhwc")
    assert [line.split(":")[0] for line in result.signature_changes] == ["input X", "output Y"]


@pytest.mark.fires("bind-attributes")
def test_a_cube_is_turned_and_that_is_told() -> None:
    text = "g (float[4, 4, 4, 4] X) => (float[4, 4, 4, 4] Y) { Y = Conv(X, w) }"
    result = graphopt.optimize(build(text, w=weight(4, 4, 1, 1)), layout="nhwc")
    assert result.verification.passed
    assert result.signature_changes == (
        "input X: float[4, 4, 4, 4] is nhwc now",
        "output Y: float[4, 4, 4, 4] is nhwc now",
    )


def test_an_old_file_rises_to_functions() -> None:
    before = build(f"{IMAGE.replace('X)', 'X, float[3, 4, 3, 3] w)')} {{ Y = Conv(X, w) }}", 9, 3, w=weight(3, 4, 3, 3))
    result = graphopt.optimize(before, layout="nhwc")
    assert result.verification.passed and result.model.ir_version == 8
    onnx.checker.check_model(result.to_proto(), full_check=True)
