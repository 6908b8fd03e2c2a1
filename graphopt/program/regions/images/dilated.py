"""Convolutions with dilations as plain ones of more and smaller images, where that is faster.

With a dilation of 2, outputs of even rows see even rows alone, and those of odd rows odd ones: the pixels of each kind
are an image for a plain convolution, which has faster algorithms. Copies part the pixels before it and join them after
it (Yu and Koltun's networks were run so first; TensorFlow calls the copies SpaceToBatch and BatchToSpace).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import onnx_ir as ir

from graphopt.program.regions.fusion import Tree
from graphopt.program.regions.images.image import Image
from graphopt.program.regions.images.sources import reads_numbers_alone
from graphopt.program.regions.rounding import convolution_template
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.cost import nanoseconds
from kernels.tensor.expression import Number

COPIES = 4  # times the bytes of an input: read and written, before and after


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Some kinds of rows (or columns) that are alike: from `first` on, `count` kinds of `size` rows each."""

    first: int
    count: int
    size: int


def parted(scope: Scope, node: ir.Node, tree: Tree, problem: Convolution) -> Convolution | None:
    """The plain convolution of smaller images in a convolution's place; None where that is not estimated to be faster.

    The result is as large as the input, and what follows has no operands but constants of one number or one a channel.
    """
    target, (_, down, across), source = scope.target, problem.dilations, problem.input
    if scope.steady or target.is_gpu or down * across == 1 or problem.kernel != (1, 3, 3) or problem.transposed:
        return None
    plain = problem.strides == (1, 1, 1) and problem.pads == (0, down, across) and source.size[0] == 1
    alike = source.size == problem.output.size and source.order == problem.output.order == "NCHWc"
    if not plain or not alike or not reads_numbers_alone(scope, tree, problem.output.channels):
        return None
    height, width = -(-source.size[1] // down), -(-source.size[2] // across)
    layouts = (
        Layout(one.batch * down * across, one.channels, (1, height, width), "NCHWc", source.block)
        for one in (source, problem.output)
    )
    small = replace(problem, input=next(layouts), output=next(layouts), dilations=(1, 1, 1), pads=(0, 1, 1))
    template = convolution_template(scope, node, problem)
    before, after = (scope.likely(template, one) for one in (problem, small))
    size = DType.F32.bytes * max(source.passing, problem.output.passing)
    return small if after + nanoseconds(COPIES * size / target.rate(2 * size), target) < before else None


def part(scope: Scope, source: Image, small: Convolution, steps: tuple[int, int], node: ir.Node) -> Image:
    """A copy of images as smaller ones: of each image all kinds of rows, and of these all kinds of columns.

    Rows and columns that only some kinds have are zeros in the others, as what lies beside an image is.
    """
    layout = small.input
    buffer = scope.temporary("parted", node.outputs[0].name, source.dtype.bytes * layout.elements)
    made = Image(buffer, source.dtype, (layout.batch, layout.channels, *layout.size[1:]), layout)
    if any(one % step for one, step in zip(source.layout.size[1:], steps, strict=True)):
        scope.copy(Number(0, source.dtype), made.inside(), (node,))
    for whole, pieces in _places(source, made, steps):
        scope.copy(whole, pieces, (node,))
    return made


def join(scope: Scope, made: Image, aim: Image, steps: tuple[int, int], node: ir.Node) -> None:
    """Copies of the pixels of smaller images to where they belong."""
    for whole, pieces in _places(aim, made, steps):
        scope.copy(pieces, whole, (node,))


def room(scope: Scope, small: Convolution, node: ir.Node) -> Image:
    """Room for the smaller images of a result."""
    layout = small.output
    buffer = scope.temporary("parts", node.outputs[0].name, DType.F32.bytes * layout.elements)
    return Image(buffer, DType.F32, (layout.batch, layout.channels, *layout.size[1:]), layout)


def _places(whole: Image, pieces: Image, steps: tuple[int, int]) -> Iterator[tuple[View, View]]:
    """The same pixels in images and in smaller ones: dims (image, kind of row, of column, block, row, column, lane)."""
    layout, small, (down, across) = whole.layout, pieces.layout, steps
    outer, inner = whole.inside(), pieces.inside()
    each = small.image_stride
    for rows, columns in product(_kinds(layout.size[1], down), _kinds(layout.size[2], across)):
        shape = (layout.batch, rows.count, columns.count, layout.blocks, rows.size, columns.size, layout.block)
        here = (
            layout.image_stride, layout.row_stride, layout.column_stride, layout.block_stride,
            down * layout.row_stride, across * layout.column_stride, 1,
        )  # fmt: skip
        there = (
            down * across * each, across * each, each, small.block_stride, small.row_stride, small.column_stride, 1
        )  # fmt: skip
        first = rows.first * layout.row_stride + columns.first * layout.column_stride
        number = (rows.first * across + columns.first) * each
        yield (
            replace(outer, shape=shape, strides=here, offset=outer.offset + first),
            replace(inner, shape=shape, strides=there, offset=inner.offset + number),
        )


def _kinds(size: int, step: int) -> list[_Kinds]:
    """The kinds of rows: the first ones may have one more."""
    least, more = divmod(size, step)
    found = (_Kinds(0, more, least + 1), _Kinds(more, step - more, least))
    return [one for one in found if one.count and one.size]
