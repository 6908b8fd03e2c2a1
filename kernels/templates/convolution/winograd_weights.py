"""Weights of Winograd convolution: transformed in float64, packed for the products in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Sums
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import dense_count, dense_groups, merged, vector_groups
from kernels.templates.convolution.toom_cook import Filtering, rounded
from kernels.templates.convolution.winograd_parts import (
    Sides,
    channels_of_plane,
    filterings,
    parts_of,
    phases_seen,
    points_of,
    sums_of,
)
from kernels.templates.narrow import numbers

TOGETHER = 1 << 13  # pairs of channels whose weights are transformed at once


@dataclass(frozen=True, slots=True)
class WinogradPacking:
    """Transformed weights as [dense group][point of the window][panel][channel][output channel of the panel].

    The channels are those of all planes and parts of the kernel.
    """

    problem: Convolution
    lanes: int
    vectors: int
    sides: Sides

    @property
    def made(self) -> tuple[Filtering, Filtering]:
        """The filterings down and across."""
        return filterings(self.sides)

    @property
    def depth(self) -> int:
        """Channels of a dense group."""
        return sums_of(self.problem, self.sides) * channels_of_plane(self.problem, self.sides)

    @property
    def point_elements(self) -> int:
        """Elements of one point of a dense group."""
        groups = vector_groups(self.problem, self.lanes, self.vectors)
        return self.depth * sum(group.size * group.count for group in groups) * self.lanes

    @property
    def group_elements(self) -> int:
        """Elements of all points of a dense group."""
        return points_of(self.made) * self.point_elements

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
        """Those down times the taps times those across."""
        down, across = (rounded(one.taps) for one in self.made)
        return Sums(across) if len(down) == 1 else Sums(down, across)

    def taps(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The taps in the places of points."""

        def place(weights: npt.NDArray[np.generic], found: npt.NDArray[np.generic]) -> None:
            found[...] = weights.reshape(*weights.shape[:2], -1).transpose(2, 1, 0)

        return self._packed(array, np.zeros(self.sums.taps, array.dtype), place)

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The transformed, packed weights."""
        wide = numbers(array, self.problem.weights_dtype)

        def place(weights: npt.NDArray[np.generic], found: npt.NDArray[np.float32]) -> None:
            transform(weights, self.made, found)

        beyond = np.empty((points_of(self.made), 1, 1), np.float32)
        nothing = np.zeros((1, 1, *(taps for _, taps in self.sides)), np.float32)
        place(nothing, beyond)  # some of these zeros are negative
        return self._packed(wide, beyond.reshape(-1), place)

    def _packed(
        self,
        array: npt.NDArray[np.generic],
        beyond: npt.NDArray[np.generic],
        place: Callable[[npt.NDArray[np.generic], npt.NDArray[Any]], None],
    ) -> npt.NDArray[np.generic]:
        """`place` gives the (points, channels, output channels) of (output channels, channels, taps), of a panel each.

        Where they end in the packed weights, so that those are written once: they have the bytes of many caches.
        Channels that fill up the last vector are `beyond`, a number for each point.
        """
        groups, points = vector_groups(self.problem, self.lanes, self.vectors), len(beyond)
        each: list[npt.NDArray[np.generic]] = []
        for some in merged(self.problem):
            for dense in map(self._as_channels, dense_groups(self.problem, array, some)):
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

    def _as_channels(self, dense: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Weights (output channels, channels, planes, ...) with the channels of all planes and parts of the kernel.

        They are (output channels, channels, taps down, taps across).
        """
        width, depth, planes = dense.shape[:3]
        if sums_of(self.problem, self.sides) == 1:
            return dense[:, :, 0]
        taps = tuple(taps for _, taps in self.sides)
        parts, strides = parts_of(self.problem, self.sides), self.problem.strides[1:]
        phases = phases_seen(self.problem, 1), phases_seen(self.problem, 2)
        shape = [  # groups of taps, each of which has some of every phase
            number
            for part, phase, tap, stride in zip(parts, phases, taps, strides, strict=True)
            for number in (part // phase, tap, stride)
        ]
        whole = np.zeros((width, depth, planes, math.prod(shape[:3]), math.prod(shape[3:])), dense.dtype)
        whole[..., : dense.shape[3], : dense.shape[4]] = dense
        grouped = whole.reshape(width, depth, planes, *shape)[:, :, :, :, :, : phases[0], :, :, : phases[1]]
        arranged = grouped.transpose(0, 2, 3, 5, 6, 8, 1, 4, 7).reshape(width, planes, *parts, depth, *taps)
        found = np.zeros((*arranged.shape[:4], channels_of_plane(self.problem, self.sides), *taps), dense.dtype)
        found[:, :, :, :, :depth] = arranged
        return found.reshape(width, -1, *taps)


def transform(
    weights: npt.NDArray[np.generic], made: tuple[Filtering, Filtering], found: npt.NDArray[np.float32]
) -> None:
    """G w G^T for each pair of channels: (points, channels, output channels) of (output channels, channels, taps).

    The taps are those down and across, and so are the filterings. The sums of G w first, then those with G^T, but none
    of one tap; each goes through its terms in their order, product by product, and
    leaves out those with 0: so does a library that makes them at creation. Sums are of float64, and of so few pairs at
    once that they stay in the caches: ten times as fast as all pairs together.
    """
    width, depth = weights.shape[:2]
    (down, across), channels = (rounded(one.taps) for one in made), max(1, TOGETHER // width)
    points = found.reshape(len(down), len(across), depth, width)
    for start in range(0, depth, channels):
        some = slice(start, start + channels)
        rows = np.ascontiguousarray(weights[:, some].transpose(2, 3, 1, 0), np.float64)
        for place, row in zip(points, rows if len(down) == 1 else _summed(down, rows), strict=True):
            place[:, some] = row if len(across) == 1 else _summed(across, row)


def _summed(matrix: Sequence[Sequence[float]], terms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For each row the sum of the terms times its numbers: one after the other, without those with 0."""
    found, product = np.zeros((len(matrix), *terms.shape[1:])), np.empty(terms.shape[1:])
    for total, row in zip(found, matrix, strict=True):
        for number, (scale, term) in enumerate((scale, term) for scale, term in zip(row, terms, strict=True) if scale):
            np.multiply(term, scale, out=product if number else total)
            if number:
                total += product
    return found
