"""Weights of bytes as tiles: for each tile of output channels the terms of the zero points, then words of the depth.

A run is a stretch of the input that lies together: the channels at one place of the kernel, or, where the columns of
the kernel follow one another in memory, those of a whole row of it. Runs are filled up to whole words with zeros, so
that whatever the input holds there adds nothing.

    tile := correction[lanes] (zeros[lanes])? words[run, word, lanes]           all int32, lanes of all vectors

With b' = b shifted, z' its zero point shifted and n the elements of the depth, `correction` is n z' - sum of b': times
the input's zero point it is what that adds to the sum. `zeros` are the z', given where any differs from zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.templates.grid import Group, balanced, split_last
from kernels.templates.quantized.arithmetic import PER_WORD, ByteArithmetic, element_bytes, shift_of_b
from kernels.templates.quantized.problem import QuantizedConvolution

Array = npt.NDArray[np.generic]
TOGETHER = 1 << 18  # elements that are packed at once


def runs_are_rows(problem: QuantizedConvolution) -> bool:
    """Whether a run holds a whole row of the kernel."""
    return problem.geometry.groups == 1 and problem.geometry.dilations[2] == 1


def runs(problem: QuantizedConvolution) -> tuple[int, int, int]:
    """How many runs there are along planes, rows and columns of the kernel."""
    planes, rows, columns = problem.geometry.kernel
    return planes, rows, 1 if runs_are_rows(problem) else columns


def run_elements(problem: QuantizedConvolution) -> int:
    """Elements of the input in one run."""
    return problem.geometry.depth * (problem.geometry.kernel[2] if runs_are_rows(problem) else 1)


@dataclass(frozen=True, slots=True)
class TilePacking:
    """Weights (output channels, channels / groups, *kernel) as the tiles of all groups, in bytes."""

    problem: QuantizedConvolution
    arithmetic: ByteArithmetic
    lanes: int
    vectors: int  # the most that a tile has

    @property
    def has_zeros(self) -> bool:
        """Whether sums must be corrected by the weights' zero points. int16 have room for them."""
        shift = shift_of_b(self.arithmetic, self.problem.weights_dtype)
        zeros = self.problem.weights_zero
        return self.arithmetic != "pairs" and (zeros is None or any(zero + shift for zero in zeros))

    @property
    def heads(self) -> int:
        """Words of a lane before those of the depth."""
        return 2 if self.has_zeros else 1

    @property
    def run_words(self) -> int:
        """Words of one run."""
        return -(-run_elements(self.problem) // PER_WORD[self.arithmetic])

    @property
    def words(self) -> int:
        """Words of the depth."""
        planes, rows, columns = runs(self.problem)
        return planes * rows * columns * self.run_words

    @property
    def groups(self) -> tuple[Group, ...]:
        """How the vectors of output channels of a group of the convolution fall into tiles."""
        width = self.problem.geometry.width
        return split_last(balanced(-(-width // self.lanes), self.vectors), width % self.lanes)

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector of output channels."""
        return 4 * self.lanes * (self.heads + self.words)

    @property
    def group_bytes(self) -> int:
        """Bytes of one group of the convolution."""
        return sum(group.size * group.count for group in self.groups) * self.vector_bytes

    @property
    def elements(self) -> int:
        """Bytes of all groups."""
        return self.problem.geometry.groups * self.group_bytes

    def pack(self, array: Array) -> Array:
        """The packed weights, int8."""
        geometry = self.problem.geometry
        groups, width, depth = geometry.groups, geometry.width, geometry.depth
        given = array.reshape(groups, width, depth, *geometry.kernel)
        assert self.problem.weights_zero is not None, "checked at construction: these weights are constant"
        zeros = np.broadcast_to(np.array(self.problem.weights_zero, np.int64), groups * width).reshape(groups, width)
        whole = np.zeros((groups, -(-width // self.lanes) * self.lanes, self.heads + self.words), np.int32)
        some = max(1, TOGETHER // max(1, given.size // width))  # channels at once: sums take eight times the bytes
        for first in range(0, width, some):
            place = slice(first, min(first + some, width))
            self._place(given[:, place].astype(np.int64), zeros[:, place], whole[:, place])
        packed = np.zeros(self.elements, np.int8)
        words, start = packed.view(np.int32), 0
        for group in whole:
            for tiles in self.groups:
                size = tiles.size * self.lanes
                for tile in range(tiles.count):
                    first = tiles.start * self.lanes + tile * size
                    part = group[first : first + size].T
                    words[start : start + part.size].reshape(part.shape)[...] = part
                    start += part.size
        return packed

    def _place(self, given: npt.NDArray[np.int64], zeros: npt.NDArray[np.int64], whole: npt.NDArray[np.int32]) -> None:
        """The words of some channels of each group."""
        shift = shift_of_b(self.arithmetic, self.problem.weights_dtype)
        held, zeros = given + shift, zeros + shift
        if not self.has_zeros:
            held, zeros = held - zeros[:, :, None, None, None, None], np.zeros_like(zeros)
        correction = int(np.prod(held.shape[2:])) * zeros - held.sum(axis=(2, 3, 4, 5))
        order = held.transpose(0, 1, 3, 4, 5, 2)  # planes, rows, columns, channels
        whole[:, :, 0] = correction.astype(np.int32)
        if self.has_zeros:
            whole[:, :, 1] = zeros
        whole[:, :, self.heads :] = self._words(order.reshape(*held.shape[:2], -1, run_elements(self.problem)))

    def _words(self, held: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """(group, channel, run, element) -> (group, channel, word)."""
        per = PER_WORD[self.arithmetic]
        padded = np.zeros((*held.shape[:3], self.run_words * per), f"i{element_bytes(self.arithmetic)}")
        padded[..., : held.shape[3]] = held
        words: npt.NDArray[np.int32] = padded.view(np.int32).reshape(*held.shape[:2], -1)
        return words
