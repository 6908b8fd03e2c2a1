"""Concatenation of images along their channels: operands are computed where the result wants them, or copied there.

Of one image, blocks of channels follow one another in memory. A value that is concatenated behind whole blocks is
therefore written to its place in the result, and a result that is concatenated again lies in the larger one: in a
DenseNet, all concatenations of a stage are the first blocks of one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import onnx_ir as ir

from graphopt.model.nodes import int_attribute, required_input
from graphopt.program.regions.images.image import Home, is_image, layout_of
from graphopt.program.regions.images.sources import block_of, image_of
from graphopt.program.regions.scope import Scope
from kernels.dtype import DType


def joins_images(scope: Scope, node: ir.Node) -> bool:
    """Whether a Concat is one of channels, of images of several pixels of which some are not row-major."""
    if not _joins_channels(scope, node) or set(scope.shape(node.outputs[0])[2:]) == {1}:
        return False
    images = [scope.images[value] for value in node.inputs if value in scope.images]
    return any(image.layout.order != "NCHW" for image in images)


def lower_joining(scope: Scope, node: ir.Node) -> None:
    """A region for each operand that does not lie in its place, which copies it there."""
    output = node.outputs[0]
    sources = [image_of(scope, required_input(node, position)) for position in range(len(node.inputs))]
    aim = scope.image(output, layout_of(scope.shape(output), "NCHWc", block_of(scope.target)))
    first = 0
    for source in sources:
        there = aim.offset + first // aim.layout.block * aim.layout.block_stride
        if (source.buffer, source.offset) != (aim.buffer, there) or first % aim.layout.block:
            scope.convert(source, aim, first, (node,))
        first += source.layout.channels


def homes_of(scope: Scope, nodes: Iterable[ir.Node]) -> dict[ir.Value, Home]:
    """Where values should lie that are concatenated, and the results; the last Concat of a value decides."""
    homes: dict[ir.Value, Home] = {}
    for node in reversed(list(nodes)):
        if not _joins_channels(scope, node) or not _fits(scope, node):
            continue
        output, values = node.outputs[0], [required_input(node, position) for position in range(len(node.inputs))]
        counts = [scope.shape(value)[1] for value in values]
        starts = [0, *accumulate(counts)][:-1]
        held = [homes.get(value) for value in values]
        if output not in homes:
            first = held[0]
            if first is not None and all(
                one is not None and (one.buffer, one.channel) == (first.buffer, first.channel + start)
                for one, start in zip(held, starts, strict=True)
            ):
                homes[output] = first
                continue
            layout = layout_of(scope.shape(output), "NCHWc", block_of(scope.target))
            buffer = scope.temporary("joined", output.name, DType.F32.bytes * layout.elements)
            homes[output] = Home(buffer, 0)
        home = homes[output]
        for value, start in zip(values, starts, strict=True):
            if value not in homes and value.producer() is not None and not value.is_graph_output():
                homes[value] = Home(home.buffer, home.channel + start)
    return homes


def _joins_channels(scope: Scope, node: ir.Node) -> bool:
    if node.op_type != "Concat" or node.domain not in ("", "ai.onnx"):
        return False
    shape = scope.shape(node.outputs[0])
    return is_image(shape) and int_attribute(node, "axis", 0) % len(shape) == 1


def _fits(scope: Scope, node: ir.Node) -> bool:
    """Whether all operands are whole blocks of one image."""
    output, block = node.outputs[0], block_of(scope.target)
    shapes = [scope.shape(required_input(node, position)) for position in range(len(node.inputs))]
    whole = all(shape[0] == 1 and shape[1] % block == 0 for shape in shapes) and set(shapes[0][2:]) != {1}
    return whole and scope.dtype(output) is DType.F32 and not output.is_graph_output()
