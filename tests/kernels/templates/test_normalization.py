"""Normalisations against float64: layer, group, instance, root mean square; sums before, scales after."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.run import Executable, aligned
from kernels.target import Target, host
from kernels.templates.elementwise import Output
from kernels.templates.normalization import NORMALIZED, Normalization, build, candidates
from kernels.tensor.expression import Buffer, Cast, Variable, relu
from tests.kernels.machine_code import spills
from tests.kernels.targets import HERE, NAMED
from tests.kernels.templates.row_cases import FLOATS, SIZES, close, floats, layouts, run, wide

TOLERANCE = 5e-6  # of values around 1: a handful of roundings of f32 in mean, variance and result


def reference(x: np.ndarray, axes: tuple[int, ...], epsilon: float, center: str = "mean") -> np.ndarray:
    with np.errstate(all="ignore"):
        moved = x - x.mean(axis=axes, keepdims=True) if center == "mean" else x
        return moved / np.sqrt((moved**2).mean(axis=axes, keepdims=True) + epsilon)


@settings(max_examples=15, deadline=None)
@given(st.data(), st.sampled_from(HERE), st.sampled_from(("mean", "none")), st.integers(0, 1))
def test_layer_and_root_mean_square_normalization(data: st.DataObject, target: Target, center: str, which: int) -> None:
    shape = (data.draw(st.sampled_from((1, 2, 5, 37))), data.draw(st.sampled_from(SIZES)))
    dtype = data.draw(st.sampled_from(FLOATS))
    x, y, scale = (
        data.draw(layouts(name, dtype, dims)) for name, dims in (("x", shape), ("y", shape), ("scale", shape[1:]))
    )
    bias = Buffer("bias", DType.F32, shape[1:])
    i, j = Variable("i", shape[0]), Variable("j", shape[1])
    value = NORMALIZED[()] * Cast(DType.F32, scale[j]) + bias[j]
    problem = Normalization((i,), (j,), x[i, j], (Output(y, Cast(dtype, value)),), 1e-3, center)  # type: ignore[arg-type]
    arrays = {x: floats(shape, dtype, 1, (np.nan, np.inf) if data.draw(st.booleans()) else ())}
    arrays |= {scale: floats(shape[1:], dtype, 2), bias: floats(shape[1:], DType.F32, 3)}
    found = run(build(problem, candidates(problem, target)[which], target), arrays, y)
    want = reference(wide(arrays[x], dtype), (1,), 1e-3, center) * wide(arrays[scale], dtype) + arrays[bias]
    close(found, want, dtype, 10 * TOLERANCE)  # scales reach 10


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(HERE), st.sampled_from(("mean", "none")), st.integers(0, 1))
def test_long_rows_are_read_and_written_at_once(data: st.DataObject, target: Target, center: str, which: int) -> None:
    # Several blocks, the last one shorter; a residual sum, a second output and elements that lie anywhere.
    shape = (data.draw(st.sampled_from((1, 2, 5, 23, 64))), data.draw(st.sampled_from((383, 384, 517, 640, 1025))))
    a, b, y, total = (data.draw(layouts(name, DType.F32, shape)) for name in ("a", "b", "y", "total"))
    scale, bias = (Buffer(name, DType.F32, shape[1:]) for name in ("scale", "bias"))
    i, j = Variable("i", shape[0]), Variable("j", shape[1])
    added = a[i, j] + b[i, j]
    outputs = (Output(y, relu(NORMALIZED[()] * scale[j] + bias[j])), Output(total, added))
    problem = Normalization((i,), (j,), added, outputs, 1e-3, center)  # type: ignore[arg-type]
    special = (np.nan, np.inf) if data.draw(st.booleans()) else ()
    arrays = {a: floats(shape, DType.F32, 1, special), b: floats(shape, DType.F32, 2)}
    arrays |= {scale: floats(shape[1:], DType.F32, 3), bias: floats(shape[1:], DType.F32, 4)}
    arrays[a][0] += 1_000  # a row that is read twice for its variance
    arrays[a][0, 0] = 0
    kernel = build(problem, candidates(problem, target)[which], target)
    given_out = {total: np.zeros(shape, np.float32)}
    found = run(kernel, {**arrays, **given_out}, y)
    both = (arrays[a] + arrays[b]).astype(np.float64)
    with np.errstate(all="ignore"):
        want = reference(both, (1,), 1e-3, center) * arrays[scale] + arrays[bias]
        want = np.where(want > 0, want, np.where(np.isnan(want), np.nan, 0))
    # The mean of the moved row is rounded to f32: half a step at 1,000 is 3e-5, and scales reach 10.
    close(found[1:], want[1:], DType.F32, 10 * TOLERANCE)
    close(found[:1], want[:1], DType.F32, 3e-4)
    found = run(kernel, {**arrays, y: np.zeros(shape, np.float32)}, total)
    np.testing.assert_array_equal(found, arrays[a] + arrays[b])


def test_an_output_may_take_the_place_of_its_input() -> None:
    # A row is written while the next one is read: no element is written that is still to be read.
    rows, columns = 24, 520
    i, j = Variable("i", rows), Variable("j", columns)
    x, y = (Buffer(name, DType.F32, (rows, columns)) for name in "xy")
    problem = Normalization((i,), (j,), x[i, j], (Output(y, NORMALIZED[()]),))
    kernel = build(problem, candidates(problem, host())[0], host())
    array = aligned(rows * columns)
    array[:] = floats((rows * columns,), DType.F32, 1)
    want = reference(array.astype(np.float64).reshape(rows, columns), (1,), 1e-5)
    Executable([kernel])({"x": array, "y": array})
    np.testing.assert_allclose(array.astype(np.float64).reshape(rows, columns), want, atol=TOLERANCE)


def test_a_value_that_all_columns_share() -> None:
    i, j = Variable("i", 3), Variable("j", 300)
    x, y = Buffer("x", DType.F32, (3,)), Buffer("y", DType.F32, (3, 300))
    centers: tuple[Literal["mean", "none"], ...] = ("mean", "none")
    for center in centers:
        problem = Normalization((i,), (j,), x[i], (Output(y, NORMALIZED[()]),), center=center)
        arrays = {x: np.array([0.5, -2, 3], np.float32)}
        found = run(build(problem, candidates(problem, host())[0], host()), arrays, y)
        want = reference(np.repeat(arrays[x].astype(np.float64)[:, None], 300, 1), (1,), 1e-5, center)
        np.testing.assert_allclose(found, want, atol=TOLERANCE)


def test_a_large_mean_does_not_cancel_the_variance() -> None:
    # mean(x^2) - mean(x)^2 of these rows has no correct digit in f32.
    i, j = Variable("i", 4), Variable("j", 700)
    x, y = (Buffer(name, DType.F32, (4, 700)) for name in "xy")
    problem = Normalization((i,), (j,), x[i, j], (Output(y, NORMALIZED[()]),))
    array = (np.random.default_rng(0).normal(size=(4, 700)) + 10_000).astype(np.float32)
    array[1, :350] = 0  # a jump inside the row
    found = run(build(problem, candidates(problem, host())[0], host()), {x: array}, y)
    # The mean itself is rounded to f32: half a step at 10,000 is 5e-4 standard deviations.
    np.testing.assert_allclose(found, reference(array.astype(np.float64), (1,), 1e-5), atol=2e-3)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_group_normalization_with_an_activation(data: st.DataObject) -> None:
    n, g, c, s = (data.draw(st.sampled_from(sizes)) for sizes in ((1, 3), (1, 2, 4), (1, 3, 8), (1, 5, 16, 49)))
    x, y = (data.draw(layouts(name, DType.F32, (n, g * c, s))) for name in "xy")
    scale, bias = (Buffer(name, DType.F32, (g * c,)) for name in ("scale", "bias"))
    vn, vg, vc, vs = (Variable(name, size) for name, size in zip("ngcs", (n, g, c, s), strict=True))
    channel = vg * c + vc
    value = relu(NORMALIZED[()] * scale[channel] + bias[channel])
    places = x[vn, channel, vs].indices
    problem = Normalization((vn, vg), (vc, vs), x[vn, channel, vs], (Output(y, value, places),))
    arrays = {x: floats((n, g * c, s), DType.F32, 1)}
    arrays |= {scale: floats((g * c,), DType.F32, 2), bias: floats((g * c,), DType.F32, 3)}
    found = run(build(problem, candidates(problem, host())[0], host()), arrays, y)
    grouped = reference(arrays[x].astype(np.float64).reshape(n, g, c, s), (2, 3), 1e-5).reshape(n, g * c, s)
    want = np.maximum(grouped * arrays[scale][:, None] + arrays[bias][:, None], 0)
    np.testing.assert_allclose(found, want, atol=20 * TOLERANCE)  # a row of two has its variance near epsilon


def test_instance_normalization_over_an_image() -> None:
    n, c, h, w = (Variable(name, size) for name, size in zip("nchw", (2, 3, 9, 13), strict=True))
    x, y = (Buffer(name, DType.F32, (2, 3, 9, 13)) for name in "xy")
    scale, bias = (Buffer(name, DType.F32, (3,)) for name in ("scale", "bias"))
    value = NORMALIZED[()] * scale[c] + bias[c]
    problem = Normalization((n, c), (h, w), x[n, c, h, w], (Output(y, value),))
    arrays = {x: floats((2, 3, 9, 13), DType.F32, 1)}
    arrays |= {scale: floats((3,), DType.F32, 2), bias: floats((3,), DType.F32, 3)}
    found = run(build(problem, candidates(problem, host())[0], host()), arrays, y)
    want = reference(arrays[x].astype(np.float64), (2, 3), 1e-5)
    want = want * arrays[scale][:, None, None] + arrays[bias][:, None, None]
    np.testing.assert_allclose(found, want, atol=10 * TOLERANCE)


def test_a_residual_sum_is_normalised_on_the_way() -> None:
    i, j = Variable("i", 33), Variable("j", 100)
    a, b, y = (Buffer(name, DType.F32, (33, 100)) for name in "aby")
    problem = Normalization((i,), (j,), a[i, j] + b[i, j], (Output(y, NORMALIZED[()]),))
    arrays = {a: floats((33, 100), DType.F32, 1), b: floats((33, 100), DType.F32, 2)}
    found = run(build(problem, candidates(problem, host())[0], host()), arrays, y)
    want = reference((arrays[a] + arrays[b]).astype(np.float64), (1,), 1e-5)
    np.testing.assert_allclose(found, want, atol=TOLERANCE)


@pytest.mark.parametrize("target", NAMED)
def test_every_target_compiles_with_few_spills(target: Target) -> None:
    i, j = Variable("i", 33), Variable("j", 1000)
    x, y, scale = (
        Buffer(name, DType.F32, dims) for name, dims in (("x", (33, 1000)), ("y", (33, 1000)), ("s", (1000,)))
    )
    problem = Normalization((i,), (j,), x[i, j], (Output(y, NORMALIZED[()] * scale[j]),))
    kernel = build(problem, candidates(problem, target)[0], target)
    assert spills(assembly(kernel.module.text(), target)) <= 8
