"""What tiles of a block of a direct convolution share."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.llvm.function import Amount, Value
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.steps import Chunks, Merged
from kernels.templates.grid import Group


@dataclass(frozen=True, slots=True)
class DenseGroups:
    """Dense groups that are alike: what they sum over, and how they are cut."""

    groups: Merged
    depth: int  # input channels of each
    width: int  # output channels of each
    channels: tuple[Group, ...]  # tiles of vectors of them
    source: Layout  # where tiles read: the input, or the copy of a window
    steps: tuple[Chunks, ...]  # of one part
    all_steps: int
    block_dims: tuple[int, int, int, int, int]  # image, plane, group, row block, channel block

    @property
    def widest(self) -> int:
        """Vectors of the widest tile."""
        return max(group.size for group in self.channels)

    @property
    def suffix(self) -> str:
        """Marks the functions that the last groups have for themselves."""
        return "_last" if self.groups.first else ""


@dataclass(frozen=True, slots=True)
class BlockAt:
    """What all tiles of a block share."""

    dense: DenseGroups
    at: tuple[Value, Value, Value]  # image, plane, group
    pointers: dict[str, Value]
    x: Value  # what the first output sees first; with a copy: of the block, otherwise of the plane
    weights: Value  # of the group
    wide: Value  # scratch for a part of a channel tile's
    sums: Value
    first_row: Value
    first_piece: Amount
    seen: Value  # row of the padded input that `x` is at
