"""Bytes on ARM64 and RISC-V, in an emulator: with the dot-product instruction and without it, exact either way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.target import Target, aarch64, riscv64
from kernels.templates.convolution.problem import convolution
from kernels.templates.epilogue import ACCUMULATED_INTEGER
from kernels.templates.quantized import ways
from kernels.templates.quantized.linear import requantize
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.quantized.product import QuantizedProduct, build, candidates
from kernels.tensor.expression import Number
from tests.kernels.arm import needs_arm, run_emulated
from tests.kernels.templates.quantized.oracle import accumulated, arguments, byte_images

pytestmark = needs_arm
DOT = Target("aarch64-unknown-linux-gnu", "generic", (*aarch64().features, "+dotprod"), 16, 32)


SUMS = ((DType.U8, 1), (DType.I8, 1), (DType.U8, 3))
# QEMU 7.2 ends at the second vfcvt.rtz.x.f.v behind a jump of RISC-V, by an assertion of its own: no groups of one.
CASES = [(target, *case) for target in (aarch64(), DOT) for case in (*SUMS, (DType.U8, 6))]


@pytest.mark.parametrize(("target", "dtype", "groups"), [*CASES, *((riscv64(), *case) for case in SUMS)])
def test_convolution(target: Target, dtype: DType, groups: int, tmp_path: Path) -> None:
    geometry = convolution(1, 6, 9 if groups < 6 else 6, (7, 8), (3, 3), pads=(1,) * 4, groups=groups, order="NHWC")
    zeros = tuple(range(-2, geometry.output.channels - 2))
    problem = QuantizedConvolution(geometry, dtype, DType.I8, 5, zeros)
    x, weights = byte_images(problem, groups)
    kernel = ways.build(problem, ways.candidates(problem, target)[0], target)
    given = arguments(problem, kernel, x, weights)
    got = geometry.output.read(run_emulated(kernel, given, tmp_path)["y"])
    np.testing.assert_array_equal(got, accumulated(problem, x, weights))


@pytest.mark.parametrize("target", (aarch64(), DOT, riscv64()), ids=("plain", "dot", "riscv"))
def test_requantized_sums(target: Target, tmp_path: Path) -> None:
    geometry = convolution(1, 5, 7, (4, 6), (1, 1), order="NHWC")
    plain = QuantizedConvolution(geometry, x_zero=3)
    x, weights = byte_images(plain, 1)
    scale = np.float32(2.0**-8)  # a power of two: float32 is exact, and many products are ties
    problem = plain.with_epilogue(requantize(ACCUMULATED_INTEGER[()], Number(float(scale)), Number(7, DType.U8)))
    kernel = ways.build(problem, ways.candidates(problem, target)[0], target)
    got = geometry.output.read(run_emulated(kernel, arguments(problem, kernel, x, weights), tmp_path)["y"])
    expected = np.clip(np.rint(accumulated(plain, x, weights) * np.float64(scale)) + 7, 0, 255)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("target", (aarch64(), DOT, riscv64()), ids=("plain", "dot", "riscv"))
def test_product(target: Target, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    a = generator.integers(0, 256, (5, 130)).astype(np.uint8)
    b = generator.integers(0, 256, (130, 21)).astype(np.uint8)
    product = QuantizedProduct(5, 21, 130, b_dtype=DType.U8, a_zero=11, b_zero=(140,))
    kernel = build(product, candidates(product, target)[0], target)
    packing = kernel.operand("b").packing
    assert packing is not None
    got = run_emulated(kernel, {"a": a, "b": packing.pack(b)}, tmp_path)["c"].reshape(5, 21)
    np.testing.assert_array_equal(got, (a.astype(np.int64) - 11) @ (b.astype(np.int64) - 140))
