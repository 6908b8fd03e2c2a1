"""Quantisation bit for bit beside ONNX's reference and ONNX Runtime: ties, saturation, axes, blocks, every type."""

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
from kernels.templates.quantized.linear import dequantize_program, quantize_program
from kernels.templates.quantized.problem import InvalidQuantized, limits
from kernels.tensor.default import scheduled
from kernels.tensor.lower import lower
from kernels.tensor.program import Program
from tests.kernels.guard import run_guarded
from tests.kernels.templates.quantized.oracle import TARGETS
from tests.kernels.templates.quantized.runtime import outputs

NARROW = (DType.U8, DType.I8, DType.U16, DType.I16)
shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(lambda dims: (*dims, 12))


def _run(program: Program, target: Target, arrays: dict[str, Array]) -> Array:
    return run_guarded(lower(scheduled(program, target), target), arrays)["y"]


def _scales(generator: np.random.Generator, shape: tuple[int, ...], axis: int | None, block: int) -> tuple[int, ...]:
    if axis is None:
        return ()
    if not block:
        return (shape[axis],)
    return (*shape[:axis], shape[axis] // block, *shape[axis + 1 :])


@settings(deadline=None, max_examples=40)
@given(shapes, st.sampled_from(NARROW), st.booleans(), st.sampled_from((0, 1, 3, 12)), st.booleans(),
       st.integers(0, 99), st.sampled_from(TARGETS))  # fmt: skip
def test_quantize(
    shape: tuple[int, ...], kind: DType, per_axis: bool, block: int, zero: bool, seed: int, target: Target
) -> None:
    generator = np.random.default_rng(seed)
    axis = len(shape) - 1 if block else seed % len(shape)
    chosen = axis if per_axis or block else None
    sizes = _scales(generator, shape, chosen, block)
    scale = np.array(2.0 ** generator.integers(-6, 3, sizes), np.float32)  # so that many quotients are ties
    low, high = limits(kind)
    wide = generator.integers(2 * low - 9, 2 * high + 9, shape) / 2
    x = (wide * generator.choice([1.0, 0.25, 1e30], shape)).astype(np.float32)
    zeros = np.array(generator.integers(low, high + 1, sizes), kind.numpy)
    feeds: dict[str, Array] = {"x": x, "s": scale, **({"z": zeros} if zero else {})}
    to = helper.np_dtype_to_tensor_dtype(kind.numpy)
    attributes = {"axis": chosen or 0, "block_size": block} | ({} if zero else {"output_dtype": to})
    node = helper.make_node("QuantizeLinear", list(feeds), ["y"], **attributes)
    expected = outputs([node], feeds, to)
    program = quantize_program(shape, kind, axis=chosen, block=block, zero=zero)
    got = _run(program, target, {"x": x, "scale": scale, **({"zero": zeros} if zero else {})})
    np.testing.assert_array_equal(got, expected.reshape(-1))


@settings(deadline=None, max_examples=40)
@given(shapes, st.sampled_from((*NARROW, DType.I32)), st.booleans(), st.sampled_from((0, 1, 3, 12)), st.booleans(),
       st.integers(0, 99), st.sampled_from(TARGETS))  # fmt: skip
def test_dequantize(
    shape: tuple[int, ...], kind: DType, per_axis: bool, block: int, zero: bool, seed: int, target: Target
) -> None:
    generator = np.random.default_rng(seed)
    axis = len(shape) - 1 if block else seed % len(shape)
    chosen = axis if per_axis or block else None
    sizes = _scales(generator, shape, chosen, block)
    scale = np.array(generator.uniform(0.001, 10, sizes), np.float32)
    low, high = limits(kind)
    x = generator.integers(low, high + 1, shape).astype(kind.numpy)
    zero = zero and kind is not DType.I32  # ONNX gives int32 no zero point
    zeros = np.array(generator.integers(low, high + 1, sizes), kind.numpy)
    feeds: dict[str, Array] = {"x": x, "s": scale, **({"z": zeros} if zero else {})}
    node = helper.make_node("DequantizeLinear", list(feeds), ["y"], axis=chosen or 0, block_size=block)
    expected = outputs([node], feeds, TensorProto.FLOAT)
    program = dequantize_program(shape, kind, axis=chosen, block=block, zero=zero)
    got = _run(program, target, {"x": x, "scale": scale, **({"zero": zeros} if zero else {})})
    np.testing.assert_array_equal(got, expected.reshape(-1))


@pytest.mark.parametrize("kind", (DType.U8, DType.I8))
def test_ties_go_to_even_as_in_the_reference(kind: DType) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 300.0, -300.0, 1e9, -1e9, 126.5, 127.5, 0.25], np.float32)
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    scale, zero = np.float32(1.0), np.array(2, kind.numpy)
    expected = ReferenceEvaluator(node).run(None, {"x": x, "s": np.array(scale), "z": zero})[0]
    got = _run(quantize_program(x.shape, kind), host(), {"x": x, "scale": np.array(scale), "zero": zero})
    np.testing.assert_array_equal(got, expected)


def test_what_cannot_be_quantized_is_refused() -> None:
    with pytest.raises(InvalidQuantized, match="a float is quantized to u8, i8, u16 or i16, not to i32"):
        quantize_program((4,), DType.I32)
    with pytest.raises(InvalidQuantized, match="blocks of 3 do not divide an axis of 8"):
        dequantize_program((2, 8), axis=1, block=3)
