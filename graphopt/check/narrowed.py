"""A model in float64 but for the operators that ONNX Runtime has in float32 only: these stand between casts.

Convolutions are such operators, and a network of them is too large for the reference evaluator. What cancels, a
variance that is computed as the mean of squares less the square of the mean, is computed by others.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.check.runner import CannotRun, Runner, Workplace
from graphopt.model import nodes
from graphopt.model.facts import Facts

Signature = tuple[str, str, tuple[ir.DataType | None, ...]]  # domain, operator, types of the operands


def narrowed(workplace: Workplace, wide: ir.Model) -> Runner:
    """Load a model in float64, changing it where an operator of the main graph needs float32; raises CannotRun."""
    facts = Facts(wide)
    known = {
        value: facts.dtype(value) for node in wide.graph for value in (*node.inputs, *node.outputs) if value is not None
    }
    lacking: dict[Signature, bool] = {}
    for node in list(wide.graph):
        types = tuple(None if value is None else known.get(value) for value in node.inputs)
        if ir.DataType.DOUBLE not in types or nodes.has_subgraphs(node):
            continue
        signature = (node.domain, node.op_type, types)
        if signature not in lacking:
            lacking[signature] = not _runs(workplace, wide, node, types)
        if lacking[signature]:
            known.update(_narrow(wide.graph, node, known))
    if not any(lacking.values()):
        raise CannotRun("no operator of the main graph lacks float64")
    return workplace.runner(wide, True, alone=True)


def _runs(workplace: Workplace, wide: ir.Model, node: ir.Node, types: tuple[ir.DataType | None, ...]) -> bool:
    """Whether ONNX Runtime loads the node by itself on operands of these types."""
    operands = [
        None if value is None or kind is None else ir.Value(name=f"x{number}", type=ir.TensorType(kind))
        for number, (value, kind) in enumerate(zip(node.inputs, types, strict=True))
    ]
    alone = ir.Node(node.domain, node.op_type, operands, node.attributes.values(), num_outputs=len(node.outputs))
    for number, (value, old) in enumerate(zip(alone.outputs, node.outputs, strict=True)):
        value.name = f"y{number}" if old.name else ""
        value.type = old.type
    given = [value for value in operands if value is not None]
    graph = ir.Graph(given, alone.outputs[:1], nodes=[alone], opset_imports=wide.graph.opset_imports, name="alone")
    try:
        workplace.runner(ir.Model(graph, ir_version=wide.ir_version or 8), True, alone=True)
    except CannotRun:
        return False
    return True


def _narrow(
    graph: ir.Graph, node: ir.Node, known: Mapping[ir.Value, ir.DataType | None]
) -> dict[ir.Value, ir.DataType]:
    """Put casts in front of the node's operands in float64 and behind its results; gives the types of these casts."""
    added: dict[ir.Value, ir.DataType] = {}
    for number, value in enumerate(node.inputs):
        if value is not None and known.get(value) == ir.DataType.DOUBLE:
            cast = _cast(value, ir.DataType.FLOAT)
            graph.insert_before(node, cast)
            node.replace_input_with(number, cast.outputs[0])
    for value in node.outputs:
        if known[value] == ir.DataType.DOUBLE:
            cast = _cast(value, ir.DataType.DOUBLE)
            value.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
            cast.replace_input_with(0, value)
            value.type = ir.TensorType(ir.DataType.FLOAT)
            graph.insert_after(node, cast)
            added[cast.outputs[0]] = ir.DataType.DOUBLE
    return added


def _cast(value: ir.Value, kind: ir.DataType) -> ir.Node:
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(kind))], num_outputs=1)
    cast.outputs[0].type = ir.TensorType(kind)
    cast.outputs[0].shape = value.shape
    return cast
