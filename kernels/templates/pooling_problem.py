"""A pooling: whose windows, what is made of each, and how many of its places count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernels.errors import KernelsError
from kernels.size import is_free
from kernels.templates.convolution.layout import Triple
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.windows import WindowAxis


class InvalidPooling(KernelsError):
    """A pooling that has no meaning."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """Pooling with the windows of a convolution of one channel per group, whose weights do not matter.

    The average is over the places inside the image, or, with `count_pads`, over those inside the image and its pads
    (`after` are the pads after the image, in planes, rows, columns; the windows have those before).
    """

    windows: Convolution
    kind: Literal["max", "average"]
    count_pads: bool = False
    after: Triple = (0, 0, 0)

    def __post_init__(self) -> None:
        windows = self.windows
        if not windows.groups == windows.input.channels == windows.output.channels:
            raise InvalidPooling("pooling keeps channels apart: as many groups as channels come in and go out")
        if windows.input.order != windows.output.order or windows.input.block != windows.output.block:
            raise InvalidPooling("pooling keeps the order of dims and the blocks of channels")
        if windows.input_dilations != (1, 1, 1):
            raise InvalidPooling("pooling has no zeros between the elements of its input")
        for axis in self.axes:
            if not is_free(axis.outputs) and any(axis.valid(output) == (0, 0) for output in range(axis.outputs)):
                raise InvalidPooling("a window lies outside of the image as a whole")

    @property
    def axes(self) -> tuple[WindowAxis, WindowAxis, WindowAxis]:
        """Planes, rows and columns; what is stored around an image is not read."""
        made = [
            WindowAxis(
                self.windows.input.size[axis], self.windows.output.size[axis], self.windows.kernel[axis],
                self.windows.strides[axis], self.windows.dilations[axis], self.windows.pads[axis],
            )
            for axis in range(3)
        ]  # fmt: skip
        return made[0], made[1], made[2]

    def counted(self, axis: int, output: int) -> int:
        """How many places of a window count along one axis."""
        line = self.axes[axis]
        if not self.count_pads:
            low, high = line.valid(output)
            return high - low
        places = (line.start(output) + tap * line.dilation for tap in range(line.taps))
        return sum(-line.pad <= place < line.size + self.after[axis] for place in places)
