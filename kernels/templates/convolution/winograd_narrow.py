"""Weights of 16 bits in Winograd convolution: packed as they are, and transformed by each block, panel by panel.

Transformed ones would be rounded, or take up to eight times the bytes. What a block transforms serves all of its tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import dense_count, dense_groups, merged, merged_groups, vector_groups
from kernels.templates.convolution.toom_cook import Filtering, rounded
from kernels.templates.convolution.transform import product
from kernels.templates.narrow import load_wide


@dataclass(frozen=True, slots=True)
class TapPacking:
    """Weights as [dense group][panel][channel][tap][output channel of the panel], zeros where there are no channels."""

    problem: Convolution
    lanes: int
    vectors: int

    @property
    def depth(self) -> int:
        """Channels of a dense group."""
        return self.problem.depth * merged_groups(self.problem)

    @property
    def taps(self) -> int:
        """Taps of a plane of the kernel."""
        return self.problem.kernel[1] * self.problem.kernel[2]

    @property
    def group_elements(self) -> int:
        """Elements of a dense group."""
        groups = vector_groups(self.problem, self.lanes, self.vectors)
        return self.taps * self.depth * sum(group.size * group.count for group in groups) * self.lanes

    @property
    def elements(self) -> int:
        """Elements of all groups."""
        return dense_count(self.problem) * self.group_elements

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        parts = []
        groups = vector_groups(self.problem, self.lanes, self.vectors)
        for some in merged(self.problem):
            for dense in dense_groups(self.problem, array, some):
                width, depth = dense.shape[:2]
                whole = np.zeros((self.depth, self.taps, self.group_elements // (self.depth * self.taps)), array.dtype)
                whole[:depth, :, :width] = dense[:, :, 0].reshape(width, depth, self.taps).transpose(1, 2, 0)
                for group in groups:
                    size = group.size * self.lanes
                    for panel in range(group.count):
                        first = group.start * self.lanes + panel * size
                        parts.append(whole[:, :, first : first + size].reshape(-1))
        return np.concatenate(parts)


def write_filters(
    module: Module, made: tuple[Filtering, Filtering], dtype: DType, depth: int, vectors: int, apart: int, *,
    prefix: str,
) -> str:  # fmt: skip
    """Write, once, f(taps, points): a panel's weights G w G^T, its points `apart` elements from one another.

    Two rows of points are written at a time: a core translates the addresses of a dozen pages at once, and no more.
    """
    name = f"{prefix}_filters_{vectors}"
    if module.has(name):
        return name
    given = (Parameter("taps", "ptr", "noalias nocapture readonly"), Parameter("points", "ptr", "noalias nocapture"))
    f = Function(module, name, given)
    lanes, kind, (above, beside) = module.target.lanes(), memory_type(dtype), (rounded(one.taps) for one in made)
    wide = len(beside[0])  # taps across
    count = len(above[0]) * wide

    def vector(number: Value, _: tuple[Value, ...], *, rows: tuple[int, ...]) -> None:
        channel = f.binary("udiv", number, f.integer(vectors)) if vectors > 1 else number
        part = f.sub(number, f.mul(channel, vectors))
        place = f.mul(f.add(f.mul(channel, count * vectors), part), lanes)
        source = f.at(f.parameter("taps"), place, kind)
        aim = f.at(f.parameter("points"), f.mul(number, lanes))
        taps = [load_wide(f, f.at(source, tap * vectors * lanes, kind), dtype, lanes) for tap in range(count)]
        columns = [product(f, tuple(above[row] for row in rows), taps[column::wide]) for column in range(wide)]
        for number_of, row in enumerate(rows):
            for column, value in enumerate(product(f, beside, [one[number_of] for one in columns])):
                assert value is not None, "each point sees a tap"
                f.store(value, f.at(aim, (row * len(beside) + column) * apart), align=4 * lanes)

    # The last row sees one tap, and so does a first one without a partner; others are in pairs that share their terms.
    last = len(above) - 1
    first = last % 2
    for rows in [(0, last) if first else (last,), *((row, row + 1) for row in range(first, last, 2))]:
        f.loop(0, depth * vectors, 1, partial(vector, rows=rows))
    f.finish()
    return name
