"""Concatenation of images along their channels, in blocks."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.lowering.images.image import is_image, layout_of
from graphopt.lowering.images.sources import block_of, image_of
from graphopt.lowering.nodes import number, operand
from graphopt.lowering.scope import Scope


def joins_images(scope: Scope, node: ir.Node) -> bool:
    """Whether a Concat is one of channels, of images of which some have no strides."""
    if node.op_type != "Concat" or node.domain not in ("", "ai.onnx"):
        return False
    shape = scope.shape(node.outputs[0])
    if not is_image(shape) or number(node, "axis", 0) % len(shape) != 1:
        return False
    images = [scope.images[value] for value in node.inputs if value in scope.images]
    return any(image.channel_stride is None for image in images)


def lower_joining(scope: Scope, node: ir.Node) -> None:
    """A region for each operand, which copies it to its channels."""
    output = node.outputs[0]
    sources = [image_of(scope, operand(node, position)) for position in range(len(node.inputs))]
    aim = scope.image(output, layout_of(scope.shape(output), "NCHWc", block_of(scope.target)))
    first = 0
    for source in sources:
        scope.convert(source, aim, first, (node,))
        first += source.layout.channels
