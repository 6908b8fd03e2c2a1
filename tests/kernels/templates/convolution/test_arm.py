"""The same kernels built for ARM64 and RISC-V and run in an emulator: each way to convolve, and pooling."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.target import Target, aarch64, riscv64
from kernels.templates import pooling
from kernels.templates.convolution import choose, depthwise, winograd
from kernels.templates.convolution.problem import convolution
from kernels.templates.convolution.ways import build
from kernels.templates.pooling_problem import Pooling
from kernels.tensor.expression import relu
from tests.kernels.arm import needs_arm, run_emulated
from tests.kernels.templates.convolution.oracle import sample

pytestmark = needs_arm
TARGETS = pytest.mark.parametrize("target", (aarch64(), riscv64()), ids=("arm", "riscv"))

PLAIN = convolution(1, 20, 24, (7, 9), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
STRIDED = convolution(1, 3, 20, (11, 9), (5, 3), strides=(2, 2), pads=(2, 1, 2, 1), output_order="NHWC")
SPLIT = convolution(1, 64, 32, (5, 5), (1, 1), order="NCHWc")
ALONE = convolution(1, 20, 20, (9, 9), (3, 3), pads=(1, 1, 1, 1), groups=20, order="NHWC")
CASES = {
    "direct": (PLAIN, choose.candidates),
    "first layer": (STRIDED, choose.candidates),
    "1x1": (SPLIT, choose.candidates),
    "winograd": (PLAIN, winograd.candidates),
    "depthwise": (ALONE, depthwise.candidates),
}


@pytest.mark.parametrize("name", CASES)
@TARGETS
def test_a_way_to_convolve_gives_the_same_there(target: Target, name, tmp_path):
    problem, candidates = CASES[name]
    problem = problem.with_epilogue(relu)
    taken = sample(problem)
    kernel = build(problem, candidates(problem, target)[0], target)
    packing = kernel.operand("weights").packing
    arrays = {"x": problem.input.store(taken.x), "weights": packing.pack(taken.weights)}
    y = run_emulated(kernel, arrays, tmp_path)["y"]
    # Winograd's transforms round most: see its own test.
    np.testing.assert_allclose(problem.output.read(y), np.maximum(taken.expected, 0), atol=3e-5)


@TARGETS
def test_pooling_gives_the_same_there(target: Target, tmp_path):
    windows = convolution(1, 20, 20, (7, 7), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), groups=20, order="NCHWc")
    problem = Pooling(windows, "max")
    x = np.random.default_rng(0).standard_normal((1, 20, 1, 7, 7)).astype(np.float32)
    kernel = pooling.build(problem, pooling.candidates(problem, target)[0], target)
    found = windows.output.read(run_emulated(kernel, {"x": windows.input.store(x)}, tmp_path)["y"])
    padded = np.pad(x[0, :, 0], ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    for row in range(4):
        for column in range(4):
            seen = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            np.testing.assert_array_equal(found[0, :, 0, row, column], seen.max((1, 2)))
