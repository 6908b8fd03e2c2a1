"""Products of one tensor with several constant matrices become one product whose columns a Split deals out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.operands import FLOATS
from graphopt.passes.weights.refit import LARGE
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone
from graphopt.rewrite.rule import Match, Refused, bind

RULE = "merge-projections"
SMALL = 16384  # bytes; a result of this size is dealt out in less time than an operator takes to start
LONG = 512  # rows
LEAST = 3  # two would only become one product and a Split


@dataclass(frozen=True, slots=True)
class _Projection:
    """MatMul(x, W), with the Add of a constant behind it."""

    product: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    end: ir.Value
    rows: int
    columns: int


def merge_small_projections(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """x Q + a, x K + b, x V + c  -->  Split(x [Q K V] + [a b c]), where the result has at most 16 kB

    so that dealing it out costs less than the operators that are saved; else as merge-projections.
    """
    _merge_all(editor, worklist, SMALL)


def merge_projections_of_attention(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """x Q + a, x K + b, x V + c  -->  Split(x [Q K V] + [a b c]), where one Attention alone reads all three

    as they are, and where the matrices have at least 512 rows: dealing out costs the less, the more each product sums.
    """
    _merge_all(editor, worklist, None, for_attention=True)


def merge_projections(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """x Q + a, x K + b, x V + c  -->  Split(x [Q K V] + [a b c])

    for three and more products with constant matrices that nothing else reads: queries, keys and values of attention.
    Leaves alone weights that are one repeated number, which a file may hold in a few bytes.
    """
    _merge_all(editor, worklist, None)


def _merge_all(editor: Editor, worklist: Sequence[ir.Node], most: int | None, *, for_attention: bool = False) -> None:
    """Merge around every product of the worklist; `most`: the largest result, in bytes."""
    sources: dict[ir.Value, None] = {}
    for node in worklist:
        source = nodes.input_at(node, 0)
        if node.op_type == "MatMul" and node.graph is not None and source is not None and len(source.uses()) >= LEAST:
            sources[source] = None
    places: dict[ir.Graph, dict[ir.Node, int]] = {}
    for source in sources:
        found = _projections(editor, source)
        if len(found) < LEAST or (most is not None and not _is_small(editor, source, found, most)):
            continue
        if for_attention and not _feed_one_attention(found):
            continue
        graph = found[0].product.graph
        assert isinstance(graph, ir.Graph), "the products are in a graph"
        place = places.setdefault(graph, {node: index for index, node in enumerate(graph)})
        found.sort(key=lambda projection: place[projection.product])
        root = found[0].product
        match = Match(root, bind(root), editor.facts)
        try:
            _merge(editor, match, source, found)
        except Refused:
            editor.discard(match)


def _feed_one_attention(found: Sequence[_Projection]) -> bool:
    """Whether the results are the queries, keys and values of one Attention, and nothing else."""
    readers = {(use.node, use.idx) for projection in found for use in projection.end.uses()}
    attentions = {node for node, _ in readers}
    return (
        len(found) == len(readers) == LEAST
        and len(attentions) == 1
        and found[0].rows >= LONG
        and all(node.op_type == "Attention" and nodes.is_standard(node) and index < LEAST for node, index in readers)
        and not any(projection.end.is_graph_output() for projection in found)
    )


def _is_small(editor: Editor, source: ir.Value, found: Sequence[_Projection], most: int) -> bool:
    shape = editor.facts.static_shape(source)
    kind = editor.facts.dtype(source)
    if not shape or kind is None:
        return False
    return math.prod(shape[:-1]) * sum(projection.columns for projection in found) * kind.itemsize <= most


def why_not_merged(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each MatMul: its matrix is not its own constant, or too few products read the same tensor."""
    found: dict[ir.Node, LeftAlone] = {}
    for node in listed:
        source = nodes.input_at(node, 0)
        if node.op_type != "MatMul" or not nodes.is_standard(node) or source is None:
            continue
        if _read(editor, node, source) is None:
            found[node] = LeftAlone("its second operand is no constant matrix that it alone reads", False)
            continue
        count = len(_projections(editor, source))
        alone = f"{count} such products read '{source.name}'; there must be {LEAST}"
        reason = alone if count < LEAST else "the merged weights could not be made, or it was left out or taken back"
        found[node] = LeftAlone(reason, count > 1)
    return found


def _projections(editor: Editor, source: ir.Value) -> list[_Projection]:
    """The products with `source` that can be merged: of one graph, one type and one number of rows."""
    found: dict[tuple[object, ...], list[_Projection]] = {}
    for node in dict.fromkeys(source.consumers()):
        if node.op_type != "MatMul" or not nodes.is_standard(node) or node.graph is None:
            continue
        projection = _read(editor, node, source)
        if projection is not None:
            key = (node.graph, editor.facts.dtype(projection.weight), projection.rows)
            found.setdefault(key, []).append(projection)
    return max(found.values(), key=len, default=[])


def _read(editor: Editor, node: ir.Node, source: ir.Value) -> _Projection | None:
    facts = editor.facts
    weight = node.inputs[1]
    if node.inputs[0] is not source or weight is None or facts.tensor(weight) is None or weight.is_graph_input():
        return None
    shape = facts.static_shape(weight)
    if shape is None or len(shape) != 2 or 0 in shape or facts.dtype(weight) not in FLOATS:
        return None
    if len(weight.uses()) != 1 or weight.is_graph_output():
        return None
    end = node.outputs[0]
    readers = end.consumers()
    if len(readers) == 1 and not end.is_graph_output() and readers[0].graph is node.graph:
        bias = _bias(editor, readers[0], end, shape[1])
        if bias is not None:
            return _Projection(node, weight, bias, readers[0].outputs[0], *shape)
    return _Projection(node, weight, None, end, *shape)


def _bias(editor: Editor, node: ir.Node, product: ir.Value, columns: int) -> ir.Value | None:
    """The constant with one number per column that an Add puts on the product."""
    if node.op_type != "Add" or not nodes.is_standard(node) or editor.facts.opset(node) < 7:
        return None
    other = node.inputs[1] if node.inputs[0] is product else node.inputs[0]
    if other is None or other is product or editor.facts.tensor(other) is None:
        return None
    return other if editor.facts.static_shape(other) == (columns,) else None


def _side_by_side(match: Match, weights: Sequence[ir.Value], kind: ir.DataType) -> ir.Value:
    """Matrices as one, large ones when it is first needed: for verification, or when the model is saved."""
    tensors = [match.readable(weight) for weight in weights]
    given = [tensor for tensor in tensors if tensor is not None]
    rows, columns = match.static_shape(weights[0])[0], sum(match.static_shape(weight)[1] for weight in weights)
    if len(given) == len(weights) and rows * columns > LARGE:
        return match.deferred(
            (rows, columns), kind, lambda: np.concatenate([tensor.numpy() for tensor in given], axis=1)
        )
    return match.constant(np.concatenate([match.array(weight) for weight in weights], axis=1), kind)


def _merge(editor: Editor, match: Match, source: ir.Value, found: Sequence[_Projection]) -> None:
    root = match.root
    rank = match.rank(source)
    ends = [node for projection in found if (node := projection.end.producer()) is not None]
    sources = list(dict.fromkeys([*(projection.product for projection in found), *ends]))
    match.require(rank >= 2, "a vector has no rows")
    kind = match.dtype(found[0].weight)
    match.require(not editor.is_blocked(RULE, root.outputs[0].name or ""), "it was taken back before")
    sizes = tuple(projection.columns for projection in found)
    weight = _side_by_side(match, [projection.weight for projection in found], kind)
    value = match.op("MatMul", source, weight)
    if any(projection.bias is not None for projection in found):
        parts = [
            np.zeros(projection.columns, kind.numpy()) if projection.bias is None else match.array(projection.bias)
            for projection in found
        ]
        value = match.op("Add", value, match.constant(np.concatenate(parts), kind))
    split = match.node_of("Split", value, attributes={"axis": rank - 1, "split": sizes}, outputs=len(sizes))
    if not editor.accept(RULE, root.outputs[0], sources, match.new_nodes):
        editor.discard(match)
        return
    editor.insert(match, RULE, sources)
    for projection, part in zip(found, split.outputs, strict=True):
        editor.replace_value(projection.end, part)
    editor.touched.extend(match.new_nodes)
    editor.sweep(ends)
