"""Softmax, normalisations and reductions: operators on rows, with the elementwise nodes behind them as epilogue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Literal

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import float_attribute, input_at, int_attribute, ints_attribute, is_used, required_input
from graphopt.program.regions.copies import dense
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.reader import Reader
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
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

_NORMALIZATIONS = (
    "LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization",
    "MeanVarianceNormalization",
)  # fmt: skip
Center = Literal["mean", "none"]
LONG = 4096  # elements of a sum
LEAST_ACROSS = 8  # elements of both axes: what squares are worth


def lower_rows(scope: Scope, tree: Tree) -> None:
    """The region of an operator on rows and its epilogue."""
    node = tree.anchor
    assert node is not None, "the tree of rows has one"
    if node.op_type in _REDUCTIONS:
        _reduction(scope, tree, node)
        return
    if any(is_used(output) for output in node.outputs[1:]):
        raise NotLowered(f"{node.op_type} '{node.name}' gives its statistics, which has no kernel yet.")
    if node.op_type in _NORMALIZATIONS:
        _normalization(scope, tree, node)
    else:
        _softmax(scope, tree, node)


def _softmax(scope: Scope, tree: Tree, node: ir.Node) -> None:
    variables = _variables(scope.shape(node.outputs[0]))
    axis = int_attribute(node, "axis", -1) % max(len(variables), 1)
    spans = scope.facts.opset(node) < 13  # all dims from the axis on are one then
    if spans and "axis" not in node.attributes:
        axis = 1 % max(len(variables), 1)
    columns = tuple(range(axis, len(variables))) if spans else (axis,)
    at = tuple(index(variable) for variable in variables)
    reader = Reader(scope, tree)
    x = reader.load(_source(scope, required_input(node, 0), columns, columns[-1]), at)
    kept, reduced = _parted(variables, columns)
    output = _output(scope, tree, reader, SOFTMAX[()], at, at)
    kernel = scope.kernel(SOFTMAX_ROWS, Softmax(kept, reduced, x, (output,), node.op_type == "LogSoftmax"))
    scope.add(kernel, {**reader.buffers, "y": scope.place(root_of(tree).outputs[0]).buffer}, (node, *tree.in_order))


def _normalization(scope: Scope, tree: Tree, node: ir.Node) -> None:
    """What is normalized together: all dims from an axis on, the listed ones, or those behind groups of channels."""
    shape, name = scope.shape(node.outputs[0]), node.op_type
    variables = _variables(shape)
    at = tuple(index(variable) for variable in variables)
    epsilon, factors = float_attribute(node, "epsilon", 1e-5), at
    if name == "GroupNormalization":
        groups = int_attribute(node, "num_groups", 1)
        each = shape[1] // groups
        group, channel = Variable("group", groups), Variable("channel", each)
        kept, reduced = _parted((variables[0], group, channel, *variables[2:]), range(2, len(shape) + 1))
        at = (at[0], index(group) * each + channel, *at[2:])
        per_group = scope.shape(required_input(node, 1)) != (shape[1],)
        factors = (index(group) if per_group else at[1],)
    elif name == "InstanceNormalization":
        (kept, reduced), factors = _parted(variables, range(2, len(shape))), (at[1],)
    elif name == "MeanVarianceNormalization":
        axes = ints_attribute(node, "axes", (0, 2, 3))
        kept, reduced = _parted(variables, [axis % len(shape) for axis in axes])
        epsilon = 1e-18  # ONNX adds 1e-9 to the deviation: the same where the deviation is 0, and nothing elsewhere
    else:
        kept, reduced = _parted(variables, range(int_attribute(node, "axis", -1) % max(len(shape), 1), len(shape)))
    reader = Reader(scope, tree)
    columns = [axis for axis, one in enumerate(at) if any(variable in reduced for variable, _ in one.terms)]
    x = reader.load(_source(scope, required_input(node, 0), columns, len(shape) - 1), at)
    result: Expression = NORMALIZED[()]
    for position in (1, 2):
        if input_at(node, position) is not None:
            other = reader.value(required_input(node, position), factors)
            result = result * other if position == 1 else result + other
    output = _output(scope, tree, reader, result, at, at)
    center: Center = "none" if name == "RMSNormalization" else "mean"
    kernel = scope.kernel(NORMALIZATION, Normalization(kept, reduced, x, (output,), epsilon, center))
    scope.add(kernel, {**reader.buffers, "y": scope.place(root_of(tree).outputs[0]).buffer}, (node, *tree.in_order))


def _source(scope: Scope, value: ir.Value, columns: Collection[int], last: int) -> View:
    """Where rows lie that pass along the axis `last`: row-major, if they lie along another axis that stays.

    A copy in squares and rows along the memory take a third of what rows across it do.
    """
    view = scope.place(value)
    if scope.tight or scope.steady or scope.target.is_gpu or not view.shape or view.strides[last] <= 1:
        return view
    across = [at for at, step in enumerate(view.strides) if step == 1 and view.shape[at] > 1]
    if not across or across[-1] in columns or min(view.shape[across[-1]], view.shape[last]) < LEAST_ACROSS:
        return view
    return dense(scope, value)


def _variables(shape: Sequence[int]) -> tuple[Variable, ...]:
    return tuple(Variable(f"d{place}", size) for place, size in enumerate(shape))


def _parted(variables: Sequence[Variable], columns: Collection[int]) -> tuple[tuple[Variable, ...], ...]:
    """The variables of rows and those of columns."""
    kept = tuple(variable for place, variable in enumerate(variables) if place not in columns)
    return kept, tuple(variable for place, variable in enumerate(variables) if place in columns)


def _reduction(scope: Scope, tree: Tree, node: ir.Node) -> None:
    axes = _axes(scope, node)
    stay = [at for at in range(len(scope.shape(required_input(node, 0)))) if at not in axes]
    source = _source(scope, required_input(node, 0), axes, stay[-1] if stay else -1)
    variables = tuple(Variable(f"d{place}", size) for place, size in enumerate(source.shape))
    kept = tuple(variable for place, variable in enumerate(variables) if place not in axes)
    columns = tuple(variables[place] for place in sorted(axes))
    keeps = int_attribute(node, "keepdims", 1)
    places = [Index(()) if at in axes else index(variable) for at, variable in enumerate(variables)]
    at = tuple(one for position, one in enumerate(places) if keeps or position not in axes)
    reader = Reader(scope, tree)
    x = reader.load(source, tuple(index(variable) for variable in variables))
    op = _REDUCTIONS[node.op_type]
    result: Expression = reduced(op, x.dtype)[()]
    if node.op_type == "ReduceLogSum":
        result = Unary("log", result)
    output = _output(scope, tree, reader, result, at, at)
    problem = Reduction(kept, columns, op, x, (output,), bool(int_attribute(node, "select_last_index", 0)))
    kernel = scope.kernel(REDUCTION, problem)
    scope.add(kernel, {**reader.buffers, "y": scope.place(root_of(tree).outputs[0]).buffer}, (node, *tree.in_order))


def _axes(scope: Scope, node: ir.Node) -> frozenset[int]:
    """The axes that are reduced: where a run gives them, those that the result's dims leave; raises NotLowered."""
    try:
        return scope.bound_axes(node)
    except NotLowered:
        shape, result = scope.shape(required_input(node, 0)), scope.shape(node.outputs[0])
        sizes, keeps = frozenset(shape), int_attribute(node, "keepdims", 1)
        if 0 in sizes or not (keeps or (len(sizes) == len(shape) and 1 not in sizes)):
            raise  # equal dims do not tell which of them are left
        left = result if keeps else tuple(size if size in result else 1 for size in shape)
        axes = frozenset(at for at, (size, one) in enumerate(zip(shape, left, strict=True)) if size != one)
        if node.op_type not in ("ReduceMax", "ReduceMin") and prod(shape[at] for at in axes) > LONG:
            raise  # loops sum so many in f64
        return axes


def _output(
    scope: Scope, tree: Tree, reader: Reader, result: Expression, at: tuple[Index, ...], places: Sequence[Index]
) -> Output:
    """What is stored of a row's result: the root's value, at its place."""
    assert tree.anchor is not None
    reader.accumulated[tree.anchor.outputs[0]] = result
    value = result if tree.root is tree.anchor else reader.node(root_of(tree), at)
    view = scope.result(root_of(tree).outputs[0], apart=True)
    return Output(view.operand("y"), value, tuple(places))
