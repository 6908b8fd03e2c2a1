"""MatMul and Gemm as matrix products of views, with the elementwise nodes behind them as epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import float_attribute, input_at, int_attribute, required_input
from graphopt.model.operators.table import RESHAPES
from graphopt.program.regions.copies import store
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.movement import sliced_axes
from graphopt.program.regions.reader import Reader
from graphopt.program.regions.rounding import product_template
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View, axes_of
from graphopt.program.regions.weights import weights_of
from kernels.dtype import DType
from kernels.templates.elementwise import Output as ReducedOutput
from kernels.templates.epilogue import ACCUMULATED, ACCUMULATED_DOUBLE, Epilogue
from kernels.templates.gemm import Gemm
from kernels.templates.matrix import Matrix
from kernels.templates.reduction import REDUCTION, Reduction, reduced
from kernels.tensor.expression import Cast, Expression, Index, Variable, index


@dataclass(frozen=True, slots=True)
class _Product:
    """A product as ONNX has it: two views [..., rows, depth] and [..., depth, columns], and what is added."""

    a: View
    b: View
    shape: tuple[int, ...]  # of the result, with its rows and columns
    kind: DType  # of the result
    scale: float
    added: ir.Value | None
    added_scale: float
    hidden: tuple[bool, bool] = (False, False)  # whether rows and columns are no dims of the result, as of a vector

    def shown(self, at: tuple[Index, ...]) -> tuple[Index, ...]:
        """The indices of the result's dims, of those of the batch, rows and columns."""
        return (*at[:-2], *(one for one, hidden in zip(at[-2:], self.hidden, strict=True) if not hidden))

    def sums(self, reader: Reader, sums: Expression, at: tuple[Index, ...]) -> Expression:
        """The product's element, given the sums."""
        if self.scale != 1.0:
            sums = sums * self.scale
        if self.added is not None and self.added_scale != 0.0:
            added = reader.value(self.added, at)
            added = added if added.dtype is sums.dtype else Cast(sums.dtype, added)
            sums = sums + (added if self.added_scale == 1.0 else added * self.added_scale)
        return sums if sums.dtype is self.kind else Cast(self.kind, sums)


class Apart(Exception):
    """A view whose leading dims are not one run, so that rows of all matrices cannot be counted through."""


def lower_product(scope: Scope, tree: Tree) -> None:
    """The region of a product and its epilogue."""
    node = tree.anchor
    assert node is not None, "the tree of a product has one"
    kind = scope.dtype(node.outputs[0])
    found = _read(scope, node, partial(_outline, scope))
    shape = found.shape
    is_scaled = found.scale != 1.0 or (found.added is not None and found.added_scale != 1.0)
    constant = node.inputs[1] if scope.facts.is_constant(required_input(node, 1)) else None
    if constant is None or shape[-1] == 1:
        found = _read(scope, node, scope.place)
    elif scope.facts.is_constant(required_input(node, 0)):
        found = replace(found, a=_read(scope, node, scope.place).a)
    if shape[-1] == 1 and (kind.is_float or not is_scaled):
        _sum(scope, tree, found, scope.result(root_of(tree).outputs[0], apart=True))
        return
    if kind in (DType.F16, DType.BF16):
        found = _read(scope, node, partial(widened, scope))
    elif kind not in (DType.F32, DType.F64):
        raise NotLowered(f"{node.op_type} '{node.name}' is of {kind.value}, which its template does not compute.")
    output = scope.result(root_of(tree).outputs[0], apart=True)
    by_chance = scope.steady and prod(found.a.shape[:-2]) > 1 and _is_cut(scope, required_input(node, 0))
    if len(found.b.shape) == 2 and len(shape) > 2 and not by_chance:
        try:
            _build(scope, tree, found, output, (prod(shape[:-1]), shape[-1]), constant)
            return
        except Apart:
            pass
    _build(scope, tree, found, output, shape, constant)


def _is_cut(scope: Scope, value: ir.Value) -> bool:
    """Whether rows are parts of others, so that those of two matrices follow one another at some sizes alone."""
    producer = value.producer()
    while producer is not None and producer.op_type in (*RESHAPES, "Concat"):
        producer = required_input(producer, 0).producer()
    if producer is None or producer.op_type != "Slice":
        return False
    dims = scope.shape(required_input(producer, 0))
    return any(0 < axis < len(dims) - 1 for axis, _, _ in sliced_axes(producer, dims, scope.facts))


def _read(scope: Scope, node: ir.Node, place: Callable[[ir.Value], View]) -> _Product:
    kind = scope.dtype(node.outputs[0])
    a, b = (place(value) for value in node.inputs[:2] if value is not None)
    if node.op_type == "MatMul":
        is_row, is_column = len(a.shape) == 1, len(b.shape) == 1
        a = replace(a, shape=(1, *a.shape), strides=(0, *a.strides)) if is_row else a
        b = replace(b, shape=(*b.shape, 1), strides=(*b.strides, 0)) if is_column else b
        try:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            shapes = f"{list(a.shape)} and {list(b.shape)}"
            raise NotLowered(f"MatMul '{node.name}' multiplies {shapes}, which do not fit one another.") from None
        return _Product(a, b, (*batch, a.shape[-2], b.shape[-1]), kind, 1.0, None, 0.0, (is_row, is_column))
    a = a.transposed((1, 0)) if int_attribute(node, "transA", 0) else a
    b = b.transposed((1, 0)) if int_attribute(node, "transB", 0) else b
    scales = float_attribute(node, "alpha", 1.0), float_attribute(node, "beta", 1.0)
    return _Product(a, b, (a.shape[0], b.shape[1]), kind, scales[0], input_at(node, 2), scales[1])


def _outline(scope: Scope, value: ir.Value) -> View:
    """Where a value lies, and of a constant no more than its dims: one that is packed lies nowhere else."""
    if value in scope.places or not scope.facts.is_constant(value):
        return scope.place(value)
    shape, dtype = scope.shape(value), scope.dtype(value)
    return View.dense(scope.buffer("constant", "constant", value.name, dtype.bytes * prod(shape)), dtype, shape)


def widened(scope: Scope, value: ir.Value) -> View:
    """A value of 16-bit floats in f32, in which products are computed."""
    array = scope.constant(value)
    if array is not None:
        return scope.keep("wide", value.name, np.asarray(array, np.float32), DType.F32)
    source = scope.place(value)
    aim = View.dense(scope.temporary("wide", value.name, 4 * prod(source.shape)), DType.F32, source.shape)
    axes, reader = axes_of(source.shape), Reader(scope)
    wide = Cast(DType.F32, reader.load(source, tuple(index(axis) for axis in axes)))
    store(scope, axes, wide, reader, aim, ())
    return aim


def _sum(scope: Scope, tree: Tree, found: _Product, output: View) -> None:
    """A product with one column: each row's sum of products, which runs along both operands."""
    node = tree.anchor
    assert node is not None
    *batch, rows, _ = found.shape
    outer = tuple(Variable(f"d{number}", size) for number, size in enumerate((*batch, rows)))
    inner = Variable("depth", found.a.shape[-1])
    lead = tuple(index(one) for one in outer[:-1])
    at = found.shown((*lead, index(outer[-1]), Index(())))
    reader = Reader(scope, tree)
    x = reader.load(found.a, (*lead, index(outer[-1]), index(inner)))
    x = x * reader.load(found.b, (*lead, index(inner), Index(())))
    value = _root_value(reader, tree, found.sums(reader, reduced("sum", found.kind)[()], at), at)
    lying = output if at else replace(output, shape=(1,), strides=(1,))  # an output has one index at least
    problem = Reduction(outer, (inner,), "sum", x, (ReducedOutput(lying.operand("y"), value, at or (Index(()),)),))
    scope.add(scope.kernel(REDUCTION, problem), {**reader.buffers, "y": output.buffer}, (node, *tree.in_order))


def _build(
    scope: Scope, tree: Tree, found: _Product, output: View, shape: tuple[int, ...], constant: ir.Value | None
) -> None:
    """`shape` is the result's, or that of all its rows counted through; raises Apart when they cannot be."""
    node = tree.anchor
    assert node is not None
    flat = len(shape) < len(found.shape)
    arrange = flattener(shape) if flat else _same
    a, b = arrange(found.a) if flat else found.a, found.b
    *batch, rows, columns = shape
    depth = a.shape[-1]
    is_double = found.kind is DType.F64
    weights = None if constant is None else weights_of(scope.facts, constant)
    plain = Gemm(rows, columns, depth, tuple(batch))
    at = found.shown(tuple(index(one) for one in (*plain.batch_variables, plain.row, plain.column)))
    reader = Reader(scope, tree, arrange)
    sums = (ACCUMULATED_DOUBLE if is_double else ACCUMULATED)[()]
    value = _root_value(reader, tree, found.sums(reader, sums, at), at)
    lying = replace(output, shape=shape, strides=(*output.strides[:-1], 0, 1)) if found.hidden[0] else output
    problem = Gemm(
        rows, columns, depth, tuple(batch), matrix_of(a, batch), matrix_of(b, batch), matrix_of(arrange(lying), batch),
        constant is not None, Epilogue(value), "f64" if is_double else "f32",
        DType.F32 if weights is None or is_double else weights[1],
    )  # fmt: skip
    template, problem = product_template(scope, node, problem)
    kernel = scope.kernel(template, problem)
    buffers = {**reader.buffers, "a": a.buffer, "b": b.buffer, "c": output.buffer}
    if weights is not None:
        buffers["b"] = scope.weight("packed", node.outputs[0].name, weights[0], kernel.operand("b"))
    scope.add(kernel, buffers, (node, *tree.in_order))


def _root_value(reader: Reader, tree: Tree, sums: Expression, at: tuple[Index, ...]) -> Expression:
    """The root's element, given the product's."""
    assert tree.anchor is not None
    reader.accumulated[tree.anchor.outputs[0]] = sums
    return sums if tree.root is tree.anchor else reader.node(root_of(tree), at)


def matrix_of(view: View, batch: Sequence[int]) -> Matrix:
    """Where the matrices of a view [..., rows, columns] lie, for all indices of the batch."""
    lead = len(view.shape) - 2
    strides = (0,) * (len(batch) - lead) + tuple(
        0 if size == 1 else stride for size, stride in zip(view.shape[:-2], view.strides[:-2], strict=True)
    )
    return Matrix(view.strides[-2], view.strides[-1], strides, view.offset)


def _same(view: View) -> View:
    return view


def flattener(shape: tuple[int, ...]) -> Callable[[View], View]:
    """Leading dims counted through as one dim of rows."""

    def flat(view: View) -> View:
        if len(view.shape) < 2 or prod(view.shape[:-1]) == 1:
            return view if len(view.shape) < 2 else _required(view.reshaped((1, view.shape[-1])))
        return _required(view.reshaped((shape[0], view.shape[-1])))

    return flat


def _required(view: View | None) -> View:
    if view is None:
        raise Apart
    return view
