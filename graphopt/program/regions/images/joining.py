"""Concatenation of images: operands are computed where the result wants them, or copied there.

Blocks of channels of an image follow one another in memory. A value that is concatenated behind whole blocks is
therefore written to its place in the result, and so is one that becomes some of the rows or columns, as far apart as
those of the result are. A result that is concatenated again lies in the larger one: in a DenseNet, all concatenations
of a stage are the first blocks of one buffer. Where memory is tight and the first of them is made in tiles, that buffer
is not held from the first tile on: the value moves there when it is first concatenated.

Images whose sides a run sets have all their channels side by side. Those that are concatenated are some of the channels
of the result, one pixel as far from the next as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from math import prod

import onnx_ir as ir

from graphopt.model.nodes import OF_ANY_SIDES, TILED, int_attribute, required_input
from graphopt.model.operators.movement import permutation
from graphopt.program.regions.buffer import Buffer
from graphopt.program.regions.fusion import is_anchor, is_elementwise
from graphopt.program.regions.images.image import Home, Image, is_image, layout_of
from graphopt.program.regions.images.sources import block_of, by_strides, image_of, result_layout
from graphopt.program.regions.movement import fit_along, turned_back
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
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
        if axis == 1 and aim.layout.order != "NHWC":
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
    image = scope.images.get(value) or Image.of_channels(scope.place(value))
    return image is not None and image.layout.order == "NHWC"


def _source(scope: Scope, value: ir.Value) -> Image:
    """Where a value lies as images, of whatever type."""
    found = scope.images.get(value)
    if found is None and scope.any_sides:
        found = Image.of_channels(scope.place(value))
    return found or image_of(scope, value)


def _move(scope: Scope, value: ir.Value, buffer: Buffer, offset: int) -> None:
    """Let later readers find a value where it has just been copied, if that is its later home."""
    home = scope.later_homes.get(value)
    if home is not None and (home.buffer, home.offset) == (buffer, offset):
        scope.images[value] = home.image(scope.dtype(value), scope.shape(value), _layout(scope, value))


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


def channels_of_parts(scope: Scope, nodes: Iterable[ir.Node]) -> dict[ir.Value, View]:
    """Where images of any sides should be computed that become channels of others, all of which lie side by side.

    As of blocks the last Concat of a value decides, and what is concatenated before is the first channels of it.
    """
    if not scope.any_sides or scope.tight:
        return {}
    order, lying = list(nodes), dict[ir.Value, View]()
    last = _joined_last(scope, order)
    for node in reversed(order):
        output, axis = node.outputs[0], _axis(scope, node)
        shape = scope.shape(output)
        if node.op_type != "Concat" or output not in last or scope.counted(output):
            continue
        values = [required_input(node, position) for position in range(len(node.inputs))]
        first, whole = lying.get(values[0]), lying.get(output)
        if whole is None and first is not None:
            whole = replace(first, shape=shape)
            if [lying.get(value) for value in values] != _cut(scope, whole, values, axis):
                whole = None
        if whole is None:
            buffer = scope.temporary("joined", output.name, DType.F32.bytes * prod(shape))
            whole = View.dense(buffer, DType.F32, shape)
            if axis == 1:
                whole = View.dense(buffer, DType.F32, (shape[0], *shape[2:], shape[1]))
                whole = whole.transposed((0, len(shape) - 1, *range(1, len(shape) - 1)))
        lying[output] = whole
        for value, part in zip(values, _cut(scope, whole, values, axis), strict=True):
            lying.setdefault(value, part)
    made = [[*turned_back(scope, value, part)][-1] for value, part in lying.items()]
    return {one: there for one, there in made if one.producer() is not None and not one.is_graph_output()}


def _cut(scope: Scope, whole: View, values: Iterable[ir.Value], axis: int) -> list[View]:
    """Where values lie that follow one another along an axis."""
    counts = [scope.shape(value)[axis] for value in values]
    starts = [0, *accumulate(counts)]
    return [whole.sliced(axis, start, count) for start, count in zip(starts, counts, strict=False)]


def _joined_last(scope: Scope, nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """Images of floats that are likely to have their channels last, and what is joined along the last dim of others.

    What is taken apart and joined again, as windows are, is not.
    """
    last, computed = set[ir.Value](), set[ir.Value]()
    for node in nodes:
        output, axis = node.outputs[0], _axis(scope, node)
        if scope.dtype(output) is not DType.F32 or not is_image(scope.shape(output)):
            continue
        rank = len(scope.shape(output))
        if is_elementwise(node) or is_anchor(node) or (node.op_type == "Transpose" and node.inputs[0] in computed):
            computed.add(output)
        if axis == rank - 1:
            is_last = any(value in computed for value in node.inputs)
        elif axis == 1 or is_elementwise(node):
            is_last = any(value in last for value in node.inputs)
        else:
            is_turned = node.op_type == "Transpose" and permutation(node, rank) == (0, rank - 1, *range(1, rank - 1))
            is_last = is_turned or OF_ANY_SIDES in node.metadata_props
        if is_last:
            last.add(output)
    return last


def _has_room(home: Home, layout: Layout) -> bool:
    """Whether the images that a home is a part of have as many blocks of channels, planes, rows and columns."""
    return home.among >= layout.blocks and all(
        whole >= size for whole, size in zip(home.within, layout.size, strict=True)
    )


def _parts(scope: Scope, output: ir.Value, values: Iterable[ir.Value], axis: int, whole: Home) -> list[Home]:
    """Where operands lie in the images that a Concat makes of them."""
    image = whole.image(scope.dtype(output), scope.shape(output), _layout(scope, output))
    layout = image.layout
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
    if node.op_type != "Concat" or node.domain not in ("", "ai.onnx") or not is_image(scope.shape(node.outputs[0])):
        return 0
    axis = int_attribute(node, "axis", 0) % len(scope.shape(node.outputs[0]))
    return axis if fit_along(axis, [scope.shape(required_input(node, at)) for at in range(len(node.inputs))]) else 0


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
