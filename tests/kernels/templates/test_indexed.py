"""Gathers and scatters against ONNX's definitions, written out position by position, between guard pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.target import host
from kernels.templates import indexed
from kernels.templates.indexed import Indexed, InvalidIndexing
from tests.kernels.guard import run_guarded

DTYPES = [DType.F32, DType.F64, DType.I64, DType.I32, DType.U8, DType.F16]
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 1000)


def _drawn(generator: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return (generator.integers(0, 100, shape) / (4 if dtype.is_float else 1)).astype(dtype.numpy)


_COMBINE = {"none": lambda old, new: new, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _element_places(index: np.ndarray, axis: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """ONNX's definition, position by position: where in the indices, and where in the data."""
    return [(p, (*p[:axis], int(index[p]), *p[axis + 1 :])) for p in np.ndindex(index.shape)]


def _slice_places(index: np.ndarray, batch: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(p, (*p[:batch], *(int(one) for one in index[p]))) for p in np.ndindex(index.shape[:-1])]


def _gathered(data: np.ndarray, places: list, shape: tuple[int, ...]) -> np.ndarray:
    found = np.zeros(shape, data.dtype)
    for plain, place in places:
        found[plain] = data[place]
    return found


def _scattered(data: np.ndarray, places: list, updates: np.ndarray, reduction: str) -> np.ndarray:
    found = data.copy()
    for plain, place in places:
        found[place] = _COMBINE[reduction](found[place], updates[plain])
    return found


def _check(problem: Indexed, expected: np.ndarray, **arrays: np.ndarray) -> None:
    got = run_guarded(indexed.build(problem, host()), arrays)["output"]
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)


@settings(deadline=None, max_examples=15)
@given(shape=shapes, indices=st.lists(st.integers(0, 4), max_size=2).map(tuple), axis=st.integers(-3, 2),
       dtype=st.sampled_from(DTYPES), seed=seeds)  # fmt: skip
def test_gather(shape: tuple[int, ...], indices: tuple[int, ...], axis: int, dtype: DType, seed: int) -> None:
    axis = max(-len(shape), min(axis, len(shape) - 1))
    generator = np.random.default_rng(seed)
    data = _drawn(generator, shape, dtype)
    index = generator.integers(-shape[axis], shape[axis], indices).astype(np.int32)
    problem = indexed.gather(shape, axis, indices, dtype, DType.I32)
    _check(problem, np.take(data, index, axis=axis), data=data, indices=index)


def test_long_rows_are_copied_as_vectors_and_by_several_blocks() -> None:
    generator = np.random.default_rng(0)
    data = generator.standard_normal((50, 1003)).astype(np.float32)
    index = generator.integers(-50, 50, 100)
    problem = indexed.gather((50, 1003), 0, (100,), DType.F32)
    assert indexed.build(problem, host()).blocks > 1
    _check(problem, data[index], data=data, indices=index)


@settings(deadline=None, max_examples=15)
@given(shape=shapes, axis=st.integers(0, 2), dtype=st.sampled_from(DTYPES), seed=seeds, data=st.data())
def test_elements(shape: tuple[int, ...], axis: int, dtype: DType, seed: int, data: st.DataObject) -> None:
    axis = min(axis, len(shape) - 1)
    generator = np.random.default_rng(seed)
    dims = tuple(data.draw(st.integers(1, 6 if dim == axis else size)) for dim, size in enumerate(shape))
    values, index = _drawn(generator, shape, dtype), generator.integers(-shape[axis], shape[axis], dims)
    expected = _gathered(values, _element_places(index, axis), dims)
    _check(indexed.gather_elements(shape, axis, dims, dtype), expected, data=values, indices=index)


@settings(deadline=None, max_examples=15)
@given(shape=shapes, axis=st.integers(0, 2), reduction=st.sampled_from(["none", "add", "mul", "min", "max"]),
       dtype=st.sampled_from([DType.F32, DType.I64, DType.I32]), seed=seeds)  # fmt: skip
def test_scatter_elements(
    shape: tuple[int, ...], axis: int, reduction: indexed.Reduction, dtype: DType, seed: int
) -> None:
    axis = min(axis, len(shape) - 1)
    generator = np.random.default_rng(seed)
    dims = tuple(1 if dim == axis and reduction == "none" else size for dim, size in enumerate(shape))
    values, updates = _drawn(generator, shape, dtype), _drawn(generator, dims, dtype)
    index = generator.integers(-shape[axis], shape[axis], dims)
    expected = _scattered(values, _element_places(index, axis), updates, reduction)
    problem = indexed.scatter_elements(shape, axis, dims, dtype, reduction=reduction)
    _check(problem, expected, data=values, indices=index, updates=updates)


@settings(deadline=None, max_examples=15)
@given(shape=shapes, batch=st.integers(0, 1), places=st.lists(st.integers(1, 3), max_size=2), seed=seeds,
       data=st.data(), dtype=st.sampled_from(DTYPES))  # fmt: skip
def test_gather_nd(
    shape: tuple[int, ...], batch: int, places: list[int], seed: int, data: st.DataObject, dtype: DType
) -> None:
    batch = min(batch, len(shape) - 1)
    width = data.draw(st.integers(1, len(shape) - batch))
    dims = (*shape[:batch], *places, width)
    generator = np.random.default_rng(seed)
    values = _drawn(generator, shape, dtype)
    index = np.stack([generator.integers(-size, size, dims[:-1]) for size in shape[batch : batch + width]], axis=-1)
    expected = _gathered(values, _slice_places(index, batch), (*dims[:-1], *shape[batch + width :]))
    _check(indexed.gather_nd(shape, dims, dtype, batch_dims=batch), expected, data=values, indices=index)


@settings(deadline=None, max_examples=15)
@given(
    shape=shapes, count=st.integers(1, 4), reduction=st.sampled_from(["none", "add", "max"]), seed=seeds, data=st.data()
)
def test_scatter_nd(
    shape: tuple[int, ...], count: int, reduction: indexed.Reduction, seed: int, data: st.DataObject
) -> None:
    width = data.draw(st.integers(1, len(shape)))
    generator = np.random.default_rng(seed)
    values = _drawn(generator, shape, DType.F32)
    index = np.stack([generator.integers(0, size, count) for size in shape[:width]], axis=-1)
    if reduction == "none":  # which of two updates of one place wins is not defined
        index = np.unique(index, axis=0)
    updates = _drawn(generator, (len(index), *shape[width:]), DType.F32)
    expected = _scattered(values, _slice_places(index, 0), updates, reduction)
    problem = indexed.scatter_nd(shape, index.shape, DType.F32, reduction=reduction)
    _check(problem, expected, data=values, indices=index, updates=updates)
    number = np.float32(generator.standard_normal())
    onto = _scattered(np.full(shape, number), _slice_places(index, 0), updates, reduction)
    _check(replace(problem, filler=int(number.view(np.uint32))), onto, indices=index, updates=updates)


def test_an_index_outside_touches_nothing_outside() -> None:
    problem = indexed.gather((3, 4), 0, (2,), DType.F32)
    data = np.arange(12, dtype=np.float32)
    index = np.array([99, -99])
    got = run_guarded(indexed.build(problem, host()), {"data": data, "indices": index})["output"]
    assert got.tolist() == [8, 9, 10, 11, 0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32])
@pytest.mark.parametrize("line", [1, 3, 8, 29, 20000])
def test_lines_of_single_elements_are_asked_whether_they_are_inside(dtype: DType, line: int) -> None:
    """Lines in which no index is outside, one is at any place, or all are; long ones are cut into blocks."""
    generator = np.random.default_rng(line)
    data = generator.standard_normal((5, 7)).astype(np.float32)
    index = generator.integers(0, 7, (5, line)).astype(dtype.numpy)
    most = np.iinfo(dtype.numpy)
    index[1, line // 2], index[2, -1] = -1, 7
    index[3] = generator.choice(np.array([most.min, most.max, -7, 6, -8], dtype.numpy), line)
    place = np.where(index < 0, np.maximum(index.astype(float) + 7, 0), np.minimum(index, 6)).astype(int)
    problem = indexed.gather_elements((5, 7), 1, (5, line), DType.F32, dtype)
    _check(problem, np.take_along_axis(data, place, 1), data=data, indices=index)
    along = indexed.gather((5, 7), 1, (line,), DType.F32, dtype)
    for one, chosen in zip(index, place, strict=True):
        _check(along, data[:, chosen], data=data, indices=one)
    updates = generator.standard_normal((5, line)).astype(np.float32)
    expected = data.copy()
    for row, column in np.ndindex(index.shape):
        expected[row, place[row, column]] = updates[row, column]
    problem = indexed.scatter_elements((5, 7), 1, (5, line), DType.F32, dtype)
    _check(problem, expected, data=data, indices=index, updates=updates)


def test_refusals_say_why() -> None:
    with pytest.raises(InvalidIndexing, match="axis 2 is outside of 2 dims"):
        indexed.gather((3, 4), 2, (1,), DType.F32)
    with pytest.raises(InvalidIndexing, match="indices of 1 dims for data of 2"):
        indexed.gather_elements((3, 4), 0, (1,), DType.F32)
    with pytest.raises(InvalidIndexing, match="3 coordinates after 0 batch dims for data of 2 dims"):
        indexed.gather_nd((3, 4), (1, 3), DType.F32)
    problem = indexed.scatter_nd((3, 4), (1, 1), DType.F16, reduction="add")
    with pytest.raises(InvalidIndexing, match="cast to f32 around it"):
        indexed.build(problem, host())
