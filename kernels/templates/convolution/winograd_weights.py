"""Weights of Winograd convolution: transformed in float64, packed for the products in float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import dense_count, dense_groups, merged, merged_groups, vector_groups
from kernels.templates.convolution.toom_cook import F2_POINTS, F4_POINTS, Filtering, filtering
from kernels.templates.narrow import numbers

FILTERINGS = {2: filtering(2, 3, F2_POINTS), 4: filtering(4, 3, F4_POINTS)}  # by their outputs


@dataclass(frozen=True, slots=True)
class WinogradPacking:
    """Transformed weights as [dense group][point of the window][panel][channel][output channel of the panel]."""

    problem: Convolution
    lanes: int
    vectors: int
    outputs: int  # of a tile

    @property
    def depth(self) -> int:
        """Channels of a dense group."""
        return self.problem.depth * merged_groups(self.problem)

    @property
    def point_elements(self) -> int:
        """Elements of one point of a dense group."""
        groups = vector_groups(self.problem, self.lanes, self.vectors)
        return self.depth * sum(group.size * group.count for group in groups) * self.lanes

    @property
    def group_elements(self) -> int:
        """Elements of all points of a dense group."""
        return FILTERINGS[self.outputs].size ** 2 * self.point_elements

    @property
    def elements(self) -> int:
        """Elements of all groups."""
        return dense_count(self.problem) * self.group_elements

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The transformed, packed weights."""
        parts = []
        groups = vector_groups(self.problem, self.lanes, self.vectors)
        for some in merged(self.problem):
            for dense in dense_groups(self.problem, numbers(array, self.problem.weights_dtype), some):
                moved = transformed(dense[:, :, 0], FILTERINGS[self.outputs])
                points, depth, width = moved.shape
                whole = np.zeros((points, self.depth, self.point_elements // self.depth), np.float32)
                whole[:, :depth, :width] = moved
                for point in whole:
                    for group in groups:
                        size = group.size * self.lanes
                        for panel in range(group.count):
                            first = group.start * self.lanes + panel * size
                            parts.append(point[:, first : first + size].reshape(-1))
        return np.concatenate(parts)


def transformed(weights: npt.NDArray[np.generic], made: Filtering) -> npt.NDArray[np.float64]:
    """G w G^T for each pair of channels: (points, channels, output channels) of (output channels, channels, 3, 3)."""
    g = np.array(made.taps, np.float64)
    found = np.einsum("ia,ocab,jb->ijco", g, weights.astype(np.float64), g)
    return np.ascontiguousarray(found.reshape(made.size**2, *found.shape[2:]))
