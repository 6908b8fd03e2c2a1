"""Direct convolution against its definition in float64: every order of dims, stride, dilation, pad and group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernels.llvm.compile import assembly
from kernels.target import host, x86_64_v3, x86_64_v4
from kernels.templates.convolution import choose
from kernels.templates.convolution.choose import candidates
from kernels.templates.convolution.direct import build
from kernels.templates.convolution.direct_candidate import Direct
from kernels.templates.convolution.layout import Layout, Order
from kernels.templates.convolution.problem import Convolution, InvalidConvolution, convolution, output_size
from kernels.templates.convolution.taps import needed, share, skips
from kernels.templates.grid import Group, balanced
from kernels.tensor.expression import Buffer, clip, relu, silu
from tests.kernels.machine_code import spills
from tests.kernels.targets import NAMED
from tests.kernels.templates.convolution.oracle import run, sample

# Sums of at most a few thousand products near 1/sqrt(n): float32 keeps 6e-8 of each, errors grow as sqrt(n).
TOLERANCE = 2e-5
ORDERS: tuple[Order, ...] = ("NCHW", "NHWC", "NCHWc")


@st.composite
def problems(draw: st.DrawFn, dilation: int = 2, pad: int = 3) -> Convolution:
    rank = draw(st.sampled_from((1, 2, 2, 2, 3)))

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    def whole(numbers: tuple[int, ...], otherwise: int) -> tuple[int, int, int]:
        a, b, c = (*(otherwise,) * (3 - rank), *numbers)
        return a, b, c

    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 4)))
    depth, width = draw(st.integers(1, 20)), draw(st.integers(1, 40 // groups))
    kernel, strides, dilations = whole(some(1, 4), 1), whole(some(1, 3), 1), whole(some(1, dilation), 1)
    before, after = whole(some(0, pad), 0), whole(some(0, pad), 0)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [max(1, r - b - a) for r, b, a in zip(reach, before, after, strict=True)]
    size = whole(tuple(low + draw(st.integers(0, 9)) for low in least[3 - rank :]), 1)
    batch = draw(st.integers(1, 2))
    orders = draw(st.sampled_from(ORDERS)), draw(st.sampled_from(ORDERS))
    halo = (before, after) if draw(st.booleans()) else ((0, 0, 0), (0, 0, 0))
    rim = whole(some(0, 1), 0)
    block = {order: 16 if order == "NCHWc" else 0 for order in ORDERS}
    out = output_size(size, kernel, strides, dilations, before, after)
    return Convolution(
        Layout(batch, depth * groups, size, orders[0], block[orders[0]], *halo),
        Layout(batch, width * groups, out, orders[1], block[orders[1]], rim, rim),
        kernel, strides, dilations, before, groups,
    )  # fmt: skip


@given(
    st.one_of(problems(), problems(dilation=14, pad=16)), st.integers(0, 9), st.sampled_from((host(), x86_64_v3()))
)  # fmt: skip
@settings(deadline=None, max_examples=50)
def test_any_convolution_is_what_its_definition_says(problem, number, target):
    taken = sample(problem)
    found = candidates(problem, target)
    kernel = build(problem, found[number % len(found)], target)
    np.testing.assert_allclose(run(kernel, taken), taken.expected, atol=TOLERANCE)


@pytest.mark.parametrize("dilation, left", [(1, (0, 3)), (12, (1, 2)), (36, (1, 2))])
def test_a_tile_inside_of_the_pads_needs_the_middle_tap(dilation, left):
    wide = convolution(1, 4, 4, (14, 14), (3, 3), dilations=(dilation,) * 2, pads=(dilation,) * 4)
    assert needed(wide, 1, 4, 2) == left
    assert skips(wide, balanced(14, 2), balanced(14, 4)) == (dilation > 1)


@given(
    st.integers(1, 7), st.integers(1, 12), st.integers(1, 4), st.integers(0, 14), st.integers(1, 60), st.integers(1, 9)
)
def test_the_share_of_taps_is_that_of_every_piece(taps, dilation, stride, pad, size, rows):
    assume(size + 2 * pad > (taps - 1) * dilation)
    problem = convolution(
        1, 4, 4, (size, 3), (taps, 1), strides=(stride, 1), dilations=(dilation, 1), pads=(pad, 0, pad, 0)
    )
    pieces = [(start, min(rows, problem.output.size[1] - start)) for start in range(0, problem.output.size[1], rows)]
    taken = sum(rows * (end - first) for start, rows in pieces for first, end in [needed(problem, 1, start, rows)])
    groups = [Group(rows, len(pieces) - 1, 0, 0), Group(pieces[-1][1], 1, len(pieces) - 1, pieces[-1][0])]
    assert share(problem, 1, groups) == taken / (taps * problem.output.size[1])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("halo", (0, 1))
def test_bias_residual_and_activation_are_applied_where_the_sums_end(order, halo):
    problem = convolution(2, 20, 24, (7, 9), (3, 3), pads=(1, 1, 1, 1), order=order, halo=halo, output_halo=1)
    bias, residual = problem.bias(), problem.like_output("residual")
    problem = problem.with_epilogue(lambda sums: silu(sums + bias) + residual)
    taken, generator = sample(problem), np.random.default_rng(1)
    numbers = generator.standard_normal(24).astype(np.float32)
    other = generator.standard_normal((2, 24, 1, 7, 9)).astype(np.float32)
    kernel = build(problem, candidates(problem, host())[0], host())
    found = run(kernel, taken, {"bias": numbers, "residual": problem.output.store(other)})
    sums = taken.expected + numbers[:, None, None, None]
    np.testing.assert_allclose(found, sums / (1 + np.exp(-sums)) + other, atol=TOLERANCE)


def test_a_factor_per_image_and_channel_can_be_applied():
    problem = convolution(2, 16, 32, (5, 5), (1, 1), order="NCHWc")
    image, block, _, _, _, lane = problem.variables
    scale = Buffer("scale", problem.epilogue.dtype, (2, 2, 16))[image, block, lane]
    problem = problem.with_epilogue(lambda sums: clip(sums * scale, -0.5, 0.5))
    taken = sample(problem)
    factors = np.random.default_rng(2).standard_normal((2, 32)).astype(np.float32)
    found = run(build(problem, candidates(problem, host())[0], host()), taken, {"scale": factors})
    np.testing.assert_allclose(
        found, np.clip(taken.expected * factors[..., None, None, None], -0.5, 0.5), atol=TOLERANCE
    )


@pytest.mark.parametrize("kernel", (1, 3))
@pytest.mark.parametrize("halo", (0, 1))
@pytest.mark.parametrize("width", (48, 40))
def test_weights_taken_in_parts_give_the_same_sums(kernel, halo, width):
    pad = kernel // 2
    problem = convolution(1, 64, width, (7, 7), (kernel, kernel), pads=(pad,) * 4, order="NCHWc", halo=halo)
    problem = problem.with_epilogue(relu)
    taken = sample(problem)
    for rows, columns, stretch in ((1, 7, 7), (2, 3, 2), (1, 4, 3)):
        candidate = Direct(rows, columns, 2 if kernel == 1 else 1, stretch, 2, splits=4, channels_outside=True)
        found = run(build(problem, candidate, host()), taken)
        np.testing.assert_allclose(found, np.maximum(taken.expected, 0), atol=TOLERANCE)


@pytest.mark.parametrize("width, halves", [(24, True), (25, False), (32, False), (8, True)])
def test_channels_that_fill_half_a_vector_of_64_bytes_take_half_of_one(width, halves):
    problem = convolution(1, 8, width, (5, 6), (1, 1), order="NCHWc")
    text = build(problem, Direct(1, 6, -(-width // 16), 5, 2), x86_64_v4()).module.text()
    assert ("@llvm.fma.v8f32" in text) == halves and ("@llvm.fma.v16f32" in text) == (width > 8)


def test_blocks_of_other_rows_share_their_function_also_where_weights_are_taken_in_parts():
    problem = convolution(1, 64, 48, (7, 7), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
    whole = Direct(1, 7, 1, 7, 2, splits=4, channels_outside=True)
    few = replace(whole, row_stretch=2, larger=7)
    alone, several = (build(problem, one, host()) for one in (whole, few))
    names = set(alone.module.functions) - {alone.name}
    assert several.blocks > alone.blocks and names == set(several.module.functions) - {several.name}
    assert all(alone.module.functions[name] == several.module.functions[name] for name in names)
    assert several.scratch_bytes < alone.scratch_bytes  # the sums of fewer rows


def test_the_next_tile_of_weights_is_asked_for_where_all_pixels_go_over_one():
    def asks(problem: Convolution, outside: bool) -> bool:
        text = build(problem, Direct(2, 4, 2, 2, 2, channels_outside=outside), x86_64_v4()).module.text()
        return "i32 0, i32 2, i32 1" in text  # a read, into the second cache

    large, small = (convolution(1, size, size, (9, 9), (3, 3), order="NCHWc", halo=0) for size in (64, 16))
    assert asks(large, True) and not asks(large, False)
    assert not asks(small, True), "the first cache holds all of them"


def test_flat_pixels_give_the_same_sums_as_rows():
    problem = convolution(2, 32, 32, (5, 7), (1, 1), order="NCHWc")
    taken = sample(problem)
    for splits in (1, 2):
        found = run(build(problem, Direct(1, 6, 2, 2, 1, splits, True, flat=True), host()), taken)
        np.testing.assert_allclose(found, taken.expected, atol=TOLERANCE)


@pytest.mark.parametrize("target", NAMED, ids=lambda target: target.cpu)
def test_no_candidate_keeps_sums_on_the_stack(target):
    shapes = (
        convolution(1, 64, 64, (14, 14), (3, 3), pads=(1, 1, 1, 1), order="NCHWc", halo=1),
        convolution(1, 64, 64, (7, 7), (1, 1), order="NCHWc"),
        convolution(1, 3, 64, (30, 30), (7, 7), pads=(3, 3, 3, 3), strides=(2, 2), output_order="NCHWc"),
    )
    for problem in shapes:
        for candidate in candidates(problem, target):
            text = build(problem, candidate, target).module.text()
            # A call's own saved registers are scalars; sums on the stack come by the hundred.
            assert spills(assembly(text, target)) <= 8, f"{candidate}"


def test_channels_that_do_not_divide_are_refused():
    with pytest.raises(InvalidConvolution, match="6 channels to 9 cannot be split into 4 groups"):
        convolution(1, 6, 9, (5, 5), (3, 3), groups=4)


def test_a_kernel_larger_than_its_input_is_refused():
    with pytest.raises(InvalidConvolution, match="sees nothing whole"):
        convolution(1, 6, 9, (2, 2), (3, 3))


def test_a_layout_stores_and_reads_back():
    images = np.arange(2 * 5 * 1 * 3 * 4, dtype=np.float32).reshape(2, 5, 1, 3, 4)
    for layout in (
        Layout(2, 5, (1, 3, 4), "NCHWc", 4, (0, 1, 2), (0, 3, 0)),
        Layout(2, 5, (1, 3, 4), "NHWC", 0, (0, 1, 0), (0, 0, 1)),
        Layout(2, 5, (1, 3, 4)),
    ):
        stored = layout.store(images)
        assert stored.size == layout.elements and np.count_nonzero(stored) == np.count_nonzero(images)
        np.testing.assert_array_equal(layout.read(stored), images)
        at = layout.position(1, 4, (layout.before[0], layout.before[1] + 2, layout.before[2] + 3))
        assert stored[at] == images[1, 4, 0, 2, 3]
    assert replace(Layout(1, 8, (1, 2, 2)), order="NHWC", block=8).block == 8


@pytest.mark.parametrize("workers, most", ((0, 16), (2, 8), (4, 16)))
def test_blocks_that_copy_their_windows_are_few_where_workers_are(workers: int, most: int) -> None:
    target = replace(x86_64_v4(), workers=workers)
    problem = convolution(1, 256, 512, (28, 28), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), order="NCHWc")
    likely = choose.candidates(problem, target)[0]
    blocks = choose.blocks_of(problem, choose.share(problem, likely, target), target)
    assert max(2, workers) <= blocks <= most


def test_blocks_for_several_workers_have_room_for_their_windows() -> None:
    """Few channels and more rows than the block for one worker has, where weights outgrow the second cache."""
    problem = convolution(1, 128, 128, (28, 28), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), order="NCHWc")
    target, taken = replace(host(), l1=1 << 13, l2=1 << 15, workers=2), sample(problem)
    taller = 0
    for candidate in choose.candidates(problem, target):
        shared = choose.share(problem, candidate, target)
        if shared != candidate and shared.row_stretch > candidate.row_stretch:
            taller += 1
            np.testing.assert_allclose(run(build(problem, shared, target), taken), taken.expected, atol=TOLERANCE)
    assert taller


def test_many_channels_share_a_copied_window() -> None:
    """Weights outgrow the second cache, and so would the copy of the whole image that each channel tile needs else."""
    problem = convolution(1, 128, 256, (56, 56), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), order="NCHWc")
    likely = choose.candidates(problem, x86_64_v4())[0]
    assert likely.channel_stretch > 1 and likely.row_stretch < 14
