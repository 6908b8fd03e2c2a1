"""How images are stored: order of dims, blocks of channels, and zeros around each image.

All three orders are one form: channels come in blocks of `block`, and the channels of a block lie side by side at each
pixel. NCHW has blocks of one channel, NHWC one block of all channels, NCHWc blocks of a multiple of a vector. Rows and
columns of zeros around the image (the halo) spare its reader every question about borders; writers fill the inside
only. In NCHWc the channels that fill up the last block are zero too. Images may be a part of larger ones, some of their
blocks of channels, planes, rows and columns, and of NHWC some of the channels: then they lie as far apart as in those,
and what stands around them is no halo.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.size import bound
from kernels.tensor.expression import Buffer

Order = Literal["NCHW", "NHWC", "NCHWc"]
Triple = tuple[int, int, int]


class InvalidLayout(KernelsError):
    """Dims or blocks that no image can have."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Images of (depth,) height and width with channels; a depth of 1 is a plane."""

    batch: int
    channels: int
    size: Triple  # depth, height, width
    order: Order = "NCHW"
    block: int = 0  # channels side by side at a pixel; given for NCHWc only, filled in for the others
    before: Triple = (0, 0, 0)  # zeros stored before the first plane, row, column
    after: Triple = (0, 0, 0)  # and after the last
    within: Triple | None = None  # planes, rows, columns of the images that these are a part of; they have no halo
    among: int | None = None  # blocks of channels of the images that these are a part of
    pitch: int | None = None  # channels of the NHWC images that these are a part of: elements from pixel to pixel

    def __post_init__(self) -> None:
        natural = {"NCHW": 1, "NHWC": self.channels}.get(self.order, self.block)
        if self.block not in (0, natural) or natural < 1:
            raise InvalidLayout(f"{self.order} of {self.channels} channels cannot have blocks of {self.block} channels")
        if min(map(bound, (self.batch, self.channels, *self.size))) < 1 or min(*self.before, *self.after) < 0:
            raise InvalidLayout(f"an image needs positive dims and no negative halo: {self}")
        if self.within == self.size and self.stored == self.size:
            object.__setattr__(self, "within", None)
        if self.within is not None and (
            (*self.before, *self.after) != (0,) * 6
            or any(whole < part for whole, part in zip(self.within, self.size, strict=True))
        ):
            raise InvalidLayout(f"a part of images has no halo and is not larger than they are: {self}")
        object.__setattr__(self, "block", natural)
        if self.among is not None and self.among < self.blocks:
            raise InvalidLayout(f"a part of images has no more channels than they have: {self}")
        if self.batch == 1 or self.among == self.blocks:
            object.__setattr__(self, "among", None)
        if self.pitch is not None and (self.order != "NHWC" or self.pitch < self.channels):
            raise InvalidLayout(f"only of NHWC images a part has fewer channels at each pixel: {self}")
        if self.pitch == self.channels:
            object.__setattr__(self, "pitch", None)

    @property
    def blocks(self) -> int:
        """Blocks of channels of one image."""
        return -(-self.channels // self.block)

    @property
    def stored(self) -> Triple:
        """Planes, rows and columns with the halo, or of the images that these are a part of."""
        if self.within is not None:
            return self.within
        before, size, after = self.before, self.size, self.after
        return before[0] + size[0] + after[0], before[1] + size[1] + after[1], before[2] + size[2] + after[2]

    @property
    def column_stride(self) -> int:
        """Elements from one column to the next."""
        return self.pitch or self.block

    @property
    def row_stride(self) -> int:
        """Elements from one row to the next."""
        return self.stored[2] * self.column_stride

    @property
    def plane_stride(self) -> int:
        """Elements from one plane to the next."""
        return self.stored[1] * self.row_stride

    @property
    def block_stride(self) -> int:
        """Elements from one block of channels to the next."""
        return self.stored[0] * self.plane_stride

    @property
    def image_stride(self) -> int:
        """Elements from one image to the next."""
        return (self.among or self.blocks) * self.block_stride

    @property
    def _is_part(self) -> bool:
        return any(one is not None for one in (self.within, self.among, self.pitch))

    @property
    def elements(self) -> int:
        """Elements of the storage; of a part of larger images, to the end of its last pixel."""
        if not self._is_part:
            return self.batch * self.image_stride
        last = self.size[0] - 1, self.size[1] - 1, self.size[2] - 1
        return self.position(self.batch - 1, (self.blocks - 1) * self.block, last) + self.block

    @property
    def passing(self) -> int:
        """Elements that who reads or writes all of the images moves."""
        if not self._is_part:
            return self.elements
        return self.batch * self.blocks * self.block * prod(self.size)

    @property
    def origin(self) -> int:
        """Elements before the first pixel of the first image."""
        return self.position(0, 0, self.before)

    def position(self, image: int, channel: int, place: Triple) -> int:
        """Elements before a channel of a stored pixel; `place` counts the halo."""
        block, lane = divmod(channel, self.block)
        return (
            image * self.image_stride
            + block * self.block_stride
            + place[0] * self.plane_stride
            + place[1] * self.row_stride
            + place[2] * self.column_stride
            + lane
        )

    def buffer(self, name: str, dtype: DType = DType.F32) -> Buffer:
        """The inside, with dims (image, block, plane, row, column, lane)."""
        return Buffer(
            name,
            dtype,
            (self.batch, self.blocks, *self.size, self.block),
            (self.image_stride, self.block_stride, self.plane_stride, self.row_stride, self.column_stride, 1),
            self.origin,
        )

    def store(self, images: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Images of shape (batch, channels, [depth,] [height,] width) as the flat storage, zeros included."""
        whole = np.zeros((self.batch, (self.among or self.blocks) * self.block, *self.size), images.dtype)
        whole[:, : self.channels] = images.reshape(self.batch, self.channels, *self.size)
        blocked = whole.reshape(self.batch, -1, self.block, *self.size).transpose(0, 1, 3, 4, 5, 2)
        rest = tuple(w - b - s for w, b, s in zip(self.stored, self.before, self.size, strict=True))
        halo = tuple(zip(self.before, rest, strict=True))
        others = 0, self.column_stride - self.block
        return np.pad(blocked, ((0, 0), (0, 0), *halo, others)).reshape(-1)[: self.elements]

    def read(self, storage: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The images in a flat storage, of shape (batch, channels, depth, height, width)."""
        whole = np.zeros(self.batch * self.image_stride, storage.dtype)
        whole[: self.elements] = storage[: self.elements]
        blocked = whole.reshape(self.batch, -1, *self.stored, self.column_stride)
        inside = tuple(slice(b, b + s) for b, s in zip(self.before, self.size, strict=True))
        taken = blocked[(slice(None), slice(None), *inside)].transpose(0, 1, 5, 2, 3, 4)
        return taken.reshape(self.batch, -1, *self.size)[:, : self.channels]
