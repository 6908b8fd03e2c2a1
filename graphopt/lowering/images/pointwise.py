"""Elementwise trees over images: in the layout that an operand has, so that nothing is turned."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.lowering.fusion import Tree, root_of
from graphopt.lowering.images.image import Image, is_image
from graphopt.lowering.images.pool import lower_pixels
from graphopt.lowering.images.sources import ImageReader
from graphopt.lowering.scope import Scope
from kernels.dtype import DType
from kernels.templates import elementwise
from kernels.templates.convolution.problem import Convolution
from kernels.templates.elementwise import Elementwise, Output
from kernels.tensor.expression import index


def image_operand(scope: Scope, tree: Tree) -> tuple[ir.Value, Image] | None:
    """An operand as large as the result whose layout is not row-major, and its place; None where there is none."""
    shape = scope.shape(root_of(tree).outputs[0])
    if not is_image(shape):
        return None
    found = None
    for value in _operands(tree):
        if scope.constant(value) is not None or scope.shape(value) != shape:
            continue
        image = scope.images.get(value) or Image.of_view(scope.place(value))
        if image is None or image.layout.order == "NCHW" or scope.place_is_dense(value):
            continue
        if image.layout.order == "NCHWc":
            return value, image
        found = found or (value, image)
    return found


def _operands(tree: Tree) -> list[ir.Value]:
    """What the tree reads, each value once."""
    return list(
        dict.fromkeys(value for node in tree.in_order for value in node.inputs if value and not tree.holds(value))
    )


def lower_pointwise(scope: Scope, tree: Tree, value: ir.Value, image: Image) -> None:
    """The region of an elementwise tree whose result lies as `value`, one of its operands, does."""
    layout, root = image.layout, root_of(tree).outputs[0]
    if layout.blocks * layout.block != layout.channels and image.dtype is DType.F32:
        lower_pixels(scope, tree, value, image)  # the lanes that fill up the last block stay zero
        return
    frame = Convolution(layout, layout, (1, 1, 1), groups=layout.channels)
    reader = ImageReader(scope, tree, frame)
    expression = reader.value(root, reader.at(len(image.shape)))
    result = scope.image(root, layout)
    output = Output(result.inside("y"), expression, tuple(index(one) for one in frame.variables))
    problem = Elementwise(frame.variables, (output,))
    kernel = scope.kernel("elementwise", problem, elementwise.candidates, elementwise.build)
    scope.add(kernel, {**reader.buffers, "y": result.buffer}, tree.in_order)
