"""Resizing against the ONNX reference evaluator, and against ONNX Runtime for sizes that a network has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from kernels.target import host, x86_64_v3
from kernels.templates.convolution.layout import Layout
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.resize import InvalidResize, Resize, build
from kernels.tensor.expression import relu
from tests.kernels.guard import run_guarded

TOLERANCE = 1e-5  # a mixture of eight numbers near 1, whose weights come from float32 coordinates on the other side
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def model(problem: Resize, rank: int):
    attributes = {"mode": problem.mode, "coordinate_transformation_mode": problem.coordinates}
    if problem.mode == "nearest":
        attributes["nearest_mode"] = problem.rounding
    shape = (problem.output.batch, problem.output.channels, *problem.output.size[3 - rank :])
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [len(shape)], shape)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * len(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))], [sizes],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def resized(problem: Resize, x: np.ndarray, target=None) -> np.ndarray:
    kernel = build(problem, target or host())
    y = np.zeros(problem.output.elements, np.float32)
    y = run_guarded(kernel, {"x": problem.input.store(x), "y": y})["y"]
    made = problem.output.read(y)
    np.testing.assert_array_equal(problem.output.store(made), y, "zeros around the image or after its channels")
    return made


@st.composite
def problems(draw: st.DrawFn) -> tuple[Resize, int]:
    rank = draw(st.sampled_from((1, 2, 2)))

    def some(low: int, high: int, otherwise: int) -> tuple[int, int, int]:
        a, b, c = (*(otherwise,) * (3 - rank), *(draw(st.integers(low, high)) for _ in range(rank)))
        return a, b, c

    order = draw(st.sampled_from(("NCHW", "NHWC", "NCHWc")))
    block = 16 if order == "NCHWc" else 0
    channels, batch = draw(st.integers(1, 20)), draw(st.integers(1, 2))
    inner = Layout(batch, channels, some(1, 7, 1), order, block, some(0, 1, 0), some(0, 1, 0))
    outer = Layout(batch, channels, some(1, 37, 1), order, block, some(0, 1, 0), some(0, 1, 0))
    if draw(st.booleans()):
        outer = replace(outer, order="NCHW", block=0)
    mode, coordinates = draw(st.sampled_from(("nearest", "linear"))), draw(st.sampled_from(COORDINATES))
    return Resize(inner, outer, mode, coordinates, draw(st.sampled_from(ROUNDINGS))), rank


def beside_an_element(problem: Resize) -> np.ndarray:
    """Where a coordinate is an element but for its rounding: the reference takes the element before it as nearest."""
    found = np.zeros(problem.output.size, bool)
    for axis, (before, after) in enumerate(zip(problem.input.size, problem.output.size, strict=True)):
        at = np.arange(after)
        if problem.coordinates == "align_corners":
            places = at * (before - 1) / max(after - 1, 1)
        elif problem.coordinates == "asymmetric":
            places = at / (after / before)
        else:
            places = (at + 0.5) / (after / before) - 0.5
        beside = (places != np.rint(places)) & (np.abs(places - np.rint(places)) < 1e-9)
        found |= beside.reshape([-1 if other == axis else 1 for other in range(3)])
    return found


def test_a_coordinate_that_rounding_moves_off_an_element_is_told() -> None:
    """(8 + 0.5) / (17 / 7) - 0.5 is 3 but for a unit in the last place."""
    problem = Resize(Layout(1, 1, (1, 7, 1)), Layout(1, 1, (1, 17, 1)), "nearest", "half_pixel", "round_prefer_floor")
    assert np.flatnonzero(beside_an_element(problem)).tolist() == [8]
    x = np.arange(7, dtype=np.float32).reshape(1, 1, 1, 7, 1)
    assert resized(problem, x).reshape(-1)[8] == 3


@given(problems(), st.sampled_from((host(), x86_64_v3())))
@settings(deadline=None, max_examples=20)
def test_any_resizing_is_what_the_reference_says(drawn, target):
    problem, rank = drawn
    shape = (problem.input.batch, problem.input.channels, *problem.input.size)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    flat = x.reshape(*shape[:2], *shape[5 - rank :])
    expected = ReferenceEvaluator(model(problem, rank)).run(None, {"x": flat})[0]
    found = resized(problem, x, target).reshape(expected.shape)
    if problem.mode == "nearest":
        told = ~beside_an_element(problem).reshape(expected.shape[2:])
        found, expected = found[..., told], expected[..., told]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("mode", ("nearest", "linear"))
@pytest.mark.parametrize("coordinates", ("half_pixel", "asymmetric", "align_corners"))
def test_twice_the_size_is_what_onnxruntime_says(mode, coordinates):
    problem = Resize(
        Layout(1, 24, (1, 13, 9), "NCHWc", 16), Layout(1, 24, (1, 26, 18), "NCHWc", 16), mode, coordinates, "floor"
    )
    x = np.random.default_rng(1).standard_normal((1, 24, 1, 13, 9)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model(problem, 2).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {"x": x[:, :, 0]})[0]
    np.testing.assert_allclose(resized(problem, x)[:, :, 0], expected, atol=TOLERANCE)


def test_volumes_are_mixed_from_eight_neighbours():
    problem = Resize(Layout(1, 3, (2, 3, 4)), Layout(1, 3, (3, 5, 7)), "linear", "align_corners")
    d, h, w = np.meshgrid(np.linspace(0, 1, 2), np.linspace(0, 1, 3), np.linspace(0, 1, 4), indexing="ij")
    ramp = np.broadcast_to((1 + d) * (2 + h) * (3 - w), (1, 3, 2, 3, 4)).astype(np.float32)
    d, h, w = np.meshgrid(np.linspace(0, 1, 3), np.linspace(0, 1, 5), np.linspace(0, 1, 7), indexing="ij")
    np.testing.assert_allclose(resized(problem, ramp)[0, 0], (1 + d) * (2 + h) * (3 - w), atol=TOLERANCE)


def test_an_epilogue_follows_the_mixture():
    problem = Resize(
        Layout(1, 16, (1, 2, 2), "NHWC"), Layout(1, 16, (1, 4, 4), "NHWC"), "nearest",
        epilogue=Epilogue(relu(ACCUMULATED[()] - 0.5)),
    )  # fmt: skip
    x = np.random.default_rng(2).standard_normal((1, 16, 1, 2, 2)).astype(np.float32)
    expected = np.maximum(x.repeat(2, 3).repeat(2, 4) - 0.5, 0)
    np.testing.assert_allclose(resized(problem, x), expected, atol=TOLERANCE)


def test_other_channels_are_refused():
    with pytest.raises(InvalidResize, match="resizing keeps images and channels"):
        Resize(Layout(1, 3, (1, 2, 2)), Layout(1, 4, (1, 2, 2)), "nearest")
