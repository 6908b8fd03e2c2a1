"""The sizes that decide the speed of a direct convolution, and which of them a problem allows."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import RUN, merged


@dataclass(frozen=True, slots=True)
class Direct:
    """Sizes that decide the speed of a direct convolution."""

    rows: int  # of a tile of pixels
    columns: int
    vectors: int  # of output channels of a tile
    row_stretch: int  # row tiles of a block; of flat pixels, tiles
    channel_stretch: int  # channel tiles of a block
    splits: int = 1  # parts of the input channels; sums wait in scratch between them
    channels_outside: bool = False  # whether the loop over channel tiles is outside of that over row tiles
    flat: bool = False  # whether the pixels of a plane are taken as one row
    larger: int = 0  # row tiles of the larger block whose code this one shares; 0: there is none

    def __str__(self) -> str:
        order = "channels, rows" if self.channels_outside else "rows, channels"
        parts = f" in {self.splits} parts" if self.splits > 1 else ""
        flat = " flat" if self.flat else ""
        stretch = f"{self.row_stretch}x{self.channel_stretch}"
        return f"direct {self.rows}x{self.columns}x{self.vectors}{flat} block {stretch} ({order}){parts}"


def can_be_flat(problem: Convolution) -> bool:
    """Whether a plane's pixels follow one another in the input, the output and all operands, and each sees only one."""
    return problem.kernel == problem.strides == (1, 1, 1) and problem.has_halo and problem.is_one_row


def can_split(problem: Convolution, splits: int) -> bool:
    """Whether the parts of the input channels all have the same pattern."""
    groups = merged(problem)
    depth = problem.depth * groups[0].together
    return len(groups) == 1 and problem.input.block > 1 and depth % splits == 0 and depth // splits % RUN == 0
