"""Shape arithmetic: what is computed from dims is folded where the dims, or the result, are known."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.model import content, dims, nodes
from graphopt.model.operators.table import standard_operators
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Replacement, any_node

# Operators that give the integers of shapes, move them or compute with them.
SHAPE_OPERATORS = ("Shape", "Size", *sorted(standard_operators(lambda operator: operator.content is not None)))


@any_node(*SHAPE_OPERATORS, level=1)
def fold_shape_arithmetic(match: Match) -> Replacement:
    """Gather(Shape(x), 1), ...  -->  the number, when that dimension is known though others are not.

    Leaves alone what depends on an unknown dimension and what constants alone decide (folding does that).
    """
    held = match.facts.content(match.output)
    if held is None:
        match.refuse("what the tensor holds is not known")
    array = content.to_array(held, match.dtype(match.output))
    if array is None:
        match.refuse(f"it holds {held.tolist()}, which depends on unknown dimensions")
    return match.constant(array, match.dtype(match.output))


@any_node("Reshape", level=1)
def constant_reshape_target(match: Match) -> Replacement:
    """Reshape(x, [batch, 12, 64] computed from Shape(...))  -->  Reshape(x, constant [0, 12, 64] or [-1, 12, 64])

    A dimension equal to the input's at the same place becomes 0 (copy), at most one other becomes -1. Leaves alone an
    output of the graph that is declared with another rank: with a constant target a checker would see that.
    """
    root = match.root
    source, target = nodes.input_at(root, 0), nodes.input_at(root, 1)
    if source is None or target is None:
        match.refuse("it has no target")
    match.require(not match.facts.is_constant(target), "the target is a constant already")
    held = match.facts.content(target)
    if held is None:
        match.refuse("what the target holds is not known")
    wanted = held.tolist()
    declared = match.output.shape if match.output.is_graph_output() else None
    match.require(
        declared is None or len(declared) == len(wanted), "the graph declares the output with another number of dims"
    )
    match.require(
        not nodes.int_attribute(root, "allowzero", 0) or 0 not in wanted, "allowzero is set and a dimension is zero"
    )
    numbers = reshape_target(match.facts.shape(source), tuple(wanted))
    if numbers is None:
        match.refuse(f"the target {wanted} has more than one dimension that is neither known nor copied")
    return match.op("Reshape", source, match.ints_constant(*numbers), like=root, attributes={"allowzero": None})


def reshape_target(source: dims.Dims | None, target: Sequence[dims.Dim]) -> tuple[int, ...] | None:
    """The target of a Reshape as integers, using 0 for copied dims and one -1; None when that cannot say it.

    A zero in `target` means a copy already, as allowzero=0 has it.
    """
    result: list[int] = []
    open_places: list[int] = []
    for axis, dim in enumerate(target):
        if isinstance(dim, int):
            if dim == -1:
                open_places.append(axis)
            result.append(dim)
        elif source is not None and axis < len(source) and source[axis] == dim:
            result.append(0)
        else:
            open_places.append(axis)
            result.append(-1)
    return None if len(open_places) > 1 else tuple(result)


def merge_equal_contents(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Two tensors that hold the same symbolic integers, computed in different ways  -->  the first of them."""
    graphs = dict.fromkeys(
        node.graph for node in worklist if node.graph is not None and node.op_type in SHAPE_OPERATORS
    )
    for graph in graphs:
        first: dict[tuple[object, ...], ir.Value] = {}
        for node in list(graph):
            if node.op_type not in SHAPE_OPERATORS or not nodes.is_standard(node) or node.graph is None:
                continue
            value = node.outputs[0]
            known = editor.facts.known(value)
            if known.content is None or known.dtype is None or content.to_array(known.content, known.dtype) is not None:
                continue
            key = (known.dtype, known.content.shape, tuple(known.content.reshape(-1).tolist()))
            other = first.setdefault(key, value)
            if other.graph is None:  # it has been swept away since
                first[key] = other = value
            if other is value or value.is_graph_output() or not nodes.is_used(value):
                continue
            producer = other.producer()
            assert producer is not None, "only node outputs are recorded"
            if (
                producer.op_type == node.op_type
                and node.op_type in ("Identity", "Shape")
                and producer.inputs == node.inputs
            ):
                continue  # common subexpressions have a pass of their own
            if editor.accept("merge-equal-contents", value, [node], [producer]):
                editor.replace_value(value, other)
                editor.sweep([node])


@any_node("Unsqueeze", "Slice", "Gather", level=1)
def shape_of_some_dims(match: Match) -> Replacement:
    """Unsqueeze(Gather(Shape(x), 0)), Slice(Shape(x), 0, 1)  -->  Shape(x, start=0, end=1)   (opset 15 on)

    Leaves the scalar Gather alone: there is no single operator for it.
    """
    match.require(match.opset >= 15, "Shape has start and end only since opset 15")
    held = match.facts.content(match.output)
    if held is None or held.ndim != 1 or held.size == 0:
        match.refuse("it does not hold dims in a vector")
    match.require(match.dtype(match.output) == ir.DataType.INT64, "Shape gives int64")
    source = _shape_source(match.root)
    if source is None:
        match.refuse("it does not read a Shape")
    shape = match.shape(source)
    wanted = tuple(held.tolist())
    for start in range(len(shape) - len(wanted) + 1):
        if shape[start : start + len(wanted)] == wanted:
            end = start + len(wanted)
            return match.op(
                "Shape", source, attributes={"start": start or None, "end": end if end < len(shape) else None}
            )
    match.refuse(f"{list(wanted)} are not consecutive dims of {list(shape)}")


def _shape_source(node: ir.Node) -> ir.Value | None:
    """The tensor whose Shape a short chain reads, None when it reads something else or is a Shape itself."""
    current = node
    for _ in range(3):
        value = nodes.input_at(current, 0)
        producer = None if value is None else value.producer()
        if producer is None or producer.graph is not node.graph:
            return None
        if producer.op_type == "Shape":
            return producer.inputs[0]
        if producer.op_type not in ("Gather", "Slice", "Unsqueeze", "Squeeze"):
            return None
        current = producer
    return None


RULES = (fold_shape_arithmetic, constant_reshape_target, shape_of_some_dims)
