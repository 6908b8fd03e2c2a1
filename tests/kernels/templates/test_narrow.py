"""Weights of 16 bits: results are those of the same numbers in float32, to the rounding of the kernels' own sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.run import Executable, aligned
from kernels.target import host, x86_64_v3
from kernels.templates.convolution import choose, direct, winograd, winograd_choice
from kernels.templates.convolution.direct_candidate import Direct
from kernels.templates.convolution.problem import InvalidConvolution, convolution
from kernels.templates.convolution.winograd_parts import sides_of
from kernels.templates.gemm import Gemm, InvalidGemm, build, candidates
from kernels.templates.matrix import Matrix
from kernels.templates.narrow import numbers
from kernels.templates.recurrent.build import RECURRENT
from kernels.templates.recurrent.problem import InvalidRecurrent, Recurrent
from tests.kernels.guard import run_guarded
from tests.kernels.targets import HERE
from tests.kernels.templates.convolution.oracle import Sample, run, sample

NARROW = st.sampled_from((DType.F16, DType.BF16))


def _short(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Numbers rounded to a short type, as they lie in memory."""
    if dtype is DType.F16:
        return array.astype(np.float16)
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_numbers_are_those_that_the_bits_say() -> None:
    given = np.array([1.5, -0.0, np.inf, 2.0**-14], np.float32)
    for dtype in (DType.F16, DType.BF16):
        np.testing.assert_array_equal(numbers(_short(given, dtype), dtype), given)


@settings(deadline=None, max_examples=20)
@given(
    dims=st.tuples(st.integers(1, 40), st.integers(1, 90), st.integers(0, 150)), batch=st.integers(1, 3),
    choice=st.integers(0, 9), dtype=NARROW, target=st.sampled_from(HERE),
)  # fmt: skip
def test_a_product_widens_what_it_reads(dims, batch, choice, dtype, target) -> None:
    m, n, k = dims
    generator = np.random.default_rng([m, n, k])
    a, b = generator.standard_normal((batch, m, k)).astype(np.float32), generator.standard_normal((batch, k, n))
    stored = _short(b, dtype)
    gemm = Gemm(m, n, k, (batch,), b_dtype=dtype)
    found = candidates(gemm, target)
    kernel = build(gemm, found[choice % len(found)], target)
    operand = kernel.operand("b")
    assert operand.dtype is dtype and operand.packing is not None
    got = run_guarded(kernel, {"a": a, "b": operand.packing.pack(stored)})["c"].reshape(batch, m, n)
    exact = a.astype(np.float64) @ numbers(stored, dtype)
    assert (np.abs(got - exact) <= (k + 2) * 2.0**-24 * (np.abs(a) @ np.abs(numbers(stored, dtype))) + 1e-30).all()


def test_only_constants_of_float32_products_lie_narrow() -> None:
    for wrong in (
        {"b_dtype": DType.I8}, {"b_dtype": DType.F16, "constant_b": False},
        {"b_dtype": DType.F16, "arithmetic": "bf16"},
    ):  # fmt: skip
        with pytest.raises(InvalidGemm, match="no constant that a product of float32 widens"):
            Gemm(2, 3, 4, **wrong)
    with pytest.raises(InvalidConvolution, match="weights of i8 are none that a convolution widens"):
        replace(convolution(1, 4, 4, (5, 5), (3, 3)), weights_dtype=DType.I8)
    with pytest.raises(InvalidRecurrent, match="R of i8 is none that a layer widens"):
        Recurrent("gru", 2, 1, 4, r_dtype=DType.I8)


def test_a_batch_of_one_row_reads_half_the_bytes() -> None:
    wide, narrow = (
        build(gemm, candidates(gemm, host())[0], host())
        for gemm in (Gemm(1, 64, 64), Gemm(1, 64, 64, b_dtype=DType.F16))
    )
    assert 2 * narrow.operand("b").bytes == wide.operand("b").bytes
    assert narrow.scratch_bytes == 0, "a tile that is alone widens as it loads"
    several = Gemm(200, 64, 64, b_dtype=DType.F16)
    assert build(several, candidates(several, host())[0], host()).scratch_bytes > 0


def _convolved(problem, kernel, dtype) -> tuple[np.ndarray, np.ndarray]:
    taken = sample(problem)
    stored = _short(taken.weights, dtype)
    return run(kernel, Sample(problem, taken.x, stored)), Sample(problem, taken.x, numbers(stored, dtype)).expected


@settings(deadline=None, max_examples=20)
@given(
    channels=st.tuples(st.integers(1, 40), st.integers(1, 40)), size=st.tuples(*[st.integers(3, 12)] * 2),
    kernel=st.sampled_from((1, 3)), stride=st.integers(1, 2), order=st.sampled_from(("NCHW", "NHWC", "NCHWc")),
    number=st.integers(0, 30), dtype=NARROW, target=st.sampled_from(HERE),
)  # fmt: skip
def test_a_direct_convolution_widens(channels, size, kernel, stride, order, number, dtype, target) -> None:
    plain = convolution(
        1, *channels, size, (kernel, kernel), strides=(stride, stride), pads=(kernel // 2,) * 4, order=order
    )
    problem = replace(plain, weights_dtype=dtype)
    found = choose.candidates(problem, target)
    got, expected = _convolved(problem, direct.build(problem, found[number % len(found)], target), dtype)
    np.testing.assert_allclose(got, expected, atol=3e-5)


def test_parts_of_the_channels_are_widened_one_after_the_other() -> None:
    problem = replace(convolution(1, 64, 32, (7, 7), (3, 3), pads=(1,) * 4, order="NCHWc"), weights_dtype=DType.F16)
    for outside in (False, True):
        candidate = Direct(1, 7, 2, 7, 1, 4 if outside else 1, outside)
        kernel = direct.build(problem, candidate, host())
        got, expected = _convolved(problem, kernel, DType.F16)
        np.testing.assert_allclose(got, expected, atol=3e-5)
        assert kernel.operand("weights").bytes == 2 * 64 * 32 * 9


@settings(deadline=None, max_examples=30)
@given(
    channels=st.tuples(st.integers(1, 40), st.integers(1, 40)), size=st.tuples(*[st.integers(3, 14)] * 2),
    kernel=st.sampled_from(((3, 3), (3, 3), (5, 5), (1, 3), (5, 1), (1, 7))), way=st.integers(0, 2),
    from_taps=st.booleans(), number=st.integers(0, 20), dtype=NARROW, target=st.sampled_from((host(), x86_64_v3())),
)  # fmt: skip
def test_a_winograd_convolution_transforms_narrow_weights(
    channels, size, kernel, way, from_taps, number, dtype, target
):
    pads = tuple(taps // 2 for taps in kernel) * 2
    problem = replace(convolution(1, *channels, size, kernel, pads=pads, order="NCHWc", block=16), weights_dtype=dtype)
    several = sides_of(kernel)
    found = [one for one in winograd_choice.candidates(problem, target) if one.sides == several[way % len(several)]]
    kernel = winograd.build(problem, replace(found[number % len(found)], from_taps=from_taps), target)
    assert kernel.operand("weights").dtype is (dtype if from_taps else DType.F32)
    got, expected = _convolved(problem, kernel, dtype)
    np.testing.assert_allclose(got, expected, atol=3e-5)


def test_few_weights_are_transformed_ahead() -> None:
    plain = convolution(1, 32, 32, (14, 14), (3, 3), pads=(1,) * 4, order="NCHWc")
    problem = replace(plain, weights_dtype=DType.F16)
    many, none = (replace(host(), constants=constants) for constants in (1 << 30, None))
    assert not any(one.from_taps for one in winograd_choice.candidates(problem, many))
    assert all(one.from_taps for one in winograd_choice.candidates(problem, none))


@pytest.mark.parametrize("dtype", (DType.F16, DType.BF16))
def test_a_recurrent_layer_widens_what_it_reads(dtype: DType) -> None:
    generator = np.random.default_rng(3)
    r = _short(generator.standard_normal((1, 4 * 20, 20)) / 5, dtype)
    gates = generator.standard_normal(3 * 2 * 4 * 20).astype(np.float32)
    results = []
    for layer, stored in (
        (Recurrent("lstm", 3, 2, 20), numbers(r, dtype)), (Recurrent("lstm", 3, 2, 20, r_dtype=dtype), r)
    ):  # fmt: skip
        kernel = RECURRENT.kernel(layer, host())
        operand = kernel.operand("r")
        assert operand.packing is not None
        state = np.zeros(2 * 20, np.float32)
        arrays = {"gates": gates, "r": operand.packing.pack(stored), "initial_h": state, "initial_c": state.copy()}
        arrays |= {one.name: aligned(one.elements) for one in kernel.operands if one.role == "output"}
        Executable([kernel])(arrays)
        results.append(arrays["y"].copy())
    np.testing.assert_array_equal(*results)


def test_the_problem_needs_no_more_of_a_matrix_than_its_place() -> None:
    """A transposed constant is packed from where it lies."""
    b = np.random.default_rng(1).standard_normal((24, 40)).astype(np.float16)
    gemm = Gemm(3, 24, 40, b=Matrix(1, 40), b_dtype=DType.F16)
    kernel = build(gemm, candidates(gemm, host())[0], host())
    a = np.ones((3, 40), np.float32)
    packing = kernel.operand("b").packing
    assert packing is not None
    got = run_guarded(kernel, {"a": a, "b": packing.pack(b)})["c"].reshape(3, 24)
    np.testing.assert_allclose(got, a @ b.astype(np.float32).T, rtol=1e-5, atol=1e-5)
