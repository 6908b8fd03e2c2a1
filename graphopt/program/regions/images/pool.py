"""Pooling as regions: windows, whole images, and elementwise trees as windows of one pixel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import OF_ANY_SIDES, int_attribute, ints_attribute, is_used, required_input
from graphopt.model.operators.padding import padding
from graphopt.program.regions.buffer import Buffer, Place
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.images.image import Image, layout_of, whole_layout
from graphopt.program.regions.images.sources import ImageReader, by_strides, channels_last, vector_image
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution, whole
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.pooling import POOLING
from kernels.templates.pooling_problem import Pooling

POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
_KINDS: Mapping[str, Literal["max", "average"]] = {
    "MaxPool": "max", "GlobalMaxPool": "max", "ReduceMax": "max",
    "AveragePool": "average", "GlobalAveragePool": "average", "ReduceMean": "average",
}  # fmt: skip


def lower_pool(scope: Scope, tree: Tree) -> None:
    """The region of a pooling and its epilogue."""
    node = tree.anchor
    assert node is not None, "the tree of a pooling has one"
    if any(is_used(output) for output in node.outputs[1:]):
        raise NotLowered(
            f"{node.op_type} '{node.name or node.outputs[0].name}' gives indices, which has no kernel yet."
        )
    any_sides = OF_ANY_SIDES in node.metadata_props
    source = (channels_last if any_sides else vector_image)(scope, required_input(node, 0))
    if node.op_type not in ("MaxPool", "AveragePool"):
        _build(scope, tree, source, _global(scope, source, node), node.outputs[0])
        return
    shape, size = scope.shape(node.outputs[0]), source.shape[2:]
    rank = len(size)
    window = ints_attribute(node, "kernel_shape", ())
    strides, dilations = ints_attribute(node, "strides", (1,) * rank), ints_attribute(node, "dilations", (1,) * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    before, after = padding(node, size, shape[2:], reach, strides)
    windows = Convolution(
        source.layout, like(source.layout, shape), whole(window, 1), whole(strides, 1), whole(dilations, 1),
        whole(before, 0), shape[1],
    )  # fmt: skip
    counted = bool(int_attribute(node, "count_include_pad", 0))
    problem = Pooling(windows, _KINDS[node.op_type], counted, whole(after, 0) if counted else (0, 0, 0))
    _build(scope, tree, source, problem, node.outputs[0])
    if any_sides:
        by_strides(scope, root_of(tree).outputs[0])


def like(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """The layout of other dims with the same order and blocks."""
    return layout_of(shape, layout.order, layout.block)


def _global(scope: Scope, source: Image, node: ir.Node) -> Pooling:
    """Windows as large as the images along what a node reduces: all of their dims, or some."""
    layout, rank = source.layout, len(source.shape)
    axes = _reduced(scope, node) if node.op_type in ("ReduceMean", "ReduceMax") else frozenset(range(2, rank))
    reduced = whole(tuple(int(axis in axes) for axis in range(2, rank)), 1)
    window = whole(tuple(size if gone else 1 for size, gone in zip(layout.size, reduced, strict=True)), 1)
    output = whole(tuple(1 if gone else size for size, gone in zip(layout.size, reduced, strict=True)), 1)
    made = replace(whole_layout(layout), size=output)
    return Pooling(Convolution(layout, made, window, groups=layout.channels), _KINDS[node.op_type])


def is_global(scope: Scope, node: ir.Node) -> bool:
    """Whether a reduction is one of images that have no strides: over all pixels, or along rows or columns."""
    if node.op_type not in ("ReduceMean", "ReduceMax"):
        return False
    source = required_input(node, 0)
    if source not in scope.images or scope.any_sides:
        return False
    axes, pixels = _reduced(scope, node), frozenset(range(2, len(scope.shape(source))))
    return axes == pixels or (bool(axes) and axes < pixels and bool(int_attribute(node, "keepdims", 1)))


def _reduced(scope: Scope, node: ir.Node) -> frozenset[int]:
    """The axes of a reduction of images, counted from 0."""
    rank = len(scope.shape(required_input(node, 0)))
    given = scope.facts.ints(node.inputs[1]) if len(node.inputs) > 1 else ints_attribute(node, "axes", ())
    return frozenset(axis % rank for axis in given or ())


def lower_pixels(scope: Scope, tree: Tree, source: ir.Value, image: Image) -> None:
    """An elementwise tree whose result lies as `source`, one of its operands, does: windows of one pixel."""
    windows = Convolution(image.layout, whole_layout(image.layout), (1, 1, 1), groups=image.layout.channels)
    _build(scope, tree, image, Pooling(windows, "max"), source)


def _build(scope: Scope, tree: Tree, source: Image, problem: Pooling, pooled: ir.Value) -> None:
    """The region; `pooled` is the value that the windows give."""
    node, root = tree.anchor, root_of(tree).outputs[0]
    shape = scope.shape(root)
    problem = replace(problem, windows=replace(problem.windows, output=scope.laid(root, problem.windows.output)))
    reader = ImageReader(scope, tree, problem.windows)
    reader.accumulated[pooled] = ACCUMULATED[()]
    value = reader.value(root, reader.at(len(shape)))
    problem = replace(problem, windows=replace(problem.windows, epilogue=Epilogue(value)))
    kernel = scope.kernel(POOLING, problem)
    output = problem.windows.output
    result = Place(_flat(scope, root, output)) if len(shape) == 2 else scope.image(root, output).place
    nodes = (*(() if node is None else (node,)), *tree.in_order)
    scope.add(kernel, {**reader.buffers, "x": source.place, "y": result}, nodes)


def _flat(scope: Scope, value: ir.Value, layout: Layout) -> Buffer:
    """Images of one pixel as a matrix: (images, channels), rows as long as the blocks are."""
    dtype, shape = scope.dtype(value), scope.shape(value)
    buffer = scope.temporary("value", value.name, dtype.bytes * layout.elements)
    scope.places[value] = View(buffer, dtype, shape, (layout.image_stride, 1))
    return buffer
