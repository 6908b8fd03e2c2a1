"""Which way is tried first, and what is left out when rounding must be that of a direct sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.target import host
from kernels.templates.convolution import choose, ways
from kernels.templates.convolution.depthwise import Depthwise
from kernels.templates.convolution.direct_candidate import Direct
from kernels.templates.convolution.problem import convolution
from kernels.templates.convolution.winograd import Winograd
from tests.kernels.targets import HERE, NAMED
from tests.kernels.templates.convolution.oracle import run, sample

TOLERANCE = 3e-5  # as in test_winograd
WIDE = convolution(1, 128, 128, (28, 28), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")


@pytest.mark.parametrize("target", NAMED, ids=lambda target: target.cpu)
def test_a_plain_3x3_convolution_is_tried_with_winograd_first(target):
    assert isinstance(ways.candidates(WIDE, target)[0], Winograd)
    assert any(isinstance(one, Direct) for one in ways.candidates(WIDE, target))
    assert all(isinstance(one, Direct) for one in ways.candidates(WIDE, target, exact=True))


def test_each_candidate_says_what_it_is():
    kernels = [ways.build(WIDE, candidate, host()) for candidate in ways.candidates(WIDE, host())[:2]]
    assert all(kernel.candidate.startswith("winograd") and kernel.flops == WIDE.flops for kernel in kernels)
    alone = convolution(1, 32, 32, (28, 28), (3, 3), groups=32, order="NHWC")
    first = ways.candidates(alone, host())[0]
    assert isinstance(first, Depthwise) and str(first).startswith("depthwise")


@pytest.mark.parametrize("target", NAMED, ids=lambda target: target.cpu)
def test_candidates_come_by_their_estimate_and_estimates_grow_with_the_work(target):
    shapes = [choose.candidates(WIDE, target)[0], choose.candidates(WIDE, target)[-1]]
    first, last = (ways.estimate(WIDE, one, target) for one in shapes)
    assert first <= last
    twice = convolution(2, 128, 128, (28, 28), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
    found = [ways.estimate(one, ways.candidates(one, target)[0], target) for one in (WIDE, twice)]
    assert 1.9 * found[0] < found[1] < 2 * found[0], "weights come from where the program's lie once"


def test_work_is_cut_into_blocks_of_less_than_a_millisecond():
    for problem in (
        convolution(1, 64, 64, (56, 56), (3, 3), pads=(1, 1, 1, 1), order="NCHWc"),
        convolution(1, 64, 256, (56, 56), (1, 1), order="NCHWc"),
        convolution(1, 3, 64, (224, 224), (7, 7), pads=(3, 3, 3, 3), strides=(2, 2), output_order="NCHWc"),
        convolution(1, 512, 2048, (7, 7), (1, 1), order="NCHWc"),
    ):
        candidate = choose.candidates(problem, host())[0]
        kernel = ways.build(problem, candidate, host())
        assert ways.estimate(problem, candidate, host()) / kernel.blocks < 1e6


@given(st.data(), st.sampled_from(HERE))
@settings(deadline=None, max_examples=20)
def test_blocks_for_any_workers_and_caches_are_what_the_definition_says(data, target):
    """Small caches stand for large layers: candidates cut blocks by them, and again for several workers."""
    channels = data.draw(st.sampled_from((24, 64, 96, 128))), data.draw(st.sampled_from((40, 64, 128)))
    kernel, stride, batch = (data.draw(st.sampled_from(some)) for some in ((1, 3, 3, 5), (1, 2), (1, 1, 3)))
    size, pad = (data.draw(st.integers(9, 30)), data.draw(st.integers(9, 30))), data.draw(st.integers(0, kernel // 2))
    problem = convolution(
        batch, *channels, size, (kernel, kernel), strides=(stride, stride), pads=(pad,) * 4, order="NCHWc",
        halo=data.draw(st.sampled_from((None, 0, 2))),
    )  # fmt: skip
    l1, l2 = 1 << data.draw(st.integers(11, 15)), 1 << data.draw(st.integers(13, 16))
    target, taken = replace(target, l1=l1, l2=l2, workers=data.draw(st.integers(0, 6))), sample(problem)
    found = ways.candidates(problem, target)
    for candidate in data.draw(st.lists(st.sampled_from(found), min_size=1, max_size=4, unique=True)):
        made = ways.CONVOLUTION.kernel(problem, target, candidate=candidate)
        for one in (made, made.shared):
            if one is not None:
                np.testing.assert_allclose(run(one, taken), taken.expected, atol=TOLERANCE)
