"""Convolutions on dot products of bfloat16: results between guard pages, how weights lie, the choice, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.target import host, x86_64_v4
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution, convolution
from kernels.templates.convolution.ways import CONVOLUTION
from kernels.templates.dots.image import DOT_CONVOLUTION
from kernels.templates.dots.image_choice import NoDotConvolution, of_pairs, serves
from kernels.tensor.expression import relu
from kernels.tensor.scalars import narrow, widen
from tests.kernels.templates.convolution import test_units
from tests.kernels.templates.convolution.oracle import definition, run, sample
from tests.kernels.templates.convolution.test_units import rounded
from tests.kernels.templates.test_any_size import AnySize
from tests.kernels.templates.test_dots import has_pairs, zen4

PADS = (1, 1, 1, 1)
CASES = {
    **test_units.CASES,
    "odd channels": convolution(1, 19, 33, (7, 6), (3, 3), pads=PADS, order="NCHWc"),
    "odd channels last": convolution(2, 19, 33, (7, 6), (3, 3), pads=PADS, order="NHWC"),
    "groups that are merged": convolution(1, 96, 96, (7, 6), (3, 3), pads=PADS, groups=24, order="NCHWc"),
    "groups with a rest": convolution(1, 40, 40, (7, 6), (3, 3), pads=PADS, groups=5, order="NCHWc"),
    "groups of 48": convolution(1, 96, 64, (7, 6), (1, 1), groups=2, order="NCHWc"),
    "groups, channels last": convolution(1, 48, 20, (5, 6), (3, 3), pads=PADS, groups=4, order="NHWC"),
    "planes": convolution(1, 32, 33, (3, 7, 6), (3, 3, 3), pads=(1,) * 6, order="NCHWc"),
    "taps in zeros": convolution(1, 32, 32, (14, 14), (3, 3), pads=(12,) * 4, dilations=(12, 12), order="NCHWc"),
    "in parts": convolution(1, 512, 64, (7, 7), (3, 3), pads=PADS, order="NCHWc"),
    "transposed": Convolution(
        Layout(1, 24, (1, 5, 6), "NHWC"), Layout(1, 40, (1, 9, 11), "NHWC"), (1, 3, 3), pads=(0, 1, 1),
        input_dilations=(1, 2, 2), transposed=True,
    ),
    "transposed groups": Convolution(
        Layout(1, 32, (1, 5, 6), "NCHWc", 16), Layout(1, 32, (1, 9, 11), "NCHWc", 16), (1, 3, 3), pads=(0, 1, 1),
        groups=2, input_dilations=(1, 2, 2), transposed=True,
    ),
}  # fmt: skip


@has_pairs
@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_those_of_rounded_numbers(name: str) -> None:
    """Each of the likely candidates, with its blocks for one worker and for several."""
    target = replace(host(), workers=2)
    problem = CASES[name].with_epilogue(lambda sums: relu(sums + CASES[name].bias()))
    taken = sample(problem)
    expected = rounded(taken).expected
    likely = DOT_CONVOLUTION.candidates(problem, target)[:3]
    assert DOT_CONVOLUTION.share is not None
    for candidate in dict.fromkeys([*likely, *(DOT_CONVOLUTION.share(problem, one, target) for one in likely)]):
        kernel = DOT_CONVOLUTION.build(problem, candidate, target, "convolution")
        bias = np.random.default_rng(1).standard_normal(kernel.operand("bias").elements).astype(np.float32)
        wanted = np.maximum(expected + bias[: problem.output.channels, None, None, None], 0)
        assert np.abs(run(kernel, taken, {"bias": bias}) - wanted).max() < 2e-5, candidate  # sums of numbers near 1


@has_pairs
@pytest.mark.parametrize("name", ["three by three", "one by one", "odd channels last", "groups with a rest"])
def test_images_of_any_number(name: str) -> None:
    """The batch is known when the program runs."""

    def make(batch: Any, _: Any) -> Convolution:
        given = CASES[name]
        return replace(given, input=replace(given.input, batch=batch), output=replace(given.output, batch=batch))

    kernel = AnySize(DOT_CONVOLUTION, make, replace(host(), workers=2))
    for batch in (1, 2, 3):
        here = make(batch, 1)
        taken = sample(here, batch)
        found = kernel(batch, 1, {"x": here.input.store(taken.x), "weights": taken.weights})
        images = here.output.read(found.reshape(-1)[: here.output.elements])
        assert np.abs(images - rounded(taken).expected).max() < 2e-5  # sums of numbers near 1


@has_pairs
def test_weights_of_bfloat16_keep_their_bits() -> None:
    problem = replace(CASES["three by three"], weights_dtype=DType.BF16)
    taken = rounded(sample(problem))
    packing = DOT_CONVOLUTION.kernel(problem, host()).operand("weights").packing
    assert packing is not None
    assert np.array_equal(packing.pack(taken.weights), packing.pack(narrow(taken.weights, DType.BF16)))
    assert np.abs(run(DOT_CONVOLUTION.kernel(problem, host()), taken) - taken.expected).max() < 2e-5


@pytest.mark.parametrize("name", ["odd channels", "groups that are merged", "transposed groups"])
def test_packed_words_are_weights_of_two_channels(name: str) -> None:
    """On any machine: besides zeros the packed form has each pair once."""
    problem, target = CASES[name], zen4()
    taken = rounded(sample(problem))
    candidate = DOT_CONVOLUTION.candidates(problem, target)[0]
    packing = DOT_CONVOLUTION.build(problem, candidate, target, "c").operand("weights").packing
    assert packing is not None
    packed = packing.pack(taken.weights).view(np.uint32)
    if problem.transposed:
        numbers = taken.weights.reshape(problem.groups, problem.depth, -1).swapaxes(0, 1)
    else:
        numbers = taken.weights.reshape(problem.output.channels, problem.depth, -1).swapaxes(0, 1)
    even = np.concatenate([numbers, np.zeros((problem.depth % 2, *numbers.shape[1:]), np.float32)])
    bits = narrow(even, DType.BF16).astype(np.uint32)
    words = bits[0::2] | bits[1::2] << 16
    assert np.array_equal(np.sort(packed[packed != 0]), np.sort(words[words != 0]))


def test_what_blocks_round_is_an_image_of_words() -> None:
    for name, words, block in (("one by one", 32, 16), ("odd channels", 10, 16), ("groups with a rest", 20, 8)):
        image = of_pairs(CASES[name])
        assert image.pairs and not image.has_halo and (image.input.channels, image.input.block) == (words, block)
    taken = rounded(sample(CASES["odd channels"]))
    bits = narrow(np.pad(taken.x, ((0, 0), (0, 1), *((0, 0),) * 3)), DType.BF16)
    halves = [widen(bits[:, side::2], DType.BF16) for side in range(2)]
    kernels = [np.pad(taken.weights, ((0, 0), (0, 1), *((0, 0),) * 3))[:, side::2] for side in range(2)]
    problem = of_pairs(CASES["odd channels"])
    both = sum(definition(problem, x, weights) for x, weights in zip(halves, kernels, strict=True))
    assert np.abs(both - taken.expected).max() < 1e-12


def test_one_by_one_is_about_twice_as_fast_and_winograd_is_not_given_up() -> None:
    target = zen4()
    flat = convolution(1, 256, 256, (28, 28), (1, 1), order="NCHWc")
    assert DOT_CONVOLUTION.likely(flat, target) < 0.65 * CONVOLUTION.likely(flat, target)
    square = convolution(1, 64, 64, (56, 56), (3, 3), pads=PADS, order="NCHWc")
    assert DOT_CONVOLUTION.likely(square, target) > CONVOLUTION.likely(square, target)


def test_code_is_compiled_anywhere() -> None:
    kernel = DOT_CONVOLUTION.kernel(CASES["strides"], zen4())
    assert "vdpbf16ps" in assembly(kernel.module.text(), zen4())


@pytest.mark.parametrize(
    "problem",
    [
        convolution(1, 64, 64, (8, 8), (1, 1), order="NCHW"),  # channels that lie apart
        convolution(1, 3, 64, (8, 8), (3, 3), order="NHWC"),  # too few of them
        convolution(1, 48, 48, (8, 8), (3, 3), groups=16, order="NHWC"),  # a word would be of two groups
        convolution(1, 64, 64, (8, 8), (1, 1), order="NCHWc", block=32),
    ],
)
def test_others_are_refused(problem: Convolution) -> None:
    assert serves(CASES["one by one"], zen4()) and not serves(CASES["one by one"], x86_64_v4())
    with pytest.raises(NoDotConvolution, match="has no dot products for this convolution of rounded numbers"):
        DOT_CONVOLUTION.candidates(problem, zen4())
