"""Elementwise trees over images: in the layout that an operand has, so that nothing is turned."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.images.image import Image, is_image, is_spaced, layout_of, whole_layout
from graphopt.program.regions.images.pool import lower_pixels
from graphopt.program.regions.images.sources import ImageReader
from graphopt.program.regions.scope import Scope
from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.templates.convolution.problem import Convolution
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
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
        if image is None and scope.any_sides and is_spaced(scope.place(value)):
            image = Image(scope.place(value).buffer, scope.dtype(value), shape, layout_of(shape, "NHWC"))
        if image is None or image.layout.order == "NCHW" or scope.place_is_dense(value):
            continue
        if image.dtype is not DType.F32 and _is_padded(image):
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


def _is_padded(image: Image) -> bool:
    """Whether the last block has lanes that are no channels: operands of one number for each channel end before."""
    return image.layout.blocks * image.layout.block != image.layout.channels


def lower_pointwise(scope: Scope, tree: Tree) -> bool:
    """The region of an elementwise tree whose result lies as one of its operands does; False where it cannot."""
    found = image_operand(scope, tree)
    if found is None:
        return False
    try:
        _lower(scope, tree, *found)
    except KernelsError:
        return False  # an operand that is read by strides, under a condition that its padding would break
    return True


def _lower(scope: Scope, tree: Tree, value: ir.Value, image: Image) -> None:
    layout, root = whole_layout(image.layout), root_of(tree).outputs[0]
    if _is_padded(image):
        lower_pixels(scope, tree, value, image)  # the lanes that fill up the last block stay zero
        return
    frame = Convolution(layout, layout, (1, 1, 1), groups=layout.channels)
    reader = ImageReader(scope, tree, frame)
    expression = reader.value(root, reader.at(len(image.shape)))
    result = scope.image(root, layout)
    y, place = scope.begun(result.inside())
    output = Output(y.operand("y"), expression, tuple(index(one) for one in frame.variables))
    problem = Elementwise(frame.variables, (output,))
    kernel = scope.kernel(ELEMENTWISE, problem)
    scope.add(kernel, {**reader.buffers, "y": place}, tree.in_order)
