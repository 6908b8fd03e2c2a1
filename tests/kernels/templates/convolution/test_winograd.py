"""Winograd convolution: exact matrices, and results against the definition in float64."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.target import host, x86_64_v3, x86_64_v4
from kernels.templates.convolution import winograd, winograd_choice
from kernels.templates.convolution.layout import Layout, Order
from kernels.templates.convolution.problem import Convolution, convolution
from kernels.templates.convolution.winograd_choice import Winograd
from kernels.templates.convolution.winograd_parts import FILTERINGS, points_of, sides_of
from kernels.templates.convolution.winograd_weights import TOGETHER, transform
from kernels.tensor.expression import relu
from tests.kernels.machine_code import hot_loop, spills
from tests.kernels.targets import NAMED
from tests.kernels.templates.convolution.oracle import run, sample

# Transforms of magnitude 4 and sums of a few hundred products: the 3e-6 of the largest output, and some room
# because the outputs here are few and near 1.
TOLERANCE = 3e-5
KERNELS = (
    (1, 3, 3), (1, 3, 3), (1, 2, 2), (1, 2, 3), (1, 3, 5), (1, 4, 4), (1, 5, 5), (1, 7, 7), (1, 1, 2), (1, 1, 3),
    (1, 3, 1), (1, 1, 4), (1, 1, 5), (1, 5, 1), (1, 1, 7), (1, 7, 1), (1, 1, 8), (1, 11, 1), (1, 1, 11),
)  # fmt: skip


@pytest.mark.parametrize("outputs, count", FILTERINGS)
def test_filtering_is_a_correlation_exactly(outputs, count):
    made = FILTERINGS[outputs, count]
    window = [Fraction(3 * number - 4, 7) for number in range(made.size)]
    taps = [Fraction(2), Fraction(-1, 3), Fraction(5, 2), Fraction(7, 9), Fraction(-3), Fraction(1, 4), Fraction(5)]
    taps = taps[:count]

    def times(matrix, vector):
        return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]

    moved = [a * b for a, b in zip(times(made.taps, taps), times(made.window, window), strict=True)]
    expected = [sum(taps[tap] * window[place + tap] for tap in range(count)) for place in range(outputs)]
    assert times(made.output, moved) == expected


@st.composite
def problems(draw: st.DrawFn) -> Convolution:
    order = draw(st.sampled_from(("NCHWc", "NHWC")))
    channels = st.integers(1, 40) if order == "NCHWc" else st.sampled_from((16, 32, 48))
    depth, width, batch = draw(channels), draw(channels), draw(st.integers(1, 2))
    kernel, dilations = draw(st.sampled_from(KERNELS)), (1, draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    before, after = ((0, draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(2))
    reach = [(taps - 1) * dilation + 1 for taps, dilation in zip(kernel, dilations, strict=True)]
    height, wide = (max(1, reach[a] - before[a] - after[a]) + draw(st.integers(0, 12)) for a in (1, 2))
    strides = (1, *(draw(st.sampled_from((1, 1, 2, 3))) if dilations[a] == 1 else 1 for a in (1, 2)))
    strides = strides if sides_of(kernel[1:], strides[1:]) else (1, 1, 1)
    halo = [(0, draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(4)]
    out = (1, *((one + before[a] + after[a] - reach[a]) // strides[a] + 1 for a, one in ((1, height), (2, wide))))
    block = 16 if order == "NCHWc" else 0
    return Convolution(
        Layout(batch, depth, (1, height, wide), order, block, halo[0], halo[1]),
        Layout(batch, width, out, order, block, halo[2], halo[3]),
        kernel,
        strides,
        dilations,
        pads=before,
    )


@st.composite
def lines(draw: st.DrawFn) -> Convolution:
    """Images of one row, longer than a block may take."""
    taps, dilation, pad = draw(st.integers(3, 11)), draw(st.integers(1, 5)), draw(st.integers(0, 6))
    size, batch = (taps - 1) * dilation + 1 + draw(st.integers(0, 120)), draw(st.integers(1, 3))
    depth, width = draw(st.sampled_from((16, 32))), draw(st.sampled_from((8, 32)))
    return convolution(
        batch, depth, width, (size,), (taps,), dilations=(dilation,), pads=(pad, draw(st.integers(0, 6))),
        order="NCHWc", halo=draw(st.sampled_from((None, 1))),
    )  # fmt: skip


@given(st.one_of(problems(), lines()), st.integers(0, 4), st.integers(0, 20), st.sampled_from((host(), x86_64_v3())))
@settings(deadline=None, max_examples=120)
def test_any_plain_convolution_is_what_its_definition_says(problem, way, number, target):
    several = sides_of(problem.kernel[1:], problem.strides[1:])
    found = [one for one in winograd.candidates(problem, target) if one.sides == several[way % len(several)]]
    taken = sample(problem)
    candidate = found[number % len(found)]
    if number % 3 == 0:
        candidate = winograd_choice.share(problem, candidate, target)
    kernel = winograd.build(problem, candidate, target)
    np.testing.assert_allclose(run(kernel, taken), taken.expected, atol=TOLERANCE)


@st.composite
def deep(draw: st.DrawFn) -> Convolution:
    """Kernels that see several planes, some of which lie beside the images, or one of several planes."""
    order, taps = draw(st.sampled_from(("NCHWc", "NHWC"))), draw(st.integers(1, 3))
    channels = st.integers(1, 40) if order == "NCHWc" else st.sampled_from((16, 32, 48))
    groups = draw(st.integers(1, 2)) if order == "NHWC" else 1
    depth, width, batch = groups * draw(channels), groups * draw(channels), draw(st.integers(1, 2))
    stride, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    before, after = (draw(st.integers(0, 2)) if taps > 1 else 0 for _ in range(2))
    reach = (taps - 1) * dilation + 1
    planes = max(1, reach - before - after) + draw(st.integers(0, 3))
    size = draw(st.integers(3, 9)), draw(st.integers(3, 9))
    out = ((planes + before + after - reach) // stride + 1, *size)
    block, halo = 16 if order == "NCHWc" else 0, (draw(st.integers(0, 1)), 0, 1)
    return Convolution(
        Layout(batch, depth, (planes, *size), order, block, halo, halo), Layout(batch, width, out, order, block),
        (taps, 3, 3), (stride, 1, 1), (dilation, 1, 1), (before, 1, 1), groups,
    )  # fmt: skip


@given(deep(), st.integers(0, 40), st.sampled_from((host(), x86_64_v3())))
@settings(deadline=None, max_examples=25)
def test_kernels_of_several_planes_are_what_their_definition_says(problem, number, target):
    found = winograd.candidates(problem, target)
    candidate = found[number % len(found)]
    if number % 3 == 0:
        candidate = winograd_choice.share(problem, candidate, target)
    taken = sample(problem)
    np.testing.assert_allclose(run(winograd.build(problem, candidate, target), taken), taken.expected, atol=TOLERANCE)


@st.composite
def several(draw: st.DrawFn) -> Convolution:
    """Small images of a batch, perhaps of several planes, groups, and weights of 16 bits."""
    order, groups = draw(st.sampled_from(("NCHWc", "NHWC"))), draw(st.integers(1, 3))
    depth, width = (groups * draw(st.sampled_from((16, 32))) for _ in range(2))
    planes, taps = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    size, stored = (draw(st.integers(3, 9)), draw(st.integers(3, 9))), (planes + taps - 1,)
    batch, block = draw(st.integers(2, 9)), 16 if order == "NCHWc" else 0
    dtype = draw(st.sampled_from((DType.F32, DType.F32, DType.F16))) if taps == 1 else DType.F32
    return Convolution(
        Layout(batch, depth, (*stored, *size), order, block), Layout(batch, width, (planes, *size), order, block),
        (taps, 3, 3), pads=(0, 1, 1), groups=groups, weights_dtype=dtype,
    )  # fmt: skip


@given(several(), st.integers(0, 60), st.booleans(), st.sampled_from((host(), x86_64_v3())))
@settings(deadline=None, max_examples=25)
def test_images_that_share_weights_are_what_their_definition_says(problem, number, shared, target):
    bias = problem.bias()
    problem = problem.with_epilogue(lambda sums: relu(sums + bias))
    found = [one for one in winograd.candidates(problem, target) if one.images > 1]
    candidate = found[number % len(found)]
    if shared:
        candidate = winograd_choice.share(problem, candidate, target)
    taken, numbers = sample(problem), np.linspace(-1, 1, problem.output.channels, dtype=np.float32)
    if problem.weights_dtype is DType.F16:
        taken = replace(taken, weights=taken.weights.astype(np.float16))
    expected = np.maximum(taken.expected + numbers[:, None, None, None], 0)
    found = run(winograd.build(problem, candidate, target), taken, {"bias": numbers})
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_small_images_share_weights_that_no_cache_keeps():
    problem = convolution(8, 512, 512, (7, 7), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
    target = x86_64_v4()
    best = winograd.candidates(problem, target)[0]
    alone = min((one for one in winograd.candidates(problem, target) if one.images == 1),
                key=lambda one: winograd_choice.estimate(problem, one, target))  # fmt: skip
    assert best.images > 1
    assert winograd_choice.estimate(problem, best, target) < 0.7 * winograd_choice.estimate(problem, alone, target)


def test_planes_that_no_output_sees_are_no_work():
    """Of an image of one plane the middle one of three taps is seen, and the estimate knows it."""
    one, three = (
        convolution(1, 64, 64, (planes, 56, 56), (3, 3, 3), pads=(pad, 1, 1, pad, 1, 1), order="NCHWc")
        for planes, pad in ((1, 1), (3, 0))
    )
    seen, all_seen = (
        winograd_choice.estimate(each, winograd.candidates(each, x86_64_v4())[0], x86_64_v4()) for each in (one, three)
    )
    assert one.output == three.output and seen < 0.6 * all_seen


def test_the_epilogue_sees_bias_and_residual():
    problem = convolution(1, 32, 40, (9, 6), (3, 3), pads=(1, 1, 1, 1), order="NCHWc", output_halo=1)
    bias, residual = problem.bias(), problem.like_output("residual")
    problem = problem.with_epilogue(lambda sums: relu(sums + bias + residual))
    taken, generator = sample(problem), np.random.default_rng(1)
    numbers = generator.standard_normal(40).astype(np.float32)
    other = generator.standard_normal((1, 40, 1, 9, 6)).astype(np.float32)
    kernel = winograd.build(problem, winograd.candidates(problem, host())[0], host())
    found = run(kernel, taken, {"bias": numbers, "residual": problem.output.store(other)})
    expected = np.maximum(taken.expected + numbers[:, None, None, None] + other, 0)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@st.composite
def grouped(draw: st.DrawFn) -> Convolution:
    order = draw(st.sampled_from(("NCHWc", "NCHWc", "NHWC")))
    channels = st.sampled_from((4, 8, 16, 32)) if order == "NCHWc" else st.sampled_from((16, 32))
    depth, width, groups = draw(channels), draw(channels), draw(st.integers(2, 7))
    size, pad = (draw(st.integers(3, 9)), draw(st.integers(3, 9))), draw(st.integers(0, 1))
    return convolution(
        draw(st.integers(1, 2)), groups * depth, groups * width, size, (3, 3), pads=(pad,) * 4, groups=groups,
        order=order, halo=draw(st.sampled_from((None, 1))), output_halo=draw(st.integers(0, 1)),
    )  # fmt: skip


@given(grouped(), st.integers(0, 40), st.sampled_from((host(), x86_64_v3())))
@settings(deadline=None, max_examples=20)
def test_groups_are_what_their_definition_says(problem, number, target):
    bias = problem.bias()
    problem = problem.with_epilogue(lambda sums: relu(sums + bias + 1.0))  # not zero where no channel is
    found = winograd.candidates(problem, target)
    if not found:
        return
    taken, numbers = sample(problem), np.linspace(-1, 1, problem.output.channels, dtype=np.float32)
    candidate = found[number % len(found)]
    if number % 3 == 0:
        candidate = winograd_choice.share(problem, candidate, target)
    expected = np.maximum(taken.expected + numbers[:, None, None, None] + 1, 0)
    kernel = winograd.build(problem, candidate, target)
    np.testing.assert_allclose(run(kernel, taken, {"bias": numbers}), expected, atol=TOLERANCE)


def test_groups_that_have_a_winograd_form_and_others():
    def has(groups: int, depth: int, width: int, order: Order = "NCHWc") -> bool:
        problem = convolution(1, groups * depth, groups * width, (9, 9), (3, 3), groups=groups, order=order)
        return bool(winograd.candidates(problem, host()))

    assert has(2, 16, 16) and has(8, 64, 64) and has(4, 32, 32, "NHWC")
    assert has(55, 8, 8), "the last group fills half of a block, and the other half is zero"
    assert not has(7, 24, 24), "the last group has two blocks, and others have three"
    assert not has(4, 8, 8, "NHWC"), "vectors would reach into the next group"


def test_convolutions_with_strides_that_have_a_winograd_form_and_others():
    def has(kernel: tuple[int, int], channels: int = 32, dilations: tuple[int, int] = (1, 1)) -> bool:
        strided = convolution(1, channels, channels, (9, 9), kernel, strides=(2, 2), dilations=dilations, order="NCHWc")
        return bool(winograd.candidates(strided, host()))

    assert has((3, 3)) and has((1, 3)) and has((5, 5)) and has((7, 7))
    assert not has((2, 2)), "each row is seen by one tap"
    assert not has((3, 3), dilations=(2, 2)), "strides and dilations at once"
    assert not has((3, 3), 1024), "the points take 64 times as many bytes as the channels' pairs"


@pytest.mark.parametrize("outputs", [2, 4])
def test_weights_have_the_same_bits_in_however_many_pieces_they_are_transformed(outputs):
    """Of more pairs of channels than are transformed at once: each number is that of its own pair alone."""
    drawn = np.random.default_rng(0).standard_normal((3, TOGETHER // 2, 3, 3))
    weights, made = drawn.astype(np.float32), (FILTERINGS[outputs, 3],) * 2
    found, alone = (np.empty((points_of(made), *pairs), np.float32) for pairs in ((TOGETHER // 2, 3), (1, 1)))
    transform(weights, made, found)
    for output, channel in ((0, 0), (1, 7), (2, TOGETHER // 2 - 1)):
        transform(weights[output : output + 1, channel : channel + 1], made, alone)
        assert np.array_equal(found[:, channel, output], alone[:, 0, 0])


def first(problem: Convolution, outputs: int) -> Winograd:
    return next(one for one in winograd.candidates(problem, host()) if one.sides[0] == (outputs, 3))


@pytest.mark.parametrize("outputs, bound", ((2, 1e-6), (4, 3e-6)))
def test_the_error_is_small_beside_the_largest_output(outputs, bound):
    """The bounds for sums of some hundred products that the choice of points rests on."""
    problem = convolution(1, 64, 64, (24, 24), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
    taken = sample(problem)
    expected = taken.expected
    found = run(winograd.build(problem, first(problem, outputs), host()), taken)
    assert 0 < np.abs(found - expected).max() / np.abs(expected).max() < bound


def test_small_images_of_many_channels_take_the_smaller_tiles():
    def outputs(channels: int, size: int) -> int:
        same = convolution(1, channels, channels, (size, size), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
        return winograd.candidates(same, x86_64_v4())[0].sides[0][0]

    assert (outputs(512, 7), outputs(64, 56)) == (2, 4)


def test_the_smaller_tiles_need_fewer_weights():
    problem = convolution(1, 64, 64, (14, 14), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
    sizes = [winograd.build(problem, first(problem, outputs), host()).operand("weights").elements for outputs in (2, 4)]
    assert sizes == [16 * 64 * 64, 36 * 64 * 64]


def test_blocks_of_other_rows_and_channels_share_all_but_the_products_of_their_tiles():
    """Few tiles ask for the weights that follow by more lines each, so they are functions of their own."""
    problem = convolution(1, 128, 128, (28, 28), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
    whole = Winograd(((4, 3), (4, 3)), chunk=7, rows=7, vectors=2)
    half = Winograd(((4, 3), (4, 3)), chunk=7, rows=7, vectors=2, stretch=2, room=7)
    few = Winograd(((4, 3), (4, 3)), chunk=3, rows=7, vectors=2, stretch=1, room=7)
    found = [dict(winograd.build(problem, one, host()).module.functions) for one in (whole, half, few)]
    for functions in found:
        del functions["winograd"]  # the entry, which says what a block has
    alone, halves, thirds = found
    assert halves == alone
    tile = "winograd_tile_f32_7x2x128_128_1_32_128_16be"
    assert {name for name, text in thirds.items() if alone.get(name) != text} == {
        "winograd_products_21", "winograd_products_14", f"{tile}_p3", f"{tile}_p5"
    }  # fmt: skip


@pytest.mark.parametrize("target", NAMED, ids=lambda target: target.cpu)
def test_no_likely_candidate_keeps_sums_on_the_stack(target):
    problem = convolution(1, 64, 64, (14, 14), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
    for candidate in winograd.candidates(problem, target)[:4]:
        listing = hot_loop(assembly(winograd.build(problem, candidate, target).module.text(), target))
        assert spills(listing) == 0, f"{candidate}"
