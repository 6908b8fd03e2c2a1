"""Views against NumPy's own strided arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.program.regions.buffer import Buffer
from graphopt.program.regions.view import View
from kernels.dtype import DType

shapes = st.lists(st.integers(1, 4), min_size=0, max_size=4)

BUFFER = Buffer(0, "temporary", 0, "value", "b")


def _read(view: View, storage: np.ndarray) -> np.ndarray:
    steps = tuple(stride * storage.itemsize for stride in view.strides)
    return np.lib.stride_tricks.as_strided(storage[view.offset :], view.shape, steps)


def _drawn(data: st.DataObject) -> tuple[View, np.ndarray, np.ndarray]:
    """A view after some moves, the storage, and the array that NumPy has after the same moves."""
    shape = data.draw(shapes)
    storage = np.arange(int(np.prod(shape)), dtype=np.float32)
    view, array = View.dense(BUFFER, DType.F32, shape), storage.reshape(shape)
    for _ in range(data.draw(st.integers(0, 3))):
        if view.shape and data.draw(st.booleans()):
            order = data.draw(st.permutations(range(len(view.shape))))
            view, array = view.transposed(order), array.transpose(order)
        elif view.shape:
            axis = data.draw(st.integers(0, len(view.shape) - 1))
            start = data.draw(st.integers(0, view.shape[axis] - 1))
            step = data.draw(st.integers(1, 2))
            count = len(range(start, view.shape[axis], step))
            view = view.sliced(axis, start, count, step)
            array = array[tuple([slice(None)] * axis + [slice(start, None, step)])]
    return view, storage, array


@given(st.data())
def test_moves_read_the_same_elements(data: st.DataObject) -> None:
    view, storage, array = _drawn(data)
    np.testing.assert_array_equal(_read(view, storage), array)
    first = array.size == 0 or array.ctypes.data == storage.ctypes.data
    assert view.is_dense == (first and array.flags.c_contiguous)


@given(st.data())
def test_a_reshape_without_a_copy(data: st.DataObject) -> None:
    view, storage, array = _drawn(data)
    factors = [factor for size in array.shape for factor in ([2, 2] if size == 4 else [size])]
    factors = data.draw(st.permutations([*factors, 1]))
    shape: list[int] = []
    for factor in factors:
        if shape and data.draw(st.booleans()):
            shape[-1] *= factor
        else:
            shape.append(factor)
    found = view.reshaped(shape)
    if found is None:
        # NumPy finds a view wherever there is one: it must have copied.
        assert not np.shares_memory(array.reshape(shape), storage)
    else:
        np.testing.assert_array_equal(_read(found, storage), array.reshape(shape))


@given(st.data())
def test_broadcasting(data: st.DataObject) -> None:
    view, storage, array = _drawn(data)
    wanted = [data.draw(st.integers(1, 3))] + [3 if size == 1 else size for size in array.shape]
    np.testing.assert_array_equal(_read(view.expanded(wanted), storage), np.broadcast_to(array, wanted))


@pytest.mark.parametrize(
    ("shape", "target"),
    [((10, 20, 30), (10, 20, 31)), ((10, 20, 30), (10, 20)), ((2,), (2, 3)), ((), (2,)), ((4,), ()), ((0,), (2, 3)),
     ((6,), (4,)), ((6, 5), (4, 5))],
)  # fmt: skip
def test_a_reshape_to_another_number_of_elements_is_no_view(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    assert View.dense(BUFFER, DType.F32, shape).reshaped(target) is None
