"""Where a value lies as images: a buffer and a layout, which may keep channels in blocks that no strides describe."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphopt.program.regions.buffer import Buffer, Place
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.templates.convolution.layout import Layout, Order, Triple
from kernels.templates.convolution.problem import whole


@dataclass(frozen=True, slots=True)
class Image:
    """A value of dims (images, channels, one to three spatial dims) in a layout."""

    buffer: Buffer
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    offset: int = 0  # elements of the buffer before the storage: these are some of the channels of other images

    @classmethod
    def of_view(cls, view: View) -> Image | None:
        """The same place as images; None where no layout has such strides."""
        if not is_image(view.shape):
            return None
        last = view.transposed((0, *range(2, len(view.shape)), 1))
        if last.is_dense:
            return cls(view.buffer, view.dtype, view.shape, layout_of(view.shape, "NHWC"))
        if view.is_dense:
            return cls(view.buffer, view.dtype, view.shape, layout_of(view.shape, "NCHW"))
        within = _within(view)
        layout = None if within is None else replace(layout_of(view.shape, "NCHW"), within=within)
        if layout is None or (view.shape[0] > 1 and view.strides[0] != layout.image_stride):
            return None
        return cls(view.buffer, view.dtype, view.shape, layout, view.offset)

    @classmethod
    def of_channels(cls, view: View) -> Image | None:
        """The same place as images whose channels come last, where they are all or some of those of larger images."""
        if not is_image(view.shape):
            return None
        layout = layout_of(view.shape, "NHWC")
        if view.shape[1] > 1 and view.strides[1] == 1 and view.strides[-1] > view.shape[1]:
            layout = replace(layout, pitch=view.strides[-1])
        expected = strides_of(layout, len(view.shape))
        assert expected is not None, "all channels are one block"
        steps = zip(view.shape, view.strides, expected, strict=True)
        lies = all(size == 1 or stride == one for size, stride, one in steps)
        return cls(view.buffer, view.dtype, view.shape, layout, view.offset) if lies else None

    @property
    def place(self) -> Place:
        """The start of the storage."""
        return Place(self.buffer, self.offset * self.dtype.bytes)

    @property
    def channel_stride(self) -> int | None:
        """Elements from one channel to the next; None where blocks make it uneven."""
        return channel_stride(self.layout)

    def view(self) -> View | None:
        """The same place as strides; None where there are none."""
        strides = strides_of(self.layout, len(self.shape))
        if strides is None:
            return None
        return View(self.buffer, self.dtype, self.shape, strides, self.offset + self.layout.origin)

    def part(self, axis: int, start: int, shape: tuple[int, ...]) -> Image:
        """Some of the channels, planes, rows or columns, from `start` on along an axis: where they are.

        Channels begin with a block, where not all lie side by side.
        """
        layout = self.layout
        if axis == 1 and layout.order == "NHWC":
            made = replace(layout, channels=shape[1], block=0, pitch=layout.column_stride)
            return replace(self, shape=shape, layout=made, offset=self.offset + start)
        if axis == 1:
            made = replace(layout, channels=shape[1], among=layout.among or layout.blocks)
            return replace(self, shape=shape, layout=made, offset=self.offset + layout.position(0, start, (0, 0, 0)))
        before = whole(tuple(start if at == axis else 0 for at in range(2, len(self.shape))), 0)
        made = replace(layout, size=whole(shape[2:], 1), before=(0, 0, 0), after=(0, 0, 0), within=layout.stored)
        moved = layout.position(0, 0, before) + layout.origin
        return replace(self, shape=shape, layout=made, offset=self.offset + moved)

    def inside(self) -> View:
        """The pixels, with the layout's dims (image, block, plane, row, column, lane)."""
        found = self.layout.buffer("", self.dtype)
        return View(self.buffer, self.dtype, found.shape, found.strides, self.offset + found.offset)

    def channels(self, first: int, blocks: int, lanes: int) -> View:
        """The channels from `first` on, with dims (image, block, lane, plane, row, column).

        Where the layout has blocks, these are parts of blocks: `lanes` each of one block.
        """
        layout = self.layout
        step = self.channel_stride
        if step is None:
            block, lane = divmod(first, layout.block)
            offset, strides = block * layout.block_stride + lane, (layout.block_stride, 1)
        else:
            offset, strides = first * step, (lanes * step, step)
        return View(
            self.buffer,
            self.dtype,
            (layout.batch, blocks, lanes, *layout.size),
            (layout.image_stride, *strides, layout.plane_stride, layout.row_stride, layout.column_stride),
            self.offset + layout.origin + offset,
        )


def _within(view: View) -> Triple | None:
    """Planes, rows and columns of the images of which a view has some, where channels come first and one by one."""
    strides = (0,) * (5 - len(view.shape)) + view.strides[2:]
    channel, (plane, row, column) = view.strides[1], strides
    plane = plane or channel  # images of two dims have one plane, which is a whole channel
    row = row or plane
    if column != 1 or min(channel, plane, row) < 1 or channel % plane or plane % row:
        return None
    found = channel // plane, plane // row, row
    fits = all(one <= stored for one, stored in zip(whole(view.shape[2:], 1), found, strict=True))
    return found if fits else None


@dataclass(frozen=True, slots=True)
class Home:
    """Where a value should lie so that concatenating it needs no copy: a part of larger images in blocks."""

    buffer: Buffer
    offset: int  # elements of the buffer before the storage
    within: Triple  # planes, rows and columns of the larger images
    among: int  # and their blocks of channels

    def image(self, dtype: DType, shape: tuple[int, ...], layout: Layout) -> Image:
        """A value in a layout, as far apart as in the larger images."""
        return Image(self.buffer, dtype, shape, replace(layout, within=self.within, among=self.among), self.offset)


def channel_stride(layout: Layout) -> int | None:
    """Elements from one channel to the next; None where blocks make it uneven."""
    if layout.block == 1:
        return layout.block_stride
    # Blocks of single pixels without halo follow one another like one block.
    return 1 if layout.blocks == 1 or layout.block_stride == layout.block else None


def strides_of(layout: Layout, rank: int) -> tuple[int, ...] | None:
    """The strides of images with `rank` dims; None where blocks make the channels uneven."""
    step = channel_stride(layout)
    spatial = (layout.plane_stride, layout.row_stride, layout.column_stride)[5 - rank :]
    return None if step is None else (layout.image_stride, step, *spatial)


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether dims can be those of images."""
    return 3 <= len(shape) <= 5 and 0 not in shape


def is_spaced(view: View) -> bool:
    """Whether a view shows pixels of floats whose channels come last: all of some images, or every so manieth."""
    return view.dtype is DType.F32 and view.shape[1] > 1 and view.strides[1] == 1 < view.strides[-1]


def whole_layout(layout: Layout) -> Layout:
    """The layout of a result that lies like these images: in storage of its own where they are a part of others."""
    return replace(layout, within=None, among=None, pitch=None)


def layout_of(shape: tuple[int, ...], order: Order, block: int = 0) -> Layout:
    """A layout without halo for a value's dims."""
    return Layout(shape[0], shape[1], whole(shape[2:], 1), order, block if order == "NCHWc" else 0)
