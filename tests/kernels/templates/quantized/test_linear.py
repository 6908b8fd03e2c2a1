"""Quantisation bit for bit beside ONNX's reference and ONNX Runtime: ties, saturation, scales by axis, every type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from kernels.dtype import DType
from kernels.run import Array
from kernels.target import Target, host
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.templates.quantized.linear import dequantize, quantize
from kernels.templates.quantized.problem import InvalidQuantized, limits
from kernels.tensor.expression import Buffer, Expression, Load, Number, Variable
from tests.kernels.guard import run_guarded
from tests.kernels.templates.quantized.oracle import TARGETS
from tests.kernels.templates.quantized.runtime import outputs

NARROW = (DType.U8, DType.I8, DType.U16, DType.I16)
shapes = st.tuples(st.integers(1, 7), st.integers(1, 7), st.just(12))


def _run(target: Target, x: Array, scale: Array, zero: Array | None, kind: DType) -> Array:
    """x of float32 quantized to `kind`, x of `kind` dequantized; scale and zero: one, or one for each of dim 1."""
    axes = tuple(Variable(name, size) for name, size in zip("ijk", x.shape, strict=True))

    def operand(name: str, array: Array) -> Load:
        dtype = DType.F32 if array.dtype == np.float32 else kind
        return Buffer(name, dtype, array.shape)[axes if array.ndim == 3 else axes[1:2] if array.ndim else ()]

    given, by = operand("x", x), operand("scale", scale)
    offset = None if zero is None else operand("zero", zero)
    value: Expression = dequantize(given, by, offset) if x.dtype != np.float32 else quantize(given, by, offset, kind)
    problem = Elementwise(axes, (Output(Buffer("y", value.dtype, x.shape), value),))
    arrays = {"x": x, "scale": scale, **({} if zero is None else {"zero": zero})}
    return run_guarded(ELEMENTWISE.kernel(problem, target), arrays)["y"]


@settings(deadline=None, max_examples=20)
@given(shapes, st.sampled_from(NARROW), st.booleans(), st.booleans(), st.integers(0, 99), st.sampled_from(TARGETS))
def test_quantize(
    shape: tuple[int, ...], kind: DType, per_axis: bool, with_zero: bool, seed: int, target: Target
) -> None:
    generator = np.random.default_rng(seed)
    sizes = shape[1:2] if per_axis else ()
    scale = np.array(2.0 ** generator.integers(-6, 3, sizes), np.float32)  # so that many quotients are ties
    low, high = limits(kind)
    wide = generator.integers(2 * low - 9, 2 * high + 9, shape) / 2
    x = (wide * generator.choice([1.0, 0.25, 1e30], shape)).astype(np.float32)
    zero = np.array(generator.integers(low, high + 1, sizes), kind.numpy) if with_zero else None
    feeds: dict[str, Array] = {"x": x, "s": scale, **({} if zero is None else {"z": zero})}
    to = helper.np_dtype_to_tensor_dtype(kind.numpy)
    node = helper.make_node("QuantizeLinear", list(feeds), ["y"], axis=1, **({} if with_zero else {"output_dtype": to}))
    expected = outputs([node], feeds, to)
    np.testing.assert_array_equal(_run(target, x, scale, zero, kind), expected.reshape(-1))


@settings(deadline=None, max_examples=20)
@given(shapes, st.sampled_from((*NARROW, DType.I32)), st.booleans(), st.booleans(), st.integers(0, 99),
       st.sampled_from(TARGETS))  # fmt: skip
def test_dequantize(
    shape: tuple[int, ...], kind: DType, per_axis: bool, with_zero: bool, seed: int, target: Target
) -> None:
    generator = np.random.default_rng(seed)
    sizes = shape[1:2] if per_axis else ()
    scale = np.array(generator.uniform(0.001, 10, sizes), np.float32)
    low, high = limits(kind)
    x = generator.integers(low, high + 1, shape).astype(kind.numpy)
    has_zero = with_zero and kind is not DType.I32  # ONNX gives int32 no zero point
    zero = np.array(generator.integers(low, high + 1, sizes), kind.numpy) if has_zero else None
    feeds: dict[str, Array] = {"x": x, "s": scale, **({} if zero is None else {"z": zero})}
    node = helper.make_node("DequantizeLinear", list(feeds), ["y"], axis=1)
    expected = outputs([node], feeds, TensorProto.FLOAT)
    np.testing.assert_array_equal(_run(target, x, scale, zero, kind), expected.reshape(-1))


@pytest.mark.parametrize("kind", (DType.U8, DType.I8))
def test_ties_go_to_even_as_in_the_reference(kind: DType) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 300.0, -300.0, 1e9, -1e9, 126.5, 127.5, 0.25], np.float32)
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    scale, zero = np.array(1.0, np.float32), np.array(2, kind.numpy)
    expected = ReferenceEvaluator(node).run(None, {"x": x, "s": scale, "z": zero})[0]
    np.testing.assert_array_equal(_run(host(), x.reshape(1, 1, -1), scale, zero, kind), expected)


def test_what_cannot_be_quantized_is_refused() -> None:
    with pytest.raises(InvalidQuantized, match="a float is quantized to u8, i8, u16 or i16, not to i32"):
        quantize(Number(0.5), Number(1.0), None, DType.I32)
