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
from tests.kernels.templates.test_pooling import definition as definition_of_pooling

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
        storage = kernel.at(here, given)
        found = problem.output.read(storage)
        assert _is_kept(problem.output, storage), f"{here}: a channel of another image is written"
        expected = np.maximum(definition(problem, x, weights) + bias[:, None, None, None] + more, 0)
        np.testing.assert_allclose(found, expected, rtol=3e-5, atol=3e-5, err_msg=str(here))


def _is_kept(layout: Layout, storage: np.ndarray) -> bool:
    """Whether channels that are none of these images' are as they were, bytes of 0x5A."""
    if layout.pitch is None:
        return True
    whole = np.full(layout.batch * layout.image_stride, 0x5A5A5A5A, np.uint32)
    whole[: storage.size] = storage.view(np.uint32)
    return bool((whole.reshape(-1, layout.pitch)[:, layout.channels :] == 0x5A5A5A5A).all())


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


@pytest.mark.parametrize(("channels", "apart"), [((16, 48), (40, 64)), ((20, 9), (21, 33)), ((40, 40), (64, 41))])
@pytest.mark.parametrize("kind", ["filtered", "in parts", "each by itself"])
def test_channels_of_larger_images(kind: str, channels: tuple[int, int], apart: tuple[int, int]) -> None:
    """Those of other images, which lie between one pixel and the next, are neither read nor written."""
    alone = kind == "each by itself"
    taps, groups = 6 if kind == "in parts" else 3, channels[0] if alone else 1
    before, behind = (channels[0], channels[0]) if alone else channels

    def make(rows: Any, columns: Any) -> Convolution:
        given, made = _layout("NHWC", before, rows, columns), _layout("NHWC", behind, rows, columns)
        pitches = apart[0], max(apart[1], behind)
        given, made = (replace(one, pitch=pitch) for one, pitch in zip((given, made), pitches, strict=True))
        return Convolution(given, made, (1, 3, taps), pads=(0, 1, taps // 2), groups=groups)

    if alone:
        _check(DEPTHWISE, make, Depthwise(1, 5, 4, 2, unrolled=True), IMAGES)
    else:
        _filtered(make, ((4, 3), (4, 3)), IMAGES, 2, 3, 1, None)


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


@pytest.mark.parametrize("kind", ["max", "average", "average of pads too"])
@pytest.mark.parametrize("pitch", [40, 72])
@pytest.mark.parametrize(("taps", "strides", "dilations", "pads"), [
    ((3, 3), (2, 2), (1, 1), (1, 1)), ((2, 2), (2, 2), (1, 1), (0, 0)), ((5, 5), (1, 1), (1, 1), (2, 2)),
    ((3, 2), (1, 3), (2, 1), (2, 1)), ((1, 13), (1, 1), (1, 1), (0, 6)),
])  # fmt: skip
def test_poolings(
    taps: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, int], pitch: int,
    kind: str,
) -> None:  # fmt: skip
    """A NaN is the largest of a window; pads are none of its numbers, however small these are."""
    reach = [(count - 1) * step + 1 for count, step in zip(taps, dilations, strict=True)]

    def make(rows: Any, columns: Any) -> Pooling:
        around = zip((rows, columns), strides, reach, pads, strict=True)
        given = [(out - 1) * stride + (1 if pad else one) for out, stride, one, pad in around]
        images = (replace(_layout("NHWC", 40, *one), pitch=pitch) for one in (given, (rows, columns)))
        windows = Convolution(*images, (1, *taps), (1, *strides), (1, *dilations), (0, *pads), groups=40)
        if kind == "max":
            return Pooling(windows, "max")
        return Pooling(windows, "average", kind != "average", (0, pads[0] // 2, 1))  # windows may reach further

    kernel = Ranged(POOLING, make, (ROWS, COLUMNS), HERE[0], PoolingCandidate(5, 2, 4))
    generator = np.random.default_rng(0)
    for size in IMAGES:
        problem = make(*size)
        windows = problem.windows
        x = generator.standard_normal((2, 40, *windows.input.size)).astype(np.float32) - (1e6 if kind == "max" else 0)
        if kind == "max":
            x[0, 3, 0, 0, 0] = np.nan
        storage = kernel.at(size, {"x": windows.input.store(x)})
        assert _is_kept(windows.output, storage), f"{size}: a channel of another image is written"
        found = windows.output.read(storage)
        np.testing.assert_allclose(found, definition_of_pooling(problem, x), atol=2e-6, rtol=0, err_msg=str(size))
