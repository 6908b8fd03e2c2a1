"""What of its operands an operator needs for a range of its result along one axis.

An elementwise operator needs the same range, a convolution a range with a halo, a matrix product the rows of its first
operand and all of the second. An operator that needs all of every operand for any element, or that treats the axis as
more than positions side by side, has no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.nodes import ints_attribute
from graphopt.model.operators.elementwise import formula_of
from graphopt.model.operators.windows import padding

Shape = tuple[int, ...]
AttributeValue = tuple[int, ...] | int | str
DOUBLINGS = (2, 4, 8)  # factors of linear Resize whose positions have no rounding, so that a shift keeps their bits


class Range(NamedTuple):
    """Positions `low` to `high` (exclusive) along an axis."""

    axis: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Part:
    """How a node computes a range of its result: from which ranges, with what changed."""

    inputs: tuple[Range | None, ...]  # None: all of the operand
    made: tuple[int, int]  # what it then makes: the wanted range, or one around it of which only the wanted is right
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)  # operands that say sizes, by position


def part(facts: Facts, node: ir.Node, wanted: Range) -> Part | None:
    """The part of `node` that makes the range `wanted` of its outputs; None where there is none, or sizes are unknown.

    Axes are counted from 0. All outputs that are used have the range along the same axis.
    """
    if not nodes.is_standard(node) or nodes.has_reference_attributes(node) or not facts.is_pure(node):
        return None
    used = nodes.used_outputs(node)
    if not used or (node.op_type != "Split" and any(value is not node.outputs[0] for value in used)):
        return None
    shapes = [None if value is None else facts.static_shape(value) for value in node.inputs]
    result = facts.static_shape(used[0])
    known = all(shape is not None for value, shape in zip(node.inputs, shapes, strict=True) if value is not None)
    if result is None or not known or wanted.axis >= len(result):
        return None
    one = _Node(facts, node, tuple(shape or () for shape in shapes), result, wanted)
    rule = _RULES.get(node.op_type)
    if rule is not None:
        return rule(one)
    return _elementwise(one) if formula_of(node) is not None else None


@dataclass(frozen=True, slots=True)
class _Node:
    facts: Facts
    node: ir.Node
    shapes: tuple[Shape, ...]  # of the inputs, () where one is left out
    result: Shape
    wanted: Range

    @property
    def axis(self) -> int:
        return self.wanted.axis

    def first(self, found: Range, *, attributes: Mapping[str, AttributeValue] | None = None) -> Part:
        """A range of the first operand, all of the others."""
        others = (None,) * (len(self.shapes) - 1)
        return Part((found, *others), self.wanted[1:], attributes or {})

    def same(self) -> Part:
        """The same range of the first operand, all of the others."""
        return self.first(self.wanted)

    def constant_ints(self, position: int) -> tuple[int, ...] | None:
        return self.facts.ints(nodes.input_at(self.node, position))


def _elementwise(one: _Node) -> Part:
    return Part(tuple(_broadcast(shape, one.result, one.wanted) for shape in one.shapes), one.wanted[1:])


def _broadcast(shape: Shape, result: Shape, wanted: Range) -> Range | None:
    """The range of an operand that is broadcast to the result, None where it has one position there."""
    axis = wanted.axis - (len(result) - len(shape))
    if axis < 0 or shape[axis] != result[wanted.axis] or shape[axis] == 1:
        return None
    return Range(axis, wanted.low, wanted.high)


def _batch_normalization(one: _Node) -> Part | None:
    training = nodes.int_attribute(one.node, "training_mode", 0)
    return None if one.axis == 1 or training else one.same()


def _normalization(one: _Node) -> Part | None:
    axis = nodes.int_attribute(one.node, "axis", -1) % len(one.result)
    return one.same() if one.axis < axis else None


def _softmax(one: _Node) -> Part | None:
    rank = len(one.result)
    if one.facts.opset(one.node) >= 13:
        return one.same() if one.axis != nodes.int_attribute(one.node, "axis", -1) % rank else None
    return one.same() if one.axis < nodes.int_attribute(one.node, "axis", 1) % rank else None


def _quantization(one: _Node) -> Part | None:
    """One scale for all, or one for each position of another axis."""
    if len(one.shapes) < 2 or nodes.int_attribute(one.node, "block_size", 0):
        return None
    axis = nodes.int_attribute(one.node, "axis", 1) % max(len(one.result), 1)
    return one.same() if prod(one.shapes[1]) == 1 or axis != one.axis else None


def _instance_normalization(one: _Node) -> Part | None:
    return one.same() if one.axis == 0 else None


def _concat(one: _Node) -> Part | None:
    if one.axis == nodes.int_attribute(one.node, "axis", 0) % len(one.result):
        return None
    return Part((one.wanted,) * len(one.shapes), one.wanted[1:])


def _split(one: _Node) -> Part | None:
    return one.same() if one.axis != nodes.int_attribute(one.node, "axis", 0) % len(one.result) else None


def _transpose(one: _Node) -> Part | None:
    order = nodes.ints_attribute(one.node, "perm") or tuple(range(len(one.result)))[::-1]
    return one.first(Range(order[one.axis], *one.wanted[1:]))


def _matmul(one: _Node) -> Part | None:
    left, right = one.shapes[:2]
    rank = len(one.result)
    if len(left) < 2 or len(right) < 2 or one.axis == rank - 1:
        return None
    if one.axis == rank - 2:
        return one.first(Range(len(left) - 2, *one.wanted[1:]))
    rows, columns = (*left[:-2], 0, 0), (*right[:-2], 0, 0)
    return Part(tuple(_broadcast(shape, one.result, one.wanted) for shape in (rows, columns)), one.wanted[1:])


def _gemm(one: _Node) -> Part | None:
    if one.axis != 0:
        return None
    rows = Range(1 if nodes.int_attribute(one.node, "transA", 0) else 0, *one.wanted[1:])
    found: list[Range | None] = [rows, None]
    if len(one.shapes) > 2:
        found.append(_broadcast(one.shapes[2], one.result, one.wanted))
    return Part(tuple(found), one.wanted[1:])


def _convolution(one: _Node) -> Part | None:
    return _window(one, one.shapes[1][2:])


def _pool(one: _Node) -> Part | None:
    return _window(one, nodes.ints_attribute(one.node, "kernel_shape") or ())


def _window(one: _Node, kernel: Sequence[int]) -> Part | None:
    """Windows over an image: the range they reach; zeros stay only where the image ends."""
    if one.axis == 0:
        return one.same()
    rank, at = len(kernel), one.axis - 2
    if at < 0 or rank != len(one.result) - 2:
        return None
    strides, dilations = (
        ints_attribute(one.node, "strides", (1,) * rank),
        ints_attribute(one.node, "dilations", (1,) * rank),
    )
    size = one.shapes[0][2:]
    reach = [(k - 1) * step + 1 for k, step in zip(kernel, dilations, strict=True)]
    before, after = padding(one.node, size, one.result[2:], reach, strides)
    begin = one.wanted.low * strides[at] - before[at]
    end = (one.wanted.high - 1) * strides[at] - before[at] + reach[at]
    low, high = max(begin, 0), min(end, size[at])
    zeros = (low - begin, end - high)
    if high <= low or zeros[0] > before[at] or zeros[1] > after[at]:  # a window beyond the zeros: ceil_mode
        return None
    pads = [*before, *after]
    pads[at], pads[rank + at] = zeros
    changed: dict[str, AttributeValue] = {"pads": tuple(pads)}
    if "auto_pad" in one.node.attributes:
        changed["auto_pad"] = "NOTSET"
    return one.first(Range(one.axis, low, high), attributes=changed)


def _transposed_convolution(one: _Node) -> Part | None:
    kernel = one.shapes[1][2:]
    rank, at = len(kernel), one.axis - 2
    if one.axis == 0:
        return one.same()
    automatic = nodes.string_attribute(one.node, "auto_pad", "NOTSET") != "NOTSET"
    if at < 0 or automatic or "output_shape" in one.node.attributes:
        return None
    strides, dilations = (
        ints_attribute(one.node, "strides", (1,) * rank),
        ints_attribute(one.node, "dilations", (1,) * rank),
    )
    pads = list(ints_attribute(one.node, "pads", (0,) * (2 * rank)))
    more = list(ints_attribute(one.node, "output_padding", (0,) * rank))
    step, reach = strides[at], (kernel[at] - 1) * dilations[at] + 1
    begin, end = one.wanted.low + pads[at], one.wanted.high + pads[at]  # in what all windows together write
    size = one.shapes[0][one.axis]
    low = max(0, min(-(-(begin - reach + 1) // step), begin // step, size - 1))
    high = min(size, (end - 1) // step + 1)
    written = (low * step, (high - 1) * step + reach)
    if end - written[1] >= step:
        return None
    pads[at], pads[rank + at] = begin - written[0], max(0, written[1] - end)
    more[at] = max(0, end - written[1])
    changed: dict[str, AttributeValue] = {"pads": tuple(pads), "output_padding": tuple(more)}
    return one.first(Range(one.axis, low, high), attributes=changed)


def _resize(one: _Node) -> Part | None:
    """Enlarging by a whole number, where the positions of a later range are those of the first one, moved."""
    size, result = one.shapes[0][one.axis], one.result[one.axis]
    sizes = one.constant_ints(3)
    if size == result and sizes is None:
        return one.same()
    if size == 0 or result % size or one.facts.opset(one.node) < 11:
        return None
    times = result // size
    mode = nodes.string_attribute(one.node, "mode", "nearest")
    positions = nodes.string_attribute(one.node, "coordinate_transformation_mode", "half_pixel")
    rounding = nodes.string_attribute(one.node, "nearest_mode", "round_prefer_floor")
    low, high = one.wanted.low // times, -(-one.wanted.high // times)
    if mode == "linear" and positions in ("half_pixel", "pytorch_half_pixel") and times in DOUBLINGS:
        low, high = max(0, low - 1), min(size, high + 1)
    elif mode != "nearest" or (positions, rounding) not in _BLOCKS:
        return None
    if nodes.int_attribute(one.node, "antialias", 0) or nodes.ints_attribute(one.node, "axes") is not None:
        return None
    constants = {}
    if sizes is not None:
        changed = list(sizes)
        changed[one.axis] = (high - low) * times
        constants[3] = np.array(changed, np.int64)
    elif nodes.input_at(one.node, 2) is None:
        return None
    inputs = (Range(one.axis, low, high), *(None,) * (len(one.shapes) - 1))
    return Part(inputs, (low * times, high * times), constants=constants)


# Ways of nearest Resize in which every element becomes a block of `times` equal ones.
_BLOCKS = frozenset({
    ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"), ("pytorch_half_pixel", "round_prefer_ceil"),
})  # fmt: skip


def _pad(one: _Node) -> Part | None:
    """Constant values around: they stay only where the operand ends."""
    pads = one.constant_ints(1)
    rank = len(one.result)
    mode = nodes.string_attribute(one.node, "mode", "constant")
    if pads is None or len(pads) != 2 * rank or mode != "constant" or nodes.input_at(one.node, 3) is not None:
        return None
    size, before = one.shapes[0][one.axis], pads[one.axis]
    low, high = max(0, one.wanted.low - before), min(size, one.wanted.high - before)
    if high <= low or min(before, pads[rank + one.axis]) < 0:
        return None
    changed = list(pads)
    changed[one.axis] = low + before - one.wanted.low
    changed[rank + one.axis] = one.wanted.high - before - high
    inputs = (Range(one.axis, low, high), *(None,) * (len(one.shapes) - 1))
    return Part(inputs, one.wanted[1:], constants={1: np.array(changed, np.int64)})


def _slice(one: _Node) -> Part | None:
    if len(one.shapes) < 4:
        return None
    axes, starts, ends = one.constant_ints(3), one.constant_ints(1), one.constant_ints(2)
    steps = one.constant_ints(4) if nodes.input_at(one.node, 4) is not None else (1,) * len(axes or ())
    if axes is None or starts is None or ends is None or steps is None:
        return None
    places = [axis % len(one.result) for axis in axes]
    if one.axis not in places:
        return one.same()
    place, size = places.index(one.axis), one.shapes[0][one.axis]
    start, step = starts[place], steps[place]
    if step < 1:
        return None
    first = min(max(start + size if start < 0 else start, 0), size)
    low, high = first + one.wanted.low * step, first + (one.wanted.high - 1) * step + 1
    begins, behind = list(starts), list(ends)
    begins[place], behind[place] = 0, high - low
    inputs = (Range(one.axis, low, high), *(None,) * (len(one.shapes) - 1))
    constants = {1: np.array(begins, np.int64), 2: np.array(behind, np.int64)}
    return Part(inputs, one.wanted[1:], constants=constants)


def _reduction(one: _Node) -> Part | None:
    axes = nodes.ints_attribute(one.node, "axes") or one.constant_ints(1)
    if not axes:
        return None
    rank = len(one.shapes[0])
    reduced = {axis % rank for axis in axes}
    if nodes.int_attribute(one.node, "keepdims", 1):
        return None if one.axis in reduced else one.same()
    kept = [axis for axis in range(rank) if axis not in reduced]
    return one.first(Range(kept[one.axis], *one.wanted[1:]))


def _global_pool(one: _Node) -> Part | None:
    return one.same() if one.axis < 2 else None


def _view(one: _Node) -> Part | None:
    """Reshape and its kind: the axis is there in the operand too, with as many elements before it."""
    shape, result = one.shapes[0], one.result
    before = prod(result[: one.axis])
    for axis, size in enumerate(shape):
        if size == result[one.axis] and size > 1 and prod(shape[:axis]) == before:
            break
    else:
        return None
    found = Range(axis, *one.wanted[1:])
    if one.node.op_type == "Flatten":
        return one.first(found) if one.axis == 0 and nodes.int_attribute(one.node, "axis", 1) == 1 else None
    if one.node.op_type != "Reshape":
        return one.first(found)
    target = list(result)
    target[one.axis] = one.wanted.high - one.wanted.low
    if nodes.int_attribute(one.node, "allowzero", 0) or 0 in target:
        return None
    return Part((found, None), one.wanted[1:], constants={1: np.array(target, np.int64)})


def _gather(one: _Node) -> Part | None:
    axis = nodes.int_attribute(one.node, "axis", 0) % len(one.shapes[0])
    at = one.axis - axis
    if not 0 <= at < len(one.shapes[1]):
        return None
    return Part((None, Range(at, *one.wanted[1:])), one.wanted[1:])


_RULES: Mapping[str, Callable[[_Node], Part | None]] = {
    "AveragePool": _pool,
    "BatchNormalization": _batch_normalization,
    "Concat": _concat,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "DequantizeLinear": _quantization,
    "Dropout": _view,
    "Flatten": _view,
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _normalization,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "Pad": _pad,
    "QuantizeLinear": _quantization,
    "RMSNormalization": _normalization,
    "ReduceMax": _reduction,
    "ReduceMean": _reduction,
    "ReduceMin": _reduction,
    "ReduceSum": _reduction,
    "Reshape": _view,
    "Resize": _resize,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _view,
    "Transpose": _transpose,
    "Unsqueeze": _view,
}
