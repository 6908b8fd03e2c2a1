"""Softmax against float64, over any axis, layout and length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.target import Target, host
from kernels.templates.elementwise import Output
from kernels.templates.row_problem import InvalidRows
from kernels.templates.softmax import SOFTMAX, Softmax, build, candidates
from kernels.tensor.expression import Buffer, Cast, Number, Variable
from tests.kernels.machine_code import spills
from tests.kernels.targets import HERE, NAMED
from tests.kernels.templates.row_cases import FLOATS, SIZES, close, floats, layouts, run, wide

TOLERANCE = 2e-6  # exp is within 1 ULP, and a sum of up to 900 terms adds a few more


def reference(x: np.ndarray, axes: tuple[int, ...], logarithm: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        difference = x - x.max(axis=axes, keepdims=True)
        total = np.exp(difference).sum(axis=axes, keepdims=True)
        return difference - np.log(total) if logarithm else np.exp(difference) / total


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(HERE), st.booleans(), st.integers(0, 1))
def test_any_axis_of_any_shape(data: st.DataObject, target: Target, logarithm: bool, which: int) -> None:
    rank = data.draw(st.integers(1, 3))
    sizes = SIZES if rank < 3 else (1, 2, 5, 16, 19)
    shape = tuple(data.draw(st.sampled_from(sizes)) for _ in range(rank))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=2))))
    dtype = data.draw(st.sampled_from(FLOATS))
    x, y = (data.draw(layouts(name, dtype, shape)) for name in "xy")
    loops = tuple(Variable(name, size) for name, size in zip("ijk", shape, strict=False))
    rows = tuple(loop for dim, loop in enumerate(loops) if dim not in axes)
    columns = tuple(loops[dim] for dim in axes)
    places = tuple(x[loops].indices)
    problem = Softmax(rows, columns, x[loops], (Output(y, Cast(dtype, SOFTMAX[()]), places),), logarithm)
    given_x = floats(shape, dtype, data.draw(st.integers(0, 99)), (-np.inf, -80.0, 60.0))
    found = run(build(problem, candidates(problem, target)[which], target), {x: given_x}, y)
    close(found, reference(wide(given_x, dtype), axes, logarithm), dtype, TOLERANCE)


def dense(rows: int, columns: int) -> tuple[Variable, Variable, Buffer, Buffer]:
    x, y = (Buffer(name, DType.F32, (rows, columns)) for name in "xy")
    return Variable("i", rows), Variable("j", columns), x, y


@pytest.mark.parametrize("columns", [1, 5, 16, 100, 192, 193, 1000])
def test_special_numbers(columns: int) -> None:
    i, j, x, y = dense(6, columns)
    problem = Softmax((i,), (j,), x[i, j], (Output(y, SOFTMAX[()]),))
    array = floats((6, columns), DType.F32, 1)
    array[0, -1], array[1, 0], array[3, :] = np.nan, np.inf, -np.inf
    array[4, : columns // 2] = -np.inf  # masked elements are exactly 0
    array[5] *= 1e37
    found = run(build(problem, candidates(problem, host())[0], host()), {x: array}, y)
    want = reference(array.astype(np.float64), (1,), False)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    assert (found[4, : columns // 2] == 0).all()
    np.testing.assert_allclose(found, want, rtol=TOLERANCE, atol=1e-30)


def test_scores_are_scaled_and_masked_on_the_way_and_rounded_at_the_end() -> None:
    i, j, x, _ = dense(9, 70)
    mask, y = Buffer("mask", DType.F32, (70,)), Buffer("y", DType.BF16, (9, 70))
    value = x[i, j] * Number(0.125) + mask[j]
    problem = Softmax((i,), (j,), value, (Output(y, Cast(DType.BF16, SOFTMAX[()])),))
    array, masks = floats((9, 70), DType.F32, 1), np.where(np.arange(70) < 50, 0, -np.inf).astype(np.float32)
    found = run(build(problem, candidates(problem, host())[0], host()), {x: array, mask: masks}, y)
    close(found, reference(array.astype(np.float64) / 8 + masks, (1,), False), DType.BF16, TOLERANCE)


@pytest.mark.parametrize("target", NAMED)
@pytest.mark.parametrize("columns", [64, 512])
def test_every_target_compiles_with_few_spills(target: Target, columns: int) -> None:
    i, j, x, y = dense(64, columns)
    problem = Softmax((i,), (j,), x[i, j], (Output(y, SOFTMAX[()]),))
    kernel = build(problem, candidates(problem, target)[0], target)
    assert spills(assembly(kernel.module.text(), target)) <= 8


def test_integers_are_refused() -> None:
    i, j, _, y = dense(2, 3)
    with pytest.raises(InvalidRows, match="rows of i32 are not computed in f32: cast them"):
        Softmax((i,), (j,), Buffer("x", DType.I32, (2, 3))[i, j], (Output(y, SOFTMAX[()]),))
