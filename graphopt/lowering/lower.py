"""A graph to regions: trees of nodes become kernels, movement becomes views, in the order of the graph."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.lowering.elementwise import NotLowered
from graphopt.lowering.fusion import Tree, is_anchor, is_elementwise, trees
from graphopt.lowering.movement import is_movement, moved
from graphopt.lowering.products import lower_product
from graphopt.lowering.reader import Reader
from graphopt.lowering.region import Lowered
from graphopt.lowering.rows import lower_rows
from graphopt.lowering.scope import Scope
from graphopt.lowering.view import View
from kernels.listing import Argument
from kernels.target import Target
from kernels.templates import elementwise
from kernels.templates.elementwise import Elementwise, Output
from kernels.tensor.expression import Expression, Variable, index


def lower(model: ir.Model, target: Target) -> Lowered:
    """The main graph as regions, all dims being numbers. Raises NotLowered naming the node that has no kernel."""
    scope, graph = Scope(model, target), model.graph
    inputs = []
    for value in graph.inputs:
        if scope.constant(value) is not None:
            continue  # an old initializer that is listed as an input
        argument = Argument(value.name or "", scope.dtype(value), scope.shape(value))
        inputs.append(argument)
        scope.places[value] = View.dense(f"input:{value.name}", argument.dtype, argument.shape)
    computed = [node for node in graph if not _is_constant(scope, node)]
    by_root: dict[ir.Node, list[Tree]] = {}
    for tree in trees(computed, scope.shape):
        by_root.setdefault(tree.root, []).append(tree)
    for node in computed:
        if node in by_root:
            for tree in by_root[node]:
                _lower_tree(scope, tree)
        elif not (is_elementwise(node) or is_anchor(node)):
            _lower_movement(scope, node)
    outputs = []
    for value in graph.outputs:
        shape, dtype = scope.shape(value), scope.dtype(value)
        outputs.append(Argument(value.name or "", dtype, shape))
        here = scope.place(value)
        if here != View.dense(f"output:{value.name}", dtype, shape):
            _copy(scope, here, View.dense(f"output:{value.name}", dtype, shape), ())
    return Lowered(tuple(inputs), tuple(outputs), tuple(scope.regions), scope.temporaries, scope.constants)


def _is_constant(scope: Scope, node: ir.Node) -> bool:
    return all(scope.constant(output) is not None for output in node.outputs)


def _lower_tree(scope: Scope, tree: Tree) -> None:
    if tree.anchor is None:
        _lower_elementwise(scope, tree)
    elif tree.anchor.op_type in ("MatMul", "Gemm"):
        lower_product(scope, tree)
    else:
        lower_rows(scope, tree)


def _lower_elementwise(scope: Scope, tree: Tree) -> None:
    root = tree.root.outputs[0]
    axes = tuple(Variable(f"d{number}", size) for number, size in enumerate(scope.shape(root)))
    reader = Reader(tree, scope.place, scope.constant, {})
    value = reader.node(tree.root, tuple(index(axis) for axis in axes))
    _store(scope, axes, value, reader, scope.result(root), (*tree.nodes,))


def _lower_movement(scope: Scope, node: ir.Node) -> None:
    if not is_movement(node):
        raise NotLowered(f"{node.op_type} '{node.name or node.outputs[0].name}' has no kernel yet.")
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None, "a movement has something to move"
    view = moved(node, scope.place(source), scope.shape(output), scope.facts.ints)
    if view is not None:
        scope.places[output] = view
        return
    # The elements must be put in order first; then any reshape is a view.
    before = scope.place(source)
    dense = View.dense(f"value:{output.name}", before.dtype, before.shape)
    scope.temporaries[dense.buffer] = scope.dtype(output).bytes * _count(before.shape)
    _copy(scope, before, dense, (node,))
    again = moved(node, dense, scope.shape(output), scope.facts.ints)
    if again is None:
        raise NotLowered(f"{node.op_type} '{node.name or output.name}' has no kernel yet.")
    scope.places[output] = again


def _copy(scope: Scope, source: View, aim: View, nodes: tuple[ir.Node, ...]) -> None:
    axes = tuple(Variable(f"d{number}", size) for number, size in enumerate(source.shape))
    reader = Reader(Tree(None, frozenset(), None), scope.place, scope.constant, {})  # type: ignore[arg-type]
    value = reader.load(source, tuple(index(axis) for axis in axes))
    _store(scope, axes, value, reader, aim, nodes)


def _store(
    scope: Scope, axes: tuple[Variable, ...], value: Expression, reader: Reader, aim: View, nodes: tuple[ir.Node, ...]
) -> None:
    problem = Elementwise(axes, (Output(aim.operand("y"), value),))
    choice = elementwise.candidates(problem, scope.target)[0]
    kernel = elementwise.build(problem, choice, scope.target, scope.name("elementwise"))
    scope.add(kernel, {**reader.buffers, "y": aim.buffer}, nodes)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
