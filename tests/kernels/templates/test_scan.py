"""Cumulative sums, against NumPy, between guard pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.target import Target, host
from kernels.templates import scan
from kernels.templates.scan import CumulativeSum, InvalidScan
from tests.kernels.guard import run_guarded
from tests.kernels.targets import HERE

seeds = st.integers(0, 1000)


@pytest.mark.parametrize("inner", [1, 15, 16, 40, 64, 79, 200])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64])
@pytest.mark.parametrize("target", HERE, ids=range(len(HERE)))
def test_vectors_that_go_along_together(inner: int, dtype: DType, target: Target) -> None:
    """As many positions as one vector has, as several have, and what is left of a row in shorter ones."""
    x = np.arange(3 * 5 * inner).reshape(3, 5, inner).astype(dtype.numpy)
    kernel = scan.build(CumulativeSum(x.shape, 1, dtype, exclusive=True), target)
    got = run_guarded(kernel, {"x": x})["y"].reshape(x.shape)
    np.testing.assert_array_equal(got, np.cumsum(x, axis=1) - x)


@settings(deadline=None, max_examples=15)
@given(shape=st.lists(st.integers(0, 20), min_size=1, max_size=3).map(tuple), axis=st.integers(-1, 2),
       dtype=st.sampled_from([DType.F32, DType.F64, DType.I32, DType.I64]), exclusive=st.booleans(),
       reverse=st.booleans(), seed=seeds)  # fmt: skip
def test_cumulative_sums(
    shape: tuple[int, ...], axis: int, dtype: DType, exclusive: bool, reverse: bool, seed: int
) -> None:
    axis = min(axis, len(shape) - 1)
    x = np.random.default_rng(seed).integers(-50, 50, shape).astype(dtype.numpy)  # sums are exact in every type
    kernel = scan.build(CumulativeSum(shape, axis, dtype, exclusive, reverse), host())
    got = run_guarded(kernel, {"x": x})["y"].reshape(shape)
    turned = np.flip(x, axis) if reverse else x
    expected = np.cumsum(turned, axis=axis) - (turned if exclusive else 0)
    np.testing.assert_array_equal(got, np.flip(expected, axis) if reverse else expected)


def test_refusals_say_why() -> None:
    with pytest.raises(InvalidScan, match="axis 1 is outside of 1 dims"):
        CumulativeSum((4,), 1)
