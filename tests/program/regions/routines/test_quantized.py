"""Quantization and quantized arithmetic, beside onnx's ReferenceEvaluator or int64 and float64 in NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphopt.program.regions.routines.quantized import PART
from tests.program.regions.routines.one_node import held, same

INTEGERS = ["u1", "i1", "u2", "i2"]
FEW = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2]
FLOATS = [
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float4_e2m1fn,
]  # fmt: skip
SEEDS = st.integers(0, 10_000)


def limits(kind: object) -> tuple[int, int]:
    found = ml_dtypes.iinfo(kind)
    return int(found.min), int(found.max)


def drawn(generator: np.random.Generator, shape: tuple[int, ...], kind: object) -> np.ndarray:
    low, high = limits(kind)
    return generator.integers(low, high, shape, endpoint=True).astype(kind)


@given(SEEDS, st.sampled_from([*INTEGERS, *FEW]), st.sampled_from(["tensor", "axis", "block"]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_integers_are_quantized_and_dequantized(seed: int, kind: object, grain: str, zeros: bool) -> None:
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(1, 6, 3))
    axis, block = int(generator.integers(-3, 3)), int(generator.integers(1, 4))
    per = list(shape)
    per[axis] = -(-shape[axis] // block)
    dims = {"tensor": (), "axis": (shape[axis],), "block": tuple(per)}[grain]
    scale = (generator.random(dims) + 0.1).astype(np.float32)
    zero = drawn(generator, dims, kind) if zeros else None
    attributes = {} if grain == "tensor" else {"axis": axis}
    attributes |= {"block_size": block} if grain == "block" else {}
    x = (generator.standard_normal(shape) * 6).astype(np.float32)
    inputs = [x, scale] if zero is None else [x, scale, zero]
    code = {} if zeros else {"output_dtype": int(_code(kind))}
    known = [[], [1, 2], [1]][seed % 3][: None if zeros else 1]
    same("QuantizeLinear", inputs, engine="reference", opset=25, known=known, **attributes, **code)
    q = drawn(generator, shape, kind)
    same("DequantizeLinear", [q, *inputs[1:]], engine="reference", opset=25, known=known, tolerance=1e-7, **attributes)


def _code(kind: object) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(kind))


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("saturate", [0, 1])
def test_short_floats_are_quantized_and_dequantized(kind: type, saturate: int) -> None:
    x = np.array([0, -0.3, 1, 2.4, 300, -700, 7e4, 1e-3], np.float32)
    scale = np.array(0.5, np.float32)
    same("QuantizeLinear", [x, scale, np.zeros((), kind)], engine="reference", opset=25, saturate=saturate)
    q = np.arange(0, 16 if kind is ml_dtypes.float4_e2m1fn else 256, dtype=np.uint8).view(kind)
    same("DequantizeLinear", [q, scale], engine="reference", opset=25, tolerance=1e-7)


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
def test_quotients_have_the_precision_of_the_scale(half: type) -> None:
    x = (np.random.default_rng(0).standard_normal(64) * 20).astype(half)
    scale, zero = np.array(0.37, half), np.array(3, np.int8)
    same("QuantizeLinear", [x, scale, zero], engine="reference", opset=25)
    same(
        "QuantizeLinear", [x, scale.astype(np.float32), zero], engine="reference", opset=25, precision=int(_code(half))
    )
    q = np.arange(-128, 128).astype(np.int8)
    same("DequantizeLinear", [q, scale, zero], engine="reference", opset=25, tolerance=1e-7)


def test_int32_is_dequantized_without_zero_point() -> None:
    x = np.array([-(2**31), -5, 0, 7, 2**31 - 1], np.int32)
    same("DequantizeLinear", [x, np.array(0.25, np.float32)], engine="reference", opset=21)


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_the_range_of_the_data_is_that_of_bytes(seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = (generator.standard_normal(tuple(generator.integers(1, 9, 2))) * 3 + generator.integers(-4, 5)).astype("f4")
    same("DynamicQuantizeLinear", [x], outputs=3, tolerance=1e-7)


def test_a_range_of_nothing_but_zeros_has_the_scale_one() -> None:
    same("DynamicQuantizeLinear", [np.zeros(5, np.float32)], outputs=3)


@pytest.mark.parametrize("size", [3, 300, PART + 200])
def test_what_is_no_number_does_not_count_for_the_range(size: int) -> None:
    x = np.linspace(-1, 3, size).astype(np.float32)
    x[[0, size // 2]] = np.nan
    low, high = np.float32(min(0, np.nanmin(x))), np.float32(np.nanmax(x))
    scale = (high - low) / np.float32(255)
    zero = np.uint8(np.rint(-low / scale))
    bytes_ = np.clip(np.rint(np.nan_to_num(x) / scale) + zero, 0, 255)
    held("DynamicQuantizeLinear", [x], [np.where(np.isnan(x), 0, bytes_).astype(np.uint8), scale, zero])


@pytest.mark.parametrize("size", [PART, PART + 1, 3 * PART + 77])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_parts_of_a_large_operand_find_one_range(size: int, place: int) -> None:
    """The extremes stand alone, in the first and the last part or behind the first one's start."""
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    x[place], x[size // 2] = -71.0, 93.0
    same("DynamicQuantizeLinear", [x], outputs=3, tolerance=1e-7)


MATRICES = st.sampled_from([
    ((5, 7), (7, 3)), ((2, 5, 7), (7, 300)), ((7,), (7, 4)), ((3, 7), (7,)), ((2, 1, 4, 7), (3, 7, 2)),
    ((1, 0), (0, 3)),
])  # fmt: skip


@given(SEEDS, MATRICES, st.sampled_from(["u1", "i1"]), st.sampled_from(["u1", "i1"]), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_products_of_integers(
    seed: int, dims: tuple[tuple[int, ...], tuple[int, ...]], left: str, right: str, zeros: int
) -> None:
    generator = np.random.default_rng(seed)
    a, b = drawn(generator, dims[0], left), drawn(generator, dims[1], right)
    rows = (a.shape[-2],) if zeros == 2 and a.ndim == 2 == b.ndim else ()
    columns = (b.shape[-1],) if rows else ()
    a_zero, b_zero = drawn(generator, rows, left), drawn(generator, columns, right)
    wide = a.astype(np.int64) - (a_zero.astype(np.int64)[:, None] if rows else int(a_zero)) * bool(zeros)
    total = wide @ (b.astype(np.int64) - b_zero.astype(np.int64) * bool(zeros))
    held("MatMulInteger", [a, b, *((a_zero, b_zero) if zeros else ())], [total.astype(np.int32)])
    scales = [np.float32(one) for one in generator.random(3) * 0.1 + 0.02]
    y_zero = drawn(generator, (), left)
    low, high = limits(left)
    factor = np.float32(np.float32(scales[0] * scales[1]) / scales[2])
    wanted = np.clip(np.rint(total.astype(np.float32) * factor) + int(y_zero), low, high).astype(left)
    if zeros:
        inputs = [a, scales[0], a_zero, b, scales[1], b_zero, scales[2], y_zero]
        held("QLinearMatMul", [np.asarray(one) for one in inputs], [np.asarray(wanted)], opset=21)


@given(SEEDS, st.integers(1, 3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_convolutions_of_integers(seed: int, rank: int, quantizes: bool) -> None:
    """Beside NumPy's own sums of windows, in int64."""
    generator = np.random.default_rng(seed)
    group = int(generator.integers(1, 3))
    channels, outputs = 2 * group, 3 * group
    size, kernel = generator.integers(4, 9, rank), generator.integers(1, 4, rank)
    strides, dilations = generator.integers(1, 3, rank), generator.integers(1, 3, rank)
    pads = generator.integers(0, 3, 2 * rank)
    x, w = drawn(generator, (2, channels, *size), "u1"), drawn(generator, (outputs, 2, *kernel), "i1")
    x_zero, w_zero = drawn(generator, (), "u1"), drawn(generator, (outputs,) if seed % 2 else (), "i1")
    wide = x.astype(np.int64) - int(x_zero)
    wide = np.pad(wide, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    spread = w.astype(np.int64) - w_zero.astype(np.int64).reshape((-1,) + (1,) * (rank + 1))
    reach = dilations * (kernel - 1) + 1
    out = (np.array(wide.shape[2:]) - reach) // strides + 1
    if (out < 1).any():
        return
    total = np.zeros((2, outputs, *out), np.int64)
    for tap in np.ndindex(*kernel):
        cut = tuple(
            slice(at * step, at * step + (count - 1) * stride + 1, stride)
            for at, step, count, stride in zip(tap, dilations, out, strides, strict=True)
        )
        for number in range(group):
            part = wide[(slice(None), slice(2 * number, 2 * number + 2), *cut)]
            taps = spread[(slice(3 * number, 3 * number + 3), slice(None), *tap)]
            total[:, 3 * number : 3 * number + 3] += np.einsum("nc...,oc->no...", part, taps)
    attributes = {
        "group": group, "strides": strides.tolist(), "dilations": dilations.tolist(), "pads": pads.tolist(),
        "kernel_shape": kernel.tolist(),
    }  # fmt: skip
    if not quantizes:
        held("ConvInteger", [x, w, x_zero, w_zero], [total.astype(np.int32)], **attributes)
        return
    per = (outputs,) if seed % 2 else ()
    x_scale, y_scale, scale = np.float32(0.03), np.float32(0.7), (generator.random(per) * 0.1).astype(np.float32)
    bias, y_zero = generator.integers(-500, 500, outputs).astype(np.int32), drawn(generator, (), "u1")
    spreading = (1, -1) + (1,) * rank
    factor = (x_scale * scale / y_scale).astype(np.float32)
    factor = factor.reshape(spreading) if per else factor
    sums = (total + bias.reshape(spreading)).astype(np.float32)
    exact = (total + bias.reshape(spreading)) * factor.astype(np.float64)
    assume((np.abs(exact % 1 - 0.5) > np.abs(exact) * 2.0**-22).all())  # float32 does not decide what lies on a tie
    wanted = np.clip(np.rint(sums * factor) + int(y_zero), 0, 255).astype(np.uint8)
    inputs = [x, x_scale, x_zero, w, scale, w_zero, y_scale, y_zero, bias]
    held("QLinearConv", [np.asarray(one) for one in inputs], [wanted], opset=21, **attributes)


def test_windows_of_signals() -> None:
    for op in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        for periodic in (0, 1):
            same(op, [np.array(11, np.int64)], known=[0], tolerance=1e-6, periodic=periodic)
