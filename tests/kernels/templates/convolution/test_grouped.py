"""Groups whose channels do not fill whole blocks: few are merged, and the last ones end inside a block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernels.target import host, x86_64_v3
from kernels.templates.convolution.choose import candidates
from kernels.templates.convolution.direct import build
from kernels.templates.convolution.direct_candidate import can_split
from kernels.templates.convolution.layout import Layout, Order
from kernels.templates.convolution.problem import Convolution, convolution
from kernels.templates.convolution.steps import Merged, merged
from kernels.tensor.expression import relu
from tests import support
from tests.kernels.templates.convolution.oracle import run, sample

TOLERANCE = 2e-5  # as in test_direct
ORDERS: tuple[tuple[Order, Order], ...] = (
    ("NCHWc", "NCHWc"), ("NCHWc", "NCHWc"), ("NCHWc", "NHWC"), ("NHWC", "NCHWc"), ("NCHWc", "NCHW"),
)  # fmt: skip


@st.composite
def problems(draw: st.DrawFn) -> Convolution:
    groups, depth, width = draw(st.integers(2, 20)), draw(st.integers(1, 12)), draw(st.integers(1, 12))
    kernel, stride = draw(st.sampled_from((1, 3))), draw(st.integers(1, 2))
    orders: tuple[Order, Order] = draw(
        st.sampled_from(
            (("NCHWc", "NCHWc"), ("NCHWc", "NCHWc"), ("NCHWc", "NHWC"), ("NHWC", "NCHWc"), ("NCHWc", "NCHW"))
        )
    )
    pad, block = kernel // 2, draw(st.sampled_from((16, 32)))
    return convolution(
        draw(st.integers(1, 2)), groups * depth, groups * width, (draw(st.integers(3, 9)), draw(st.integers(3, 9))),
        (kernel, kernel), strides=(stride, stride), pads=(pad,) * 4, groups=groups, order=orders[0],
        output_order=orders[1], block=block, halo=draw(st.sampled_from((0, pad))), output_halo=draw(st.integers(0, 1)),
    )  # fmt: skip


@given(problems(), st.integers(0, 9), st.sampled_from((host(), x86_64_v3())))
@settings(deadline=None, max_examples=25)
def test_any_groups_are_what_their_definition_says(problem, number, target):
    bias = problem.bias()
    problem = problem.with_epilogue(lambda sums: relu(sums + bias + 1.0))  # not zero where no channel is
    taken, numbers = sample(problem), np.linspace(-1, 1, problem.output.channels, dtype=np.float32)
    found = candidates(problem, target)
    kernel = build(problem, found[number % len(found)], target)
    sums = taken.expected + numbers[:, None, None, None]
    np.testing.assert_allclose(run(kernel, taken, {"bias": numbers}), np.maximum(sums + 1, 0), atol=TOLERANCE)


@pytest.mark.parametrize("groups, depth, width", ((55, 8, 8), (13, 8, 8), (7, 24, 8), (5, 3, 5)))
def test_odd_groups_are_what_onnx_runtime_computes(groups, depth, width):
    problem = convolution(
        1, groups * depth, groups * width, (7, 9), (3, 3), pads=(1, 1, 1, 1), groups=groups, order="NCHWc"
    )
    taken = sample(problem)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, taken.x.reshape(1, -1, 7, 9).shape)
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, taken.weights.reshape(groups * width, depth, 3, 3).shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=groups, pads=[1, 1, 1, 1])
    model = helper.make_model(
        helper.make_graph([node], "g", [x, w], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    session = support.session(model, optimized=True)
    feeds = {"x": taken.x.reshape(1, -1, 7, 9), "w": taken.weights.reshape(groups * width, depth, 3, 3)}
    (expected,) = session.run(None, feeds)
    for candidate in candidates(problem, host())[:3]:
        found = run(build(problem, candidate, host()), taken)
        np.testing.assert_allclose(found[:, :, 0], expected, atol=TOLERANCE)


def test_as_few_groups_are_merged_as_fill_whole_blocks():
    def of(groups: int, depth: int, width: int) -> tuple[Merged, ...]:
        return merged(convolution(1, groups * depth, groups * width, (7, 7), (3, 3), groups=groups, order="NCHWc"))

    assert of(55, 8, 8) == (Merged(0, 27, 2), Merged(27, 1, 1))
    assert of(32, 4, 4) == (Merged(0, 8, 4),)
    assert of(4, 32, 16) == (Merged(0, 4, 1),)
    assert of(7, 8, 24) == (Merged(0, 3, 2), Merged(3, 1, 1))
    assert of(5, 3, 3) == (Merged(0, 1, 5),), "sixteen groups of three would fill whole blocks, and there are but five"
    other = convolution(1, 440, 440, (7, 7), (3, 3), groups=55, order="NHWC")
    assert merged(other) == (Merged(0, 55, 1),)


def test_weights_of_merged_groups_are_twice_those_that_are_given():
    problem = convolution(1, 440, 440, (7, 7), (3, 3), pads=(1, 1, 1, 1), groups=55, order="NCHWc")
    kernel = build(problem, candidates(problem, host())[0], host())
    assert kernel.operand("weights").elements <= 2 * 440 * 8 * 9


def test_groups_of_two_kinds_are_not_split():
    problem = Convolution(
        Layout(1, 5 * 24, (1, 5, 5), "NCHWc", 16), Layout(1, 5 * 8, (1, 5, 5), "NCHWc", 16), (1, 1, 1), groups=5
    )
    assert not can_split(problem, 2) and not can_split(replace(problem, groups=5), 3)
    assert can_split(convolution(1, 4 * 24, 4 * 8, (5, 5), (1, 1), groups=4, order="NCHWc"), 2)
