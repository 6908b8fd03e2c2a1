"""Rotary embedding: each half of a head turned by the angles of its position, stored side by side."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import input_at, int_attribute, required_input
from graphopt.program.regions.attention import by_heads
from graphopt.program.regions.copies import dense, store
from graphopt.program.regions.reader import Reader
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View, axes_of
from kernels.dtype import DType
from kernels.templates import indexed
from kernels.tensor.expression import Expression, index


def lower_rotary(scope: Scope, node: ir.Node) -> None:
    """out = [a cos - b sin, b cos + a sin], a and b the halves of the turned part of a head (or its even and odd)."""
    if scope.dtype(node.outputs[0]) is not DType.F32:
        raise NotLowered(f"RotaryEmbedding '{node.name or node.outputs[0].name}' is not of float32.")
    x, result = scope.place(required_input(node, 0)), scope.result(node.outputs[0])
    if len(x.shape) == 3:
        heads = int_attribute(node, "num_heads", 0)
        x, aim = by_heads(x, heads), by_heads(result, heads)
    else:
        aim = result
    batch, _, rows, size = x.shape
    turned = int_attribute(node, "rotary_embedding_dim", 0) or size
    half = turned // 2
    cos, sin = (_angles(scope, node, position, batch, rows, half) for position in (1, 2))
    interleaved = int_attribute(node, "interleaved", 0)
    first, second = (0, 2), (1, 2)
    if not interleaved:
        first, second = (0, 1), (half, 1)
    a, b = (x.sliced(3, start, half, step) for start, step in (first, second))
    for place, one, other, combined in ((first, a, b, Expression.__sub__), (second, b, a, Expression.__add__)):
        axes = axes_of(a.shape)
        at = tuple(index(axis) for axis in axes)
        reader = Reader(scope)
        turn = reader.load(other, at) * reader.load(sin, at)
        value = reader.load(one, at) * reader.load(cos, at)
        store(scope, axes, combined(value, turn), reader, aim.sliced(3, *_cut(place, half)), (node,))
    if turned < size:
        scope.copy(x.sliced(3, turned, size - turned), aim.sliced(3, turned, size - turned), (node,))


def _cut(place: tuple[int, int], half: int) -> tuple[int, int, int]:
    """Start, count and step of a slice."""
    return place[0], half, place[1]


def _angles(scope: Scope, node: ir.Node, position: int, batch: int, rows: int, half: int) -> View:
    """[batch or 1, 1, rows, half]: given for each position, or gathered by the positions' numbers."""
    value, places = required_input(node, position), input_at(node, 3)
    view = dense(scope, value)
    if places is None:
        return View(view.buffer, view.dtype, (view.shape[0], 1, *view.shape[1:]),
                    (view.strides[0], 0, *view.strides[1:]), view.offset)  # fmt: skip
    ids = dense(scope, places)
    problem = indexed.gather(view.shape, 0, ids.shape, view.dtype, ids.dtype)
    kernel = scope.kernel(indexed.INDEXED, problem)
    buffer = scope.temporary(f"angles {position}", node.outputs[0].name, view.dtype.bytes * batch * rows * half)
    scope.add(kernel, {"data": view.buffer, "indices": ids.buffer, "output": buffer}, (node,))
    return View.dense(buffer, view.dtype, (batch, 1, rows, half))
