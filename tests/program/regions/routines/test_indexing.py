"""Gathers, scatters and TensorScatter, beside ONNX Runtime without optimizations or NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import graphopt
from tests.program.regions.routines.one_node import held, same

DIMS = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
TYPES = ["f4", "f8", "f2", "i8", "i4", "u1", "?"]


def drawn(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 5, shape).astype(kind)


@given(st.data(), DIMS, DIMS, st.sampled_from(TYPES), st.sampled_from(["i4", "i8"]))
@settings(max_examples=8, deadline=None)
def test_gathers(data: st.DataObject, shape: tuple[int, ...], by: tuple[int, ...], kind: str, index: str) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    indices = np.random.default_rng(size).integers(-size, size, by).astype(index)
    same("Gather", [drawn(shape, kind, 1), indices], axis=axis)
    smaller = tuple(data.draw(st.integers(1, one)) for one in shape)
    places = np.random.default_rng(size).integers(-size, size, smaller).astype(index)
    same("GatherElements", [drawn(shape, kind, 1), places], axis=axis)


@given(st.data(), st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple), st.sampled_from(TYPES))
@settings(max_examples=10, deadline=None)
def test_gathers_of_several_dims(data: st.DataObject, shape: tuple[int, ...], kind: str) -> None:
    batch = data.draw(st.integers(0, len(shape) - 1))
    width = data.draw(st.integers(1, len(shape) - batch))
    rows = (*shape[:batch], data.draw(st.integers(1, 3)))
    columns = [np.random.default_rng(at).integers(-size, size, rows) for at, size in enumerate(shape[batch:][:width])]
    same("GatherND", [drawn(shape, kind, 1), np.stack(columns, -1)], batch_dims=batch)


REDUCTIONS = st.sampled_from(["none", "add", "mul", "min", "max"])


@given(st.data(), DIMS, st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u1", "?"]), REDUCTIONS)
@settings(max_examples=8, deadline=None)
def test_scatters_of_elements(data: st.DataObject, shape: tuple[int, ...], kind: str, reduction: str) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    smaller = tuple(data.draw(st.integers(1, one)) for one in shape)
    indices = np.random.default_rng(size).integers(-size, size, smaller)
    x, updates = drawn(shape, kind, 1), drawn(smaller, kind, 2)
    wanted = x.copy()
    for place in np.ndindex(*smaller):
        at = list(place)
        at[axis] = indices[place]
        _reduce(wanted, tuple(at), updates[place], reduction)
    held("ScatterElements", [x, indices, updates], [wanted], opset=18, axis=axis, reduction=reduction)
    if reduction == "none":
        held("Scatter", [x, indices, updates], [wanted], opset=10, axis=axis % len(shape))


@given(st.data(), DIMS, st.sampled_from(["f4", "f8", "f2", "i8", "u1", "?"]), REDUCTIONS)
@settings(max_examples=8, deadline=None)
def test_scatters_of_slices(data: st.DataObject, shape: tuple[int, ...], kind: str, reduction: str) -> None:
    width, rows = data.draw(st.integers(1, len(shape))), data.draw(st.integers(1, 4))
    columns = [np.random.default_rng(at).integers(-size, size, rows) for at, size in enumerate(shape[:width])]
    indices = np.stack(columns, -1)
    x, updates = drawn(shape, kind, 1), drawn((rows, *shape[width:]), kind, 2)
    wanted = x.copy()
    for row in range(rows):
        for place in np.ndindex(*shape[width:]):
            _reduce(wanted, (*indices[row], *place), updates[(row, *place)], reduction)
    held("ScatterND", [x, indices, updates], [wanted], opset=18, reduction=reduction)


def _reduce(array: np.ndarray, at: tuple[int, ...], value: np.generic, reduction: str) -> None:
    old = array[at]
    if reduction == "none":
        array[at] = value
    elif array.dtype == bool:
        array[at] = (old or value) if reduction in ("add", "max") else (old and value)
    else:
        array[at] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[reduction](old, value)


def test_indices_outside_touch_nothing_else() -> None:
    x = np.arange(6, dtype="f4").reshape(2, 3)
    held("Gather", [x, np.array([9, -9])], [x[[1, 0]]], axis=0)
    wanted = x.copy()
    wanted[1] = 7
    held("ScatterND", [x, np.array([[99]]), np.full((1, 3), 7, "f4")], [wanted], opset=18)


@given(st.integers(1, 3), st.integers(1, 2), st.integers(2, 5), st.sampled_from(["linear", "circular"]), st.booleans())
@settings(max_examples=10, deadline=None)
def test_caches(batch: int, heads: int, size: int, mode: str, is_given: bool) -> None:
    count = size - 1
    cache, update = drawn((batch, heads, size, 2), "f4", 1), drawn((batch, heads, count, 2), "f4", 2) + 10
    top = 2 if mode == "linear" else size
    places = np.random.default_rng(size).integers(0, top, batch)
    inputs = [cache, update, places] if is_given else [cache, update]
    same("TensorScatter", inputs, opset=24, engine="reference", mode=mode)


@given(st.sampled_from(TYPES), st.sampled_from(["none", "add", "max"]), st.sampled_from([0.0, 1.0]))
@example("f4", "none", -0.0)
@settings(max_examples=12, deadline=None)
def test_scatters_onto_one_number_keep_no_table(kind: str, reduction: str, number: float) -> None:
    """As the gradient of a gather begins with zeros: they are written by the loop, and not stored."""
    assume(kind not in ("f2", "u1", "?") or reduction == "none")  # ONNX Runtime combines none of them
    shape, rows = (40, 25), np.array([[3], [39], [3]])
    table = helper.make_tensor("value", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [1], [number])
    updates = drawn((3, 25), kind, 2)
    nodes = [
        helper.make_node("ConstantOfShape", ["dims"], ["table"], value=table),
        helper.make_node("ScatterND", ["table", "rows", "updates"], ["y"], reduction=reduction),
    ]
    type_ = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        nodes, "scatter", [helper.make_tensor_value_info("updates", type_, [3, 25])],
        [helper.make_tensor_value_info("y", type_, shape)],
        [numpy_helper.from_array(np.array(shape), "dims"), numpy_helper.from_array(rows, "rows")],
    )  # fmt: skip
    program = graphopt.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), threads=1
    )
    wanted = np.full(shape, number, kind)
    for place, row in enumerate(rows[:, 0]):
        for column in range(25):
            _reduce(wanted, (int(row), column), updates[place, column], reduction)
    (found,) = program.run(None, {"updates": updates})
    assert found.tobytes() == wanted.tobytes()
    assert program.linked.weights.size < 500
