"""Concatenation of images: operands are computed where the result wants them, or copied there.

Blocks of channels of an image follow one another in memory. A value that is concatenated behind whole blocks is
therefore written to its place in the result, and so is one that becomes some of the rows or columns, as far apart as
those of the result are. A result that is concatenated again lies in the larger one: in a DenseNet, all concatenations
of a stage are the first blocks of one buffer. Where memory is tight and the first of them is made in tiles, that buffer
is not held from the first tile on: the value moves there when it is first concatenated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from math import prod

import onnx_ir as ir

from graphopt.model.nodes import TILED, int_attribute, required_input
from graphopt.program.regions.buffer import Buffer
from graphopt.program.regions.images.image import Home, Image, is_image, layout_of
from graphopt.program.regions.images.sources import block_of, by_strides, image_of, result_layout
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.waiting import FAR, last_read
from kernels.dtype import DType
from kernels.templates.convolution.layout import Layout

FLOATS = (DType.F32, DType.F16, DType.BF16)  # that kernels of images store


def joins_images(scope: Scope, node: ir.Node) -> bool:
    """Whether a Concat is one of images of several pixels, some of which are not row-major, but not of batches."""
    axis = _axis(scope, node)
    if not axis or set(scope.shape(node.outputs[0])[2:]) == {1}:
        return False
    if scope.any_sides:
        return any(_is_last(scope, required_input(node, position)) for position in range(len(node.inputs)))
    images = [scope.images[value] for value in node.inputs if value in scope.images]
    if len(images) < len(node.inputs) and scope.dtype(node.outputs[0]) is not DType.F32:
        return False
    if axis == 1:
        return any(image.layout.order != "NCHW" for image in images)
    wanted = result_layout(scope, node.outputs[0]).order == "NCHWc"
    return wanted and any(image.layout.order == "NCHWc" for image in images)


def lower_joining(scope: Scope, node: ir.Node) -> None:
    """A region for each operand that does not lie in its place, which copies it there."""
    output, axis = node.outputs[0], _axis(scope, node)
    values = [required_input(node, position) for position in range(len(node.inputs))]
    sources = [_source(scope, value) for value in values]
    aim = scope.image(output, layout_of(scope.shape(output), "NHWC") if scope.any_sides else _layout(scope, output))
    first = 0
    for value, source in zip(values, sources, strict=True):
        if axis == 1:
            there = aim.offset + first // aim.layout.block * aim.layout.block_stride
            if (source.buffer, source.offset) != (aim.buffer, there) or first % aim.layout.block:
                scope.convert(source, aim, first, (node,))
                _move(scope, value, aim.buffer, there)
        else:
            part = aim.part(axis, first, source.shape)
            if source != part:
                scope.convert(source, part, 0, (node,))
        first += source.shape[axis]
    if scope.any_sides:
        by_strides(scope, output)


def _is_last(scope: Scope, value: ir.Value) -> bool:
    """Whether a value lies as images of floats whose channels come last."""
    if scope.dtype(value) is not DType.F32 or not is_image(scope.shape(value)):
        return False
    image = scope.images.get(value) or Image.of_view(scope.place(value))
    return image is not None and image.layout.order == "NHWC"


def _source(scope: Scope, value: ir.Value) -> Image:
    """Where a value lies as images, of whatever type."""
    return scope.images.get(value) or image_of(scope, value)


def _move(scope: Scope, value: ir.Value, buffer: Buffer, offset: int) -> None:
    """Let later readers find a value where it has just been copied, if that is its later home."""
    home = scope.later_homes.get(value)
    if home is not None and (home.buffer, home.offset) == (buffer, offset):
        layout = replace(_layout(scope, value), within=home.within, among=home.among)
        scope.images[value] = Image(buffer, scope.dtype(value), scope.shape(value), layout, offset)


def homes_of(scope: Scope, nodes: Iterable[ir.Node]) -> tuple[dict[ir.Value, Home], dict[ir.Value, Home]]:
    """Where values should lie that are concatenated, and the results; the last Concat of a value decides.

    Apart from them, where values should lie from when they are first concatenated.
    """
    homes: dict[ir.Value, Home] = {}
    later: dict[ir.Value, Home] = {}
    order = [] if scope.any_sides else list(nodes)  # where a part begins may not follow from the sides
    place = {node: at for at, node in enumerate(order)} if scope.tight else {}
    for node in reversed(order):
        axis = _axis(scope, node)
        if not axis or not _fits(scope, node, axis):
            continue
        output, values = node.outputs[0], [required_input(node, position) for position in range(len(node.inputs))]
        held = [later.get(value, homes.get(value)) for value in values]
        first, there = held[0], homes.get(output)
        if (
            there is None
            and first is not None
            and _has_room(first, _layout(scope, output))
            and held == _parts(scope, output, values, axis, first)
        ):
            homes[output] = first
            continue
        if there is None:
            layout = _layout(scope, output)
            buffer = scope.temporary("joined", output.name, scope.dtype(output).bytes * layout.elements)
            there = homes[output] = Home(buffer, 0, layout.stored, layout.blocks)
        for value, part in zip(values, _parts(scope, output, values, axis, there), strict=True):
            made = value.producer()
            if value in homes or value in later or made is None or value.is_graph_output():
                continue
            if _outlives(scope, value, node, place):
                continue
            again = _is_joined_again(value, node)
            if not _waits(scope, value, node, place) or (again and TILED not in made.metadata_props):
                homes[value] = part
            elif again:
                later[value] = part
    return homes, later


def _is_joined_again(value: ir.Value, node: ir.Node) -> bool:
    """Whether a value is concatenated by others too, as in a DenseNet: it lies in the largest result."""
    return any(use.node.op_type == "Concat" for use in value.uses() if use.node is not node)


def _waits(scope: Scope, value: ir.Value, node: ir.Node, place: Mapping[ir.Node, int]) -> bool:
    """Whether a value waits so long for a Concat that room for all of it is not held until then, where memory is tight.

    It is then copied. Tiles are joined where they are made however many there are.
    """
    made, others = value.producer(), {use.node for use in value.uses()} - {node}
    if made is None or made not in place or not others or TILED in node.metadata_props:
        return False
    return place[node] - place[made] > FAR and 2 * prod(scope.shape(value)) <= prod(scope.shape(node.outputs[0]))


def _outlives(scope: Scope, value: ir.Value, node: ir.Node, place: Mapping[ir.Node, int]) -> bool:
    """Whether a value is read after all of what it is concatenated to, and that would be held for it in tight memory.

    It is then copied. So are layers of a DenseNet in tiles: later layers need fewer rows of them, which lie elsewhere.
    """
    whole = node.outputs[0]
    if not place or 2 * prod(scope.shape(value)) > prod(scope.shape(whole)):
        return False
    return last_read(value, place) > max(last_read(whole, place), place[node])


def _has_room(home: Home, layout: Layout) -> bool:
    """Whether the images that a home is a part of have as many blocks of channels, planes, rows and columns."""
    return home.among >= layout.blocks and all(
        whole >= size for whole, size in zip(home.within, layout.size, strict=True)
    )


def _parts(scope: Scope, output: ir.Value, values: Iterable[ir.Value], axis: int, whole: Home) -> list[Home]:
    """Where operands lie in the images that a Concat makes of them."""
    layout = replace(_layout(scope, output), within=whole.within, among=whole.among)
    image = Image(whole.buffer, scope.dtype(output), scope.shape(output), layout, whole.offset)
    shapes = [scope.shape(value) for value in values]
    starts = [0, *accumulate(shape[axis] for shape in shapes)]
    offsets = [
        whole.offset + start // layout.block * layout.block_stride
        if axis == 1
        else image.part(axis, start, shape).offset
        for start, shape in zip(starts, shapes, strict=False)
    ]
    return [Home(whole.buffer, offset, whole.within, whole.among) for offset in offsets]


def _layout(scope: Scope, value: ir.Value) -> Layout:
    return layout_of(scope.shape(value), "NCHWc", block_of(scope.target))


def _axis(scope: Scope, node: ir.Node) -> int:
    """The axis along which a Concat joins images; 0 where it joins batches, or anything else."""
    if node.op_type != "Concat" or node.domain not in ("", "ai.onnx"):
        return 0
    shape = scope.shape(node.outputs[0])
    return int_attribute(node, "axis", 0) % len(shape) if is_image(shape) else 0


def _fits(scope: Scope, node: ir.Node, axis: int) -> bool:
    """Whether operands can be written where the result wants them: whole blocks, or pixels."""
    output, block = node.outputs[0], block_of(scope.target)
    shapes = [scope.shape(required_input(node, position)) for position in range(len(node.inputs))]
    if any(0 in shape for shape in shapes) or set(scope.shape(output)[2:]) == {1}:
        return False
    whole = all(shape[1] % block == 0 for shape in shapes)
    if axis > 1:
        whole = result_layout(scope, output).order == "NCHWc"
    return whole and scope.dtype(output) in FLOATS and not output.is_graph_output()
