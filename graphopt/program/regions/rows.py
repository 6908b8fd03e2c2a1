"""Softmax, normalisations and reductions: operators on rows, with the elementwise nodes behind them as epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import float_attribute, int_attribute, required_input
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.reader import Reader
from graphopt.program.regions.scope import Scope
from kernels.templates.elementwise import Output
from kernels.templates.normalization import NORMALIZATION, NORMALIZED, Normalization
from kernels.templates.reduction import REDUCTION, Op, Reduction, reduced
from kernels.templates.softmax import SOFTMAX, SOFTMAX_ROWS, Softmax
from kernels.tensor.expression import Expression, Index, Unary, Variable, index

_REDUCTIONS: Mapping[str, Op] = {
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod",
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceSumSquare": "sum_square", "ReduceLogSumExp": "log_sum_exp",
    "ArgMax": "argmax", "ArgMin": "argmin", "ReduceLogSum": "sum",
}  # fmt: skip


def lower_rows(scope: Scope, tree: Tree) -> None:
    """The region of an operator on rows and its epilogue."""
    node = tree.anchor
    assert node is not None, "the tree of rows has one"
    if node.op_type in _REDUCTIONS:
        _reduction(scope, tree, node)
        return
    shape = scope.shape(node.outputs[0])
    variables = tuple(Variable(f"d{place}", size) for place, size in enumerate(shape))
    axis = int_attribute(node, "axis", -1) % max(len(shape), 1)
    normalizes = node.op_type in ("LayerNormalization", "RMSNormalization")
    # A normalisation is over all dims from the axis on; so was softmax before opset 13.
    spans = normalizes or (scope.facts.opset(node) < 13 and node.op_type in ("Softmax", "LogSoftmax"))
    if spans and not normalizes and "axis" not in node.attributes:
        axis = 1 % max(len(shape), 1)
    columns = tuple(range(axis, len(shape))) if spans else (axis,)
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise NotLowered(f"{node.op_type} '{node.name}' gives its statistics, which has no kernel yet.")
    at = tuple(index(variable) for variable in variables)
    reader = Reader(tree, scope.place, scope.constant, {})
    x = reader.load(scope.place(required_input(node, 0)), at)
    kept = tuple(variable for place, variable in enumerate(variables) if place not in columns)
    reduced = tuple(variables[place] for place in columns)
    result: Expression = SOFTMAX[()]
    if normalizes:
        result = NORMALIZED[()]
        for position, op in ((1, "mul"), (2, "add")):
            if position < len(node.inputs) and node.inputs[position] is not None:
                other = reader.value(required_input(node, position), at)
                result = result * other if op == "mul" else result + other
    output = _output(scope, tree, reader, result, at, at)
    if normalizes:
        center = "mean" if node.op_type == "LayerNormalization" else "none"
        epsilon = float_attribute(node, "epsilon", 1e-5)
        problem = Normalization(kept, reduced, x, (output,), epsilon, center)  # type: ignore[arg-type]
        kernel = scope.kernel(NORMALIZATION, problem)
    else:
        rows = Softmax(kept, reduced, x, (output,), node.op_type == "LogSoftmax")
        kernel = scope.kernel(SOFTMAX_ROWS, rows)
    scope.add(kernel, {**reader.buffers, "y": scope.place(root_of(tree).outputs[0]).buffer}, (node, *tree.in_order))


def _reduction(scope: Scope, tree: Tree, node: ir.Node) -> None:
    source = scope.place(required_input(node, 0))
    axes = scope.bound_axes(node)
    variables = tuple(Variable(f"d{place}", size) for place, size in enumerate(source.shape))
    kept = tuple(variable for place, variable in enumerate(variables) if place not in axes)
    columns = tuple(variables[place] for place in sorted(axes))
    keeps = int_attribute(node, "keepdims", 1)
    places = [Index(()) if at in axes else index(variable) for at, variable in enumerate(variables)]
    at = tuple(one for position, one in enumerate(places) if keeps or position not in axes)
    reader = Reader(tree, scope.place, scope.constant, {})
    x = reader.load(source, tuple(index(variable) for variable in variables))
    op = _REDUCTIONS[node.op_type]
    result: Expression = reduced(op, x.dtype)[()]
    if node.op_type == "ReduceLogSum":
        result = Unary("log", result)
    output = _output(scope, tree, reader, result, at, at)
    problem = Reduction(kept, columns, op, x, (output,), bool(int_attribute(node, "select_last_index", 0)))
    kernel = scope.kernel(REDUCTION, problem)
    scope.add(kernel, {**reader.buffers, "y": scope.place(root_of(tree).outputs[0]).buffer}, (node, *tree.in_order))


def _output(
    scope: Scope, tree: Tree, reader: Reader, result: Expression, at: tuple[Index, ...], places: Sequence[Index]
) -> Output:
    """What is stored of a row's result: the root's value, at its place."""
    assert tree.anchor is not None
    reader.accumulated[tree.anchor.outputs[0]] = result
    value = result if tree.root is tree.anchor else reader.node(root_of(tree), at)
    view = scope.result(root_of(tree).outputs[0])
    return Output(view.operand("y"), value, tuple(places))
