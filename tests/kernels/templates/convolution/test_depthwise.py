"""Depthwise convolution against its definition in float64, in both orders that keep channels side by side."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.target import host, x86_64_v3
from kernels.templates.convolution import depthwise, ways
from kernels.templates.convolution.depthwise import Depthwise
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution, convolution, output_size
from kernels.tensor.expression import clip
from tests.kernels.templates.convolution.oracle import run, sample

TOLERANCE = 5e-6  # sums of at most 75 products


@st.composite
def problems(draw: st.DrawFn) -> Convolution:
    order, times = draw(st.sampled_from(("NCHWc", "NHWC"))), draw(st.sampled_from((1, 1, 2, 4, 8)))
    channels, batch = draw(st.integers(2, 40)), draw(st.integers(1, 2))

    deep = draw(st.booleans())

    def triple(low: int, high: int, flat: int) -> tuple[int, int, int]:
        return (
            draw(st.integers(low, min(high, 3))) if deep else flat,
            draw(st.integers(low, high)),
            draw(st.integers(low, high)),
        )

    kernel, strides, dilations = triple(1, 5, 1), triple(1, 3, 1), triple(1, 2, 1)
    before, after = triple(0, 3, 0), triple(0, 3, 0)
    least = [max(1, (k - 1) * d + 1 - b - a) for k, d, b, a in zip(kernel, dilations, before, after, strict=True)]
    size = (least[0] + (draw(st.integers(0, 4)) if deep else 0), least[1] + draw(st.integers(0, 9)),
            least[2] + draw(st.integers(0, 20)))  # fmt: skip
    out = output_size(size, kernel, strides, dilations, before, after)
    block = 16 if order == "NCHWc" else 0
    halo = [triple(0, 2, 0) for _ in range(4)]
    return Convolution(
        Layout(batch, channels, size, order, block, halo[0], halo[1]),
        Layout(batch, channels * times, out, order, block, halo[2], halo[3]),
        kernel, strides, dilations, before, channels,
    )  # fmt: skip


@given(problems(), st.integers(0, 9), st.sampled_from((host(), x86_64_v3())))
@settings(deadline=None, max_examples=60)
def test_any_depthwise_convolution_is_what_its_definition_says(problem, number, target):
    found = depthwise.candidates(problem, target)
    taken = sample(problem)
    kernel = depthwise.build(problem, found[number % len(found)], target)
    np.testing.assert_allclose(run(kernel, taken), taken.expected, atol=TOLERANCE)


def test_blocks_of_some_rows_and_some_channels_give_the_same_result():
    problem = convolution(2, 40, 40, (11, 9), (3, 3), pads=(1, 1, 1, 1), groups=40, order="NCHWc")
    problem = problem.with_epilogue(lambda sums: clip(sums, 0.0, 0.5))
    taken = sample(problem)
    for candidate in (Depthwise(2, 7, 4, 1, True), Depthwise(1, 5, 3, 2, False), Depthwise(4, 3, 8, 3, True)):
        kernel = depthwise.build(problem, candidate, host())
        assert kernel.blocks > 2
        np.testing.assert_allclose(run(kernel, taken), np.clip(taken.expected, 0, 0.5), atol=TOLERANCE)


def test_the_ways_of_a_depthwise_convolution_begin_with_its_own():
    problem = convolution(1, 32, 32, (9, 9), (3, 3), groups=32, order="NCHWc")
    assert isinstance(ways.candidates(problem, host())[0], Depthwise)
    multiplied = convolution(1, 32, 64, (9, 9), (3, 3), groups=32, order="NCHWc")
    assert isinstance(ways.candidates(multiplied, host())[0], Depthwise)
    thrice = convolution(1, 32, 96, (9, 9), (3, 3), groups=32, order="NCHWc")  # vectors would begin within a channel's
    assert depthwise.candidates(thrice, host()) == ()


def test_outputs_of_an_input_channel_may_fill_a_vector():
    problem = convolution(1, 5, 5 * host().lanes(), (6, 7), (3, 3), pads=(1, 1, 1, 1), groups=5, order="NHWC")
    taken = sample(problem)
    kernel = depthwise.build(problem, depthwise.candidates(problem, host())[0], host())
    np.testing.assert_allclose(run(kernel, taken), taken.expected, atol=TOLERANCE)
