"""Operators that move elements, beside ONNX Runtime without optimizations (where it has them) or the reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.program.regions.routines.one_node import held, same

TYPES = ["f4", "f8", "f2", "i8", "i4", "i2", "i1", "u1", "?"]
DIMS = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def counting(shape: tuple[int, ...], kind: str) -> np.ndarray:
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) * 7 % 251).astype(kind)


@given(st.data(), DIMS, st.sampled_from(TYPES))
@settings(max_examples=8, deadline=None)
def test_slices_of_every_step_whose_bounds_a_run_gives(data: st.DataObject, shape: tuple[int, ...], kind: str) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    bound = st.integers(-7, 7) | st.sampled_from([-(2**63), 2**63 - 1])
    starts, ends = (np.array([data.draw(bound) for _ in axes], np.int64) for _ in "ab")
    steps = np.array([data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3])) for _ in axes], np.int64)
    named = np.array([axis - len(shape) * data.draw(st.integers(0, 1)) for axis in axes], np.int64)
    known = data.draw(st.sampled_from([(), (3,), (1, 2, 3, 4), (4,)]))
    x = counting(shape, kind)
    index = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts.tolist(), ends.tolist(), steps.tolist(), strict=True):
        index[axis] = slice(start, end, step)
    held("Slice", [x, starts, ends, named, steps], [x[tuple(index)]], known=known)


def test_slices_before_opset_10_and_of_all_axes() -> None:
    x = counting((4, 5, 6), "f4")
    same("Slice", [x], opset=9, starts=[1, -3], ends=[9, -1], axes=[0, 2])
    bounds = np.array([1, 0, 2]), np.array([3, 5, 9])
    same("Slice", [x, *bounds], opset=13)
    same("Slice", [x, *(one.astype(np.int32) for one in bounds)], opset=13)


@given(st.data(), DIMS, st.sampled_from(["f4", "f8", "i8", "i4", "u1", "?"]))
@settings(max_examples=8, deadline=None)
def test_tiles(data: st.DataObject, shape: tuple[int, ...], kind: str) -> None:
    repeats = np.array([data.draw(st.integers(0, 3)) for _ in shape], np.int64)
    same("Tile", [counting(shape, kind), repeats])


@given(
    st.lists(st.integers(0, 2), max_size=2), st.integers(1, 5), st.integers(1, 5), st.integers(-7, 7),
    st.sampled_from(["f4", "f8", "i8"]), st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_triangles(outer: list[int], rows: int, columns: int, k: int, kind: str, upper: bool, is_given: bool) -> None:
    x = counting((*outer, rows, columns), kind)
    same("Trilu", [x, np.array(k)] if is_given else [x], upper=int(upper))


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("kind", ["f4", "i8", "?"])
def test_reversed_sequences(time: int, kind: str) -> None:
    x = counting((4, 3, 2), kind)
    lengths = np.array([1, 4, 2]) if time == 0 else np.array([0, 1, 3, 2])
    same("ReverseSequence", [x, lengths], engine="reference", time_axis=time, batch_axis=1 - time)


@given(*[st.integers(1, 3)] * 5, st.sampled_from(["DCR", "CRD"]), st.sampled_from(["f4", "f8", "u1"]))
@settings(max_examples=8, deadline=None)
def test_depth_and_space(n: int, c: int, h: int, w: int, block: int, mode: str, kind: str) -> None:
    deep = counting((n, c * block * block, h, w), kind)
    wide = same("DepthToSpace", [deep], engine="reference", blocksize=block, mode=mode)[0]
    if mode == "DCR":
        held("SpaceToDepth", [wide], [deep], opset=13, blocksize=block)


@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
@settings(max_examples=10, deadline=None)
def test_the_middle(data: st.DataObject, shape: tuple[int, ...]) -> None:
    wanted = np.array([data.draw(st.integers(1, 7)) for _ in shape])
    same("CenterCropPad", [counting(shape, "f4"), wanted], engine="reference")


def test_halves_are_moved_bit_by_bit() -> None:
    bits = np.arange(0x7F00, 0x8100, dtype=np.uint16)
    for kind in (np.float16, ml_dtypes.bfloat16):
        x = bits.view(kind)
        held("Slice", [x, np.array([-1]), np.array([-9999]), np.array([0]), np.array([-1])], [x[::-1]])
