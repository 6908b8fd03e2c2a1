"""Einsum of two operands as a batched matrix product of views, in f32 or f64.

    "bijk,bkjl->bil"    A[b, i, (j k)] B[b, (j k), l]

A label is a dim of the batch (in both operands and the result), of rows (of the first operand alone), of columns (of
the second alone) or of what is summed (in both, and not in the result). Dims of one kind are one dim of a matrix; where
strides do not say so, the operand is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.equation import read_equation
from graphopt.model.nodes import required_input, string_attribute
from graphopt.program.regions.products import matrix_of
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.templates.gemm import GEMM, Gemm


def lower_einsum(scope: Scope, node: ir.Node) -> None:
    """The region of the product, and copies around it; raises NotLowered where it is no product of two matrices."""
    label, output = f"Einsum '{node.name or node.outputs[0].name}'", node.outputs[0]
    kind = scope.dtype(output)
    if len(node.inputs) != 2 or kind not in (DType.F32, DType.F64):
        raise NotLowered(f"{label} is no product of two operands of float32 or float64.")
    a, b = (scope.place(required_input(node, at)) for at in (0, 1))
    (left, right), result, sizes = read_equation(string_attribute(node, "equation", ""), [a.shape, b.shape])
    whole = all(
        tuple(sizes[one] for one in term) == view.shape for term, view in ((left, a), (right, b))
    )  # else a dim of one element is broadcast
    distinct = all(len(set(term)) == len(term) for term in (left, right, result))
    alone = [one for one in sizes if (one in left) != (one in right) and one not in result]
    if not whole or not distinct or alone or 0 in sizes.values():
        raise NotLowered(f"{label} repeats or sums labels of one operand, or broadcasts.")
    batch = [one for one in result if one in left and one in right]
    rows, columns = ([one for one in result if one in term and one not in batch] for term in (left, right))
    summed = [one for one in left if one not in result]
    counts = [prod(sizes[one] for one in group) for group in (rows, columns, summed)]
    lead = tuple(sizes[one] for one in batch)
    first = _as_matrices(scope, a, left, [*batch, *rows, *summed], (*lead, counts[0], counts[2]))
    second = _as_matrices(scope, b, right, [*batch, *summed, *columns], (*lead, counts[2], counts[1]))
    made = [*batch, *rows, *columns]
    aim = scope.result(output)
    dims = tuple(sizes[one] for one in made)
    is_last = made == result
    buffer = aim.buffer if is_last else scope.temporary("product", output.name, kind.bytes * prod(dims))
    product = View.dense(buffer, kind, (*lead, *counts[:2]))
    problem = Gemm(
        counts[0], counts[1], counts[2], lead, matrix_of(first, lead), matrix_of(second, lead),
        matrix_of(product, lead), False,
        arithmetic="f64" if kind is DType.F64 else "f32",
    )  # fmt: skip
    buffers = {"a": first.buffer, "b": second.buffer, "c": buffer}
    scope.add(scope.kernel(GEMM, problem), buffers, (node,))
    if not is_last:
        view = View.dense(buffer, kind, dims).transposed([made.index(one) for one in result])
        scope.copy(view, aim, (node,))


def _as_matrices(scope: Scope, view: View, term: Sequence[str], order: Sequence[str], shape: tuple[int, ...]) -> View:
    """The dims in another order, those of one kind as one."""
    turned = view.transposed([term.index(one) for one in order])
    found = turned.reshaped(shape)
    if found is None:
        size = view.dtype.bytes * prod(shape)
        found = View.dense(scope.temporary("turned", view.buffer.value, size), view.dtype, turned.shape)
        scope.copy(turned, found, ())
        found = View.dense(found.buffer, view.dtype, shape)
    return found
