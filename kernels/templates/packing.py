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
        packed = np.zeros(self.elements, array.dtype)
        self.fill(array, packed)
        return packed

    def fill(self, array: Array, packed: Array) -> None:
        """Write the panels over zeros."""
        flat = np.ascontiguousarray(array).reshape(-1)
        size = flat.itemsize
        view = np.lib.stride_tricks.as_strided(
            flat,
            (self.matrices, self.depth, self.columns),
            (self.apart * size, (self.row or self.columns) * size, self.column * size),
            writeable=False,
        )
        steps = self._steps
        for number, matrix in enumerate(view):
            for group in self.groups:
                width = group.size * self.lanes
                first = number * self.words + group.start * self.lanes * steps
                panels = packed[first * self.group : (first + group.count * width * steps) * self.group]
                columns = matrix[:, group.start * self.lanes : group.start * self.lanes + group.count * width]
                self._place(columns, panels.reshape(group.count, steps, width, self.group))

    def _place(self, columns: Array, panels: Array) -> None:
        """Columns in [panel][step][column of the panel][element of the step]; the last panel may lack some."""
        width, end, steps = panels.shape[2], columns.shape[1], self.depth // self.group
        whole = end // width
        parts = [(columns[:, : whole * width].reshape(self.depth, whole, width), panels[:whole])]
        if end > whole * width:
            parts.append((columns[:, None, whole * width :], panels[whole : whole + 1, :, : end - whole * width]))
        for some, found in parts:
            inside = some[: steps * self.group].reshape(steps, self.group, *some.shape[1:])
            found[:, :steps] = inside.transpose(2, 0, 3, 1)
            if self.depth > steps * self.group:
                rest = some[steps * self.group :]
                found[:, steps, :, : len(rest)] = rest.transpose(1, 2, 0)
