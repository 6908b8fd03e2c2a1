"""Convolutions and pooling as tasks on the PTX machine, beside the processor's kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.ptx.tasks.convolution import convolution as convolution_task
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution, convolution, output_size
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.pooling import POOLING
from kernels.templates.pooling_problem import InvalidPooling, Pooling
from kernels.tensor.expression import relu
from tests.kernels.ptx.tasks.running import SM_80, SM_90, Case, beside, check
from tests.kernels.templates.convolution.oracle import sample

TARGETS = st.sampled_from([SM_80, SM_90])


def windows(draw: Any, depth: int, width: int, groups: int) -> tuple[Convolution, tuple[int, int, int]]:
    """Windows over images of one to three dims, and the zeros behind the images."""
    rank = draw(st.sampled_from((1, 2, 2, 3)))

    def some(low: int, high: int, otherwise: int) -> Any:
        return (*(otherwise,) * (3 - rank), *(draw(st.integers(low, high)) for _ in range(rank)))

    order = draw(st.sampled_from(("NCHW", "NHWC")))
    kernel, strides, dilations = some(1, 3, 1), some(1, 2, 1), some(1, 2, 1)
    before, after = (tuple(draw(st.integers(0, one - 1)) for one in kernel) for _ in range(2))
    least = [max(1, (k - 1) * d + 1 - b - a) for k, d, b, a in zip(kernel, dilations, before, after, strict=True)]
    size: Any = tuple(low + extra for low, extra in zip(least, some(0, 7, 0), strict=True))
    out = output_size(size, kernel, strides, dilations, before, after)
    batch = draw(st.integers(1, 2))
    kind: Any = draw(st.sampled_from([DType.F32, DType.F32, DType.F16]))
    images = (Layout(batch, groups * depth, size, order), Layout(batch, groups * width, out, order))
    problem = Convolution(*images, kernel, strides, dilations, before, groups, weights_dtype=kind)
    return problem, after


@st.composite
def convolutions(draw: Any) -> tuple[Convolution, int]:
    groups = draw(st.sampled_from([1, 1, 2]))
    problem, _ = windows(draw, draw(st.integers(1, 20)), draw(st.integers(1, 40)), groups)
    return problem, draw(st.integers(0, 999))


@st.composite
def depthwise(draw: Any) -> tuple[Convolution, int]:
    problem, _ = windows(draw, 1, 1, draw(st.integers(2, 12)))
    return problem, draw(st.integers(0, 999))


@st.composite
def poolings(draw: Any) -> tuple[Pooling, int]:
    problem, after = windows(draw, 1, 1, draw(st.integers(1, 12)))
    try:
        one = Pooling(problem, draw(st.sampled_from(("max", "average"))), draw(st.booleans()), after)
        return one, draw(st.integers(0, 99))
    except InvalidPooling:  # dilation over a short image: no tap of a window is inside
        return Pooling(convolution(1, 3, 3, (4, 4), (2, 2), groups=3), "max"), 0


def convolved(problem: Convolution, seed: int, name: str, target: Any, then: Any = lambda sums: sums) -> Case:
    """By the definition; `then` is what follows."""
    taken = sample(problem, seed)
    taken = replace(taken, weights=taken.weights.astype(problem.weights_dtype.numpy))
    given = {"x": problem.input.store(taken.x), "weights": taken.weights}
    expected = problem.output.store(then(taken.expected).astype(np.float32))
    return Case(convolution_task(problem, target, name), given, {"y": expected}, 2e-6)


@settings(deadline=None, max_examples=4)
@given(st.lists(convolutions(), min_size=3, max_size=3), TARGETS)
def test_any_convolution(some: list[tuple[Convolution, int]], target: Any) -> None:
    check([convolved(one, seed, f"image_{number}", target) for number, (one, seed) in enumerate(some)], target)


@settings(deadline=None, max_examples=3)
@given(st.lists(depthwise(), min_size=4, max_size=4), TARGETS)
def test_any_depthwise_convolution(some: list[tuple[Convolution, int]], target: Any) -> None:
    check([convolved(one, seed, f"image_{number}", target) for number, (one, seed) in enumerate(some)], target)


def test_what_follows_a_convolution() -> None:
    problem = convolution(1, 5, 12, (6, 7), (3, 3), pads=(1, 1, 1, 1))
    follows = replace(problem, epilogue=Epilogue(relu(ACCUMULATED[()] * 0.5 + 0.25)))
    check([convolved(follows, 3, "image", SM_90, lambda sums: np.maximum(sums * 0.5 + 0.25, 0))])


@settings(deadline=None, max_examples=3)
@given(st.lists(poolings(), min_size=4, max_size=4), TARGETS)
def test_any_pooling(some: list[tuple[Pooling, int]], target: Any) -> None:
    check(
        [beside(POOLING, one, f"image_{number}", seed, 2e-6, target) for number, (one, seed) in enumerate(some)], target
    )


def test_large_windows_are_a_warps() -> None:
    one = Pooling(convolution(2, 9, 9, (9, 13), (9, 13), groups=9), "average")
    case = beside(POOLING, one, "image", 0, 2e-6)
    assert "32 threads" in case.kernel.candidate
    check([case])


def test_windows_of_many_places_are_gone_through_in_a_loop() -> None:
    problem = convolution(1, 3, 3, (9, 8), (7, 7), pads=(3, 3, 3, 3), groups=3)
    case = convolved(problem, 5, "image", SM_90)
    assert "elements of a thread" in case.kernel.candidate
    check([case])
