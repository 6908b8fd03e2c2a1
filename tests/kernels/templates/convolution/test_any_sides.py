"""Convolutions and poolings of images whose sides only the run knows: at many of them, between guard pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.size import Dim
from kernels.templates.convolution.depthwise import DEPTHWISE, Depthwise
from kernels.templates.convolution.layout import Layout, Order
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.winograd import WINOGRAD
from kernels.templates.convolution.winograd_choice import Winograd
from kernels.templates.convolution.winograd_parts import Sides
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.pooling import POOLING, PoolingCandidate
from kernels.templates.pooling_problem import Pooling
from kernels.templates.template import Template
from kernels.tensor.expression import relu
from tests.kernels.any_size import Ranged
from tests.kernels.targets import HERE
from tests.kernels.templates.convolution.oracle import definition

ROWS, COLUMNS = Dim("rows", 1, 40, 0), Dim("columns", 1, 40, 1)
LENGTHS = (1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 30, 31, 36, 39, 40)
IMAGES = ((1, 1), (1, 9), (4, 4), (5, 7), (8, 12), (9, 1), (13, 40), (19, 17), (19, 40))


def _layout(order: Order, channels: int, rows: Any, columns: Any, batch: int = 2) -> Layout:
    return Layout(batch, channels, (1, rows, columns), order, 16 if order == "NCHWc" else 0)


def _filtered(
    problem_of: Any, sides: Sides, sizes: Any, chunk: int, rows: int, vectors: int, stretch: int | None
) -> None:
    _check(WINOGRAD, problem_of, Winograd(sides, chunk, rows, vectors, stretch), sizes)


def _check(template: Template[Convolution, Any], problem_of: Any, candidate: Any, sizes: Any) -> None:
    """At every size what the definition says, and a residual sum added."""

    def make(*dims: Any) -> Convolution:
        problem = problem_of(*dims)
        more = problem.like_output("more")
        return replace(problem, epilogue=Epilogue(relu(ACCUMULATED[()] + problem.bias() + more)))

    dims = (ROWS, COLUMNS) if isinstance(sizes[0], tuple) else (replace(COLUMNS, number=0),)
    kernel = Ranged(template, make, dims, HERE[0], candidate)
    generator = np.random.default_rng(0)
    first = problem_of(*(dim.most for dim in dims))
    shape = (first.output.channels, first.depth, *first.kernel)
    weights = generator.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
    bias = generator.standard_normal(first.output.channels).astype(np.float32)
    for size in sizes:
        here = size if isinstance(size, tuple) else (size,)
        problem = make(*here)
        x = generator.standard_normal((problem.input.batch, problem.input.channels, *problem.input.size))
        more = generator.standard_normal((problem.output.batch, problem.output.channels, *problem.output.size))
        x, more = x.astype(np.float32), more.astype(np.float32)
        filled = np.zeros(problem.output.blocks * problem.output.block, np.float32)
        filled[: len(bias)] = bias
        given = {"x": problem.input.store(x), "weights": weights, "bias": bias, "more": problem.output.store(more)}
        found = problem.output.read(kernel.at(here, given))
        expected = np.maximum(definition(problem, x, weights) + bias[:, None, None, None] + more, 0)
        np.testing.assert_allclose(found, expected, rtol=3e-5, atol=3e-5, err_msg=str(here))


@pytest.mark.parametrize("order", ["NHWC", "NCHWc"])
@pytest.mark.parametrize(("taps", "dilation", "made"), [
    (3, 1, (6, 3)), (3, 3, (6, 3)), (7, 1, (3, 7)), (11, 1, (5, 4)), (11, 5, (5, 4)), (2, 1, (5, 2)),
])  # fmt: skip
def test_sequences_of_any_length(taps: int, dilation: int, made: tuple[int, int], order: Order) -> None:
    """Of kernels of several parts too, and with outputs of a tile apart; an image may be shorter than a window."""
    pad = (taps - 1) * dilation // 2

    def make(length: Any) -> Convolution:
        image = _layout(order, 32, 1, length)
        return Convolution(image, image, (1, 1, taps), dilations=(1, 1, dilation), pads=(0, 0, pad))

    _filtered(make, ((1, 1), made), LENGTHS, 4, 3, 1, None)


@pytest.mark.parametrize("order", ["NHWC", "NCHWc"])
@pytest.mark.parametrize(("kernel", "sides"), [
    ((3, 3), ((4, 3), (4, 3))), ((3, 3), ((2, 3), (2, 3))), ((1, 7), ((1, 1), (3, 7))), ((7, 1), ((3, 7), (1, 1))),
    ((5, 3), ((2, 5), (4, 3))),
])  # fmt: skip
def test_images_of_any_sides(kernel: tuple[int, int], sides: Sides, order: Order) -> None:
    pads = (0, kernel[0] // 2, kernel[1] // 2)

    def make(rows: Any, columns: Any) -> Convolution:
        return Convolution(
            _layout(order, 16, rows, columns), _layout(order, 48, rows, columns), (1, *kernel), pads=pads
        )

    _filtered(make, sides, IMAGES, 2, 5, 2, 1)


@pytest.mark.parametrize(("channels", "made"), [((3, 20), 21), ((24, 9), 40), ((36, 36), 19)])
@pytest.mark.parametrize("parts", [1, 2])
def test_channels_that_are_no_whole_vectors(parts: int, channels: tuple[int, int], made: int) -> None:
    """Those behind the last one are neither read nor written, by several parts of a kernel neither."""
    taps = 3 if parts == 1 else 6
    before, behind = channels

    def make(rows: Any, columns: Any) -> Convolution:
        return Convolution(
            _layout("NHWC", before, rows, columns), _layout("NHWC", behind, rows, columns), (1, 3, taps),
            pads=(0, 1, taps // 2),
        )  # fmt: skip

    _filtered(make, ((4, 3), (4, 3)), [(1, made), (made, 1), (13, made)], 2, 3, 1, None)


def test_without_pads_and_with_strides() -> None:
    """Fewer outputs than inputs; rows of one phase are a part of the kernel."""

    def plain(rows: Any, columns: Any) -> Convolution:
        return Convolution(
            _layout("NHWC", 16, rows + 2, columns + 2), _layout("NHWC", 16, rows, columns), (1, 3, 3)
        )  # fmt: skip

    def strided(rows: Any, columns: Any) -> Convolution:
        return Convolution(
            _layout("NHWC", 16, 2 * rows, 2 * columns), _layout("NHWC", 16, rows, columns), (1, 3, 3), (1, 2, 2),
            pads=(0, 1, 1),
        )  # fmt: skip

    _filtered(plain, ((4, 3), (4, 3)), IMAGES, 1, 4, 1, None)
    _filtered(strided, ((5, 2), (5, 2)), IMAGES, 2, 4, 1, None)


@pytest.mark.parametrize("unrolled", [True, False])
@pytest.mark.parametrize(("taps", "strides", "dilations", "pads"), [
    ((3, 3), (1, 1), (1, 1), (1, 1)), ((3, 3), (2, 2), (1, 1), (1, 1)), ((5, 3), (1, 2), (1, 1), (2, 0)),
    ((3, 5), (1, 1), (3, 2), (3, 4)), ((1, 7), (1, 1), (1, 1), (0, 6)), ((4, 1), (3, 1), (1, 1), (0, 0)),
])  # fmt: skip
def test_each_channel_by_itself(
    taps: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, int], unrolled: bool
) -> None:
    """Channels fill no whole vector; some kernels reach beyond both ends of an image."""

    more = 0, strides[1] - 1  # columns behind the last one that is seen

    def make(rows: Any, columns: Any) -> Convolution:
        reach = [(count - 1) * step + 1 for count, step in zip(taps, dilations, strict=True)]
        around = zip((rows, columns), strides, reach, pads, more, strict=True)
        given = [(out - 1) * stride + (1 if pad else one) + extra for out, stride, one, pad, extra in around]
        return Convolution(
            _layout("NHWC", 40, *given), _layout("NHWC", 40, rows, columns), (1, *taps), (1, *strides),
            (1, *dilations), (0, *pads), groups=40,
        )  # fmt: skip

    for rows in (1, 2) if unrolled else (1,):
        _check(DEPTHWISE, make, Depthwise(rows, 5, 4, 2, unrolled, rows == 2), IMAGES)


@pytest.mark.parametrize(("taps", "strides", "dilations", "pads"), [
    ((3, 3), (2, 2), (1, 1), (1, 1)), ((2, 2), (2, 2), (1, 1), (0, 0)), ((5, 5), (1, 1), (1, 1), (2, 2)),
    ((3, 2), (1, 3), (2, 1), (2, 1)), ((1, 13), (1, 1), (1, 1), (0, 6)),
])  # fmt: skip
def test_the_largest_of_windows(
    taps: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, int]
) -> None:
    """A NaN is a window's result; pads are none, however small all numbers are."""

    def make(rows: Any, columns: Any) -> Pooling:
        reach = [(count - 1) * step + 1 for count, step in zip(taps, dilations, strict=True)]
        around = zip((rows, columns), strides, reach, pads, strict=True)
        given = [(out - 1) * stride + (1 if pad else one) for out, stride, one, pad in around]
        windows = Convolution(
            _layout("NHWC", 40, *given), _layout("NHWC", 40, rows, columns), (1, *taps), (1, *strides),
            (1, *dilations), (0, *pads), groups=40,
        )  # fmt: skip
        return Pooling(windows, "max")

    kernel = Ranged(POOLING, make, (ROWS, COLUMNS), HERE[0], PoolingCandidate(5, 2, 4))
    generator = np.random.default_rng(0)
    for size in IMAGES:
        windows = make(*size).windows
        x = generator.standard_normal((2, 40, *windows.input.size)).astype(np.float32) - 1e6
        x[0, 3, 0, 0, 0] = np.nan
        found = windows.output.read(kernel.at(size, {"x": windows.input.store(x)}))
        wide = np.pad(x[:, :, 0], ((0, 0), (0, 0), *((pad, 40) for pad in pads)), constant_values=-np.inf)
        expected = np.full((2, 40, *size), -np.inf, np.float32)
        for tap in np.ndindex(*taps):
            begin = [at * step for at, step in zip(tap, dilations, strict=True)]
            places = tuple(
                slice(one, one + (out - 1) * stride + 1, stride)
                for one, out, stride in zip(begin, size, strides, strict=True)
            )
            expected = np.maximum(expected, wide[(slice(None), slice(None), *places)])
        np.testing.assert_array_equal(found[:, :, 0], expected, err_msg=str(size))
