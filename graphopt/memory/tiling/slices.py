"""Tiles begin before what only reads and writes: a piece is cut out of a normalization's operand, not of its result.

    n = BatchNormalization(x), Slice(n, 0, 14), Slice(n, 14, 28)
    -->   BatchNormalization(Slice(x, 0, 14)), BatchNormalization(Slice(x, 14, 28))

The result is then never there whole. Left alone: nodes that read several values, since all of them would have to wait
for the last piece, and pieces that overlap much, which would be computed twice.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.memory.tiling.apart import is_light
from graphopt.memory.tiling.locality import part
from graphopt.memory.tiling.names import names_of, new_name
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.movement import slice_bounds
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.parts import Part, Range

MOST_OVERLAP = 0.25  # of the positions of the whole: so many may be computed twice


def with_slices_before(model: ir.Model) -> ir.Model:
    """A copy of `model` whose tiles cut operands instead of results; the same model where there is none to cut."""
    copy, names = model.clone(), names_of(model)
    moved = [_cut_before(copy, node, names) for node in reversed(tuple(copy.graph))]
    return copy if any(moved) else model


def _cut_before(model: ir.Model, node: ir.Node, names: set[str]) -> bool:
    """Where tiles alone read the node's result, let it run for each piece; tells whether it does."""
    made = nodes.used_outputs(node)
    slices = [use.node for value in made for use in value.uses()]
    if len(made) != 1 or made[0].is_graph_output() or len(slices) < 2 or not is_light(node):
        return False
    if any(one.op_type != "Slice" or nodes.TILED not in one.metadata_props for one in slices):
        return False
    facts, graph = Facts(model), model.graph
    shape = facts.static_shape(made[0])
    ranges = [_range(facts, one) for one in slices]
    parts = [None if reach is None else part(facts, node, reach) for reach in ranges]
    position = _only_operand(facts, node)
    if shape is None or position is None:
        return False
    cuts: list[tuple[ir.Node, Range]] = []
    for one, reach, how in zip(slices, ranges, parts, strict=True):
        if reach is None or how is None or not _is_plain(how, reach, position):
            return False
        operand = how.inputs[position]
        assert operand is not None, "a plain part has a range of the operand"
        cuts.append((one, operand))
    whole = next(shape[reach.axis] for reach in ranges if reach is not None)
    if sum(high - low for _, (_, low, high) in cuts) > (1 + MOST_OVERLAP) * whole:
        return False
    for one, operand in cuts:
        source = node.inputs[position]
        assert source is not None, "it is the operand that counts"
        bounds = [_constant(model, number, names) for number in (operand.low, operand.high, operand.axis)]
        props = dict(one.metadata_props)
        cut = ir.Node("", "Slice", [source, *bounds], name=new_name(f"{one.name}_before", names), metadata_props=props)
        piece = list(facts.static_shape(source) or ())
        piece[operand.axis] = operand.high - operand.low
        cut.outputs[0].name, cut.outputs[0].type = new_name(f"{source.name}_piece", names), source.type
        cut.outputs[0].shape = ir.Shape(piece)
        inputs = [cut.outputs[0] if at == position else value for at, value in enumerate(node.inputs)]
        run = ir.Node(
            node.domain, node.op_type, inputs, list(node.attributes.values()), overload=node.overload,
            num_outputs=len(node.outputs), name=new_name(f"{node.name or node.op_type}_piece", names),
            metadata_props={**node.metadata_props, nodes.TILED: node.name or node.op_type},
        )  # fmt: skip
        for output in run.outputs:
            output.name = ""
        result, old = run.outputs[node.outputs.index(made[0])], one.outputs[0]
        result.type, result.shape = old.type, old.shape
        graph.insert_before(one, [cut, run])
        ir.convenience.replace_all_uses_with([old], [result], replace_graph_outputs=True)
        result.name, old.name = old.name, None
        graph.remove(one, safe=True)
    graph.remove(node, safe=True)
    return True


def _range(facts: Facts, node: ir.Node) -> Range | None:
    """The positions that a tile's Slice cuts out, as a view along one axis; None for others."""
    shape = facts.static_shape(node.outputs[0])
    try:
        bounds = slice_bounds(facts, node)
    except Unclear:
        return None
    if shape is None or nodes.COPIED in node.metadata_props or len(bounds.axes) != 1 or bounds.steps != (1,):
        return None
    axis, low = bounds.axes[0], bounds.starts[0]
    return Range(axis, low, low + shape[axis]) if axis >= 0 and low >= 0 else None


def _only_operand(facts: Facts, node: ir.Node) -> int | None:
    """Where the node has the one operand that is not constant; None where there are several, or it makes more of it."""
    found = [(at, one) for at, one in enumerate(node.inputs) if one is not None and not facts.is_constant(one)]
    if len(found) != 1:
        return None
    ((position, value),) = found
    return position if facts.static_shape(value) == facts.static_shape(nodes.used_outputs(node)[0]) else None


def _is_plain(how: Part, wanted: Range, position: int) -> bool:
    """Whether the node makes exactly the wanted range, of a range of that operand and all of the others."""
    others = [reach for at, reach in enumerate(how.inputs) if at != position]
    return (
        how.made == wanted[1:] and not how.attributes and not how.constants and how.inputs[position] is not None
        and not any(others)
    )  # fmt: skip


def _constant(model: ir.Model, number: int, names: set[str]) -> ir.Value:
    name = new_name(f"piece_{number}", names)
    held = ir.Tensor(np.array([number], np.int64), name=name)
    value = ir.Value(name=name, shape=held.shape, type=ir.TensorType(held.dtype), const_value=held)
    model.graph.register_initializer(value)
    return value
