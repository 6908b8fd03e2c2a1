"""Convolution of bytes: exact for every size, stride, dilation, pad, group, zero point, type, order and target."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.target import Target, host, x86_64_v3
from kernels.templates.convolution.layout import Layout, Order
from kernels.templates.convolution.problem import Convolution, output_size
from kernels.templates.quantized import depthwise
from kernels.templates.quantized.build import build, candidates
from kernels.templates.quantized.problem import QuantizedConvolution, limits
from tests.kernels.templates.quantized.oracle import accumulated, byte_images, run

TARGETS = (host(), x86_64_v3()) if host().is_x86 else (host(),)
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
@settings(deadline=None, max_examples=60)
def test_any_convolution_is_exact(problem: QuantizedConvolution, number: int, target: Target) -> None:
    x, weights = byte_images(problem, number)
    found = candidates(problem, target)
    kernel = build(problem, found[number % len(found)], target)
    np.testing.assert_array_equal(run(problem, kernel, x, weights), accumulated(problem, x, weights))


@given(problems(depthwise=True), st.integers(0, 99), st.sampled_from(TARGETS))
@settings(deadline=None, max_examples=40)
def test_any_depthwise_convolution_is_exact(problem: QuantizedConvolution, number: int, target: Target) -> None:
    x, weights = byte_images(problem, number)
    found = depthwise.candidates(problem, target)
    assert found or problem.geometry.groups == 1
    for candidate in found[number % max(1, len(found)) :][:1]:
        kernel = depthwise.build(problem, candidate, target)
        np.testing.assert_array_equal(run(problem, kernel, x, weights), accumulated(problem, x, weights))
