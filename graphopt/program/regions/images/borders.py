"""Slices, splits and pads of images in the layout that they have: of rows and columns, and of blocks of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import (
    COPIED,
    float_attribute,
    input_at,
    int_attribute,
    ints_attribute,
    required_input,
    string_attribute,
)
from graphopt.model.operators.formulas import number_of
from graphopt.program.regions.images.image import Image, is_image, is_spaced, layout_of
from graphopt.program.regions.images.sources import by_strides
from graphopt.program.regions.movement import is_set_apart, sliced_axes
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.tensor.expression import Number

_NAMES = ("image", "block", "plane", "row", "column", "lane")


def slices_images(scope: Scope, node: ir.Node) -> bool:
    """Whether a Slice takes rows or columns, forwards, of images in blocks of channels, or whole blocks."""
    source = scope.images.get(required_input(node, 0)) if node.op_type == "Slice" else None
    if node.domain not in ("", "ai.onnx") or source is None or source.layout.order != "NCHWc":
        return False
    before, after = scope.shape(required_input(node, 0)), scope.shape(node.outputs[0])
    if before[0] != after[0] or 0 in after:
        return False
    axes = list(sliced_axes(node, before, scope.facts))
    if before[1] != after[1]:
        return all(step == 1 for _, _, step in axes) and all(
            _are_blocks(source, start, after[1]) for axis, start, _ in axes if axis == 1
        )
    steps = {step for _, _, step in axes}
    return steps <= {1} or (min(steps) > 0 and source.channel_stride is None)


def _are_blocks(source: Image, start: int, count: int) -> bool:
    """Whether some channels are whole blocks that no strides describe, or end with the last one."""
    layout = source.layout
    ends = count % layout.block == 0 or start + count == layout.channels
    return source.channel_stride is None and start % layout.block == 0 and ends


def splits_images(scope: Scope, node: ir.Node) -> bool:
    """Whether a Split takes images in blocks of channels apart between blocks."""
    source = scope.images.get(required_input(node, 0)) if node.op_type == "Split" else None
    if node.domain not in ("", "ai.onnx") or source is None or source.layout.order != "NCHWc":
        return False
    sizes = [scope.shape(output)[1] for output in node.outputs]
    starts = list(accumulate(sizes, initial=0))
    return (
        int_attribute(node, "axis", 0) % len(source.shape) == 1
        and 0 not in sizes
        and all(_are_blocks(source, start, size) for start, size in zip(starts, sizes, strict=False))
    )


def lower_split(scope: Scope, node: ir.Node) -> None:
    """The channels of a Split where they are; a copy of those that are read far from the others in tight memory."""
    whole, start = required_input(node, 0), 0
    source = scope.images[whole]
    for output in node.outputs:
        shape = scope.shape(output)
        part = source.part(1, start, shape)
        scope.images[output] = part
        if is_set_apart(scope, whole, output):
            layout = layout_of(shape, source.layout.order, source.layout.block)
            scope.convert(part, scope.image(output, layout), 0, (node,))
        start += shape[1]


def lower_slice(scope: Scope, node: ir.Node) -> None:
    """The pixels or channels of a Slice where they are; a region that copies every so manieth of them."""
    source, shape = scope.images[required_input(node, 0)], scope.shape(node.outputs[0])
    first, step = [0] * 5, [1] * 5
    axes = list(sliced_axes(node, source.shape, scope.facts))
    if all(stride == 1 for _, _, stride in axes):
        for axis, start, _ in axes:
            source = source.part(axis, start, (*source.shape[:axis], shape[axis], *source.shape[axis + 1 :]))
        scope.images[node.outputs[0]] = source
        if COPIED in node.metadata_props:
            is_joined = node.metadata_props[COPIED] == "joined"
            layout = layout_of(shape, source.layout.order, source.layout.block)
            scope.convert(source, scope.image(node.outputs[0], layout, at_home=is_joined), 0, (node,))
        return
    for axis, start, stride in axes:
        place = axis + 5 - len(shape)
        first[place], step[place] = start, stride
    result = scope.image(node.outputs[0], layout_of(shape, source.layout.order, source.layout.block))
    aim = result.inside()
    scope.copy(_part(source, aim.shape, first[2:], step[2:]), aim, (node,))


def lower_pad(scope: Scope, node: ir.Node) -> None:
    """Regions that fill a Pad's result with its constant, and copy what is inside."""
    mode = string_attribute(node, "mode", "constant")
    source, output = required_input(node, 0), node.outputs[0]
    shape, name = scope.shape(output), f"Pad '{node.name or output.name}'"
    if mode != "constant":
        raise NotLowered(f"{name} repeats the border ('{mode}'), which has no kernel yet.")
    before = _before(scope, node, len(shape))
    filler = _filler(scope, node, name)
    if _is_blocked(scope, source) and filler.value == 0 and shape[:2] == scope.shape(source)[:2]:
        image = scope.images[source]
        result = scope.image(output, layout_of(shape, image.layout.order, image.layout.block))
        whole = result.inside()
        scope.copy(filler, whole, (node,))
        first = (0, 0, *before[2:])[-3:]
        low, count = _inside(image.layout.size, result.layout.size, first)
        inner = (*whole.shape[:2], *count, whole.shape[5])
        aim = _part(result, inner, [one + at for one, at in zip(first, low, strict=True)], (1, 1, 1))
        scope.copy(_part(image, inner, low, (1, 1, 1)), aim, (node,))
        return
    view = scope.place(source)
    if scope.any_sides and is_image(shape) and is_spaced(view):
        scope.image(output, layout_of(shape, "NHWC"))
        by_strides(scope, output)
        made = scope.places[output]
    else:
        made = scope.result(output)
    scope.copy(filler, made, (node,))
    low, count = _inside(view.shape, shape, before)
    for axis, (at, size, start) in enumerate(zip(low, count, before, strict=True)):
        view, made = view.sliced(axis, at, size), made.sliced(axis, start + at, size)
    scope.copy(view, made, (node,))


def _is_blocked(scope: Scope, value: ir.Value) -> bool:
    return value in scope.images and scope.images[value].channel_stride is None


def _before(scope: Scope, node: ir.Node, rank: int) -> tuple[int, ...]:
    """What comes before each dim: an input since opset 11, an attribute before; axes since opset 18."""
    value, chosen = input_at(node, 1), input_at(node, 3)
    given = ints_attribute(node, "pads", ()) if value is None else scope.facts.ints(value)
    axes = tuple(range(rank)) if chosen is None else scope.facts.ints(chosen)
    if given is None or axes is None:
        raise NotLowered(f"{node.op_type} '{node.name}' has pads that are known only when it runs.")
    found = [0] * rank
    for axis, pad in zip(axes, given[: len(axes)], strict=True):
        found[axis % rank] = pad
    return tuple(found)


def _filler(scope: Scope, node: ir.Node, name: str) -> Number:
    dtype, value = scope.dtype(node.outputs[0]), input_at(node, 2)
    if value is None:
        return Number(float_attribute(node, "value", 0.0) if dtype.is_float else 0, dtype)
    array = scope.constant(value)
    found = None if array is None else number_of(array, dtype)
    if found is None:
        raise NotLowered(f"{name} fills with a value that is known only when it runs.")
    return found


def _inside(size: Sequence[int], out: Sequence[int], before: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of each dim of the input, the first element that is kept (negative pads cut some off), and how many are."""
    low = tuple(max(0, -pad) for pad in before)
    ends = (min(s, o - pad) for s, o, pad in zip(size, out, before, strict=True))
    return low, tuple(end - one for end, one in zip(ends, low, strict=True))


def _part(image: Image, shape: tuple[int, ...], first: Sequence[int], step: Sequence[int]) -> View:
    """Some pixels of images: from `first` on, every `step`-th."""
    whole = image.inside()
    strides = (*whole.strides[:2], *(a * b for a, b in zip(whole.strides[2:5], step, strict=True)), 1)
    offset = whole.offset + sum(a * b for a, b in zip(whole.strides[2:5], first, strict=True))
    return replace(whole, shape=shape, strides=strides, offset=offset)
