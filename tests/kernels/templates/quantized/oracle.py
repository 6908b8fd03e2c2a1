"""Convolution of bytes by its definition, in Python's exact sums of int64, and running a kernel on images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels.kernel import Kernel
from kernels.run import Array
from kernels.target import Target, host, x86_64_v3, x86_64_v4
from kernels.templates.quantized.problem import QuantizedConvolution
from tests.kernels.guard import run_guarded
from tests.kernels.templates.convolution.oracle import definition


def _targets() -> tuple[Target, ...]:
    """What this machine runs: all its own, without dot products, with vectors of 64 and of 32 bytes, either way."""
    here = host()
    if here.architecture.name != "x86_64":
        return (here,)
    if here.vector_bytes < 64:
        return (here, x86_64_v3())
    half = replace(here, vector_bytes=32, vector_registers=16)
    return (here, x86_64_v3(), x86_64_v4(), half)


TARGETS = _targets()


def byte_images(problem: QuantizedConvolution, seed: int) -> tuple[Array, Array]:
    """Images and weights of all numbers that a byte holds."""
    generator = np.random.default_rng(seed)
    geometry = problem.geometry
    made = []
    for dtype, shape in (
        (problem.x_dtype, (geometry.input.batch, geometry.input.channels, *geometry.input.size)),
        (problem.weights_dtype, (geometry.output.channels, geometry.depth, *geometry.kernel)),
    ):
        info = np.iinfo(dtype.numpy)
        made.append(generator.integers(info.min, info.max + 1, shape).astype(dtype.numpy))
    return made[0], made[1]


def accumulated(problem: QuantizedConvolution, x: Array, weights: Array, x_zero: int | None = None) -> Array:
    """The int32 sums. float64 holds every one of these integers exactly."""
    zero = problem.x_zero if problem.x_zero is not None else x_zero
    zeros = np.array(problem.weights_zero, np.int64).reshape(-1, 1, 1, 1, 1)
    exact = definition(problem.geometry, x.astype(np.int64) - zero, weights.astype(np.int64) - zeros)
    return exact.astype(np.int64).astype(np.int32)


def arguments(
    problem: QuantizedConvolution, kernel: Kernel, x: Array, weights: Array, others: dict[str, Array] | None = None
) -> dict[str, Array]:
    """The table of a kernel's arguments. A halo around the input holds the zero point."""
    layout, zero = problem.geometry.input, problem.x_zero or 0
    packing = kernel.operand("weights").packing
    assert packing is not None
    stored = layout.store(x.astype(np.int16) - zero) + zero
    return {
        "x": stored.astype(problem.x_dtype.numpy),
        "weights": packing.pack(weights),
        "y": np.zeros(problem.geometry.output.elements, problem.geometry.epilogue.dtype.numpy),
        **{name: array.reshape(-1)[: kernel.operand(name).elements] for name, array in (others or {}).items()},
    }


def run(
    problem: QuantizedConvolution, kernel: Kernel, x: Array, weights: Array, others: dict[str, Array] | None = None
) -> Array:
    """What a kernel computes between guard pages; checks that it wrote nothing but the inside of its output."""
    y = run_guarded(kernel, arguments(problem, kernel, x, weights, others))["y"]
    found = problem.geometry.output.read(y)
    np.testing.assert_array_equal(problem.geometry.output.store(found), y, "the halo of the output")
    return found
