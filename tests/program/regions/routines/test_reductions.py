"""Reductions beside onnx's ReferenceEvaluator: axes that only a run knows, no elements, integers, bool and f64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.program.regions.lower import lower
from kernels.target import host
from tests.program.regions.routines.one_node import held, model, same

DIMS = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
NAMES = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
NUMPY = {
    "Sum": np.sum, "Max": np.max, "Min": np.min, "Prod": np.prod,
    "L1": lambda x, **more: np.abs(x).sum(**more), "SumSquare": lambda x, **more: np.square(x).sum(**more),
}  # fmt: skip


@given(st.data(), st.sampled_from(NAMES), DIMS, st.sampled_from(["f2", "f4", "f8"]), st.booleans(), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_floats(data: st.DataObject, name: str, shape: tuple[int, ...], kind: str, keep: bool, seed: int) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    listed = np.array([axis - len(shape) * (axis % 2) for axis in sorted(axes)], np.int64)  # some from the end
    x = np.random.default_rng(seed).uniform(0.8, 1.1, shape).astype(kind)
    tolerance = {"f2": 4e-3, "f4": 1e-5, "f8": 1e-12}[kind]
    known = (1,) if data.draw(st.booleans()) else ()
    noop = data.draw(st.integers(0, 1))
    wide = same(
        f"Reduce{name}", [x.astype("f8"), listed], keepdims=int(keep), noop_with_empty_axes=noop, known=known,
        engine="reference", tolerance=1e-12,
    )  # fmt: skip
    held(
        f"Reduce{name}", [x, listed], [wide[0].astype(kind)], keepdims=int(keep), noop_with_empty_axes=noop,
        known=known, tolerance=tolerance,
    )  # fmt: skip


@given(st.data(), st.sampled_from(sorted(NUMPY)), DIMS, st.sampled_from(["i4", "i8", "u4", "u8"]), st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_integers(data: st.DataObject, name: str, shape: tuple[int, ...], kind: str, seed: int) -> None:
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    x = np.random.default_rng(seed).integers(0 if kind[0] == "u" else -9, 9, shape).astype(kind)
    wanted = NUMPY[name](x, axis=tuple(axes), keepdims=True).astype(kind)
    held(f"Reduce{name}", [x, np.array(axes)], [wanted])


def test_a_mean_of_integers_is_cut_towards_zero() -> None:
    held("ReduceMean", [np.array([[-3, 0], [7, 0]]), np.array([1])], [np.array([[-1], [3]])])


@pytest.mark.parametrize(("name", "wanted"), [("Max", [[True], [False]]), ("Min", [[False], [False]])])
def test_bool(name: str, wanted: list[list[bool]]) -> None:
    held(f"Reduce{name}", [np.array([[True, False], [False, False]]), np.array([-1])], [np.array(wanted)])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("Sum", 0.0), ("Prod", 1.0), ("Max", -np.inf), ("Min", np.inf), ("LogSum", -np.inf), ("LogSumExp", -np.inf)],
)
def test_of_no_elements(name: str, wanted: float) -> None:
    held(f"Reduce{name}", [np.zeros((2, 0), np.float32), np.array([1])], [np.full((2, 1), wanted, np.float32)])


@pytest.mark.parametrize("name", ["Max", "Min"])
def test_a_nan_is_an_extreme(name: str) -> None:
    x = np.array([1, np.nan, 3], np.float32)
    held(f"Reduce{name}", [x, np.array([0])], [np.array([np.nan], np.float32)])


def test_a_long_sum_keeps_its_small_terms() -> None:
    x = np.full((1, 100_003), 0.1, np.float32)
    held("ReduceSum", [x, np.array([1])], [x.sum(axis=1, dtype="f8", keepdims=True).astype("f4")], tolerance=1e-7)


def kernel_of(shape: tuple[int, ...], axes: list[int], keep: int, name: str = "ReduceSum") -> str:
    """What reduces along axes that a run gives."""
    x, result = np.ones(shape, np.float32), np.ones(shape, np.float32).sum(axis=tuple(axes), keepdims=bool(keep))
    proto = model(name, [x, np.array(axes)], [result], (), 20, {"keepdims": keep})
    (region,) = lower(ir.from_proto(proto), host()).regions
    return region.kernel.name.rpartition("_")[0]


def test_axes_of_a_run_that_the_dims_tell() -> None:
    assert kernel_of((3, 4, 5), [1], 1) == kernel_of((3, 4, 5), [1, 2], 0) == kernel_of((4, 4), [1], 1) == "reduction"
    assert kernel_of((4, 4), [1], 0) == "routine", "either dim may be left"
    assert kernel_of((3, 1), [1], 0) == "routine", "a dim of one element may be left"
    assert kernel_of((2, 5000), [1], 1) == "routine", "so many are summed in f64"
    assert kernel_of((2, 5000), [1], 1, "ReduceMax") == "reduction"
