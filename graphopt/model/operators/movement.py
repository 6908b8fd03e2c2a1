"""Operators that move data along their axes without computing: Transpose, Slice, Concat, Expand, Pad ..."""

from __future__ import annotations

from typing import NamedTuple, overload

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes
from graphopt.model.known import Knowledge, is_fresh
from graphopt.model.operators import arrays
from graphopt.model.operators.arrays import Arrays
from graphopt.model.operators.axes import Axes, named_axis
from graphopt.model.operators.gradients import movement as gradients
from graphopt.model.operators.parameters import SLICE, Parameter, Unclear, parameter
from graphopt.model.operators.parts import Part, Range, Wanted
from graphopt.model.operators.record import Counting, Operator, mover, no_flops
from graphopt.model.operators.shapes import Result, like_first, same_as_first, source_shape

FAR = 2**31 - 1  # a bound from here on means "to the end" to every exporter

# -- Transpose --------------------------------------------------------------------------------------------------------


@overload
def permutation(node: ir.Node, rank: int) -> tuple[int, ...]: ...
@overload
def permutation(node: ir.Node, rank: int | None) -> tuple[int, ...] | None: ...
def permutation(node: ir.Node, rank: int | None) -> tuple[int, ...] | None:
    """The permutation of a Transpose, the reverse order where it says none; None where that takes an unknown rank."""
    perm = nodes.ints_attribute(node, "perm")
    return perm if perm is not None or rank is None else tuple(range(rank))[::-1]


def _transposed_dims(node: ir.Node, facts: Knowledge) -> Result:
    source = source_shape(node, facts)
    if source is None or sorted(perm := permutation(node, len(source))) != list(range(len(source))):
        return None
    return like_first(node, facts, tuple(source[axis] for axis in perm))


def _transpose(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = arrays.present(inputs[0])
    return np.transpose(data, permutation(node, data.ndim))


def _transposed_part(wanted: Wanted) -> Part:
    return wanted.first(Range(permutation(wanted.node, len(wanted.result))[wanted.axis], *wanted.range[1:]))


# -- Concat and Split -------------------------------------------------------------------------------------------------


def _joined_dims(node: ir.Node, facts: Knowledge) -> Result:
    known = [shape for value in node.inputs if value is not None and (shape := facts.shape(value)) is not None]
    if not known or len(known) != len(node.inputs) or "axis" not in node.attributes:
        return None
    rank = len(known[0])
    axis = nodes.int_attribute(node, "axis", 0) % max(rank, 1)
    if rank == 0 or any(len(shape) != rank for shape in known):
        return None
    result: list[dims.Dim] = []
    for position in range(rank):
        column = [shape[position] for shape in known]
        if position == axis:
            result.append(dims.normal(sum(column[1:], start=column[0])))
        else:
            numbers = [dim for dim in column if isinstance(dim, int)]
            result.append(numbers[0] if numbers else column[0])
    return like_first(node, facts, tuple(result))


def _concat(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    parts = arrays.present(*inputs)
    if sum(array.size for array in parts) > max(arrays.MOST, sum(arrays.stored_elements(array) for array in parts)):
        return None
    return np.concatenate(parts, nodes.int_attribute(node, "axis", 0))


def _joined_axes(node: ir.Node, facts: Knowledge) -> Axes:
    if "axis" not in node.attributes:
        raise Unclear("it lacks its axis")
    return named_axis(0, operands="all")(node, facts)


def _split_axes(node: ir.Node, facts: Knowledge) -> Axes:
    if facts.opset(node) < 2:
        raise Unclear("its sizes are an input")
    return named_axis(0)(node, facts)


# -- Slice ------------------------------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """The bounds of a Slice as they are written, all of one length."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    axes: tuple[int, ...]
    steps: tuple[int, ...]


def slice_bounds(facts: Knowledge, node: ir.Node) -> Bounds:
    """The bounds of a Slice; raises Unclear where they are not constant, or not one for each axis."""
    meanings = {"starts": "a start", "ends": "an end", "axes": "the list of axes", "steps": "a step"}
    starts, ends, axes, steps = (
        parameter(facts, node, name, SLICE[name], meaning) for name, meaning in meanings.items()
    )
    if starts is None or ends is None:
        raise Unclear(f"{nodes.describe(node)} lacks its bounds")
    bounds = Bounds(starts, ends, axes or tuple(range(len(starts))), steps or (1,) * len(starts))
    if len({len(numbers) for numbers in bounds}) != 1:
        raise Unclear("the bounds are of different number")
    return bounds


def _sliced_dims(node: ir.Node, facts: Knowledge) -> Result:
    source = source_shape(node, facts)
    if source is None:
        return None
    if facts.opset(node) < 10:
        starts, ends = nodes.ints_attribute(node, "starts"), nodes.ints_attribute(node, "ends")
        axes, steps = nodes.ints_attribute(node, "axes"), None
        begin: list[dims.Dim] = list(starts or ())
        finish: list[dims.Dim] = list(ends or ())
    else:
        operands = [None if value is None else facts.content(value) for value in node.inputs[1:]]
        if len(operands) < 2 or operands[0] is None or operands[1] is None:
            return _unknown_slice(node, facts, source)
        begin, finish = operands[0].reshape(-1).tolist(), operands[1].reshape(-1).tolist()
        axes = None if nodes.input_at(node, 3) is None else facts.ints(node.inputs[3])
        steps = None if nodes.input_at(node, 4) is None else facts.ints(node.inputs[4])
        if (axes is None and nodes.input_at(node, 3)) or (steps is None and nodes.input_at(node, 4)):
            return None
    lists = [given for given in (finish, axes, steps) if given is not None]
    if not source or any(len(given) != len(begin) for given in lists) or 0 in (steps or ()):
        return None  # malformed; whoever runs it says so
    result = list(source)
    for position, (start, end) in enumerate(zip(begin, finish, strict=True)):
        axis = (axes[position] if axes else position) % len(source)
        result[axis] = _sliced(source[axis], start, end, steps[position] if steps else 1, facts)
    return like_first(node, facts, tuple(result))


def _unknown_slice(node: ir.Node, facts: Knowledge, source: dims.Dims) -> Result:
    """Only the rank and the dims of axes that are not sliced are known; without a list those behind the first few."""
    axes = facts.ints(nodes.input_at(node, 3))
    if nodes.input_at(node, 3) is None:
        lengths = (facts.static_shape(value) for value in node.inputs[1:3] if value is not None)
        axes = next((tuple(range(length[0])) for length in lengths if length), None)
    cut = set(range(len(source))) if axes is None else {axis % len(source) for axis in axes}
    return like_first(node, facts, tuple(facts.fresh() if axis in cut else dim for axis, dim in enumerate(source)))


def _sliced(size: dims.Dim, start: dims.Dim, end: dims.Dim, step: int, facts: Knowledge) -> dims.Dim:
    """The length of one sliced axis."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        if step < 0 and end < -size:
            return len(range(size)[start::step])
        return len(range(size)[start:end:step])
    if step != 1 and is_fresh(size):
        return facts.fresh()  # data decide it, and a run finds how many there are
    first: dims.Dim | None
    if step > 0:
        first, last = _position(size, start), _position(size, end)
    elif isinstance(end, int) and end <= -FAR:  # backwards to the first one: as many as forwards up to the start
        first, last = 0, size if start == -1 else _position(size, dims.normal(start + 1))
    else:
        return facts.fresh()
    if first is None or last is None:
        return facts.fresh()
    length = sympy.sympify(last) - sympy.sympify(first)
    if length.is_nonpositive or dims.equal(first, size) or dims.equal(last, 0):
        return 0
    # Where data decide, a length that only follows from where a bound lies is one that a run finds.
    told = not is_fresh(length) and (dims.equal(first, 0) or dims.equal(last, size))
    if not (told or length.is_nonnegative):
        return facts.fresh()
    return dims.normal(length) if abs(step) == 1 else dims.floor((length + abs(step) - 1) / abs(step))


def _position(size: dims.Dim, bound: dims.Dim) -> dims.Dim | None:
    """A slice bound as a position within [0, size], or None when the symbols do not decide it."""
    if isinstance(bound, int) and bound <= -FAR:
        return 0
    if isinstance(bound, int) and bound < 0:
        from_front = sympy.sympify(size) + bound
        if from_front.is_nonnegative:
            return dims.normal(from_front)
        # Of fewer elements than that none are left out; written so, x[1:] and x[:-1] have one length.
        return None if is_fresh(size) else dims.normal(size - sympy.Min(size, -bound))
    if isinstance(bound, int) and bound >= FAR:
        return size
    over = sympy.sympify(bound) - sympy.sympify(size)
    if over.is_nonnegative:
        return size
    if not sympy.sympify(bound).is_nonnegative:
        return None
    return bound if over.is_nonpositive else dims.normal(sympy.Min(size, bound))


def _cut(node: ir.Node, facts: Knowledge) -> tuple[Counting, ...]:
    """The axes that are cut, and for which no dim is known."""
    source, result = source_shape(node, facts), facts.shape(node.outputs[0])
    listed = facts.ints(nodes.input_at(node, 3))
    if facts.opset(node) < 10 or source is None or result is None or (listed is None and nodes.input_at(node, 3)):
        return ()
    axes = range(len(source)) if listed is None else (axis % len(source) for axis in listed)
    free = (axis for axis in axes if not isinstance(result[axis], int))
    return tuple(Counting((axis,), source[axis]) for axis in free if isinstance(result[axis], sympy.Symbol))


def _slice(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = arrays.present(inputs[0])
    if opset < 10:
        starts, ends = nodes.ints_attribute(node, "starts"), nodes.ints_attribute(node, "ends")
        axes, steps = nodes.ints_attribute(node, "axes"), None
    else:
        padded = [*inputs, None, None, None][:5]
        starts, ends, axes, steps = (arrays.numbers(item) for item in padded[1:])
    if starts is None or ends is None:
        return None
    index: list[slice] = [slice(None)] * data.ndim
    for position, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axes[position] if axes else position
        step = steps[position] if steps else 1
        stop = None if step < 0 and end < -data.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return data[tuple(index)]


def _sliced_part(wanted: Wanted) -> Part | None:
    if len(wanted.shapes) < 4:
        return None
    try:
        starts, ends, axes, steps = slice_bounds(wanted.facts, wanted.node)
    except Unclear:
        return None
    places = [axis % len(wanted.result) for axis in axes]
    if wanted.axis not in places:
        return wanted.same()
    place, size = places.index(wanted.axis), wanted.shapes[0][wanted.axis]
    start, step = starts[place], steps[place]
    if step < 1:
        return None
    first = min(max(start + size if start < 0 else start, 0), size)
    low, high = first + wanted.range.low * step, first + (wanted.range.high - 1) * step + 1
    begins, behind = list(starts), list(ends)
    begins[place], behind[place] = 0, high - low
    inputs = (Range(wanted.axis, low, high), *(None,) * (len(wanted.shapes) - 1))
    constants = {1: np.array(begins, np.int64), 2: np.array(behind, np.int64)}
    return Part(inputs, wanted.range[1:], constants=constants)


# -- Expand, Tile and Pad ---------------------------------------------------------------------------------------------


def _expanded_dims(node: ir.Node, facts: Knowledge) -> Result:
    target = None if node.inputs[1] is None else facts.content(node.inputs[1])
    if target is None:
        return None
    return like_first(node, facts, dims.broadcast(source_shape(node, facts), tuple(target.reshape(-1).tolist())))


def _expand(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    data, target = arrays.present(*inputs)
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, arrays.numbers(target) or ()))


def _tiled_dims(node: ir.Node, facts: Knowledge) -> Result:
    if node.inputs[0] is None or node.inputs[1] is None or facts.opset(node) < 6:
        return None
    source, repeats = facts.shape(node.inputs[0]), facts.content(node.inputs[1])
    if source is None or repeats is None or len(source) != repeats.size:
        return None
    shape = tuple(dims.normal(size * times) for size, times in zip(source, repeats.tolist(), strict=True))
    return like_first(node, facts, shape)


def _padded_dims(node: ir.Node, facts: Knowledge) -> Result:
    source = source_shape(node, facts)
    if source is None:
        return None
    if facts.opset(node) < 11:
        pads: list[dims.Dim] = list(nodes.ints_attribute(node, "pads") or ())
    elif nodes.input_at(node, 3) is not None:
        return None
    else:
        given = nodes.input_at(node, 1)
        operand = None if given is None else facts.content(given)
        pads = [] if operand is None else operand.reshape(-1).tolist()
    if len(pads) != 2 * len(source):
        return None
    rank = len(source)
    shape = tuple(dims.normal(size + pads[axis] + pads[axis + rank]) for axis, size in enumerate(source))
    return like_first(node, facts, shape)


def _padded_part(wanted: Wanted) -> Part | None:
    """Constant values around: they stay only where the operand ends."""
    pads = wanted.ints(1)
    rank = len(wanted.result)
    mode = nodes.string_attribute(wanted.node, "mode", "constant")
    if pads is None or len(pads) != 2 * rank or mode != "constant" or nodes.input_at(wanted.node, 3) is not None:
        return None
    size, before = wanted.shapes[0][wanted.axis], pads[wanted.axis]
    low, high = max(0, wanted.range.low - before), min(size, wanted.range.high - before)
    if high <= low or min(before, pads[rank + wanted.axis]) < 0:
        return None
    changed = list(pads)
    changed[wanted.axis] = low + before - wanted.range.low
    changed[rank + wanted.axis] = wanted.range.high - before - high
    inputs = (Range(wanted.axis, low, high), *(None,) * (len(wanted.shapes) - 1))
    return Part(inputs, wanted.range[1:], constants={1: np.array(changed, np.int64)})


OPERATORS = (
    mover(
        name="Transpose", shape=_transposed_dims, evaluate=_transpose, content=_transpose, storage="strides",
        part=_transposed_part, gradient=gradients.transposed,
    ),
    Operator(
        name="Concat", shape=_joined_dims, evaluate=_concat, content=_concat, flops=no_flops, storage="joined",
        axes=_joined_axes, gradient=gradients.concatenated,
    ),
    mover(
        name="Split", parameters={"split": Parameter(13, 1)}, storage="pieces", axes=_split_axes,
        gradient=gradients.split,
    ),
    mover(
        name="Slice", parameters=SLICE, shape=_sliced_dims, counted=_cut, evaluate=_slice, content=_slice,
        reads="selected", storage="strides", part=_sliced_part, gradient=gradients.sliced,
    ),
    mover(
        name="Expand", shape=_expanded_dims, evaluate=_expand, content=_expand, storage="strides",
        gradient=gradients.expanded,
    ),
    mover(name="Tile", shape=_tiled_dims, gradient=gradients.tiled),
    Operator(
        name="Pad", parameters={"pads": Parameter(11, 1)}, shape=_padded_dims, flops=no_flops, part=_padded_part,
        gradient=gradients.padded,
    ),
    mover(name="DepthToSpace", images=(0,), gradient=gradients.depth_to_space),
    mover(name="SpaceToDepth", images=(0,), gradient=gradients.space_to_depth),
    Operator(
        name="ReverseSequence", shape=same_as_first, flops=no_flops, gradient=gradients.reversed_sequence
    ),
    Operator(name="Trilu", shape=same_as_first, flops=no_flops, gradient=gradients.triangle),
)  # fmt: skip
