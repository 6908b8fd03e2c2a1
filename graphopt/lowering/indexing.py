"""Gathers and scatters as kernels."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.lowering.copies import dense
from graphopt.lowering.elementwise import NotLowered
from graphopt.lowering.nodes import number, operand
from graphopt.lowering.scope import Scope
from kernels.templates import indexed
from kernels.templates.indexed import Indexed

OPERATORS = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})


def lower_indexing(scope: Scope, node: ir.Node) -> None:
    """The region of a gather or a scatter."""
    data, indices = dense(scope, operand(node, 0)), dense(scope, operand(node, 1))
    problem = _problem(node, data.shape, indices.shape, scope)
    kernel = scope.kernel("indexed", problem, lambda *_: (None,), lambda one, _, *rest: indexed.build(one, *rest))
    buffers = {"data": data.buffer, "indices": indices.buffer, "output": scope.result(node.outputs[0]).buffer}
    if problem.direction == "scatter":
        buffers["updates"] = dense(scope, operand(node, 2)).buffer
    scope.add(kernel, buffers, (node,))


def _problem(node: ir.Node, data: tuple[int, ...], indices: tuple[int, ...], scope: Scope) -> Indexed:
    dtype, index_dtype = scope.dtype(operand(node, 0)), scope.dtype(operand(node, 1))
    axis = number(node, "axis", 0)
    reduction = node.attributes["reduction"].as_string() if "reduction" in node.attributes else "none"
    if reduction not in ("none", "add", "mul", "min", "max"):
        raise NotLowered(f"{node.op_type} '{node.name}' combines by '{reduction}', which has no kernel.")
    match node.op_type:
        case "Gather":
            return indexed.gather(data, axis, indices, dtype, index_dtype)
        case "GatherElements":
            return indexed.gather_elements(data, axis, indices, dtype, index_dtype)
        case "GatherND":
            return indexed.gather_nd(data, indices, dtype, index_dtype, number(node, "batch_dims", 0))
        case "ScatterElements":
            return indexed.scatter_elements(data, axis, indices, dtype, index_dtype, reduction)  # type: ignore[arg-type]
    return indexed.scatter_nd(data, indices, dtype, index_dtype, reduction)  # type: ignore[arg-type]
