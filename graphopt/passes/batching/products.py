"""Products of several tensors with one constant matrix become one product of all their rows.

The gates of an unrolled or tree-shaped recurrent network multiply every step's input by the same weights. One product
reads the weights once. Products that depend on each other cannot be joined: they are counted along every path, and
those that are as many products deep are independent (batching by depth, Neubig et al. 2017).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.record import LeftAlone
from graphopt.rewrite.rule import Match, Refused, bind

RULE = "batch-equal-products"
LEAST = 3  # products; two would only become one, a Concat and a Split
PAYS = 4  # bytes of weights that need not be read again, for each byte of rows that is copied


@dataclass(frozen=True, slots=True)
class _Product:
    node: ir.Node
    source: ir.Value
    rows: int


def batch_equal_products(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """x1 W, x2 W, x3 W  -->  Split(Concat(x1, x2, x3) W)      (Gemm with a constant bias alike)

    for matrices of few rows, so that reading W again costs more than copying rows: three products at least, all
    independent of each other. Leaves alone weights that are computed.
    """
    graphs = dict.fromkeys(
        node.graph for node in worklist if node.op_type in ("MatMul", "Gemm") and isinstance(node.graph, ir.Graph)
    )
    for graph in graphs:
        for key in _classes(editor, graph):
            for group in _levels(graph, _classes(editor, graph).get(key, [])):
                _attempt(editor, group)


def why_not_batched(editor: Editor, listed: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """For each product with a constant matrix: how many others there are, or that copying rows would cost more."""
    found: dict[ir.Node, LeftAlone] = {}
    for graph in dict.fromkeys(node.graph for node in listed if isinstance(node.graph, ir.Graph)):
        for members in _classes(editor, graph, least=1).values():
            for group in _levels(graph, members, least=1):
                for product in group:
                    few = f"{len(group)} independent products share its matrix; there must be {LEAST}"
                    reason = few if len(group) < LEAST else "copying the rows would cost more than reading the matrix"
                    found[product.node] = LeftAlone(reason, len(group) > 1)
    return {node: reason for node, reason in found.items() if node in set(listed)}


def _classes(editor: Editor, graph: ir.Graph, least: int = LEAST) -> dict[Hashable, list[_Product]]:
    """The products of a graph by what they have in common."""
    found: dict[Hashable, list[_Product]] = {}
    for node in graph:
        if node.op_type in ("MatMul", "Gemm") and nodes.is_standard(node):
            source, weight = node.inputs[0], node.inputs[1]
            if source is None or weight is None or weight.is_graph_input() or editor.facts.tensor(weight) is None:
                continue
            shape, columns = editor.facts.static_shape(source), editor.facts.rank(weight)
            if shape is None or len(shape) != 2 or columns != 2 or nodes.has_reference_attributes(node):
                continue
            if node.op_type == "Gemm" and not _rows_are_independent(editor, node):
                continue
            attributes = tuple((name, repr(item.value)) for name, item in sorted(node.attributes.items()))
            key = (node.op_type, weight, tuple(node.inputs[2:]), attributes, shape[1])
            found.setdefault(key, []).append(_Product(node, source, shape[0]))
    return {key: group for key, group in found.items() if len(group) >= least}


def _rows_are_independent(editor: Editor, node: ir.Node) -> bool:
    """Whether each row of a Gemm's result depends on one row of its first operand only."""
    if nodes.int_attribute(node, "transA", 0):
        return False
    bias = nodes.input_at(node, 2)
    if bias is None:
        return True
    shape = editor.facts.static_shape(bias)
    return shape is not None and (len(shape) < 2 or shape[0] == 1)


def _levels(graph: ir.Graph, members: Sequence[_Product], least: int = LEAST) -> list[list[_Product]]:
    """The products by how many of them lie on the longest path to each: those of one level are independent."""
    if len(members) < least:
        return []
    products = {product.node: product for product in members}
    depth: dict[ir.Node, int] = {}
    groups: dict[int, list[_Product]] = {}
    for node in graph:
        sources = [value.producer() for value in (*node.inputs, *nodes.implicit_inputs(node)) if value is not None]
        above = max((depth.get(source, 0) for source in sources if source is not None), default=0)
        if node in products:
            groups.setdefault(above, []).append(products[node])
            above += 1
        depth[node] = above
    return [group for group in groups.values() if len(group) >= least]


def _attempt(editor: Editor, group: Sequence[_Product]) -> None:
    root = group[0].node
    match = Match(root, bind(root), editor.facts)
    try:
        _batch(editor, match, group)
    except Refused:
        editor.discard(match)


def _batch(editor: Editor, match: Match, group: Sequence[_Product]) -> None:
    root = match.root
    graph = root.graph
    assert isinstance(graph, ir.Graph), "the products are in a graph"
    match.require(not editor.is_blocked(RULE, root.outputs[0].name or ""), "it was taken back before")
    weight = root.inputs[1]
    matrix = None if weight is None else editor.facts.tensor(weight)
    assert weight is not None and matrix is not None, "the matrix is a constant"
    widths = match.static_shape(root.outputs[0])[1] + match.static_shape(group[0].source)[1]
    rows = [product.rows for product in group]
    copied = sum(rows) * widths * match.dtype(weight).itemsize
    match.require(matrix.nbytes * (len(group) - 1) >= PAYS * copied, "copying the rows would cost more")
    joined = _joined(match, [product.source for product in group])
    operands = [joined, *root.inputs[1:]]
    product_node = match.node_of(root.op_type, *operands, like=root)
    result = product_node.outputs[0]
    split = match.node_of("Split", result, attributes={"axis": 0, "split": tuple(rows)}, outputs=len(rows))
    before = [product.node for product in group]
    if not editor.accept(RULE, root.outputs[0], before, match.new_nodes):
        editor.discard(match)
        return
    editor.insert(match, RULE, before)
    for product, part in zip(group, split.outputs, strict=True):
        editor.replace_value(product.node.outputs[0], part)
    editor.touched.extend(match.new_nodes)
    editor.sweep(before)
    graph.sort()  # a source of a later product may stand behind the first one


def _joined(match: Match, sources: Sequence[ir.Value]) -> ir.Value:
    """The rows of all sources; the tensor itself where they were just dealt out of it."""
    split = sources[0].producer()
    known = split is not None and nodes.is_standard(split) and not nodes.has_reference_attributes(split)
    if split is not None and known and split.op_type == "Split" and split.inputs[0] is not None:
        axis = nodes.int_attribute(split, "axis", 0)
        if axis % match.rank(split.inputs[0]) == 0 and list(split.outputs) == list(sources):
            return split.inputs[0]
    return match.op("Concat", *sources, attributes={"axis": 0})
