"""Cumulative sums and the largest elements, against NumPy, between guard pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.target import host
from kernels.templates import scan, topk
from kernels.templates.scan import CumulativeSum, InvalidScan
from kernels.templates.topk import FEW, InvalidTopK, TopK
from tests.kernels.guard import run_guarded

seeds = st.integers(0, 1000)


@settings(deadline=None, max_examples=30)
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


def _order(rows: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """Positions of the first k of each row [rows, size]; NaN is the largest, earlier ones come first among equals."""
    found = []
    for row in rows.tolist():
        key = [(np.isnan(value), 0.0 if np.isnan(value) else value) for value in row]
        found.append(
            sorted(range(len(row)), key=lambda p: (key[p], -p) if largest else (key[p], p), reverse=largest)[:k]
        )
    return np.array(found, np.int64).reshape(len(rows), k)


@settings(deadline=None, max_examples=40)
@given(outer=st.integers(1, 3), size=st.one_of(st.integers(1, 20), st.integers(60, 150)), inner=st.integers(1, 3),
       dtype=st.sampled_from([DType.F32, DType.I64, DType.U8]), largest=st.booleans(), nan=st.booleans(), seed=seeds,
       data=st.data())  # fmt: skip
def test_largest_and_smallest(
    outer: int, size: int, inner: int, dtype: DType, largest: bool, nan: bool, seed: int, data: st.DataObject
) -> None:
    k = data.draw(st.sampled_from(sorted({0, 1, size // 2, min(size, FEW), size})))
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 12, (outer, size, inner)).astype(dtype.numpy)  # many equal ones
    if nan and dtype is DType.F32:
        x[generator.random(x.shape) < 0.2] = np.nan
    got = run_guarded(topk.build(TopK(outer, size, inner, k, dtype, largest), host()), {"x": x})
    positions = got["positions"].reshape(outer, k, inner)
    rows = x.transpose(0, 2, 1).reshape(-1, size)
    expected = _order(rows, k, largest).reshape(outer, inner, k).transpose(0, 2, 1)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(got["values"].reshape(outer, k, inner), np.take_along_axis(x, expected, axis=1))


def test_refusals_say_why() -> None:
    with pytest.raises(InvalidTopK, match="k is 5, and the axis has 4 elements"):
        TopK(1, 4, 1, 5)
    with pytest.raises(InvalidTopK, match="cast to f32 before"):
        TopK(1, 4, 1, 2, DType.F16)
    with pytest.raises(InvalidScan, match="axis 1 is outside of 1 dims"):
        CumulativeSum((4,), 1)
