"""What is decided before a run: pads, dims and branches, which rules have to know and files spell out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.content import INTEGER_TYPES, to_array
from graphopt.model.evaluate import evaluate
from graphopt.model.facts import Facts
from graphopt.model.known import SMALL, Knowledge
from graphopt.passes.conditionals import resolve_constant_if
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor

BRANCHES = (Pass("resolve-constant-if", 1, run=resolve_constant_if),)


def settle(model: ir.Model, changing: Callable[[Knowledge], Iterable[ir.Value]]) -> None:
    """Write out small integers that constants and known dims decide, and the branch that each constant If takes.

    What they come from may be floats on the way, as a size that is halved and rounded is. Weights stay, and nothing is
    computed from the values that `changing` names, which another run has otherwise.
    """
    while True:
        facts = Facts(model)
        _fold_sizes(model, facts, frozenset(changing(facts)))
        editor = Editor(model)
        run_passes(editor, BRANCHES)
        if not editor.log:
            break


def _fold_sizes(model: ir.Model, facts: Facts, changing: frozenset[ir.Value]) -> None:
    known: dict[ir.Value, np.ndarray] = {}  # small results that are no integers, on the way to some
    for node in list(model.graph):
        kept = nodes.has_subgraphs(node) or len(node.outputs) != 1 or node.outputs[0].is_graph_output()
        if kept or node.op_type == "Constant" or not facts.is_pure(node) or not nodes.is_standard(node):
            continue
        output = node.outputs[0]
        given = [value for value in node.inputs if value is not None]
        size = facts.static_shape(output)
        if not given or changing.intersection(given) or (size is not None and prod(size) > SMALL):
            continue
        operands = [None if value is None else _array(value, facts, known) for value in node.inputs]
        if any(value is not None and array is None for value, array in zip(node.inputs, operands, strict=True)):
            continue
        results = evaluate(node, operands, facts.opset(node))
        if results is None or results[0].size > SMALL:
            continue
        if facts.dtype(output) in INTEGER_TYPES:
            _write(model.graph, node, results[0])
        else:
            known[output] = results[0]


def _array(value: ir.Value, facts: Knowledge, known: Mapping[ir.Value, np.ndarray]) -> np.ndarray | None:
    """The data of a constant, of small integers that dims decide, or of what was computed of such."""
    if value in known:
        return known[value]
    if facts.is_constant(value):
        return facts.array(value)
    content, dtype = facts.content(value), facts.dtype(value)
    return None if content is None or dtype is None else to_array(content, dtype)


def _write(graph: ir.Graph, node: ir.Node, result: np.ndarray) -> None:
    """Put a constant in the place of a node's result."""
    (output,) = node.outputs
    name = output.name or ""
    tensor = ir.Tensor(result, name=name)
    made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    output.replace_all_uses_with(made)
    graph.remove(node)
    output.name = None
    graph.register_initializer(made)
