"""Convolution of bytes: exact for every size, stride, dilation, pad, group, zero point, type, order and target."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.target import Target, aarch64, host, x86_64_v3, x86_64_v4
from kernels.templates.convolution.layout import Layout, Order
from kernels.templates.convolution.problem import Convolution, convolution, output_size
from kernels.templates.epilogue import ACCUMULATED_INTEGER
from kernels.templates.quantized import depthwise, ways
from kernels.templates.quantized.build import build, candidates
from kernels.templates.quantized.linear import dequantize, quantize, requantize
from kernels.templates.quantized.packing import TilePacking
from kernels.templates.quantized.problem import InvalidQuantized, QuantizedConvolution, limits
from kernels.templates.quantized.repack import build_repack, in_order
from kernels.templates.tile import UnsupportedArithmetic
from kernels.tensor.expression import Number, relu
from tests.kernels.guard import run_guarded
from tests.kernels.machine_code import spills
from tests.kernels.templates.quantized.oracle import TARGETS, accumulated, byte_images, run
from tests.kernels.templates.quantized.runtime import outputs

ORDERS: tuple[Order, ...] = ("NHWC", "NCHW")


@st.composite
def problems(draw: st.DrawFn, depthwise: bool = False) -> QuantizedConvolution:
    rank = draw(st.sampled_from((1, 2, 2, 2, 3)))

    def some(low: int, high: int, otherwise: int) -> tuple[int, int, int]:
        a, b, c = (*(otherwise,) * (3 - rank), *(draw(st.integers(low, high)) for _ in range(rank)))
        return a, b, c

    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 4)))
    depth, width = draw(st.integers(1, 20)), draw(st.integers(1, 60 // groups))
    if depthwise:
        groups, depth, width = draw(st.integers(1, 40)), 1, 1
    kernel, strides, dilations = some(1, 4, 1), some(1, 3, 1), some(1, 2, 1)
    before, after = some(0, 3, 0), some(0, 3, 0)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [max(1, r - b - a) for r, b, a in zip(reach, before, after, strict=True)]
    more = some(0, 9, 0)
    size = (least[0] + more[0], least[1] + more[1], least[2] + more[2])
    batch = draw(st.integers(1, 2))
    orders = draw(st.sampled_from(ORDERS)), draw(st.sampled_from(ORDERS))
    halo = (before, after) if draw(st.booleans()) else ((0, 0, 0), (0, 0, 0))
    rim = some(0, 1, 0)
    out = output_size(size, kernel, strides, dilations, before, after)
    geometry = Convolution(
        Layout(batch, depth * groups, size, orders[0], 0, *halo),
        Layout(batch, width * groups, out, orders[1], 0, rim, rim),
        kernel, strides, dilations, before, groups,
    )  # fmt: skip
    x_dtype, weights_dtype = draw(st.sampled_from((DType.U8, DType.I8))), draw(st.sampled_from((DType.I8, DType.U8)))
    count = draw(st.sampled_from((1, width * groups)))
    zeros = [draw(st.integers(*limits(weights_dtype))) for _ in range(min(count, 3))]
    zeros = (zeros * count)[:count] if draw(st.booleans()) else [128 if weights_dtype is DType.U8 else 0]
    return QuantizedConvolution(geometry, x_dtype, weights_dtype, draw(st.integers(*limits(x_dtype))), tuple(zeros))


@given(problems(), st.integers(0, 99), st.sampled_from(TARGETS))
@settings(deadline=None, max_examples=25)
def test_any_convolution_is_exact(problem: QuantizedConvolution, number: int, target: Target) -> None:
    x, weights = byte_images(problem, number)
    found = candidates(problem, target)
    kernel = build(problem, found[number % len(found)], target)
    np.testing.assert_array_equal(run(problem, kernel, x, weights), accumulated(problem, x, weights))


@given(problems(depthwise=True), st.integers(0, 99), st.sampled_from(TARGETS))
@settings(deadline=None, max_examples=15)
def test_any_depthwise_convolution_is_exact(problem: QuantizedConvolution, number: int, target: Target) -> None:
    x, weights = byte_images(problem, number)
    found = depthwise.candidates(problem, target)
    assert found or problem.geometry.groups == 1
    for candidate in found[number % max(1, len(found)) :][:1]:
        kernel = depthwise.build(problem, candidate, target)
        np.testing.assert_array_equal(run(problem, kernel, x, weights), accumulated(problem, x, weights))


@given(problems(), st.integers(0, 99), st.sampled_from(TARGETS))
@settings(deadline=None, max_examples=15)
def test_computed_weights_are_packed_as_constant_ones_are(
    problem: QuantizedConvolution, number: int, target: Target
) -> None:
    _, weights = byte_images(problem, number)
    candidate = candidates(problem, target)[0]
    packing = TilePacking(problem, candidate.arithmetic, target.lanes(), candidate.vectors)
    got = run_guarded(build_repack(packing, in_order(packing), target), {"weights": weights})["packed"]
    np.testing.assert_array_equal(got, packing.pack(weights))


def _small(groups: int = 1, *, channels: int = 12, output: int = 20, x: DType = DType.U8) -> QuantizedConvolution:
    geometry = convolution(
        2, channels, output, (9, 10), (3, 3), strides=(2, 1), dilations=(1, 2), pads=(1, 2, 0, 1), groups=groups,
        order="NHWC",
    )  # fmt: skip
    return QuantizedConvolution(geometry, x, DType.I8, -7 if x is DType.I8 else 9)


@pytest.mark.parametrize("groups", (1, 4, 12))
@pytest.mark.parametrize("target", TARGETS)
def test_integer_convolution_of_onnx(groups: int, target: Target) -> None:
    problem = _small(groups, output=24 if groups < 12 else 12)
    x, weights = byte_images(problem, groups)
    feeds = {"x": x[:, :, 0], "w": weights[:, :, 0], "xz": np.array(9, np.uint8)}
    node = helper.make_node(
        "ConvInteger", list(feeds), ["y"], strides=[2, 1], dilations=[1, 2], pads=[1, 2, 0, 1], group=groups
    )
    kernel = ways.build(problem, ways.candidates(problem, target)[0], target)
    expected = outputs([node], feeds, TensorProto.INT32)
    np.testing.assert_array_equal(run(problem, kernel, x, weights)[:, :, 0], expected)


@pytest.mark.parametrize("groups", (1, 4, 12))
@pytest.mark.parametrize("kind", (DType.U8, DType.I8))
@pytest.mark.parametrize("target", TARGETS)
def test_quantized_convolution_of_onnx(groups: int, kind: DType, target: Target) -> None:
    problem = _small(groups, output=12, x=kind)
    x, weights = byte_images(problem, groups)
    generator = np.random.default_rng(groups)
    scales = generator.uniform(0.001, 0.01, 12).astype(np.float32)
    x_scale, y_scale = np.float32(0.37), np.float32(0.9)
    bias, y_zero = generator.integers(-9000, 9000, 12).astype(np.int32), np.array(11, kind.numpy)
    feeds = {
        "x": x[:, :, 0], "xs": np.array(x_scale), "xz": np.array(problem.x_zero, kind.numpy), "w": weights[:, :, 0],
        "ws": scales, "wz": np.zeros(12, np.int8), "ys": np.array(y_scale), "yz": y_zero, "b": bias,
    }  # fmt: skip
    node = helper.make_node(
        "QLinearConv", list(feeds), ["y"], strides=[2, 1], dilations=[1, 2], pads=[1, 2, 0, 1], group=groups
    )
    total = ACCUMULATED_INTEGER[()] + problem.per_channel("bias", DType.I32)
    multiplier = problem.per_channel("multiplier", DType.F32)
    problem = problem.with_epilogue(requantize(total, multiplier, Number(11, kind), kind))
    kernel = ways.build(problem, ways.candidates(problem, target)[0], target)
    others = {
        "bias": bias,
        "multiplier": x_scale * scales / y_scale,
    }  # in float32 and this order, as the runtime has it
    got = run(problem, kernel, x, weights, others)
    np.testing.assert_array_equal(
        got[:, :, 0], outputs([node], feeds, TensorProto.UINT8 if kind is DType.U8 else TensorProto.INT8)
    )


def test_a_residual_and_an_activation_between_quantizations() -> None:
    """quantize(relu(dequantize(sums) + dequantize(residual))): the definition in float64, away from ties."""
    problem = _small(output=20)
    x, weights = byte_images(problem, 1)
    sums = accumulated(problem, x, weights)
    residual = np.random.default_rng(5).integers(0, 256, sums.shape).astype(np.uint8)
    scale, other, y_scale = np.float32(2.0**-9), np.float32(2.0**-3), np.float32(2.0**-1)
    value = dequantize(ACCUMULATED_INTEGER[()], Number(float(scale)))
    value = value + dequantize(problem.like_output("residual", DType.U8), Number(float(other)), Number(100, DType.U8))
    problem = problem.with_epilogue(quantize(relu(value), Number(float(y_scale)), Number(3, DType.U8), DType.U8))
    # Scales are powers of two and sums small: float32 is exact, ties included.
    exact = np.maximum(sums * np.float64(scale) + (residual.astype(np.float64) - 100) * other, 0) / y_scale
    expected = np.clip(np.rint(exact) + 3, 0, 255)
    stored = problem.geometry.output.store(residual)
    for target in TARGETS:
        kernel = build(problem, candidates(problem, target)[0], target)
        np.testing.assert_array_equal(run(problem, kernel, x, weights, {"residual": stored}), expected)


def test_a_zero_point_known_only_when_the_program_runs() -> None:
    for made in (_small(), _small(12, output=12), _small(x=DType.I8)):
        x, weights = byte_images(made, 3)
        problem = QuantizedConvolution(made.geometry, made.x_dtype, DType.I8, None)
        for target in TARGETS:
            kernel = ways.build(problem, ways.candidates(problem, target)[0], target)
            got = run(problem, kernel, x, weights, {"x_zero": np.array([made.x_zero], made.x_dtype.numpy)})
            np.testing.assert_array_equal(got, accumulated(made, x, weights))


@pytest.mark.parametrize(("size", "kernel"), (((5, 7), 1), ((16, 19), 3), ((3, 40), 3)))
@pytest.mark.parametrize("channels", (2, 5, 17, 48))
def test_planes_of_channels_are_turned(size: tuple[int, int], kernel: int, channels: int) -> None:
    pads = (kernel // 2,) * 4
    geometry = convolution(2, channels, 18, size, (kernel, kernel), pads=pads, order="NCHW", output_order="NHWC")
    problem = QuantizedConvolution(geometry, DType.I8, DType.I8, -3)
    x, weights = byte_images(problem, channels)
    for target in TARGETS:
        kernel_of = build(problem, candidates(problem, target)[0], target)
        np.testing.assert_array_equal(run(problem, kernel_of, x, weights), accumulated(problem, x, weights))


def test_dot_product_instructions_are_used_where_they_are() -> None:
    vex = Target("x86_64-unknown-linux-gnu", "x86-64-v3", (*x86_64_v3().features, "+avxvnni"), 32, 16)
    dotprod = Target("aarch64-unknown-linux-gnu", "generic", (*aarch64().features, "+dotprod"), 16, 32)
    for target, name in ((vex, "vpdpbusd"), (dotprod, "sdot"), (x86_64_v3(), "vpmaddwd"), (x86_64_v4(), "vpmaddwd")):
        problem = _small(channels=64, output=64)
        kernel = build(problem, candidates(problem, target)[0], target)
        text = assembly(kernel.module.text(), target)
        assert name in text and "pmaddubs" not in text, target


@pytest.mark.parametrize("target", (host(), x86_64_v3(), x86_64_v4(), aarch64()))
@pytest.mark.parametrize("channels", (64, 512))
def test_sums_stay_in_registers(channels: int, target: Target) -> None:
    geometry = convolution(1, channels, 128, (28, 28), (3, 3), pads=(1,) * 4, order="NHWC")
    problem = QuantizedConvolution(geometry)
    for candidate in candidates(problem, target)[:3]:
        kernel = build(problem, candidate, target)
        assert spills(assembly(kernel.module.text(), target)) == 0, candidate


def test_what_does_not_fit_is_refused() -> None:
    problem = _small()
    with pytest.raises(InvalidQuantized, match="takes u8 or i8, not i32 and i8"):
        QuantizedConvolution(problem.geometry, DType.I32)
    with pytest.raises(InvalidQuantized, match="a zero point of u8 lies from 0 to 255"):
        QuantizedConvolution(problem.geometry, DType.U8, DType.I8, -1)
    with pytest.raises(InvalidQuantized, match="2 zero points for 20 output channels"):
        QuantizedConvolution(problem.geometry, weights_zero=(1, 2))
    with pytest.raises(InvalidQuantized, match="not in blocks of channels"):
        QuantizedConvolution(convolution(1, 16, 16, (5, 5), (1, 1), order="NCHWc"))
    with pytest.raises(UnsupportedArithmetic, match="has no instruction for s8s8"):
        build(problem, candidates(problem, aarch64(), "s8s8")[0], aarch64())
