"""Matrix products of bytes beside int64 sums and ONNX Runtime, for every type, zero point, size and target."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernels.dtype import DType
from kernels.run import Array
from kernels.target import Target
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.templates.quantized.arithmetic import ByteArithmetic
from kernels.templates.quantized.linear import dequantize, requantize
from kernels.templates.quantized.problem import limits
from kernels.templates.quantized.product import QuantizedProduct, build, candidates, repacking
from kernels.tensor.expression import Buffer, Number
from tests.kernels.guard import run_guarded
from tests.kernels.templates.quantized.oracle import TARGETS
from tests.kernels.templates.quantized.runtime import outputs

sizes = st.one_of(st.integers(1, 6), st.integers(7, 90))


def _bytes(dtype: DType, seed: int, *shape: int) -> Array:
    low, high = limits(dtype)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(dtype.numpy)


def _run(
    product: QuantizedProduct, target: Target, number: int, a: Array, b: Array,
    arithmetic: ByteArithmetic | None = None, **more: Array,
) -> Array:  # fmt: skip
    found = candidates(product, target, arithmetic)
    candidate = found[number % len(found)]
    kernel = build(product, candidate, target)
    if product.constant_b:
        packing = kernel.operand("b").packing
        assert packing is not None
        packed = packing.pack(b)
    else:
        zero = {"weights_zero": more.pop("b_zero")} if product.b_zero is None else {}
        packed = run_guarded(repacking(product, candidate, target), {"weights": b, **zero})["packed"]
    shape = (product.batch, product.rows, product.columns)
    return run_guarded(kernel, {"a": a, "b": packed, **more})["c"].reshape(shape)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_product_is_exact(data: st.DataObject) -> None:
    rows, columns, depth = (data.draw(sizes) for _ in range(3))
    a_dtype, b_dtype = (data.draw(st.sampled_from((DType.U8, DType.I8))) for _ in range(2))
    constant, turned_a, turned_b, late = (data.draw(st.booleans()) for _ in range(4))
    batch = 1 if constant else data.draw(st.integers(1, 3))
    a_zero = data.draw(st.integers(*limits(a_dtype)))
    b_zeros = [data.draw(st.integers(*limits(b_dtype))) for _ in range(data.draw(st.sampled_from((1, 2))))]
    if len(b_zeros) == 2:
        b_zeros = (b_zeros * columns)[:columns]
    late_b = late and not constant and len(b_zeros) == 1
    product = QuantizedProduct(
        rows, columns, depth, batch, a_dtype, b_dtype, None if late else a_zero, None if late_b else tuple(b_zeros),
        constant, turned_a, turned_b,
    )  # fmt: skip
    number = data.draw(st.integers(0, 99))
    a, b = _bytes(a_dtype, number, batch, rows, depth), _bytes(b_dtype, number + 1, batch, depth, columns)
    more = {"a_zero": np.array([a_zero], a_dtype.numpy)} if late else {}
    more |= {"b_zero": np.array(b_zeros, b_dtype.numpy)} if late_b else {}
    stored_a = np.ascontiguousarray(a.swapaxes(1, 2)) if turned_a else a
    stored_b = np.ascontiguousarray(b.swapaxes(1, 2)) if turned_b else b
    arithmetic: ByteArithmetic | None = data.draw(st.sampled_from((None, "pairs")))
    got = _run(product, data.draw(st.sampled_from(TARGETS)), number, stored_a, stored_b, arithmetic, **more)
    exact = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - np.array(b_zeros))
    np.testing.assert_array_equal(got, exact)


@settings(deadline=None, max_examples=20)
@given(sizes, sizes, sizes, st.sampled_from((DType.U8, DType.I8)), st.integers(0, 200), st.integers(0, 99),
       st.sampled_from(TARGETS))  # fmt: skip
def test_matmul_integer(
    rows: int, columns: int, depth: int, b_dtype: DType, zero: int, number: int, target: Target
) -> None:
    b_zero = 7 if b_dtype is DType.I8 else 130
    a, b = _bytes(DType.U8, number, rows, depth), _bytes(b_dtype, number, depth, columns)
    feeds = {"a": a, "b": b, "az": np.array(zero, np.uint8), "bz": np.array(b_zero, b_dtype.numpy)}
    expected = outputs([helper.make_node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])], feeds, TensorProto.INT32)
    product = QuantizedProduct(rows, columns, depth, b_dtype=b_dtype, a_zero=zero, b_zero=(b_zero,))
    np.testing.assert_array_equal(_run(product, target, number, a, b)[0], expected)


@settings(deadline=None, max_examples=20)
@given(sizes, sizes, sizes, st.integers(0, 255), st.integers(0, 255), st.integers(0, 99), st.sampled_from(TARGETS))
def test_qlinear_matmul(
    rows: int, columns: int, depth: int, zero: int, y_zero: int, number: int, target: Target
) -> None:
    generator = np.random.default_rng(number)
    a, b = _bytes(DType.U8, number, rows, depth), _bytes(DType.I8, number, depth, columns)
    scales = [generator.uniform(0.001, 0.1, size).astype(np.float32) for size in ((), columns)]
    y_scale = np.float32(0.05 * np.sqrt(depth))
    feeds: dict[str, Array] = {
        "a": a, "as": scales[0], "az": np.array(zero, np.uint8), "b": b, "bs": scales[1],
        "bz": np.zeros(columns, np.int8), "ys": np.array(y_scale), "yz": np.array(y_zero, np.uint8),
    }  # fmt: skip
    expected = outputs([helper.make_node("QLinearMatMul", list(feeds), ["y"])], feeds, TensorProto.UINT8)
    product = QuantizedProduct(rows, columns, depth, a_zero=zero)
    multiplier = Buffer("multiplier", DType.F32, (columns,))[product.column]
    value = requantize(ACCUMULATED_INTEGER[()], multiplier, Number(y_zero, DType.U8), DType.U8)
    fused = QuantizedProduct(rows, columns, depth, a_zero=zero, epilogue=Epilogue(value))
    factors = scales[0] * scales[1] / y_scale  # in float32 and in this order, as ONNX Runtime has it
    np.testing.assert_array_equal(_run(fused, target, number, a, b, multiplier=factors)[0], expected)


def test_sums_wrap_around_as_int32_does() -> None:
    depth = 70_000  # 70,000 * 255 * 127 is more than 2**31
    a, b = np.full((1, depth), 255, np.uint8), np.full((depth, 1), 127, np.int8)
    for target in TARGETS:
        got = _run(QuantizedProduct(1, 1, depth), target, 0, a, b)
        assert got.item() == np.int64(depth * 255 * 127).astype(np.int32)


@settings(deadline=None, max_examples=20)
@given(sizes, sizes, sizes, st.integers(0, 255), st.integers(0, 99), st.sampled_from(TARGETS))
def test_a_product_quantized_as_the_program_runs(
    rows: int, columns: int, depth: int, zero: int, number: int, target: Target
) -> None:
    """c = float(sums) * (a_scale * b_scale) + bias, where a's scale and zero point are computed too."""
    a, b = _bytes(DType.U8, number, rows, depth), _bytes(DType.I8, number, depth, columns)
    plain = QuantizedProduct(rows, columns, depth, a_zero=None)
    a_scale, b_scale, bias = (
        Buffer(name, DType.F32, (size,)) for name, size in (("a_scale", 1), ("b_scale", columns), ("bias", columns))
    )
    value = dequantize(ACCUMULATED_INTEGER[()], a_scale[0] * b_scale[plain.column]) + bias[plain.column]
    product = QuantizedProduct(rows, columns, depth, a_zero=None, epilogue=Epilogue(value))
    generator = np.random.default_rng(number)
    of_a, of_b = np.float32(0.5), (2.0 ** -generator.integers(1, 5, columns)).astype(np.float32)
    added = generator.integers(-99, 99, columns).astype(np.float32)
    more = {"a_scale": np.array([of_a]), "b_scale": of_b, "bias": added, "a_zero": np.array([zero], np.uint8)}
    # Scales are powers of two and sums below 2**22: float32 is exact.
    expected = ((a.astype(np.int64) - zero) @ b.astype(np.int64)) * (of_a * of_b).astype(np.float64) + added
    np.testing.assert_array_equal(_run(product, target, number, a, b, **more)[0], expected)
