"""Weights of Winograd convolution: transformed in float64, packed for the products in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Sums
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import dense_count, dense_groups, merged, merged_groups, vector_groups
from kernels.templates.convolution.toom_cook import F2_POINTS, F4_POINTS, Filtering, filtering, rounded
from kernels.templates.convolution.winograd_narrow import TAPS
from kernels.templates.narrow import numbers
from kernels.templates.packing import summed

TOGETHER = 1 << 13  # pairs of channels whose weights are transformed at once
FILTERINGS = {2: filtering(2, 3, F2_POINTS), 4: filtering(4, 3, F4_POINTS)}  # by their outputs


def channels_of_plane(problem: Convolution) -> int:
    """Channels of a dense group in one plane that a kernel sees: whole blocks where there are several such planes.

    The products then go over those of all planes, one after the other, as over so many channels.
    """
    depth, layout = problem.depth * merged_groups(problem), problem.input
    if problem.kernel[0] == 1 or layout.order == "NHWC":
        return depth
    return -(-depth // layout.block) * layout.block


@dataclass(frozen=True, slots=True)
class WinogradPacking:
    """Transformed weights as [dense group][point of the window][panel][channel][output channel of the panel].

    The channels are those of all planes of the kernel.
    """

    problem: Convolution
    lanes: int
    vectors: int
    outputs: int  # of a tile

    @property
    def depth(self) -> int:
        """Channels of a dense group."""
        return self.problem.kernel[0] * channels_of_plane(self.problem)

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

    @property
    def is_stored_as_taps(self) -> bool:
        """Weights of f32; others are few."""
        return self.problem.weights_dtype is DType.F32

    @property
    def sums(self) -> Sums:
        """G w G^T."""
        return Sums(rounded(FILTERINGS[self.outputs].taps))

    def taps(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The nine taps in the places of points."""

        def place(weights: npt.NDArray[np.generic], found: npt.NDArray[np.generic]) -> None:
            found[...] = weights.reshape(*weights.shape[:2], -1).transpose(2, 1, 0)

        return self._packed(array, np.zeros(TAPS, array.dtype), place)

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The transformed, packed weights."""
        made = FILTERINGS[self.outputs]
        wide = numbers(array, self.problem.weights_dtype)

        def place(weights: npt.NDArray[np.generic], found: npt.NDArray[np.float32]) -> None:
            transform(weights, made, found)

        beyond = np.empty((made.size**2, 1, 1), np.float32)
        place(np.zeros((1, 1, 3, 3), np.float32), beyond)  # some of these zeros are negative
        return self._packed(wide, beyond.reshape(-1), place)

    def _packed(
        self,
        array: npt.NDArray[np.generic],
        beyond: npt.NDArray[np.generic],
        place: Callable[[npt.NDArray[np.generic], npt.NDArray[Any]], None],
    ) -> npt.NDArray[np.generic]:
        """`place` gives the (points, channels, output channels) of (output channels, channels, 3, 3), of a panel each.

        Where they end in the packed weights, so that those are written once: they have the bytes of many caches.
        Channels that fill up the last vector are `beyond`, a number for each point.
        """
        groups, points = vector_groups(self.problem, self.lanes, self.vectors), len(beyond)
        each: list[npt.NDArray[np.generic]] = []
        for some in merged(self.problem):
            for dense in map(self._planes_as_channels, dense_groups(self.problem, array, some)):
                width, depth = dense.shape[:2]
                found, start = np.repeat(beyond, self.point_elements).reshape(points, -1), 0
                for group in groups:
                    size = group.size * self.lanes
                    for panel in range(group.count):
                        first = group.start * self.lanes + panel * size
                        rows = found[:, start : start + self.depth * size].reshape(points, self.depth, size)
                        if first < width:
                            place(dense[first : first + size], rows[:, :depth, : width - first])
                        start += self.depth * size
                each.append(found.reshape(-1))
        return each[0] if len(each) == 1 else np.concatenate(each)

    def _planes_as_channels(self, dense: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Weights (output channels, channels, planes, 3, 3) as (output channels, channels of all planes, 3, 3)."""
        width, depth, planes = dense.shape[:3]
        if planes == 1:
            return dense[:, :, 0]
        found = np.zeros((width, planes, channels_of_plane(self.problem), *dense.shape[3:]), dense.dtype)
        found[:, :, :depth] = dense.swapaxes(1, 2)
        return found.reshape(width, -1, *dense.shape[3:])


def transform(weights: npt.NDArray[np.generic], made: Filtering, found: npt.NDArray[np.float32]) -> None:
    """G w G^T for each pair of channels: (points, channels, output channels) of (output channels, channels, 3, 3).

    The sums of G w first, then those with G^T; each goes through its terms in their order, product by product, and
    leaves out those with 0: so does a library that makes them at creation. Sums are of float64, and of so few pairs at
    once that they stay in the caches: ten times as fast as all pairs together.
    """
    width, depth = weights.shape[:2]
    matrix, channels = rounded(made.taps), max(1, TOGETHER // width)
    points = found.reshape(made.size, made.size, depth, width)
    for start in range(0, depth, channels):
        some = slice(start, start + channels)
        rows = summed(matrix, np.ascontiguousarray(weights[:, some].transpose(2, 3, 1, 0), np.float64))
        for place, row in zip(points, rows, strict=True):
            place[:, some] = summed(matrix, row)
