"""A model in which parts of a product are products of their own, so that tiles may begin behind some and before others.

    Split(MatMul(x, [W1 W2 W3]), axis -1)                      -->   MatMul(x, W1), MatMul(x, W2), MatMul(x, W3)
    Slice(Transpose(Reshape(MatMul(x, W)))), of columns alone  -->   Transpose(Reshape(MatMul(x, W'))) for each Slice

So keys and values are there without the queries, or heads of all three are computed in one tile. A part may be any
positions of a dim that the columns were reshaped to: its weights are those of its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.memory.tiling.names import names_of, new_name
from graphopt.model import constants, nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.movement import permutation
from graphopt.model.operators.parameters import SLICE, Unclear, parameter


def with_products_apart(model: ir.Model, *, moved: bool = False) -> ir.Model:
    """A copy of `model` with a product for each part that a Split makes of one; the same model where there is none.

    With `moved` also of those that are moved first, and for Slices.
    """
    copy, names = model.clone(), names_of(model)
    products = [node for node in copy.graph if node.op_type == "MatMul" and not node.domain]
    divided = [_divide(copy, node, names, moved) for node in products]
    return copy if any(divided) else model


@dataclass(frozen=True, slots=True)
class _Whole:
    """What a product is as its parts are taken: moved by a Reshape of its columns, a Transpose, both or none."""

    movers: tuple[ir.Node, ...]
    columns: tuple[int, ...]  # the dims that the columns were reshaped to
    parts: Mapping[ir.Value, tuple[int, int]]  # what is taken: the first position and behind the last one
    dim: int  # of `columns`, along which


def _divide(model: ir.Model, product: ir.Node, names: set[str], moved: bool) -> bool:
    """Make a product for each part of one with constant weights that nothing reads whole."""
    facts, (x, w) = Facts(model), product.inputs[:2]
    tensor = None if w is None else constants.of_initializer(w)
    if x is None or tensor is None or len(tensor.shape) != 2:
        return False
    whole = _taken_apart(facts, product)
    if whole is None or not (moved or _is_split(whole)):
        return False
    matrix = tensor.numpy()
    depth = matrix.shape[0]
    array = matrix.reshape(depth, *whole.columns)
    takers = [node for node in dict.fromkeys(one.producer() for one in whole.parts) if node is not None]
    for output, (low, high) in whole.parts.items():
        name = new_name(f"{output.name}_weights", names)
        part = array[(slice(None),) * (1 + whole.dim) + (slice(low, high),)].reshape(depth, -1)
        held = ir.Tensor(np.ascontiguousarray(part), dtype=tensor.dtype, name=name)
        weights = ir.Value(name=name, shape=held.shape, type=ir.TensorType(held.dtype), const_value=held)
        model.graph.register_initializer(weights)
        made = [
            ir.Node(
                "", "MatMul", [x, weights], name=new_name(f"{product.name or output.name}_part", names),
                metadata_props=dict(product.metadata_props),
            )
        ]  # fmt: skip
        for mover in whole.movers:
            operands = [made[-1].outputs[0]]
            if mover.op_type == "Reshape":
                shape = list(facts.static_shape(mover.outputs[0]) or ())
                shape[len(shape) - len(whole.columns) + whole.dim] = high - low
                operands.append(_shape(model, shape, names))
            copied = () if mover.op_type == "Reshape" else mover.attributes.values()
            name = new_name(f"{mover.name or output.name}_part", names)
            props = dict(mover.metadata_props)
            made.append(ir.Node("", mover.op_type, operands, list(copied), name=name, metadata_props=props))
        for one in made:
            one.outputs[0].name = new_name(f"{output.name}_apart", names)
            one.outputs[0].type = output.type
        model.graph.insert_before(takers[0], made)
        result = made[-1].outputs[0]
        result.shape = output.shape
        ir.convenience.replace_all_uses_with([output], [result], replace_graph_outputs=True)
        result.name, output.name = output.name, None
    model.graph.remove([*takers, *reversed(whole.movers), product], safe=True)
    return True


def _is_split(whole: _Whole) -> bool:
    """Whether one Split of the product itself takes all parts."""
    takers = {one.producer() for one in whole.parts}
    return not whole.movers and len(takers) == 1 and all(one is not None and one.op_type == "Split" for one in takers)


def _shape(model: ir.Model, dims: list[int], names: set[str]) -> ir.Value:
    name = new_name("part_shape", names)
    held = ir.Tensor(np.array(dims, np.int64), name=name)
    value = ir.Value(name=name, shape=held.shape, type=ir.TensorType(held.dtype), const_value=held)
    model.graph.register_initializer(value)
    return value


def _taken_apart(facts: Facts, product: ir.Node) -> _Whole | None:
    """How parts of a product's columns are taken, two at least; None where something else reads it."""
    value = product.outputs[0]
    shape = facts.static_shape(value)
    if not shape:
        return None
    columns: tuple[int, ...] = shape[-1:]
    order = tuple(range(len(shape)))  # of each axis, which one it was before a Transpose
    movers: list[ir.Node] = []
    while len(users := [use.node for use in value.uses()]) == 1 and not value.is_graph_output():
        (user,) = users
        result = facts.static_shape(user.outputs[0])
        if user.domain or result is None:
            return None
        if user.op_type == "Reshape" and not movers and result[: len(shape) - 1] == shape[:-1]:
            columns = tuple(result[len(shape) - 1 :])
            order = tuple(range(len(result)))
            if prod(columns) != shape[-1]:
                return None
        elif user.op_type == "Transpose" and (not movers or movers[-1].op_type == "Reshape"):
            order = permutation(user, len(order))
        else:
            break
        movers.append(user)
        value = user.outputs[0]
    if value.is_graph_output() or not users:
        return None
    taken: dict[ir.Value, tuple[int, int, int]] = {}  # axis, low, high
    for user in users:
        taken |= parts_taken(facts, user, value)
        if any(one not in taken for one in nodes.used_outputs(user)):
            return None
    axes, widths = {axis for axis, _, _ in taken.values()}, [high - low for _, low, high in taken.values()]
    if len(axes) != 1 or len(taken) < 2:
        return None
    dim = order[axes.pop()] - (len(order) - len(columns))
    if dim < 0 or sum(widths) > columns[dim]:
        return None
    return _Whole(tuple(movers), columns, {one: (low, high) for one, (_, low, high) in taken.items()}, dim)


def parts_taken(facts: Facts, node: ir.Node, of: ir.Value) -> dict[ir.Value, tuple[int, int, int]]:
    """The axis and the positions that each used result of a Split or Slice has of its operand; none for others."""
    shape = facts.static_shape(of)
    if shape is None or node.domain or node.inputs[0] is not of:
        return {}
    if node.op_type == "Split":
        axis, first, found = nodes.int_attribute(node, "axis", 0) % len(shape), 0, {}
        for output in node.outputs:
            part = facts.static_shape(output)
            if part is None:
                return {}
            found[output] = axis, first, first + part[axis]
            first += part[axis]
        return {one: found[one] for one in nodes.used_outputs(node)}
    result = facts.static_shape(node.outputs[0])
    if node.op_type != "Slice" or result is None:
        return {}
    try:
        given = {name: parameter(facts, node, name, SLICE[name]) for name in ("starts", "axes", "steps")}
    except Unclear:
        return {}
    starts, steps = given["starts"] or (), given["steps"] or ()
    if len(starts) != 1 or any(step != 1 for step in steps):
        return {}
    axis = (given["axes"] or (0,))[0] % len(shape)
    low = max(0, starts[0] + shape[axis] if starts[0] < 0 else starts[0])
    return {node.outputs[0]: (axis, low, low + result[axis])}
