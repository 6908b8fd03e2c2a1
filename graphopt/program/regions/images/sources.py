"""Where images are read and written: layouts of operands and results, and expressions of their elements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.operators.table import RESHAPES
from graphopt.program.regions.copies import dense
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.images.image import Image, is_image, layout_of, strides_of
from graphopt.program.regions.reader import Reader
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import reshaped_strides
from kernels.dtype import DType
from kernels.target import Target
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.windows import side_by_side
from kernels.tensor.expression import Expression, Index, Load, Variable, index


def block_of(target: Target) -> int:
    """Channels of a block: a vector, or two of the narrowest; on a GPU one, as threads have neighbouring pixels."""
    return 1 if target.is_gpu else max(8, target.lanes())


def merging_of(target: Target, groups: int, channels: int) -> int:
    """Of how many channels groups of so many are to be multiples, where all channels of an image lie side by side."""
    return block_of(target) if groups > 1 and channels > 1 else 1


def image_of(scope: Scope, value: ir.Value) -> Image:
    """A value as images where it lies, copied only where its strides are no layout's."""
    if scope.dtype(value) is not DType.F32:
        raise NotLowered(f"'{value.name}' has images of {scope.dtype(value).value}; their kernels are of float32.")
    if value in scope.images:
        return scope.images[value]
    if not is_image(scope.shape(value)):
        raise NotLowered(f"'{value.name}' has dims {scope.shape(value)}, which are not those of images.")
    found = Image.of_view(scope.place(value)) or Image.of_view(dense(scope, value))
    assert found is not None, "dense dims of images"
    return found


def vector_image(scope: Scope, value: ir.Value) -> Image:
    """A value as images whose channels lie side by side."""
    found = image_of(scope, value)
    if side_by_side(found.layout, scope.target.lanes()):
        return found
    layout = vector_layout(found.shape, block_of(scope.target))
    buffer = scope.temporary("blocked", value.name, found.dtype.bytes * layout.elements)
    made = Image(buffer, found.dtype, found.shape, layout)
    scope.convert(found, made)
    scope.place(value)  # those who want strides still find it where it was
    scope.images[value] = made
    return made


def vector_layout(shape: tuple[int, ...], block: int) -> Layout:
    """The layout of images whose channels lie side by side: in blocks, or all of less than one."""
    return layout_of(shape, "NCHWc" if shape[1] >= block else "NHWC", block)


def by_strides(scope: Scope, value: ir.Value) -> None:
    """Let images whose channels come last be found by strides alone: kernels of images ask for their sides."""
    view = scope.images.pop(value).view()
    assert view is not None, "all channels are one block"
    scope.places[value] = view


def channels_last(scope: Scope, value: ir.Value) -> Image:
    """A value as images whose channels lie side by side, all of them; these may be some of those of larger images.

    Those who read it so share the copy, where there must be one.
    """
    there = None if value in scope.images or scope.dtype(value) is not DType.F32 else scope.place(value)
    found = (None if there is None else Image.of_channels(there)) or image_of(scope, value)
    if found.layout.order == "NHWC":
        return found
    if (value, 0) not in scope.block_copies:
        layout = layout_of(found.shape, "NHWC")
        buffer = scope.temporary("channels last", value.name, found.dtype.bytes * layout.elements)
        scope.block_copies[value, 0] = Image(buffer, found.dtype, found.shape, layout)
        scope.convert(found, scope.block_copies[value, 0])
    return scope.block_copies[value, 0]


def _in_blocks(scope: Scope, value: ir.Value, block: int) -> Image:
    """A copy of a value as images in blocks."""
    if (value, block) not in scope.block_copies:
        source = image_of(scope, value)
        layout = layout_of(source.shape, "NCHWc", block)
        buffer = scope.temporary("blocks", value.name, source.dtype.bytes * layout.elements)
        scope.block_copies[value, block] = Image(buffer, source.dtype, source.shape, layout)
        scope.convert(source, scope.block_copies[value, block])
    return scope.block_copies[value, block]


def result_layout(scope: Scope, value: ir.Value) -> Layout:
    """The layout for a convolution's result: blocks of channels, unless its readers want strides."""
    shape = scope.shape(value)
    readers = {use.node for use in value.uses()}
    if shape[1] == 1 or shape[2:] == (1,) * (len(shape) - 2):
        return layout_of(shape, "NHWC")
    if value.is_graph_output() and not readers:
        return layout_of(shape, "NCHW")
    last = layout_of(shape, "NHWC")
    for node in readers:
        if node.op_type in RESHAPES:
            strides = strides_of(last, len(shape))
            assert strides is not None, "one block of channels"
            fits = reshaped_strides(shape, strides, scope.shape(node.outputs[0])) is not None
            return last if fits else layout_of(shape, "NCHW")
    if any(node.op_type == "Transpose" for node in readers) or shape[1] < block_of(scope.target) // 2:
        return last
    return layout_of(shape, "NCHWc", block_of(scope.target))


def reads_numbers_alone(scope: Scope, tree: Tree) -> bool:
    """Whether what follows an anchor reads nothing else but constants of one number."""
    anchor = tree.anchor
    assert anchor is not None, "the caller has looked"
    for node in tree.in_order:
        for value in node.inputs if node is not anchor else ():
            if value is None or tree.holds(value) or value is anchor.outputs[0]:
                continue
            array = scope.constant(value)
            if array is None or array.size > 1:
                return False
    return True


def reads_images_alike(scope: Scope, tree: Tree, layout: Layout) -> bool:
    """Whether what follows an anchor reads numbers, some for each channel, and images that lie as the result does."""
    rank = len(scope.shape(root_of(tree).outputs[0]))

    def is_alike(value: ir.Value) -> bool:
        array = scope.constant(value)
        if array is not None:
            return array.size == 1 or array.size == layout.channels == _channels(array.shape, rank)
        return value in scope.images and scope.images[value].layout == layout

    operands = [value for node in tree.in_order for value in node.inputs if value is not None]
    return all(tree.holds(value) or is_alike(value) for value in operands)


class ImageReader(Reader):
    """Writes the expressions of a kernel whose loops are those of images in a layout."""

    def __init__(self, scope: Scope, tree: Tree, frame: Convolution) -> None:
        super().__init__(scope, tree)
        self._images = scope.images
        self._frame = frame

    def at(self, rank: int) -> tuple[Index, ...]:
        """The dims of the value that is computed: image, channel and the spatial ones."""
        image, _, plane, row, column, _ = self._frame.variables
        spatial = (plane, row, column)[5 - rank :] if rank > 2 else ()
        return (index(image), self._frame.channel, *(index(one) for one in spatial))

    def outside(self, value: ir.Value, at: tuple[Index, ...]) -> Expression:
        """As it lies, where its blocks are those of the loops; by strides otherwise."""
        image, frame = self._images.get(value), self._frame.output
        if image is not None and image.layout.order == frame.order == "NCHWc" and image.layout.block == frame.block:
            return self.blocked(image)
        array = self._scope.constant(value)
        if array is not None and array.size == frame.channels == _channels(array.shape, len(at)):
            return self.per_channel(value, array, at)
        shape, padded = self._scope.shape(value), frame.order == "NCHWc" and frame.channels % frame.block
        copied = array is None and len(shape) == len(at) and self._scope.dtype(value) is DType.F32
        if padded and copied and shape[1] == frame.channels:
            return self.blocked(_in_blocks(self._scope, value, frame.block))
        return super().outside(value, at)

    def along(self, value: ir.Value, axis: int, at: tuple[Index, ...]) -> Expression:
        """One of the numbers that a value has for each place of an axis; channels may fill up their last block."""
        array = self._scope.constant(value)
        if array is not None and axis == 1 and array.size == self._frame.output.channels:
            return self.per_channel(value, array, at)
        return super().along(value, axis, at)

    def per_channel(
        self, value: ir.Value, array: npt.NDArray[np.generic], at: tuple[Index, ...], pixels: int = 1
    ) -> Expression:
        """A constant of one number for each channel, with zeros for the lanes that fill up the last block.

        Where several pixels are the channels, each has all of them. The zeros are never read into a result; but a load
        that only some elements need must lie inside its buffer.
        """
        frame = self._frame.output
        filled = frame.blocks * frame.block
        whole = np.zeros((filled, *(1,) * (len(at) - 2)), array.dtype)
        whole[: array.size * pixels] = np.tile(array.reshape(-1), pixels).reshape(-1, *whole.shape[1:])
        purpose = "constant" if filled == array.size else f"constant of {filled}"
        purpose += f" for {pixels} pixels" if pixels > 1 else ""
        return self.load(self._scope.filled(value, purpose, whole), at)

    def blocked(self, image: Image) -> Load:
        """The element of images with the same blocks; dims of one element are broadcast."""
        place = image.inside()
        sizes = zip(self._frame.variables, place.shape, strict=True)
        return self.element(place, tuple(_at(variable, size) for variable, size in sizes))


def _at(variable: Variable, size: int) -> Index:
    return Index(()) if size == 1 and variable.extent != 1 else index(variable)


def _channels(shape: tuple[int, ...], rank: int) -> int:
    """The size of the channels' dim of an operand, which may have fewer dims."""
    return shape[1 - rank] if len(shape) >= rank - 1 else 1
