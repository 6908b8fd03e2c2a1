"""Convolution by its definition, in float64, and running a kernel on images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from kernels.kernel import Kernel
from kernels.run import Array
from kernels.templates.convolution.problem import Convolution
from tests.kernels.guard import run_guarded

Images = npt.NDArray[np.float64]


def definition(problem: Convolution, x: Array, weights: Array) -> Images:
    """out[n, o, p] = sum over channels and taps of x[n, c, p * stride + tap * dilation - pad] * w[o, c, tap]."""
    size, taps = problem.output.size, problem.kernel
    spread = np.zeros((*x.shape[:2], *problem.spread))
    spread[(..., *(slice(None, None, d) for d in problem.input_dilations))] = x
    far = [(o - 1) * s + r for o, s, r in zip(size, problem.strides, problem.reach, strict=True)]
    field = np.zeros((*x.shape[:2], *(p + f + n for p, f, n in zip(problem.pads, far, problem.spread, strict=True))))
    field[(..., *(slice(p, p + n) for p, n in zip(problem.pads, problem.spread, strict=True)))] = spread
    found = np.zeros((problem.output.batch, problem.output.channels, *size))
    for group in range(problem.groups):
        ours = slice(group * problem.width, (group + 1) * problem.width)
        seen = slice(group * problem.depth, (group + 1) * problem.depth)
        for tap in product(*map(range, taps)):
            if problem.transposed:
                mirrored = tuple(k - 1 - t for k, t in zip(taps, tap, strict=True))
                w = weights[(seen, slice(None), *mirrored)].T
            else:
                w = weights[(ours, slice(None), *tap)]
            places = tuple(
                slice(t * d, t * d + (o - 1) * s + 1, s)
                for t, d, o, s in zip(tap, problem.dilations, size, problem.strides, strict=True)
            )
            found[:, ours] += np.einsum("oc,ncdhw->nodhw", w.astype(np.float64), field[(slice(None), seen, *places)])
    return found


@dataclass(frozen=True)
class Sample:
    """Seeded images and weights of a problem."""

    problem: Convolution
    x: Array
    weights: Array

    @property
    def expected(self) -> Images:
        """What the convolution gives, before its epilogue."""
        return definition(self.problem, self.x, self.weights)


def sample(problem: Convolution, seed: int = 0) -> Sample:
    """Numbers near 1, weights scaled so that sums are near 1 too."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((problem.input.batch, problem.input.channels, *problem.input.size))
    shape = (problem.input.channels, problem.width) if problem.transposed else (problem.output.channels, problem.depth)
    weights = generator.standard_normal((*shape, *problem.kernel)) / np.sqrt(problem.depth * np.prod(problem.kernel))
    return Sample(problem, x.astype(np.float32), weights.astype(np.float32))


def run(kernel: Kernel, taken: Sample, others: dict[str, Array] | None = None) -> Array:
    """What a kernel computes, run between guard pages; checks that it wrote nothing but the inside of its output."""
    problem = taken.problem
    packing = kernel.operand("weights").packing
    assert packing is not None
    arrays = {
        "x": problem.input.store(taken.x),
        "weights": packing.pack(taken.weights),
        "y": np.zeros(problem.output.elements, problem.epilogue.dtype.numpy),
        # An operand of the epilogue ends with its last element: zeros stored after that are not read.
        **{name: array.reshape(-1)[: kernel.operand(name).elements] for name, array in (others or {}).items()},
    }
    y = run_guarded(kernel, arrays)["y"]
    found = problem.output.read(y)
    np.testing.assert_array_equal(problem.output.store(found), y, "zeros around the image or after its channels")
    return found
