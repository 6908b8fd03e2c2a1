"""Gathers and scatters as kernels."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import int_attribute, required_input, string_attribute
from graphopt.program.regions.copies import dense
from graphopt.program.regions.scope import Scope
from kernels.templates import indexed
from kernels.templates.indexed import Indexed

OPERATORS = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})


def lower_indexing(scope: Scope, node: ir.Node) -> None:
    """The region of a gather or a scatter."""
    data, indices = dense(scope, required_input(node, 0)), dense(scope, required_input(node, 1))
    problem = _problem(node, data.shape, indices.shape, scope)
    kernel = scope.kernel(indexed.INDEXED, problem)
    buffers = {"data": data.buffer, "indices": indices.buffer, "output": scope.result(node.outputs[0]).buffer}
    if problem.direction == "scatter":
        buffers["updates"] = dense(scope, required_input(node, 2)).buffer
    scope.add(kernel, buffers, (node,))


def _problem(node: ir.Node, data: tuple[int, ...], indices: tuple[int, ...], scope: Scope) -> Indexed:
    dtype, index_dtype = scope.dtype(required_input(node, 0)), scope.dtype(required_input(node, 1))
    axis = int_attribute(node, "axis", 0)
    reduction = string_attribute(node, "reduction", "none")
    if reduction not in ("none", "add", "mul", "min", "max"):
        raise NotLowered(f"{node.op_type} '{node.name}' combines by '{reduction}', which has no kernel.")
    match node.op_type:
        case "Gather":
            return indexed.gather(data, axis, indices, dtype, index_dtype)
        case "GatherElements":
            return indexed.gather_elements(data, axis, indices, dtype, index_dtype)
        case "GatherND":
            return indexed.gather_nd(data, indices, dtype, index_dtype, int_attribute(node, "batch_dims", 0))
        case "ScatterElements":
            return indexed.scatter_elements(data, axis, indices, dtype, index_dtype, reduction)  # type: ignore[arg-type]
    return indexed.scatter_nd(data, indices, dtype, index_dtype, reduction)  # type: ignore[arg-type]
