"""Values of which data decides how many elements they have: who may read them, and how they are given out.

A kernel computes such a value for the most elements that it can have. That is right for whoever treats the positions
along such an axis one by one: what follows those that were found is computed for nothing. Others take the count from
where it was stored, by definitions of their own, or are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model import dims, nodes
from graphopt.model.dims import Dims
from graphopt.model.operators.movement import slice_bounds
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.table import REDUCTIONS, operator_of
from graphopt.program.regions.copies import dense
from graphopt.program.regions.fusion import is_elementwise
from graphopt.program.regions.routines.found import DEFINITIONS as FOUND
from graphopt.program.regions.routines.stage import Definition, Stage
from graphopt.program.regions.routines.table import definition_of
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.build import ROUTINE
from kernels.routine.writer import lt


def definition_by_counts(scope: Scope, node: ir.Node) -> Definition | None:
    """The definition of a node that takes counts into account; None where its kernel for the most is right.

    Raises NotLowered for a node that would take what was not found for something.
    """
    given = [value for value in node.inputs if value is not None]
    results = [value for value in node.outputs if value.name]
    counted = [value for value in (*given, *results) if scope.counted(value)]
    if not counted:
        return None
    makes = any(maker is node for maker in scope.counts.makers.values())
    if makes and not any(map(scope.counted, given)):
        return FOUND.get(node.op_type)
    if not any(map(scope.counted, given)):
        for value in counted:
            scope.shape(value)  # raises NotLowered for dims that no count decides
    if node.domain in ("", "ai.onnx"):
        if _is_right_for_the_most(scope, node):
            return None
        counts = _BY_COUNTS.get(node.op_type)
        if counts is not None and counts(scope, node):
            return FOUND.get(node.op_type, definition_of(node))
    raise NotLowered(
        f"{nodes.describe(node)} does not read the count of '{counted[0].name}', of which data decides the dims.", node
    )


def _is_right_for_the_most(scope: Scope, node: ir.Node) -> bool:
    if is_elementwise(node):
        return _broadcasts(scope, node)
    rule = _RULES.get(node.op_type)
    return _apart(scope, node) if rule is None else rule(scope, node)


def _dims(scope: Scope, node: ir.Node, at: int = 0) -> Dims:
    value = nodes.required_input(node, at)
    return scope.dims(value)


def _broadcasts(scope: Scope, node: ir.Node) -> bool:
    """Whether every operand has the dims of the result, or 1, counted from the last one."""
    result = scope.dims(node.outputs[0])
    return all(_fits(scope.dims(value), result) for value in node.inputs if value is not None)


def _fits(shape: Dims, result: Dims) -> bool:
    aligned = result[len(result) - len(shape) :]
    return len(aligned) == len(shape) and all(one in (other, 1) for one, other in zip(shape, aligned, strict=True))


def _apart(scope: Scope, node: ir.Node) -> bool:
    """Whether the counted axes are of the first operand alone, and the operator works along others."""
    operator = operator_of(node)
    others = [value for value in node.inputs[1:] if value is not None]
    if operator is None or not callable(operator.axes) or any(map(scope.counted, others)):
        return False
    return not scope.bound_axes(node) & set(scope.counted(nodes.required_input(node, 0)))


def _reshaped(scope: Scope, node: ir.Node) -> bool:
    """Whether each counted dim stays, with as many elements behind it and all in front; or is the first one's part."""
    source, result = _dims(scope, node), scope.dims(node.outputs[0])
    if dims.product(source) != dims.product(result):
        return False
    places = [_counted_places(shape) for shape in (source, result)]
    if places[0] == places[1]:
        return True
    return all(len(found) <= 1 and all(before == 1 for before, _, _ in found) for found in places)


def _counted_places(shape: Dims) -> list[tuple[dims.Dim, dims.Dim, dims.Dim]]:
    """Each counted dim between the elements in front of it and those behind it."""
    return [
        (dims.product(shape[:axis]), dim, dims.product(shape[axis + 1 :]))
        for axis, dim in enumerate(shape)
        if not isinstance(dim, int)
    ]


def _joined(scope: Scope, node: ir.Node) -> bool:
    """Whether what is joined is known along the axis, and alike along all others."""
    axis = nodes.int_attribute(node, "axis", 0)
    shapes = [list(_dims(scope, node, at)) for at in range(len(node.inputs))]
    along = [shape.pop(axis) for shape in shapes]
    return all(isinstance(dim, int) for dim in along) and all(shape == shapes[0] for shape in shapes)


def _gathered(scope: Scope, node: ir.Node) -> bool:
    """Whether the axis of the data is known: indices that were not found are zeros."""
    source = _dims(scope, node)
    return isinstance(source[nodes.int_attribute(node, "axis", 0)], int)


def _gathered_by_tuples(scope: Scope, node: ir.Node) -> bool:
    indices = scope.counted(nodes.required_input(node, 1))
    whole = not scope.counted(nodes.required_input(node, 0)) and not nodes.int_attribute(node, "batch_dims", 0)
    return whole and len(_dims(scope, node, 1)) - 1 not in indices


def _multiplied(scope: Scope, node: ir.Node) -> bool:
    """Whether rows of the first operand are counted, columns of the second one, or matrices of both or one."""
    left, right, result = _dims(scope, node), _dims(scope, node, 1), scope.dims(node.outputs[0])
    if min(len(left), len(right)) < 2 or not isinstance(left[-1], int) or not isinstance(right[-2], int):
        return False
    return all(_fits(shape[:-2], result[:-2]) for shape in (left, right))


def _multiplied_and_added(scope: Scope, node: ir.Node) -> bool:
    """Whether only the rows of the result are counted."""
    rows = 1 if nodes.int_attribute(node, "transA", 0) else 0
    added = nodes.input_at(node, 2)
    return (
        isinstance(_dims(scope, node)[1 - rows], int)
        and not scope.counted(nodes.required_input(node, 1))
        and (added is None or _fits(scope.dims(added), scope.dims(node.outputs[0])))
    )


def _samples(scope: Scope, node: ir.Node) -> bool:
    """Whether only the images are counted."""
    return _axes(scope, node) == {0} and _first_alone(scope, node)


def _running(scope: Scope, node: ir.Node) -> bool:
    """Whether no sum takes what follows it."""
    return not nodes.int_attribute(node, "reverse", 0) and not scope.counted(nodes.required_input(node, 1))


def _expanded(scope: Scope, node: ir.Node) -> bool:
    return _fits(_dims(scope, node), scope.dims(node.outputs[0]))


def _sliced(scope: Scope, node: ir.Node) -> bool:
    """Whether only known dims are cut, or the first elements taken."""
    try:
        bounds, shape = slice_bounds(scope.facts, node), _dims(scope, node)
    except Unclear:
        return False
    return all(
        isinstance(shape[axis], int) or (start == 0 and end >= 0 and step == 1)
        for start, end, axis, step in zip(*bounds, strict=True)
    )


def _compressed(scope: Scope, node: ir.Node) -> bool:
    """Whether slices are taken, or elements of a vector: their conditions are in the order of what was found."""
    return "axis" in node.attributes or len(_dims(scope, node)) == 1 or not scope.counted(nodes.required_input(node, 0))


def _always(scope: Scope, node: ir.Node) -> bool:
    return True


_RULES: dict[str, Callable[[Scope, ir.Node], bool]] = {
    "Identity": _always,
    "Transpose": _always,
    "Compress": _compressed,
    "ConstantOfShape": _always,
    "CumSum": _running,
    "Unsqueeze": _reshaped,
    "Squeeze": _reshaped,
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "Expand": _expanded,
    "Concat": _joined,
    "Gather": _gathered,
    "GatherND": _gathered_by_tuples,
    "Conv": _samples,
    "ConvTranspose": _samples,
    "Gemm": _multiplied_and_added,
    "MatMul": _multiplied,
    "Range": _always,
    "Slice": _sliced,
}


def _axes(scope: Scope, node: ir.Node, at: int = 0) -> set[int]:
    """The counted axes of an operand; none where it is left out."""
    value = nodes.input_at(node, at)
    return set() if value is None else set(scope.counted(value))


def _first_alone(scope: Scope, node: ir.Node) -> bool:
    return not any(_axes(scope, node, at) for at in range(1, len(node.inputs)))


def _first_whole(scope: Scope, node: ir.Node) -> bool:
    return not _axes(scope, node)


def _tuples_known(scope: Scope, node: ir.Node) -> bool:
    """Whether the tuples are as long as there are axes that they name, in every batch alike."""
    last = len(_dims(scope, node, 1)) - 1
    return last not in _axes(scope, node, 1) and not nodes.int_attribute(node, "batch_dims", 0)


def _scattered_rows(scope: Scope, node: ir.Node) -> bool:
    """Whether at most slices of the data are counted, and rows of indices."""
    return _axes(scope, node) <= {0} and _axes(scope, node, 1) <= {0}


def _sorted(scope: Scope, node: ir.Node) -> bool:
    """Whether the slices are counted that are compared, and no elements in them."""
    rank = len(_dims(scope, node))
    is_flat = "axis" not in node.attributes
    return _axes(scope, node) <= ({0} if is_flat and rank == 1 else {nodes.int_attribute(node, "axis", 0) % rank})


def _cut(scope: Scope, node: ir.Node) -> bool:
    """Whether the axes are known, and the bounds are operands of their own."""
    axes = nodes.input_at(node, 3)
    return (
        scope.facts.opset(node) >= 10
        and _first_alone(scope, node)
        and (axes is None or scope.constant(axes) is not None)
    )


def _padded(scope: Scope, node: ir.Node) -> bool:
    """Whether what lies outside is a filler, and only the data is counted."""
    return nodes.string_attribute(node, "mode", "constant") == "constant" and _first_alone(scope, node)


def _suppressed(scope: Scope, node: ir.Node) -> bool:
    """Whether the boxes are counted, and as many scores."""
    numbers = [_axes(scope, node, at) for at in range(len(node.inputs))]
    return numbers[:2] == [{1}, {2}] and not any(numbers[2:]) and _dims(scope, node)[1] == _dims(scope, node, 1)[2]


# Who has a definition that takes the counts of what it reads, and of which operands.
_BY_COUNTS: dict[str, Callable[[Scope, ir.Node], bool]] = {
    **dict.fromkeys(("NonZero", "ScatterElements", "Shape", "Size", *FOUND), _always),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK", *REDUCTIONS), _first_alone),
    "GatherND": _tuples_known,
    "NonMaxSuppression": _suppressed,
    "Pad": _padded,
    "RoiAlign": _first_whole,
    "ScatterND": _scattered_rows,
    "Slice": _cut,
    "Unique": _sorted,
}


def give(scope: Scope, value: ir.Value, number: int) -> None:
    """Regions that put a result of the graph where the caller wants it, and its dims where they belong.

    `number` is that of its dims among the program's outputs. The caller's memory has its elements without gaps.
    """
    source, output, shape = dense(scope, value), scope.output(value), scope.dims(value)
    held = scope.buffer("output", "dims", value.name, 8 * len(shape), number)
    w = Stage("dims")
    found = w.writes(View.dense(held, DType.I64, (len(shape),)))
    with w.shared(1):
        for axis, dim in enumerate(shape):
            found[axis] = scope.counts.expression(dim, lambda place: w.reads(place).at(0))
    scope.add(scope.kernel(ROUTINE, w.routine()), w.places, ())
    if scope.is_prefix(value):
        if source.buffer != output:
            scope.copy(source, View.dense(output, source.dtype, source.shape), ())
        return
    w = Stage("found")
    x, y = w.reads(source), w.writes(View.dense(output, source.dtype, source.shape))
    with w.shared(source.shape[0]) as (first,):
        sizes = [w.local(DType.I64, scope.counts.expression(dim, lambda place: w.reads(place).at(0))) for dim in shape]
        with w.when(lt(first, sizes[0])), w.loops(*sizes[1:]) as rest:
            place = first
            for size, at in zip(sizes[1:], rest, strict=True):
                place = place * size + at
            y.put(place, x[(first, *rest)])
    scope.add(scope.kernel(ROUTINE, w.routine()), w.places, ())
