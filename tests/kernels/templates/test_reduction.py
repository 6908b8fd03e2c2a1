"""Reductions against NumPy in float64 (integers exactly), over any axes and layouts."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.target import Target, host
from kernels.templates.elementwise import Output
from kernels.templates.reduction import Op, Reduction, build, candidates, reduced
from kernels.templates.row_problem import InvalidRows
from kernels.tensor.expression import Buffer, Cast, Unary, Variable
from tests.kernels.targets import HERE
from tests.kernels.templates.row_cases import floats, layouts, run, wide

# Sums of up to 600 elements around 3, in several partial sums of f32.
RTOL, ATOL = 1e-5, 1e-4


def reference(op: str, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    flat = np.moveaxis(x, axes, range(-len(axes), 0))
    flat = flat.reshape((*flat.shape[: x.ndim - len(axes)], -1))
    with np.errstate(all="ignore"):
        if op == "log_sum_exp":
            largest = flat.max(axis=-1, keepdims=True)
            shift = np.where(np.isinf(largest), 0, largest)
            return (np.log(np.exp(flat - shift).sum(axis=-1, keepdims=True)) + shift)[..., 0]
        if op in ("argmax", "argmin"):
            return getattr(np, op)(flat, axis=-1)
        if op in ("l1", "l2", "sum_square"):
            total = (np.abs(flat) if op == "l1" else flat * flat).sum(axis=-1, dtype=x.dtype)
            return np.sqrt(total) if op == "l2" else total
        arguments = {"dtype": x.dtype} if op in ("sum", "prod") else {}
        return getattr(np, op)(flat, axis=-1, **arguments)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(get_args(Op)), st.sampled_from(HERE), st.integers(0, 1))
def test_any_axes_of_any_shape(data: st.DataObject, op: Op, target: Target, which: int) -> None:
    rank = data.draw(st.integers(1, 4))
    sizes = {1: (1, 5, 16, 100, 333), 2: (1, 3, 16, 33, 70)}.get(rank, (1, 2, 5, 17))
    shape = tuple(data.draw(st.sampled_from(sizes)) for _ in range(rank))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    kinds = (DType.F32, DType.F32, DType.F16, DType.BF16)
    if op not in ("mean", "l2", "log_sum_exp"):
        kinds += (DType.I32, DType.I64, DType.U8)
    dtype = data.draw(st.sampled_from(kinds))
    x = data.draw(layouts("x", dtype, shape))
    loops = tuple(Variable(name, size) for name, size in zip("ijkl", shape, strict=False))
    rows = tuple(loop for dim, loop in enumerate(loops) if dim not in axes)
    stand_in = reduced(op, dtype)
    y = data.draw(layouts("y", stand_in.dtype, tuple(loop.extent for loop in rows)))
    problem = Reduction(rows, tuple(loops[dim] for dim in axes), op, x[loops], (Output(y, stand_in[()]),))
    seed = data.draw(st.integers(0, 99))
    if dtype.is_float:
        special = data.draw(st.sampled_from(((), (np.nan,), (np.inf,), (-np.inf, 0.0))))
        array = floats(shape, dtype, seed, special)
    else:
        array = np.random.default_rng(seed).integers(0, 5, shape).astype(dtype.numpy)
    found = run(build(problem, candidates(problem, target)[which], target), {x: array}, y)
    exact = reference(op, wide(array, dtype) if dtype.is_float else array, axes)
    if stand_in.dtype.is_float:
        limit = 3.4e38  # beyond it f32 is infinite
        exact = np.where(np.abs(exact) > limit, np.copysign(np.inf, exact), exact)
        np.testing.assert_allclose(found, exact, rtol=RTOL * (20 if op == "prod" else 1), atol=ATOL)
    else:
        np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("columns", [1, 20, 100])
def test_of_equal_extremes_the_first_or_the_last(op: Op, columns: int, last: bool) -> None:
    i, j = Variable("i", 5), Variable("j", columns)
    x, y = Buffer("x", DType.F32, (5, columns)), Buffer("y", DType.I64, (5,))
    array = np.random.default_rng(1).integers(0, 3, (5, columns)).astype(np.float32)
    array[1] = np.inf
    array[2] = -np.inf
    array[3, ::3] = np.nan
    problem = Reduction((i,), (j,), op, x[i, j], (Output(y, reduced(op, DType.F32)[()]),), last)
    found = run(build(problem, candidates(problem, host())[0], host()), {x: array}, y)
    function = getattr(np, op)
    want = columns - 1 - function(array[:, ::-1], axis=1) if last else function(array, axis=1)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(("op", "want"), [("sum", 0), ("prod", 1), ("max", -np.inf), ("mean", np.nan), ("l2", 0)])
def test_of_no_elements(op: Op, want: float) -> None:
    i, j = Variable("i", 3), Variable("j", 0)
    x, y = Buffer("x", DType.F32, (3, 0)), Buffer("y", DType.F32, (3,))
    problem = Reduction((i,), (j,), op, x[i, j], (Output(y, reduced(op, DType.F32)[()]),))
    found = run(build(problem, candidates(problem, host())[0], host()), {x: np.zeros((3, 0), np.float32)}, y)
    np.testing.assert_array_equal(found, np.full(3, want, np.float32))


def test_what_follows_is_part_of_the_kernel() -> None:
    i, j = Variable("i", 7), Variable("j", 50)
    x, y, weight = Buffer("x", DType.F32, (7, 50)), Buffer("y", DType.F16, (7,)), Buffer("w", DType.F32, (7,))
    value = Cast(DType.F16, Unary("tanh", reduced("mean", DType.F32)[()]) * weight[i])
    problem = Reduction((i,), (j,), "mean", x[i, j], (Output(y, value),))
    arrays = {x: floats((7, 50), DType.F32, 1), weight: floats((7,), DType.F32, 2)}
    found = run(build(problem, candidates(problem, host())[0], host()), arrays, y)
    np.testing.assert_allclose(found, np.tanh(arrays[x].mean(axis=1)) * arrays[weight], rtol=2**-10)


@pytest.mark.parametrize("op", ["sum", "sum_square"])
@pytest.mark.parametrize("rows", [(4096,), (3, 1300)])
def test_a_sum_in_lanes_of_their_own_errs_by_runs(op: Op, rows: tuple[int, ...]) -> None:
    """Equal numbers round in one direction: a running sum of 4,096 errs by 4e-5, one in 64 runs of 64 by less than so
    many roundings. A variance that is computed from two such sums is lost by the first."""
    loops = tuple(Variable(name, size) for name, size in zip("ijk", rows, strict=False))
    column = Variable("c", 32)
    x, y = Buffer("x", DType.F32, (*rows, 32)), Buffer("y", DType.F32, (32,))
    problem = Reduction((column,), loops, op, x[(*loops, column)], (Output(y, reduced(op, DType.F32)[()]),))
    array = np.full((*rows, 32), np.sqrt(0.1) if op == "sum_square" else 0.1, np.float32)
    exact = float(array.flat[0]) ** (2 if op == "sum_square" else 1) * array[..., 0].size
    for candidate in candidates(problem, host()):
        found = run(build(problem, candidate, host()), {x: array}, y)
        np.testing.assert_allclose(found, exact, rtol=(64 + 64 + 4) * 2**-24)


def test_the_mean_of_integers_is_refused() -> None:
    i, j = Variable("i", 2), Variable("j", 3)
    x, y = Buffer("x", DType.I32, (2, 3)), Buffer("y", DType.I32, (2,))
    with pytest.raises(InvalidRows, match="mean of i32: cast to a float type first"):
        Reduction((i,), (j,), "mean", x[i, j], (Output(y, reduced("mean", DType.I32)[()]),))
