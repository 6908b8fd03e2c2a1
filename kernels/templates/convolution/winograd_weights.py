"""Weights of Winograd convolution: transformed in float64, packed for the products; and an estimate of the rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import dense_groups, vector_groups
from kernels.templates.convolution.toom_cook import F4_POINTS, filtering

F4 = filtering(4, 3, F4_POINTS)


@dataclass(frozen=True, slots=True)
class WinogradPacking:
    """Transformed weights as [point of the window][panel][channel][output channel of the panel]."""

    problem: Convolution
    lanes: int
    vectors: int

    @property
    def point_elements(self) -> int:
        """Elements of one point."""
        groups = vector_groups(self.problem, self.lanes, self.vectors)
        return self.problem.input.channels * sum(group.size * group.count for group in groups) * self.lanes

    @property
    def elements(self) -> int:
        """Elements of all points."""
        return F4.size**2 * self.point_elements

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The transformed, packed weights."""
        moved = transformed(dense_groups(self.problem, array)[0][:, :, 0])
        points, depth, width = moved.shape
        parts = []
        groups = vector_groups(self.problem, self.lanes, self.vectors)
        whole = np.zeros((points, depth, self.point_elements // depth), array.dtype)
        whole[:, :, :width] = moved
        for point in whole:
            for group in groups:
                size = group.size * self.lanes
                for panel in range(group.count):
                    first = group.start * self.lanes + panel * size
                    parts.append(point[:, first : first + size].reshape(-1))
        return np.concatenate(parts)


def transformed(weights: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """G w G^T for each pair of channels: (points, channels, output channels) of (output channels, channels, 3, 3)."""
    g = np.array(F4.taps, np.float64)
    found = np.einsum("ia,ocab,jb->ijco", g, weights.astype(np.float64), g)
    return np.ascontiguousarray(found.reshape(F4.size**2, *found.shape[2:]))


def sampled_error(weights: npt.NDArray[np.generic], windows: int = 64, seed: int = 0) -> float:
    """The largest error of float32 Winograd against float64, relative to the largest output, over random windows.

    `weights` are (output channels, channels, 3, 3); inputs are drawn from a normal distribution. The figure is an
    estimate of what a network's tolerance is compared with, not a bound.
    """
    inputs = np.random.default_rng(seed).standard_normal((windows, weights.shape[1], F4.size, F4.size))
    exact = np.zeros((windows, weights.shape[0], F4.outputs, F4.outputs))
    for row in range(3):
        for column in range(3):
            seen = inputs[:, :, row : row + F4.outputs, column : column + F4.outputs]
            exact += np.einsum("oc,wcij->woij", weights[:, :, row, column].astype(np.float64), seen)
    narrow = np.float32
    window, output = (np.array(matrix, narrow) for matrix in (F4.window, F4.output))
    moved = np.einsum("ia,wcab->wcib", window, inputs.astype(narrow))
    moved = np.einsum("wcib,jb->ijwc", moved, window).reshape(F4.size**2, windows, -1)
    summed = moved @ transformed(weights).astype(narrow)
    back = np.einsum("ia,abwo->ibwo", output, summed.reshape(F4.size, F4.size, windows, -1))
    found = np.einsum("ibwo,jb->woij", back, output)
    return float(np.abs(found - exact).max() / np.abs(exact).max())
