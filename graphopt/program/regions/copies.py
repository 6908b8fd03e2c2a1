"""Elementwise regions that store one value: expressions, and copies into another order."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from graphopt.program.regions.reader import Reader
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.tensor.expression import Expression, Variable


def store(
    scope: Scope, axes: tuple[Variable, ...], value: Expression, reader: Reader, aim: View, nodes: tuple[ir.Node, ...]
) -> None:
    """A region that stores an expression for all values of the axes."""
    begun, place = scope.begun(aim)
    kernel = scope.kernel(ELEMENTWISE, Elementwise(axes, (Output(begun.operand("y"), value),)))
    scope.add(kernel, {**reader.buffers, "y": place}, nodes)


def dense(scope: Scope, value: ir.Value) -> View:
    """Where a value lies row-major from the start of its buffer; copied there when it does not."""
    view = scope.place(value)
    if view.is_dense:
        return view
    if value not in scope.dense_copies:
        buffer = scope.temporary("dense", value.name, view.dtype.bytes * prod(view.shape))
        scope.dense_copies[value] = View.dense(buffer, view.dtype, view.shape)
        scope.copy(view, scope.dense_copies[value], ())
    return scope.dense_copies[value]
