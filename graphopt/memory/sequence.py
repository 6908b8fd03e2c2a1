"""An order of a model's operators, some of them run again, written into its graph.

Runtimes that execute nodes in file order and merge nothing then need what the plan says: our bundles, TFLite-like
interpreters, ONNX Runtime with its optimizations off. ONNX Runtime's own elimination of common subexpressions (at
ORT_ENABLE_BASIC and above) merges a node that is computed again with the first one; ours sees the mark and leaves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.schema import least_outputs


def write_order(model: ir.Model, order: Sequence[str], operators: Mapping[str, ir.Node]) -> int:
    """Put the nodes of the main graph into `order`, in place; returns how many were added to compute values again.

    `operators`: the node of each name in `order`; a name that stands there again is computed again. Other nodes (of
    constants) come first, as they stand. A value that is computed again has a new name, `x_recomputed`; the name of a
    graph output stays with what the graph returns.
    """
    graph = model.graph
    ordered = set(operators.values())
    first = [node for node in graph if node not in ordered]
    names = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
    names.update(value.name for value in graph.inputs)
    read = {node: tuple(node.inputs) for node in ordered}  # before any of them is handed on to a later computation
    latest: dict[ir.Value, ir.Value] = {}
    seen: set[str] = set()
    repeated = {name for name, runs in Counter(order).items() if runs > 1}
    several: list[ir.Node] = []  # runs of these
    sequence: list[ir.Node] = []
    for name in order:
        node = operators[name]
        inputs = [latest.get(value, value) if value is not None else None for value in read[node]]
        if name not in seen:
            seen.add(name)
            for position, value in enumerate(inputs):
                if value is not node.inputs[position]:
                    node.replace_input_with(position, value)
            sequence.append(node)
        else:
            again = _again(node, inputs, names)
            latest.update(zip(node.outputs, again.outputs, strict=True))
            sequence.append(again)
        several += sequence[-1:] if name in repeated else []
    returned = [(place, value) for place, value in enumerate(graph.outputs) if value in latest]
    for place, value in returned:
        graph.outputs[place] = latest[value]
        value.name, latest[value].name = latest[value].name, value.name
    graph.extend([*first, *sequence])
    return len(sequence) - len(seen) - _drop_unread(graph, several)


def _drop_unread(graph: ir.Graph, several: Sequence[ir.Node]) -> int:
    """Remove those of `several`, runs of nodes that run again, that nothing reads; returns how many there were.

    A view runs wherever its operand does, though all readers may have a later one. Runtimes that go back from what
    nothing reads would run such a node last, and keep its operand until then. Single outputs that nothing reads, as
    the indices of a MaxPool, are not asked for: ONNX Runtime keeps them to the end of a run.
    """
    dropped = 0
    for node in reversed(several):
        if not any(nodes.is_used(value) for value in node.outputs):
            graph.remove(node, safe=True)
            dropped += 1
        elif len(node.outputs) > 1 and nodes.is_standard(node) and not nodes.has_subgraphs(node):
            keep = max(at + 1 for at, value in enumerate(node.outputs) if nodes.is_used(value))
            if least_outputs(node, graph.opset_imports.get("", 1)) <= keep < len(node.outputs):
                node.resize_outputs(keep)
    return dropped


def _again(node: ir.Node, inputs: Sequence[ir.Value | None], names: set[str | None]) -> ir.Node:
    """The same computation once more, on what stands for its operands now."""
    copy = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        overload=node.overload,
        num_outputs=len(node.outputs),
        name=_new_name(node.name or node.op_type, names),
        doc_string=node.doc_string,
        metadata_props={**node.metadata_props, nodes.RECOMPUTED: node.name or node.outputs[0].name or node.op_type},
    )
    for mine, theirs in zip(copy.outputs, node.outputs, strict=True):
        mine.type, mine.shape = theirs.type, theirs.shape
        mine.name = _new_name(theirs.name, names) if theirs.name else ""
    return copy


def _new_name(name: str, names: set[str | None]) -> str:
    new, number = f"{name}_recomputed", 1
    while new in names:
        number += 1
        new = f"{name}_recomputed{number}"
    names.add(new)
    return new
