"""B of a matrix product as panels: for each step of the depth, the vectors of a panel side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.templates.grid import Group

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class PanelPacking:
    """[..., depth, columns] -> panels; `group` elements of the depth lie together in each lane, zeros fill the rest.

    `row` and `column` are the strides of the array that is given, in elements; `matrices` of them follow one another at
    a distance of `apart` elements.
    """

    depth: int
    columns: int
    lanes: int
    groups: tuple[Group, ...]  # of vectors
    group: int = 1
    row: int = 0
    column: int = 1
    matrices: int = 1
    apart: int = 0
    least: int = 0  # groups of the depth that a panel has at the least, filled with zeros

    @property
    def words(self) -> int:
        """32-bit groups of one matrix."""
        return self._steps * self._padded_columns

    @property
    def _steps(self) -> int:
        return max(-(-self.depth // self.group), self.least)

    @property
    def elements(self) -> int:
        """Elements of the packed form of all matrices."""
        return self.words * self.group * self.matrices

    @property
    def _padded_columns(self) -> int:
        return sum(group.size * group.count for group in self.groups) * self.lanes

    def pack(self, array: Array) -> Array:
        """The panels of all matrices, one after the other."""
        flat = np.ascontiguousarray(array).reshape(-1)
        size = flat.itemsize
        view = np.lib.stride_tricks.as_strided(
            flat,
            (self.matrices, self.depth, self.columns),
            (self.apart * size, (self.row or self.columns) * size, self.column * size),
            writeable=False,
        )
        steps, padded = self._steps, view
        if (steps * self.group, self._padded_columns) != (self.depth, self.columns):
            padded = np.zeros((self.matrices, steps * self.group, self._padded_columns), flat.dtype)
            padded[:, : self.depth, : self.columns] = view
        lanes_last = padded.reshape(self.matrices, steps, self.group, self._padded_columns).transpose(0, 1, 3, 2)
        panels = []
        for matrix in lanes_last:
            for group in self.groups:
                width = group.size * self.lanes
                start = group.start * self.lanes
                part = matrix[:, start : start + width * group.count]
                panels.append(part.reshape(steps, group.count, width, self.group).transpose(1, 0, 2, 3).reshape(-1))
        if len(panels) == 1:
            return panels[0]
        return np.concatenate(panels) if panels else np.zeros(0, flat.dtype)
