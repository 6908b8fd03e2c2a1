"""Pooling against its definition in NumPy, and against ONNX Runtime where the rules of counting are subtle."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernels.target import host, x86_64_v3
from kernels.templates.convolution.layout import Layout, Order
from kernels.templates.convolution.problem import Convolution, convolution, output_size
from kernels.templates.pooling import build, candidates
from kernels.templates.pooling_problem import InvalidPooling, Pooling
from kernels.tensor.expression import relu
from tests.kernels.guard import run_guarded

ORDERS: tuple[Order, ...] = ("NCHW", "NHWC", "NCHWc")
TOLERANCE = 2e-6  # an average of at most a few hundred numbers near 1 in float32


def definition(problem: Pooling, x: np.ndarray) -> np.ndarray:
    windows = problem.windows
    found = np.zeros((*x.shape[:2], *windows.output.size))
    for place in product(*map(range, windows.output.size)):
        inside, padded = [], []
        for axis, output in enumerate(place):
            start = output * windows.strides[axis] - windows.pads[axis]
            places = [start + tap * windows.dilations[axis] for tap in range(windows.kernel[axis])]
            size = windows.input.size[axis]
            inside.append([one for one in places if 0 <= one < size])
            padded.append([one for one in places if -windows.pads[axis] <= one < size + problem.after[axis]])
        seen = x[(slice(None), slice(None), *np.ix_(*inside))].astype(np.float64)
        flat = seen.reshape(*x.shape[:2], -1)
        if problem.kind == "max":
            found[(..., *place)] = flat.max(-1)
        else:
            counted = padded if problem.count_pads else inside
            found[(..., *place)] = flat.sum(-1) / np.prod([len(one) for one in counted])
    return found


def pooled(problem: Pooling, x: np.ndarray, target=None, number: int = 0) -> np.ndarray:
    target = target or host()
    found = candidates(problem, target)
    kernel = build(problem, found[number % len(found)], target)
    windows = problem.windows
    y = run_guarded(kernel, {"x": windows.input.store(x), "y": np.zeros(windows.output.elements, np.float32)})["y"]
    made = windows.output.read(y)
    np.testing.assert_array_equal(windows.output.store(made), y, "zeros around the image or after its channels")
    return made


@st.composite
def problems(draw: st.DrawFn) -> Pooling:
    rank = draw(st.sampled_from((1, 2, 2, 3)))

    def some(low: int, high: int, otherwise: int) -> tuple[int, int, int]:
        a, b, c = (*(otherwise,) * (3 - rank), *(draw(st.integers(low, high)) for _ in range(rank)))
        return a, b, c

    order = draw(st.sampled_from(ORDERS))
    channels, batch = draw(st.integers(1, 40)), draw(st.integers(1, 2))
    kernel, strides, dilations = some(1, 4, 1), some(1, 3, 1), some(1, 2, 1)
    pads = [tuple(draw(st.integers(0, k - 1)) for k in kernel) for _ in range(2)]
    before, after = ((a, b, c) for a, b, c in pads)
    least = [max(1, (k - 1) * d + 1 - b - a) for k, d, b, a in zip(kernel, dilations, before, after, strict=True)]
    size = tuple(low + extra for low, extra in zip(least, some(0, 9, 0), strict=True))
    fitting = output_size(size, kernel, strides, dilations, before, after)  # type: ignore[arg-type]
    over = draw(st.integers(0, 1))  # as with ceil_mode: one window more, which hangs over the pads
    out = tuple(n + over if n * s < i + b else n for n, s, i, b in zip(fitting, strides, size, before, strict=True))
    block = 16 if order == "NCHWc" else 0
    halos = [some(0, 1, 0) for _ in range(4)]
    windows = Convolution(
        Layout(batch, channels, size, order, block, halos[0], halos[1]),  # type: ignore[arg-type]
        Layout(batch, channels, out, order, block, halos[2], halos[3]),
        kernel, strides, dilations, before, channels,
    )  # fmt: skip
    try:
        return Pooling(windows, draw(st.sampled_from(("max", "average"))), draw(st.booleans()), after)
    except InvalidPooling:  # dilation over a short image: no tap of a window is inside
        return Pooling(convolution(1, 3, 3, (4, 4), (2, 2), groups=3), "max")


@given(problems(), st.integers(0, 1), st.sampled_from((host(), x86_64_v3())))
@settings(deadline=None, max_examples=25)
def test_any_pooling_is_what_its_definition_says(problem, number, target):
    windows = problem.windows
    x = np.random.default_rng(0).standard_normal((windows.input.batch, windows.input.channels, *windows.input.size))
    x = x.astype(np.float32)
    np.testing.assert_allclose(pooled(problem, x, target, number), definition(problem, x), atol=TOLERANCE)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ("max", "average"))
def test_global_pooling_is_one_window(order, kind):
    problem = Pooling(convolution(2, 24, 24, (9, 13), (9, 13), groups=24, order=order), kind)
    x = np.random.default_rng(1).standard_normal((2, 24, 1, 9, 13)).astype(np.float32)
    expected = x.max((3, 4)) if kind == "max" else x.astype(np.float64).mean((3, 4))
    np.testing.assert_allclose(pooled(problem, x)[..., 0, 0], expected, atol=TOLERANCE)


@pytest.mark.parametrize("count_pads", (False, True))
def test_averages_count_as_onnxruntime_counts(count_pads):
    x = np.random.default_rng(2).standard_normal((1, 16, 7, 6)).astype(np.float32)
    node = helper.make_node(
        "AveragePool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
        count_include_pad=int(count_pads),
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})[0]
    windows = convolution(1, 16, 16, (7, 6), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), groups=16, order="NCHWc")
    found = pooled(Pooling(windows, "average", count_pads, (0, 1, 1)), x[:, :, None])
    np.testing.assert_allclose(found[:, :, 0], expected, atol=TOLERANCE)


@pytest.mark.parametrize("dilation", (1, 2, 3))
@pytest.mark.parametrize("count_pads", (False, True))
def test_windows_that_hang_over_count_what_is_inside(dilation: int, count_pads: bool) -> None:
    """Three taps along an axis of 8 and a pad on either side; of the last windows some taps lie behind the pad."""
    size, outputs = (8, 8), (5, 5)
    plain = convolution(1, 16, 16, size, (3, 3), strides=(2, 2), dilations=(dilation,) * 2, pads=(1,) * 4, groups=16)
    windows = replace(plain, output=replace(plain.output, size=(1, *outputs)))
    x = np.random.default_rng(4).standard_normal((1, 16, 1, *size)).astype(np.float32)
    problem = Pooling(windows, "average", count_pads, (0, 1, 1))
    np.testing.assert_allclose(pooled(problem, x), definition(problem, x), atol=TOLERANCE)


def test_a_nan_in_a_window_is_the_windows_result():
    problem = Pooling(convolution(1, 16, 16, (4, 4), (2, 2), strides=(2, 2), groups=16, order="NCHWc"), "max")
    x = np.ones((1, 16, 1, 4, 4), np.float32)
    x[0, 3, 0, 1, 0] = np.nan
    found = pooled(problem, x)
    assert np.isnan(found[0, 3, 0, 0, 0]) and np.count_nonzero(np.isnan(found)) == 1


def test_an_epilogue_follows_the_pooled_value():
    windows = convolution(1, 16, 16, (4, 4), (2, 2), groups=16, order="NHWC").with_epilogue(lambda x: relu(x * 2.0))
    x = np.random.default_rng(3).standard_normal((1, 16, 1, 4, 4)).astype(np.float32)
    problem = Pooling(windows, "average")
    expected = np.maximum(2 * definition(problem, x), 0)
    np.testing.assert_allclose(pooled(problem, x), expected, atol=TOLERANCE)


def test_a_window_with_nothing_of_the_image_is_refused():
    with pytest.raises(InvalidPooling, match="a window lies outside of the image"):
        Pooling(convolution(1, 4, 4, (3, 3), (1, 1), pads=(1, 1, 1, 1), groups=4), "max")
