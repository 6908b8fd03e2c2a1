"""Operators that choose elements, sort boxes and run along axes, beside ONNX Runtime without optimizations."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.program.regions.routines.one_node import held, same

DIMS = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
NAN = np.float32("nan")


def drawn(shape: tuple[int, ...], kind: str, seed: int, values: int = 9) -> np.ndarray:
    """Few different values, so that some are equal."""
    return (np.random.default_rng(seed).integers(0, values, shape) - (values // 2 if kind[0] != "u" else 0)).astype(
        kind
    )


def first(rows: np.ndarray, k: int, most: bool) -> np.ndarray:
    """Places of the first k of each row [rows, size]; NaN is the largest, earlier ones come first among equals."""
    found = []
    for row in rows.tolist():
        key = [(np.isnan(value), 0.0 if np.isnan(value) else value) for value in row]
        order = sorted(range(len(row)), key=lambda p: (key[p], -p) if most else (key[p], p), reverse=most)
        found.append(order[:k])
    return np.array(found, np.int64).reshape(len(rows), k)


@given(
    st.data(), st.integers(1, 2), st.integers(1, 20) | st.integers(60, 150), st.integers(1, 2),
    st.sampled_from(["f2", "f4", "f8", "i8", "i4", "i2", "i1", "u1", "u8"]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_the_largest_of_equal_ones(
    data: st.DataObject, outer: int, size: int, inner: int, kind: str, most: bool, seed: int
) -> None:
    x = drawn((outer, size, inner), kind, seed)
    if kind[0] == "f":
        special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-7], kind)
        x = np.where(np.random.default_rng(seed).random(x.shape) < 0.3, special[x.astype(int) % 7], x)
    k = data.draw(st.sampled_from(sorted({0, 1, size // 2, min(size, 32), size})))
    places = first(x.transpose(0, 2, 1).reshape(-1, size), k, most).reshape(outer, inner, k).transpose(0, 2, 1)
    held("TopK", [x, np.array([k])], [np.take_along_axis(x, places, 1), places], opset=24, axis=1, largest=int(most))


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i8", "i2", "u1"])
@pytest.mark.parametrize(("size", "inner", "k"), [(1, 16, 1), (40, 16, 32), (9, 17, 9), (200, 41, 3), (70, 15, 5)])
def test_the_largest_of_rows_side_by_side(kind: str, size: int, inner: int, k: int) -> None:
    """Rows as many as are looked at together, some more, and fewer; elements that are equal, NaN, zeros, the least."""
    generator = np.random.default_rng([size, inner, k])
    x = drawn((2, size, inner), kind, size)
    least = -np.inf if kind[0] == "f" else np.iinfo(kind).min
    special = np.array([np.nan, -np.nan, np.inf, -0.0, 0.0, least] if kind[0] == "f" else [least], kind)
    x = np.where(generator.random(x.shape) < 0.2, special[generator.integers(0, special.size, x.shape)], x)
    for most in (True, False):
        places = first(x.transpose(0, 2, 1).reshape(-1, size), k, most).reshape(2, inner, k).transpose(0, 2, 1)
        wanted = [np.take_along_axis(x, places, 1), places]
        held("TopK", [x, np.array([k])], wanted, opset=24, axis=1, largest=int(most))


def test_the_largest_of_brain_floats() -> None:
    x = np.array([[3, -1, np.nan, 2, -np.inf, 3, 0.5]] * 2, ml_dtypes.bfloat16)
    for k in (4, 7):
        places = np.tile(np.array([2, 0, 5, 3, 6, 1, 4][:k]), (2, 1))
        held("TopK", [x, np.array([k])], [np.take_along_axis(x, places, 1), places], opset=24)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@given(st.data(), DIMS, st.sampled_from(["f4", "f8", "i4", "i8", "i1", "u1"]), st.booleans(), st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_the_place_of_an_extreme(
    op: str, data: st.DataObject, shape: tuple[int, ...], kind: str, last: bool, seed: int
) -> None:
    axis, keep = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.integers(0, 1))
    same(op, [drawn(shape, kind, seed)], axis=axis, keepdims=keep, select_last_index=int(last), engine="reference")


@given(DIMS, st.sampled_from(["f4", "i4", "i8", "u1", "?"]), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_what_is_not_zero(shape: tuple[int, ...], kind: str, seed: int) -> None:
    same("NonZero", [drawn(shape, kind, seed, 3)])


def test_what_is_not_zero_where_the_model_declares_another_count() -> None:
    x = np.array([0.0, 2.0, NAN, 0.0, 5.0], np.float32)
    held("NonZero", [x], [np.array([[1, 2, 4, 0, 0]])])
    held("NonZero", [x], [np.array([[1, 2]])])


@given(st.data(), DIMS, st.sampled_from(["f4", "f8", "i8", "?"]), st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_slices_whose_condition_holds(data: st.DataObject, shape: tuple[int, ...], kind: str, seed: int) -> None:
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    length = data.draw(st.integers(1, int(np.prod(shape)) if axis is None else shape[axis]))
    condition = np.random.default_rng(seed).random(length) < 0.6
    same("Compress", [drawn(shape, kind, seed), condition], **({} if axis is None else {"axis": axis}))


def test_slices_where_the_model_declares_another_count() -> None:
    x, condition = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([True, False, True, True])
    held("Compress", [x, condition], [x[:, [0, 2]]], axis=1)
    held("Compress", [x, condition], [np.pad(x[:, [0, 2, 3]], ((0, 0), (0, 2)))], axis=1)
    held("Compress", [x, condition[1:]], [np.array([1, 2, 0], "f4")])
    held("Compress", [x, condition[:0]], [np.zeros((2, 0), "f4")], axis=1)


@given(st.data(), DIMS, st.sampled_from(["f4", "f8", "i8", "i1"]), st.integers(0, 1), st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_different_slices(data: st.DataObject, shape: tuple[int, ...], kind: str, is_sorted: int, seed: int) -> None:
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    x = drawn(shape, kind, seed, 3)
    same("Unique", [x], outputs=4, sorted=is_sorted, **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i8", "i4", "u1", "i1", "u8", "?"])
@pytest.mark.parametrize("count", [1, 63, 64, 700])
def test_many_different_elements(kind: str, count: int) -> None:
    """Few are inserted, more sorted by those digits in which they differ; NaN is one element, and so is 0."""
    generator = np.random.default_rng(count)
    for high in (2, 100, 1 << 12 if kind == "f2" else 1 << 40):
        x = generator.integers(0, high, count)
        x = (x % 251).astype(kind) if kind[1:] == "1" else (x - high // 2).astype(kind)
        if kind[0] == "f":
            special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0], kind)
            x = np.where(generator.random(count) < 0.3, special[generator.integers(0, 6, count)], x)
        held("Unique", [x], np.unique(x, return_index=True, return_inverse=True, return_counts=True))
        if kind in ("f4", "f8", "i8", "i1") and not np.isnan(x).any():
            same("Unique", [x], outputs=4, sorted=0)
        held("Unique", [x], [np.concatenate([np.unique(x), np.zeros(3, kind)])])
        held("Unique", [x], [np.unique(x)[:1]])


@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 12), st.integers(0, 4), st.sampled_from([0.0, 0.3, 0.6]),
    st.none() | st.sampled_from([0.0, 0.4]), st.integers(0, 1), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_boxes_that_cover_no_better_one(
    batches: int, classes: int, count: int, most: int, threshold: float, least: float | None, center: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    boxes = generator.integers(0, 6, (batches, count, 4)).astype("f4") / 4
    scores = generator.integers(0, 8, (batches, classes, count)).astype("f4") / 8
    inputs = [boxes, scores, np.array(most), np.array([threshold], "f4")]
    inputs += [] if least is None else [np.array([least], "f4")]
    same("NonMaxSuppression", inputs, center_point_box=center)


@pytest.mark.parametrize("size", [0.05, 0.5])
def test_many_boxes_are_chosen(size: float) -> None:
    """More than a box is compared with at once: few of them cover another one, or most do."""
    generator = np.random.default_rng(5)
    low = generator.random((1, 600, 2))
    boxes = np.concatenate([low, low + size * generator.random((1, 600, 2))], 2).astype("f4")
    scores = generator.random((1, 1, 600)).astype("f4")
    for given_scores in (scores, np.round(scores * 4)):  # many are equal: the earlier box comes first
        same("NonMaxSuppression", [boxes, given_scores, np.array([600]), np.array([0.4], "f4")])


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@given(st.data(), DIMS, st.sampled_from(["f4", "f8", "i4", "i8"]), st.integers(0, 1), st.integers(0, 1))
@settings(max_examples=8, deadline=None)
def test_running_sums_and_products(
    op: str, data: st.DataObject, shape: tuple[int, ...], kind: str, exclusive: int, reverse: int
) -> None:
    axis = np.array(data.draw(st.integers(-len(shape), len(shape) - 1)))
    known = data.draw(st.sampled_from([(), (1,)]))
    x = drawn(shape, kind, 3, 5)
    flipped = np.flip(x, axis) if reverse else x
    total = (np.cumsum if op == "CumSum" else np.cumprod)(flipped, axis, dtype=x.dtype)
    if exclusive:
        first = np.full_like(np.take(total, [0], axis), op == "CumProd")
        total = np.concatenate([first, np.take(total, range(shape[axis] - 1), axis)], axis)
    wanted = np.flip(total, axis) if reverse else total
    opset = 14 if op == "CumSum" else 26
    held(op, [x, axis], [wanted], opset=opset, known=known, exclusive=exclusive, reverse=reverse)


@given(st.data(), DIMS, st.sampled_from(["f4", "i4", "i8"]), st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_one_hot(data: st.DataObject, shape: tuple[int, ...], kind: str, depth: int) -> None:
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    indices = np.random.default_rng(depth).integers(-depth - 1, depth + 1, shape).astype(kind)
    values = np.array([3, 8], "f4")
    wide = np.expand_dims(indices.astype(int), axis)
    places = np.arange(depth).reshape([-1 if one == axis % (len(shape) + 1) else 1 for one in range(len(shape) + 1)])
    wanted = np.where((wide == places) | (wide + depth == places), values[1], values[0])
    held("OneHot", [indices, np.array(depth), values], [wanted], known=(1,), axis=axis)


def test_numbers_in_steps_and_diagonals() -> None:
    for kind in ("f4", "f8", "i8", "i4"):
        same("Range", [np.array(2, kind), np.array(-9, kind), np.array(-3, kind)])
    same("ConstantOfShape", [np.array([2, 3])])
    for k in (-2, 0, 1, 7):
        same("EyeLike", [np.zeros((4, 3), "f4")], k=k, dtype=7)
    same("EyeLike", [np.zeros((2, 3), "f8")], k=1)
